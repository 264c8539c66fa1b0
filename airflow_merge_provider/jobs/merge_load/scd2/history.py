"""Compute the changes of an SCD2 load with natural key, and record the loads that left no trace.

Loads of changes are merged with the stored versions of their keys here; snapshots are first compared with
the history, in ``snapshot``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Protocol

from pyspark.sql import Column, DataFrame, functions as F
from pyspark.sql.types import DateType, StructField, TimestampNTZType, TimestampType

from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_load.load import collect_columns
from airflow_merge_provider.core.merge_load.requirements import PREFIX
from airflow_merge_provider.core.merge_load.scd2 import HASH_COLUMN, Scd2Config
from airflow_merge_provider.jobs.delta.side_table import SideTable
from airflow_merge_provider.jobs.merge_load.changes import (
    DELETE,
    INSERT,
    NOTHING,
    UPDATE,
    Changes,
    add_action,
    is_differing,
    is_same,
    map_values,
)
from airflow_merge_provider.jobs.merge_load.columns import content_hash, moment_column, refer_to_columns
from airflow_merge_provider.jobs.merge_load.scd2.intervals import (
    IS_LATE,
    TIME,
    IntervalColumns,
    build_intervals,
    list_loaded_events,
    list_pins,
    list_stored_events,
)
from airflow_merge_provider.jobs.merge_load.sequences import (
    RecordedRows,
    RecordedTable,
    Sequences,
    drop_outdated,
    list_sequences,
)
from airflow_merge_provider.jobs.merge_load.staging import FLAGGED, TRACKED, StagedLoad, keep_rows
from airflow_merge_provider.jobs.spark.expressions import add_columns
from airflow_merge_provider.jobs.spark.sql import quote_column

TIMES = "times"
# The mark in the metadata of a write that removes a time, which counts only if the target names the version.
_REMOVES_TIME = "removes_time"


class LoadTimes(RecordedRows, Protocol):
    """The load times that a target's history does not show."""

    def save_times(self, times: DataFrame, *, full: bool, needed: bool) -> None:
        """Add times if they are needed; ``full`` drops those of a history that is replaced."""


class TimesTable(RecordedTable):
    """The side table of recorded times that belongs to a target."""

    name = TIMES

    def save_times(self, times: DataFrame, *, full: bool, needed: bool) -> None:
        if needed and not full:
            self._table.append_rows(times)
        elif needed or (full and self._table.latest_version is not None):
            self._table.replace_rows(times)

    def replace_times(self, times: DataFrame) -> None:
        """Replace the times by those without the time of an undone load."""
        self._table.replace_rows(times, metadata={_REMOVES_TIME: True})

    @cached_property
    def _table(self) -> SideTable:
        """The table at its newest version, because loads without a target commit write to it, too.

        If the target was restored, it is the version that the restored run recorded: later times are
        reverted. So is the removal of a time by an undo that did not commit to the target.
        """
        table, previous = super()._table, self._previous
        if previous is None or not previous.is_restored:
            table.version = table.find_version_before(_REMOVES_TIME)
        return table


LATE = "late"
_VERSION_KIND = f"{PREFIX}stated"
_HISTORY_ACTIONS = {
    "opened": INSERT,
    "closed": UPDATE,
    "reopened": UPDATE,
    "changed": UPDATE,
    "removed": DELETE,
    LATE: NOTHING,
}


