"""The configuration of an SCD2 load: versions of rows, or the history of natural keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from airflow_merge_provider.core.errors import Problem
from airflow_merge_provider.core.merge_load.load import (
    ABSENT_ROWS,
    ROW_ID,
    Column,
    Columns,
    Condition,
    KeyColumns,
    LoadConfig,
    both_sorts,
    check_condition,
    is_timeless,
)
from airflow_merge_provider.core.merge_load.timestamps import CutDigitsError, parse_timestamp
from airflow_merge_provider.core.model import RESULT_COLUMN, SOURCE_COLUMN

HASH_COLUMN = "_row_hash"
DELETED_COLUMN = "is_deleted"
# The value that replaces a row's hash in a version that states that the row is deleted.
DELETED_HASH = "deleted"

# Arguments that require a natural key, which identifies the rows that are states of one object.
_KEYED_FIELDS = (
    "mode", "scope", "effective_from", "track", "track_except", "overwrite", "sequence_by", "on_delete",
    "current_column", "deleted_column", "surrogate_key_column", "on_late", "max_close_ratio",
)  # fmt: skip
_WITHOUT_KEYS = {
    "merge_key": "use mode='changes' to keep absent keys, or scope to delete them in some groups only",
    "destination_scope": "use scope",
}


def _read_timestamp(value: Any) -> datetime | None:
    return None if value is None else parse_timestamp(value)


def time_or_column(value: Any) -> datetime | str | None:
    """Parse a text as a time; return it as a column name if it is not a time."""
    if value is None:
        return None
    try:
        return parse_timestamp(value)
    except CutDigitsError:
        raise
    except ValueError:
        if isinstance(value, str) and value.strip():
            return value
        raise ValueError("must be a timestamp, or the name of a column with timestamps") from None


def is_time(value: Any) -> bool:
    """Return whether an argument that accepts a time or a column name holds a time."""
    try:
        return value is not None and isinstance(time_or_column(value), datetime)
    except ValueError:
        return False


def _read_validity_columns(value: Any) -> tuple[str, str]:
    names = tuple(value) if isinstance(value, list | tuple) else ()
    if len(names) != 2 or not all(isinstance(name, str) and name.strip() for name in names):  # noqa: PLR2004
        raise ValueError("must be a list of two column names, for the start and the end of a version")
    if names[0].lower() == names[1].lower():
        raise ValueError(f"the two names must differ, ignoring case: {names[0]!r} and {names[1]!r} are equal")
    return names[0], names[1]


def _read_scope(value: Any) -> tuple[str, ...] | str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return check_condition(value)
    if not isinstance(value, list | tuple) or not value or not all(isinstance(name, str) for name in value):
        raise ValueError("must be a list of columns, or a SQL condition on the target")
    return tuple(value)


def _read_ratio(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError("must be a number between 0 and 1")
    return float(value)


AddedColumn = Annotated[Column, RESULT_COLUMN]
Moment = Annotated[datetime | None, BeforeValidator(_read_timestamp)]


class Scd2Config(LoadConfig):
    """A validated SCD2 load; the fields below ``natural_key`` require it.

    Source: docs/semantics/merge_load.md, SCD2 without natural key; SCD2 with natural key.
    """

    strategy: Literal["scd2"] = "scd2"
    boundary_timestamp: Moment = Field(
        None,
        description="The start of loaded versions and the end of absent ones; by default the end of the data "
        "interval.",
    )
    active_record_timestamp: Moment = Field(
        None, description="The end of versions that are currently valid; NULL by default."
    )
    validity_column_names: Annotated[
        tuple[str, str], BeforeValidator(_read_validity_columns), RESULT_COLUMN
    ] = Field(
        ("valid_from", "valid_to"),
        description="The columns that the load adds for the start and the end of a version.",
    )
    row_version_column_name: Column = Field(
        None,
        description="The column that alone determines whether a row has changed; by default a hash of all.",
    )
    merge_key: Columns = Field(
        None,
        description="Absent rows are closed only if the load has other rows with their values in these "
        "columns.",
    )
    destination_scope: Condition = Field(
        None, description="A SQL condition on the target: only absent rows that match it are closed."
    )
    natural_key: KeyColumns = Field(
        None, description="The columns that identify a record, whose versions form one history."
    )
    mode: Literal["snapshot", "changes"] = Field(
        "snapshot", description="snapshot: absent keys are deleted; changes: absent keys stay unchanged."
    )
    scope: Annotated[tuple[str, ...] | str | None, BeforeValidator(_read_scope), SOURCE_COLUMN] = Field(
        None,
        description="Where a snapshot deletes absent keys: columns whose values it has, or a SQL condition.",
    )
    effective_from: Annotated[datetime | str | None, BeforeValidator(time_or_column), SOURCE_COLUMN] = Field(
        None,
        description="The start of validity of the rows: a timestamp, or with mode changes the column that "
        "contains it; by default boundary_timestamp.",
    )
    track: Columns = Field(None, description="The columns whose change starts a new version; by default all.")
    track_except: Columns = Field(None, description="The columns whose change does not start a new version.")
    overwrite: Columns = Field(
        None,
        description="The columns that are overwritten in the valid version, without starting a new version.",
    )
    sequence_by: Columns = Field(
        None,
        description="The columns whose highest values select one of several rows per key and timestamp.",
    )
    on_delete: Literal["close", "ignore", "mark", "purge"] = Field(
        "close",
        description="Effect of a deletion: close ends the valid version of the key, ignore keeps it, mark "
        "ends it and starts a version that is marked as deleted, purge deletes all earlier versions.",
    )
    current_column: AddedColumn = Field(
        None, description="The name of a boolean column to add that is true for valid versions."
    )
    deleted_column: AddedColumn = Field(
        None,
        description="mark: the name of the column that is true in versions that mark a deletion; by default "
        "is_deleted.",
    )
    surrogate_key_column: AddedColumn = Field(
        None,
        description="The name of a column to add that identifies a version; a rebuild keeps its values.",
    )
    on_late: Literal["error", "repair"] = Field(
        "error",
        description="Effect of a load older than stored versions: error, or repair the history.",
    )
    max_close_ratio: Annotated[float | None, BeforeValidator(_read_ratio)] = Field(
        None,
        description="The largest share of the valid versions that a snapshot may close without a successor; "
        "otherwise the run fails.",
    )

    @property
    def valid_from(self) -> str:
        """The column with the start of a version."""
        return self.validity_column_names[0]

    @property
    def valid_to(self) -> str:
        """The column with the end of a version."""
        return self.validity_column_names[1]

    @property
    def time_column(self) -> str | None:
        """The column with the time from which a row is valid."""
        return self.effective_from if isinstance(self.effective_from, str) else None

    @property
    def time_given(self) -> datetime | None:
        """The time from which all rows are valid, if the configuration sets it."""
        return self.effective_from if isinstance(self.effective_from, datetime) else self.boundary_timestamp

    @property
    def mark_column(self) -> str | None:
        """The column that is true for versions that mark their key as deleted."""
        return (self.deleted_column or DELETED_COLUMN) if self.on_delete == "mark" else None

    @property
    def absence_deletes(self) -> bool:
        if self.natural_key is not None:
            return (
                self.mode == "snapshot" and self.on_delete != "ignore" and not isinstance(self.scope, tuple)
            )
        return self.merge_key is None or self.destination_scope is not None

    @property
    def is_idempotent(self) -> bool:
        # The history of a natural key also records when it was loaded, even if no version changes.
        return self.natural_key is None and is_timeless(self, self.destination_scope)

    @property
    def identity_columns(self) -> tuple[str, ...]:
        """The columns of the target that identify a version."""
        return (*(self.natural_key or (HASH_COLUMN,)), self.valid_from)

    @property
    def added_columns(self) -> tuple[str, ...]:
        """The columns that the target has in addition to those of the source."""
        optional = (self.current_column, self.mark_column, self.surrogate_key_column)
        return (*self.validity_column_names, *(name for name in optional if name), HASH_COLUMN)

    @classmethod
    def explain_absence(cls, fields: Mapping[str, Any]) -> str | None:
        if fields.get("natural_key", "wrong") is None:
            return ABSENT_ROWS
        closes = fields.get("mode") == "snapshot" and fields.get("on_delete") != "ignore"
        return f"{ABSENT_ROWS}; mode='changes' or on_delete='ignore' allows it" if closes else None

    def list_warnings(self) -> list[str]:
        warnings = []
        if self.merge_key is not None and self.destination_scope is not None:
            warnings.append("merge_key: has no effect with destination_scope")
        if self.natural_key is None:
            message = "has no effect without natural_key: the rows are loaded as versions, like all others"
            warnings += [
                f"{name}: {message}"
                for name in ("hard_delete", "hard_delete_when", "dedup_sort")
                if getattr(self, name) is not None
            ]
        return warnings

    @classmethod
    def check_rules(cls, fields: Mapping[str, Any]) -> Iterator[Problem]:
        yield from super().check_rules(fields)
        if fields.get("natural_key", "wrong") is None:
            yield from _needless_problems(cls, fields)
        elif "natural_key" in fields:
            yield from _key_problems(fields)
        yield from _name_problems(fields)
        boundary, active = fields.get("boundary_timestamp"), fields.get("active_record_timestamp")
        if boundary is not None and active is not None and boundary >= active:
            hint = "set active_record_timestamp to a later timestamp, such as 9999-12-31"
            yield Problem("boundary_timestamp", "order", "is not before active_record_timestamp", hint)


def build_history_shape(config: Scd2Config) -> dict[str, Any]:
    """Return the settings that stored versions depend on: a load with others would not find the versions."""
    active = config.active_record_timestamp
    return {
        "strategy": "scd2",
        "validity_column_names": list(config.validity_column_names),
        "active_record_timestamp": active.isoformat() if active else None,
        "row_version_column_name": config.row_version_column_name,
        "natural_key": sorted(config.natural_key or ()),
        "mode": config.mode if config.natural_key else None,
        "track": sorted(config.track or ()),
        "track_except": sorted(config.track_except or ()),
        "overwrite": sorted(config.overwrite or ()),
        "current_column": config.current_column,
        "deleted_column": config.mark_column,
        "surrogate_key_column": config.surrogate_key_column,
        "on_late": config.on_late if config.natural_key else None,
        # Columns may differ from load to load; the rows that a condition selected are only known for the same
        # condition.
        "scope": config.scope if config.on_late == "repair" and isinstance(config.scope, str) else None,
        "nested": config.nested,
    }


def _needless_problems(cls: type[LoadConfig], options: Mapping[str, Any]) -> Iterator[Problem]:
    for name in _KEYED_FIELDS:
        if name in options and options[name] != cls.model_fields[name].default:
            hint = "set natural_key to the columns that identify a record"
            yield Problem(name, "natural-key", "requires natural_key", hint)


def _key_problems(options: Mapping[str, Any]) -> Iterator[Problem]:
    for name, hint in _WITHOUT_KEYS.items():
        if options.get(name) is not None:
            yield Problem(name, "natural-key", "is not supported with natural_key", hint)
    yield from both_sorts(options)
    yield from _mode_problems(options)
    yield from _late_problems(options)
    if options.get("deleted_column") is not None and options.get("on_delete", "mark") != "mark":
        hint = "set on_delete='mark', or remove it"
        yield Problem("deleted_column", "on_delete", "is only supported with on_delete 'mark'", hint)
    yield from _check_tracking(options)


def _mode_problems(options: Mapping[str, Any]) -> Iterator[Problem]:
    mode = options.get("mode")
    if mode == "changes" and options.get("scope") is not None:
        hint = "changes never delete absent keys: remove scope"
        yield Problem("scope", "mode", "is not supported with mode 'changes'", hint)
    if mode == "changes" and options.get("max_close_ratio") is not None:
        hint = "changes delete only flagged keys: remove max_close_ratio"
        yield Problem("max_close_ratio", "mode", "is not supported with mode 'changes'", hint)
    if mode == "snapshot" and isinstance(options.get("effective_from"), str):
        hint = "set one ISO 8601 timestamp for the snapshot, or use mode='changes' for a timestamp per row"
        yield Problem(
            "effective_from",
            "mode",
            f"column {options['effective_from']!r} is not supported with mode 'snapshot'",
            hint,
        )


def _late_problems(options: Mapping[str, Any]) -> Iterator[Problem]:
    if isinstance(options.get("effective_from"), datetime) and options.get("boundary_timestamp") is not None:
        yield Problem(
            "effective_from", "contradiction", "cannot be combined with boundary_timestamp", "set one of them"
        )
    if options.get("on_late") != "repair":
        return
    if options.get("on_delete") == "purge":
        hint = "purged versions cannot be repaired: use on_late='error'"
        yield Problem("on_late", "on_delete", "'repair' is not supported with on_delete 'purge'", hint)
    if options.get("on_delete") == "ignore" and options.get("mode") == "snapshot":
        yield Problem(
            "on_late",
            "on_delete",
            "'repair' is not supported with mode 'snapshot' and on_delete 'ignore'",
            "use mode='changes', or another on_delete",
        )
    scope = options.get("scope")
    if isinstance(scope, str) and "{staging_table}" in scope:
        hint = "use a condition on columns of the target only, or a list of columns"
        yield Problem("on_late", "scope", "'repair' does not support {staging_table} in scope", hint)


def _check_tracking(options: Mapping[str, Any]) -> Iterator[Problem]:
    keys = set(options["natural_key"])
    if options.get("track") is not None and options.get("track_except") is not None:
        yield Problem("track_except", "contradiction", "cannot be combined with track", "set one of them")
    for name in ("track", "track_except"):
        if options.get("row_version_column_name") is not None and options.get(name) is not None:
            hint = "set one of them: row_version_column_name alone determines which rows have changed"
            yield Problem(name, "contradiction", "cannot be combined with row_version_column_name", hint)
    overwritten = set(options.get("overwrite") or ())
    for name in ("track", "track_except", "overwrite"):
        for column in sorted(keys & set(options.get(name) or ())):
            yield Problem(name, "key", f"{column!r} is part of natural_key", "remove it")
    for column in sorted(overwritten & set(options.get("track") or ())):
        yield Problem("overwrite", "duplicate", f"{column!r} is also in track", "remove it from one of them")


def _name_problems(options: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield problems for added columns with the name of another column."""
    validity = options.get("validity_column_names") or ()
    name_owners = {name.lower(): "validity_column_names" for name in validity}
    name_owners |= {HASH_COLUMN: "the hash of the row", ROW_ID: "the key of the row"}
    has_deleted_column = options.get("on_delete") == "mark"
    for option in ("current_column", "deleted_column", "surrogate_key_column"):
        name = options.get(option) or (
            DELETED_COLUMN if has_deleted_column and option == "deleted_column" else None
        )
        if name is None:
            continue
        if name.lower() in name_owners:
            yield Problem(
                option,
                "duplicate",
                f"{name!r} is already used by {name_owners[name.lower()]}",
                "choose another name",
            )
        name_owners[name.lower()] = option
    key_columns = [*(options.get("natural_key") or ()), *(options.get("merge_key") or ())]
    version_column = options.get("row_version_column_name")
    for name in {*key_columns, *((version_column,) if version_column else ())}:
        if name.lower() in name_owners:
            message = f"{name!r} is also a column of the source"
            yield Problem(
                name_owners[name.lower()].replace(" ", "_"), "taken", message, "choose another name"
            )
