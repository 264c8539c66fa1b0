"""The configurations of loads by key and of a history's check, and the counts in the reports of all loads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, TypeAdapter

from airflow_merge_provider.core.errors import ConfigError, Problem, suggest_name
from airflow_merge_provider.core.merge_load.load import (
    ABSENT_ROWS,
    Column,
    Columns,
    Condition,
    KeyColumns,
    LoadConfig,
    both_sorts,
    dataset_ref,
    is_timeless,
    reference_problems,
)
from airflow_merge_provider.core.merge_load.scd2 import Scd2Config
from airflow_merge_provider.core.model import INPUT, Config, require_plain
from airflow_merge_provider.core.report import Measure
from airflow_merge_provider.core.source_offset import RunState


class DeleteInsertConfig(LoadConfig):
    """A validated delete-insert load. Source: docs/semantics/merge_load.md, Delete-insert."""

    strategy: Literal["delete-insert"] = "delete-insert"
    primary_key: KeyColumns = Field(None, description="The columns that identify a record.")
    merge_key: Columns = Field(
        None,
        description="The columns that identify a group of rows; groups that are in the load are replaced "
        "completely.",
    )
    deduplicated: bool = Field(
        default=False,
        description="Whether the load has no duplicate keys: rows are not deduplicated, and duplicates are "
        "kept.",
    )
    destination_scope: Condition = Field(
        None, description="A SQL condition on the target: exactly the rows that match it are replaced."
    )
    on_no_keys: Literal["append", "error"] = Field(
        "append", description="Effect of a load without keys and scope: append its rows, or error."
    )

    @property
    def identity_columns(self) -> tuple[str, ...]:
        """The columns of the target that identify a row; empty if no columns do."""
        return self.primary_key or ()

    @property
    def absence_deletes(self) -> bool:
        return self.destination_scope is not None

    @property
    def is_idempotent(self) -> bool:
        return not self.is_append and is_timeless(self, self.destination_scope)

    @property
    def is_append(self) -> bool:
        """Whether the load only appends, as it has no key by which stored rows could be replaced."""
        return not (self.primary_key or self.merge_key or self.destination_scope)

    @classmethod
    def explain_absence(cls, fields: Mapping[str, Any]) -> str | None:
        is_scoped = any(fields.get(name) is not None for name in ("merge_key", "destination_scope"))
        return ABSENT_ROWS if is_scoped else None

    def list_warnings(self) -> list[str]:
        warnings = []
        if self.is_append:
            warnings.append("the load is appended: primary_key, merge_key and destination_scope are not set")
        if self.merge_key is not None and self.destination_scope is not None:
            warnings.append("merge_key: has no effect with destination_scope")
        if self.dedup_sort is not None and self.primary_key is None:
            warnings.append("dedup_sort: has no effect without primary_key")
        if self.dedup_sort is not None and self.deduplicated:
            warnings.append("dedup_sort: has no effect with deduplicated=True")
        if self.deduplicated and self.primary_key is None:
            warnings.append("deduplicated: has no effect without primary_key")
        return warnings

    @classmethod
    def check_rules(cls, fields: Mapping[str, Any]) -> Iterator[Problem]:
        yield from super().check_rules(fields)
        names = ("primary_key", "merge_key", "destination_scope")
        has_keys = any(fields.get(name, "wrong") for name in names)
        if fields.get("on_no_keys") == "error" and not has_keys:
            hint = "set one of them, or use on_no_keys='append'"
            yield Problem(
                "primary_key",
                "missing",
                "is required with on_no_keys 'error', unless merge_key or destination_scope is set",
                hint,
            )


class UpsertConfig(LoadConfig):
    """A validated upsert, insert-only or cdc load.

    Source: docs/semantics/merge_load.md, Upsert, insert-only and cdc.
    """

    strategy: Literal["upsert"] = "upsert"
    primary_key: KeyColumns = Field(None, description="The columns that identify a record; required.")
    variant: Literal["upsert", "insert-only", "cdc"] = Field(
        "upsert",
        description="upsert: update and insert rows; insert-only: never change stored rows; cdc: also delete "
        "stored rows that are not in the load.",
    )
    skip_unchanged_rows: bool = Field(
        default=True, description="Whether stored rows with equal values are not rewritten."
    )
    row_version_column_name: Column = Field(
        None, description="The column that alone determines whether a row has changed."
    )
    merge_key: Columns = Field(
        None, description="cdc: absent rows are deleted only in groups that are in the load."
    )
    destination_scope: Condition = Field(
        None, description="cdc: a SQL condition on the target; only absent rows that match it are deleted."
    )
    sequence_by: Columns = Field(
        None,
        description="The columns that order the versions of a record: of several rows the highest is used, "
        "and a row that is lower than the stored row has no effect.",
    )

    @property
    def identity_columns(self) -> tuple[str, ...]:
        """The columns of the target that identify a row; empty if no columns do."""
        return self.primary_key or ()

    @property
    def absence_deletes(self) -> bool:
        return self.variant == "cdc" and (self.merge_key is None or self.destination_scope is not None)

    @property
    def is_idempotent(self) -> bool:
        return self.skip_unchanged_rows and is_timeless(self, self.destination_scope)

    @classmethod
    def explain_absence(cls, fields: Mapping[str, Any]) -> str | None:
        return ABSENT_ROWS if fields.get("variant") == "cdc" else None

    def list_warnings(self) -> list[str]:
        warnings = []
        if self.merge_key is not None and self.variant != "cdc":
            warnings.append(f"merge_key: has no effect with variant {self.variant!r}")
        if self.merge_key is not None and self.destination_scope is not None:
            warnings.append("merge_key: has no effect with destination_scope")
        if self.row_version_column_name is not None and not self.skip_unchanged_rows:
            warnings.append("row_version_column_name: has no effect with skip_unchanged_rows=False")
        return warnings

    @classmethod
    def check_rules(cls, fields: Mapping[str, Any]) -> Iterator[Problem]:
        yield from super().check_rules(fields)
        if "primary_key" in fields and fields["primary_key"] is None:
            yield Problem("primary_key", "missing", "is required", "name the columns that identify a record")
        yield from both_sorts(fields)
        variant = fields.get("variant")
        if variant in {"upsert", "insert-only"} and fields.get("destination_scope") is not None:
            hint = "use variant='cdc' to delete rows that are absent from the load"
            yield Problem("destination_scope", "variant", f"is not supported with variant {variant!r}", hint)
        if variant == "insert-only" and fields.get("source_filter") is not None:
            hint = "filter the rows upstream"
            yield Problem("source_filter", "variant", "is not supported with variant 'insert-only'", hint)


# The invariants of a history, by the names under which a report counts their violations.
INVARIANTS = {
    "empty": "versions whose end is not after their start",
    "overlapping": "versions that start before the previous version of their key ends",
    "valid_twice": "keys with more than one valid version",
    "wrongly_current": "versions whose current flag does not match their validity",
    "repeated": "versions with the same values as the version that ends at their start",
    "surrogates_twice": "surrogate keys of more than one version",
    "not_valid": "keys of the source without a valid version",
    "not_loaded": "keys with a valid version that are not in the source",
}

CHECK_COUNTS = (
    Measure("versions", "versions", "Versions in the history."),
    Measure("keys", "keys", "Keys in the history."),
    Measure("empty", "versions", "Versions whose end is not after their start."),
    Measure("overlapping", "versions", "Versions that start before the previous version of their key ends."),
    Measure("valid_twice", "keys", "Keys with more than one valid version."),
    Measure("wrongly_current", "versions", "Versions whose current flag does not match their validity."),
    Measure("repeated", "versions", "Versions with the same values as the version that ends at their start."),
    Measure("surrogates_twice", "keys", "Surrogate keys of more than one version."),
    Measure("not_valid", "keys", "Keys of the source without a valid version."),
    Measure("not_loaded", "keys", "Keys with a valid version that are not in the source."),
)


class Scd2CheckConfig(Config):
    """A validated SCD2 check. Source: docs/semantics/merge_load.md, History invariants."""

    internal_fields: ClassVar[frozenset[str]] = frozenset({"strategy"})

    strategy: Literal["scd2-check"] = "scd2-check"
    target: Annotated[str, Field(min_length=1), INPUT] = Field(description="The SCD2 history to check.")
    source: Annotated[str | dict[str, Any] | None, BeforeValidator(dataset_ref), INPUT] = Field(
        None, description="The newest snapshot: its keys must be the keys of the valid versions."
    )
    source_filter: Condition = Field(
        None, description="A SQL condition: only source rows that match it were loaded."
    )

    @classmethod
    def check_rules(cls, fields: Mapping[str, Any]) -> Iterator[Problem]:
        for path in ("source", "target"):
            if fields.get(path) is not None:
                yield from reference_problems(fields[path], path)
        if fields.get("source_filter") is not None and fields.get("source", "wrong") is None:
            yield Problem(
                "source_filter", "source", "has no effect without source", "set source, or remove it"
            )


COUNTS = (
    Measure("loaded", "rows", "Source rows that were loaded."),
    Measure("duplicates", "rows", "Source rows that were dropped as duplicates of another row."),
    Measure("opened", "versions", "Versions that were opened (SCD2)."),
    Measure("closed", "versions", "Versions that were closed (SCD2)."),
    Measure("reopened", "versions", "Closed versions that became valid again (SCD2)."),
    Measure("changed", "versions", "Versions whose end or values were updated in place (SCD2)."),
    Measure("removed", "versions", "Versions that a late or repeated load or a purge deleted (SCD2)."),
    Measure("elements_inserted", "rows", "Rows inserted into the tables of nested lists."),
    Measure("elements_deleted", "rows", "Rows deleted from the tables of nested lists."),
    Measure("tables", "tables", "Tables that the rows were dispatched to; 1 without `dispatch_by`."),
    Measure("tables_changed", "tables", "Tables that the run changed."),
)
_Strategy = type[DeleteInsertConfig] | type[UpsertConfig] | type[Scd2Config] | type[Scd2CheckConfig]
STRATEGIES: dict[str, _Strategy] = {
    "delete-insert": DeleteInsertConfig,
    "upsert": UpsertConfig,
    "scd2": Scd2Config,
    "scd2-check": Scd2CheckConfig,
}
AnyLoad = DeleteInsertConfig | UpsertConfig | Scd2Config
AnyConfig = AnyLoad | Scd2CheckConfig


class MergeLoadConfig(LoadConfig):
    """A merge load of any strategy: ``parse`` returns the configuration of the strategy that is set."""

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        return load_config(raw)  # type: ignore[return-value]  # what the strategy asks for

    @classmethod
    def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return TypeAdapter(AnyConfig).json_schema(*args, **kwargs)


def load_config(raw: Mapping[str, Any]) -> AnyConfig:
    """Validate a load or an SCD2 check; the default strategy is delete-insert.

    :raises ConfigError: with every problem.
    """
    require_plain(raw)
    strategy = raw.get("strategy", "delete-insert")
    if not isinstance(strategy, str) or strategy not in STRATEGIES:
        hint = suggest_name(str(strategy), STRATEGIES, "strategies")
        raise ConfigError.from_problems(
            [Problem("strategy", "unknown", f"unknown strategy {strategy!r}", hint)]
        )
    return STRATEGIES[strategy].parse(raw)


def find_recorded_key(state: RunState) -> tuple[str, ...] | None:
    """Return the key that the state of a run records, empty if rows have none; None if it records none."""
    config = state.get("config")
    if config is None:
        return None
    return tuple(config.get("primary_key") or config.get("merge_key") or ())


def describe_load(config: LoadConfig, boundary: datetime) -> dict[str, Any]:
    """Return the settings that explain the rows of a run; its commit records them under ``config``.

    :param boundary: the time from which rows without a time of their own are valid.
    """
    settings = config.model_dump(mode="json", exclude={"source", "target"}, exclude_defaults=True)
    if isinstance(config, Scd2Config) and config.time_given is None:
        settings["boundary_timestamp"] = boundary.isoformat()
    return {"strategy": getattr(config, "strategy", None), **settings}


def compute_signature(config: AnyLoad) -> str:
    """Return a text that differs if a run of the same source may have another result."""
    # Operators set the boundary to the time of each run; the same rows at another time change no version.
    choices = config.dump_choices("target", "boundary_timestamp", "adopt")
    content = {**choices, "strategy": config.strategy}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