@dataclass(frozen=True, slots=True)
class History:
    """One load into the history of natural keys.

    ``boundary`` is the time from which rows without a time of their own are valid; ``held`` releases the
    rows that are cached for the run.
    """

    staged_load: StagedLoad
    stored: DataFrame | None
    config: Scd2Config
    boundary: datetime
    memory: LoadTimes
    sequences: Sequences
    held: ExitStack

    @property
    def naming(self) -> IntervalColumns:
        """The column names for building intervals."""
        config = self.config
        return IntervalColumns(
            keys=config.natural_key or (),
            valid_from=config.valid_from,
            valid_to=config.valid_to,
            hashed=HASH_COLUMN,
            columns=self.staged_load.layout.names,
            overwritten=config.overwrite or (),
            mark=config.mark_column,
            purges=config.on_delete == "purge",
        )

    @property
    def names(self) -> tuple[str, ...]:
        """All columns of the target."""
        return (*self.staged_load.layout.names, *self.config.added_columns)

    @property
    def address(self) -> list[StructField]:
        """The columns that identify a stored version."""
        naming = self.naming
        return [
            *self.staged_load.layout.select_fields(naming.keys),
            StructField(naming.valid_from, TimestampType()),
        ]

    @property
    def until(self) -> Column:
        """The end of a version that is currently valid."""
        return moment_column(self.config.active_record_timestamp)

    def find_changes(self) -> Changes:
        """Merge the loaded events with the stored versions of their keys, and return the changes.

        Source: docs/semantics/merge_load.md, Changes.
        """
        naming, config = self.naming, self.config
        rows = self.add_times(self.staged_load.rows)
        key_versions, stored = None, []
        versions = self.read_versions()
        if versions is not None:
            keys = rows.select(*refer_to_columns(naming.keys)).distinct()
            key_versions = keep_rows(versions.join(keys, list(naming.keys), "left_semi"), self.held)
            stored.append(list_stored_events(key_versions, naming, self.is_active()))
        rows, sequences = self.weigh_sequences(rows, key_versions)
        events = [self.build_events(rows), *stored]
        times = rows.select(*refer_to_columns(naming.keys), TIME)
        if config.on_late == "error":
            return replace(self.compare_versions(events, key_versions), sequences=sequences)
        recorded_times = None if versions is None else self.memory.read_rows()
        if recorded_times is not None:
            events.append(list_pins(recorded_times.join(times, list(naming.keys), "left_semi"), naming))
            times = times.join(recorded_times, [*naming.keys, TIME], "left_anti")
        changes = self.compare_versions(events, key_versions)
        return replace(changes, times=times, remembers="always", sequences=sequences)

    def weigh_sequences(
        self, rows: DataFrame, key_versions: DataFrame | None
    ) -> tuple[DataFrame, DataFrame | None]:
        """Drop rows below the highest sequence of their key and time; also return the sequences to record.

        States without a stored version and deletions count like stored versions.
        """
        sequence = self.config.sequence_by
        if sequence is None:
            return rows, None
        by = (*self.naming.keys, TIME)
        sequence_frames = []
        if key_versions is not None:
            versions = (
                key_versions
                if self.naming.mark is None
                else key_versions.where(~quote_column(self.naming.mark))
            )
            sequence_frames.append(versions.withColumn(TIME, quote_column(self.naming.valid_from)))
            recorded_rows = self.sequences.read_rows()
            sequence_frames += [] if recorded_rows is None else [recorded_rows]
        current_rows, newer_rows = drop_outdated(rows, sequence_frames, by, sequence)
        return current_rows, list_sequences(newer_rows, by, sequence, self.boundary)

    def add_times(self, rows: DataFrame) -> DataFrame:
        """Return loaded rows with their time and the hash of the tracked columns."""
        time_column = self.config.time_column
        if time_column is not None:
            _require_time(rows.schema[time_column])
        at = (
            moment_column(self.boundary)
            if time_column is None
            else quote_column(time_column).cast("timestamp")
        )
        return rows.select("*", at.alias(TIME), quote_column(TRACKED).alias(HASH_COLUMN))

    def is_active(self) -> Column:
        """Return the condition for currently valid versions; a NULL end counts like the configured marker."""
        end = quote_column(self.config.valid_to)
        at = self.config.active_record_timestamp
        return end.isNull() if at is None else end.isNull() | (end == moment_column(at))

    def read_versions(self) -> DataFrame | None:
        """Return the stored versions with the load's new columns; None if there is no history yet."""
        if self.stored is None:
            return None
        schema = self.staged_load.rows.schema
        new = {name: F.lit(None).cast(schema[name].dataType) for name in self.staged_load.layout.new}
        return add_columns(self.stored, new)

    def build_events(self, rows: DataFrame) -> DataFrame:
        """Return loaded rows as events; flagged rows are deletions, or dropped if deletions are ignored."""
        if self.config.on_delete == "ignore":
            return list_loaded_events(rows.where(~quote_column(FLAGGED)), self.naming, F.lit(False))
        return list_loaded_events(rows, self.naming, quote_column(FLAGGED))

    def list_overwritten(self) -> list[StructField]:
        """Return the columns that have their newest value in the valid version."""
        return self.staged_load.layout.select_fields(self.naming.overwritten)

    def compare_versions(self, events: Sequence[DataFrame], key_versions: DataFrame | None) -> Changes:
        """Compare the versions that result from the events with the stored versions."""
        naming, names = self.naming, self.names
        new_versions = build_intervals(events, naming, self.until)
        if key_versions is None:
            return Changes(
                add_action(
                    self.complete_columns(new_versions).select(*refer_to_columns(names)), INSERT, "opened"
                ),
                (),
                names,
            )
        by = [*naming.keys, naming.valid_from]
        compared = self.staged_load.layout.names if naming.mark else naming.overwritten
        stored_versions = key_versions.select(
            *refer_to_columns(collect_columns(by, naming.valid_to, naming.hashed, compared))
        )
        pairs = new_versions.alias("n").join(stored_versions.alias("o"), is_same(by, "n", "o"), "full_outer")
        changed_pairs = pairs.withColumn(_VERSION_KIND, self._classify_version(naming)).where(
            quote_column(_VERSION_KIND).isNotNull()
        )
        key_columns = [
            F.coalesce(*(refer_to_columns([name], side)[0] for side in ("n", "o"))).alias(name) for name in by
        ]
        mark_columns = (naming.mark,) if naming.mark else ()
        other_columns = (*self.staged_load.layout.names, naming.valid_to, naming.hashed, *mark_columns)
        other_columns = tuple(name for name in other_columns if name not in by)
        rows = add_action(
            self.complete_columns(
                changed_pairs.select(*key_columns, *refer_to_columns(other_columns, "n"), _VERSION_KIND)
            ),
            map_values(_HISTORY_ACTIONS, quote_column(_VERSION_KIND)),
            quote_column(_VERSION_KIND),
        )
        return Changes(rows.drop(_VERSION_KIND), self.address, names)

    def _classify_version(self, naming: IntervalColumns) -> Column:
        """Return the kind of change of a version; NULL if it does not change."""
        active_end = self.until
        (new_end, stored_end), (new_hash, stored_hash) = (
            [refer_to_columns([name], side)[0] for side in ("n", "o")]
            for name in (naming.valid_to, naming.hashed)
        )
        differs = ~new_hash.eqNullSafe(stored_hash) | ~new_end.eqNullSafe(stored_end)
        if naming.overwritten:
            differs = differs | is_differing(self.list_overwritten(), "n", "o")
        if naming.mark:
            # A deletion version has the values of the version before it, which a late load may change.
            differs = differs | (
                refer_to_columns([naming.mark], "n")[0]
                & is_differing(self.staged_load.layout.fields, "n", "o")
            )
        is_late = F.coalesce(F.col(f"n.{IS_LATE}"), F.lit(False)) & F.lit(self.config.on_late == "error")
        return (
            F.when(is_late, LATE)
            .when(stored_hash.isNull() & new_hash.isNotNull(), "opened")
            .when(new_hash.isNull() & stored_hash.isNotNull(), "removed")
            # A row that only says that its key has late rows is no version.
            .when(new_hash.isNull(), None)
            .when(differs & stored_end.eqNullSafe(active_end) & ~new_end.eqNullSafe(active_end), "closed")
            .when(differs & ~stored_end.eqNullSafe(active_end) & new_end.eqNullSafe(active_end), "reopened")
            .when(differs, "changed")
        )

    def complete_columns(self, rows: DataFrame) -> DataFrame:
        """Add the columns that are derived from the others."""
        config, added = self.config, {}
        if config.current_column is not None:
            added[config.current_column] = quote_column(config.valid_to).eqNullSafe(self.until)
        if config.mark_column is not None and config.mark_column not in rows.columns:
            added[config.mark_column] = F.lit(False)
        if config.surrogate_key_column is not None:
            begins = StructField(config.valid_from, TimestampType())
            added[config.surrogate_key_column] = content_hash(
                [*self.staged_load.layout.select_fields(self.naming.keys), begins]
            )
        return add_columns(rows, added)


def _require_time(field: StructField) -> None:
    if not isinstance(field.dataType, DateType | TimestampType | TimestampNTZType):
        message = f"column {field.name!r} has type {field.dataType.simpleString()}, not date or timestamp"
        raise DataError.from_problems([Problem("effective_from", "type", message, "cast it upstream")])
