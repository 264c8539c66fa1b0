"""The configuration of an SCD2 load: versions of rows, or the history of natural keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from airflow_merge_provider.core.errors import Problem
from airflow_merge_provider.core.merge_load.conditions import check_condition
from airflow_merge_provider.core.merge_load.load import (
    ROW_ID,
    Column,
    Columns,
    Condition,
    LoadConfig,
    both_sorts,
)
from airflow_merge_provider.core.merge_load.timestamps import parse_timestamp

HASH_COLUMN = "_row_hash"
DELETED_COLUMN = "is_deleted"
# The value that replaces a row's hash in a version that states that the row is deleted.
DELETED_HASH = "deleted"

# Arguments that require a natural key, which identifies the rows that are states of one object.
_OF_KEYS = (
    "mode", "scope", "effective_from", "track", "track_except", "overwrite", "sequence_by", "on_delete",
    "current_column", "deleted_column", "surrogate_key_column", "on_late", "max_close_ratio",
)  # fmt: skip
_WITHOUT_KEYS = {
    "merge_key": "use mode='changes' to keep absent keys, or scope to close them in some groups only",
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
    except ValueError:
        if isinstance(value, str) and value.strip():
            return value
        raise ValueError("must be a time, or the name of a column with times") from None


def is_time(value: Any) -> bool:
    """Return whether an argument that accepts a time or a column name holds a time."""
    try:
        return value is not None and isinstance(time_or_column(value), datetime)
    except ValueError:
        return False


def _read_validity_columns(value: Any) -> tuple[str, str]:
    names = tuple(value) if isinstance(value, list | tuple) else ()
    if len(names) != 2 or not all(isinstance(name, str) and name.strip() for name in names):  # noqa: PLR2004
        raise ValueError("must be a list of two names, for the start and the end of a version")
    if names[0].lower() == names[1].lower():
        raise ValueError(f"the two names must differ, not be {names[0]!r} twice")
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


Moment = Annotated[datetime | None, BeforeValidator(_read_timestamp)]


class Scd2Config(LoadConfig):
    """A validated SCD2 load; the fields below ``natural_key`` require it.

    Source: docs/semantics/merge_load.md, SCD2 without natural key; SCD2 with natural key.
    """

    strategy: Literal["scd2"] = "scd2"
    boundary_timestamp: Moment = Field(
        None, description="When the load's rows begin and absent ones end; the end of the data interval."
    )
    active_record_timestamp: Moment = Field(
        None, description="The end of versions that are valid now; NULL when not given."
    )
    validity_column_names: Annotated[tuple[str, str], BeforeValidator(_read_validity_columns)] = Field(
        ("valid_from", "valid_to"), description="The columns that the load adds to say when a row is valid."
    )
    row_version_column_name: Column = Field(
        None,
        description="The column that alone says whether a row has changed; a hash of all when not given.",
    )
    merge_key: Columns = Field(
        None, description="Absent rows end only where the load has other rows with their values here."
    )
    destination_scope: Condition = Field(
        None, description="A SQL condition on the target: absent rows end only inside it."
    )
    natural_key: Columns = Field(
        None, description="The columns that identify a thing, whose states are then one history."
    )
    mode: Literal["snapshot", "changes"] = Field(
        "snapshot", description="snapshot: absent keys are deleted; changes: absent keys stay as they are."
    )
    scope: Annotated[tuple[str, ...] | str | None, BeforeValidator(_read_scope)] = Field(
        None,
        description="Where a snapshot deletes absent keys: columns whose values it has, or a SQL condition.",
    )
    effective_from: Annotated[datetime | str | None, BeforeValidator(time_or_column)] = Field(
        None,
        description="Since when rows hold: a time for all of them, or for changes the column that says it; "
        "else boundary_timestamp.",
    )
    track: Columns = Field(None, description="The columns whose change begins a version; all when not given.")
    track_except: Columns = Field(None, description="The columns whose change begins no version.")
    overwrite: Columns = Field(
        None, description="The columns that are overwritten in the valid version instead of beginning one."
    )
    sequence_by: Columns = Field(
        None, description="The columns whose highest values decide between rows of one key and time."
    )
    on_delete: Literal["close", "ignore", "mark", "purge"] = Field(
        "close",
        description="What becomes of a deleted key: its valid version ends, nothing, its valid version ends "
        "and one that is marked as deleted begins, or all its versions go.",
    )
    current_column: Column = Field(
        None, description="The name of a column to add that is true for valid versions."
    )
    deleted_column: Column = Field(
        None, description="mark: the name of the column that is true for deletions; is_deleted if not given."
    )
    surrogate_key_column: Column = Field(
        None, description="The name of a column to add that identifies a version, the same in every rebuild."
    )
    on_late: Literal["error", "repair"] = Field(
        "error", description="A load that is older than what is stored: error, or put it in its place."
    )
    max_close_ratio: Annotated[float | None, BeforeValidator(_read_ratio)] = Field(
        None, description="The run fails when it would end a larger part of the valid versions."
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
    def added_columns(self) -> tuple[str, ...]:
        """The columns that the target has in addition to those of the source."""
        optional = (self.current_column, self.mark_column, self.surrogate_key_column)
        return (*self.validity_column_names, *(name for name in optional if name), HASH_COLUMN)

    @classmethod
    def check_rules(cls, known: Mapping[str, Any]) -> Iterator[Problem]:
        yield from super().check_rules(known)
        if known.get("natural_key", "wrong") is None:
            yield from _needless_problems(cls, known)
        elif "natural_key" in known:
            yield from _key_problems(known)
        yield from _name_problems(known)
        boundary, active = known.get("boundary_timestamp"), known.get("active_record_timestamp")
        if boundary is not None and active is not None and boundary >= active:
            hint = "the mark of valid versions lies after every boundary, such as 9999-12-31"
            yield Problem("boundary_timestamp", "order", "is not before active_record_timestamp", hint)


def list_warnings(config: Scd2Config) -> list[str]:
    """Return warnings about settings that are valid but probably not intended."""
    found = []
    if config.merge_key is not None and config.destination_scope is not None:
        found.append("merge_key: has no effect beside destination_scope")
    if config.natural_key is None:
        without = "has no effect without natural_key: the row is one more version"
        found += [
            f"{name}: {without}"
            for name in ("hard_delete", "dedup_sort")
            if getattr(config, name) is not None
        ]
    return found


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


def _needless_problems(cls: type[LoadConfig], known: Mapping[str, Any]) -> Iterator[Problem]:
    for name in _OF_KEYS:
        if name in known and known[name] != cls.model_fields[name].default:
            hint = "name the columns that identify a thing in natural_key"
            yield Problem(name, "natural-key", "needs natural_key", hint)


def _key_problems(known: Mapping[str, Any]) -> Iterator[Problem]:
    for name, hint in _WITHOUT_KEYS.items():
        if known.get(name) is not None:
            yield Problem(name, "natural-key", "has no meaning with natural_key", hint)
    yield from both_sorts(known)
    yield from _mode_problems(known)
    yield from _late_problems(known)
    if known.get("deleted_column") is not None and known.get("on_delete", "mark") != "mark":
        hint = "ask for on_delete='mark', or leave it out"
        yield Problem("deleted_column", "on_delete", "has no meaning without on_delete 'mark'", hint)
    yield from _check_tracking(known)


def _mode_problems(known: Mapping[str, Any]) -> Iterator[Problem]:
    mode = known.get("mode")
    if mode == "changes" and known.get("scope") is not None:
        hint = "changes never delete absent keys: leave scope out"
        yield Problem("scope", "mode", "has no meaning with mode 'changes'", hint)
    if mode == "changes" and known.get("max_close_ratio") is not None:
        hint = "changes end only what they flag: leave max_close_ratio out"
        yield Problem("max_close_ratio", "mode", "has no meaning with mode 'changes'", hint)
    if mode == "snapshot" and isinstance(known.get("effective_from"), str):
        hint = "a snapshot has one time: give that, or load rows with times of their own as changes"
        yield Problem("effective_from", "mode", "names a column, which mode 'snapshot' has no use for", hint)


def _late_problems(known: Mapping[str, Any]) -> Iterator[Problem]:
    if isinstance(known.get("effective_from"), datetime) and known.get("boundary_timestamp") is not None:
        yield Problem(
            "effective_from", "contradiction", "stands beside boundary_timestamp", "give one of the two"
        )
    if known.get("on_late") != "repair":
        return
    if known.get("on_delete") == "purge":
        hint = "what is purged cannot be put in its place: use on_late='error'"
        yield Problem("on_late", "on_delete", "'repair' has no meaning with on_delete 'purge'", hint)
    if known.get("on_delete") == "ignore" and known.get("mode") == "snapshot":
        yield Problem("on_late", "on_delete", "'repair' of snapshots needs the deletes", "load changes")
    scope = known.get("scope")
    if isinstance(scope, str) and "{staging_table}" in scope:
        hint = "use conditions on the target's own columns, or a list of columns"
        yield Problem("on_late", "scope", "'repair' needs a scope that does not change with the load", hint)


def _check_tracking(known: Mapping[str, Any]) -> Iterator[Problem]:
    keys = set(known["natural_key"])
    if known.get("track") is not None and known.get("track_except") is not None:
        yield Problem("track_except", "contradiction", "stands beside track", "give one of the two")
    for name in ("track", "track_except"):
        if known.get("row_version_column_name") is not None and known.get(name) is not None:
            hint = "the row version alone says what has changed"
            yield Problem(name, "contradiction", "has no meaning beside row_version_column_name", hint)
    overwritten = set(known.get("overwrite") or ())
    for name in ("track", "track_except", "overwrite"):
        for column in sorted(keys & set(known.get(name) or ())):
            yield Problem(name, "key", f"{column!r} is part of natural_key", "leave it out")
    for column in sorted(overwritten & set(known.get("track") or ())):
        yield Problem("overwrite", "duplicate", f"{column!r} is tracked already", "give it in one of the two")


def _name_problems(known: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield problems for added columns with the name of another column."""
    validity = known.get("validity_column_names") or ()
    taken = {name.lower(): "validity_column_names" for name in validity}
    taken |= {HASH_COLUMN: "the hash of the row", ROW_ID: "the key of the row"}
    marks = known.get("on_delete") == "mark"
    for option in ("current_column", "deleted_column", "surrogate_key_column"):
        name = known.get(option) or (DELETED_COLUMN if marks and option == "deleted_column" else None)
        if name is None:
            continue
        if name.lower() in taken:
            yield Problem(
                option, "duplicate", f"{name!r} is taken by {taken[name.lower()]}", "choose another name"
            )
        taken[name.lower()] = option
    given = [*(known.get("natural_key") or ()), *(known.get("merge_key") or ())]
    version = known.get("row_version_column_name")
    for name in {*given, *((version,) if version else ())}:
        if name.lower() in taken:
            message = f"{name!r} is a column of the source"
            yield Problem(taken[name.lower()].replace(" ", "_"), "taken", message, "choose another name")
