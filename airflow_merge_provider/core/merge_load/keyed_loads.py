"""The configuration of loads by key: delete-insert, upsert, insert-only and cdc."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from airflow_merge_provider.core.errors import Problem
from airflow_merge_provider.core.merge_load.load import (
    ABSENT_ROWS,
    Column,
    Columns,
    Condition,
    KeyColumns,
    LoadConfig,
    both_sorts,
    is_timeless,
)


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
