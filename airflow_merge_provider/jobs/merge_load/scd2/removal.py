"""Take one load out of a history, as if it had loaded the state that was valid just before its time.

A load that repeats the state just before its time changes nothing there, and a repeated load replaces the
earlier one of the same time. So the removal is the repair of a late load, whose rows are the versions that
were valid just before; then the time of the load is no longer recorded.
Source: docs/undo.md, One load of a history.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import Column, DataFrame, functions as F

from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_load.requirements import build_requirements
from airflow_merge_provider.core.merge_load.scd2 import HASH_COLUMN
from airflow_merge_provider.core.merge_load.timestamps import from_micros
from airflow_merge_provider.core.undo.load_removal import LoadRemoval
from airflow_merge_provider.jobs.merge_load.changes import union_rows
from airflow_merge_provider.jobs.merge_load.columns import TargetColumns, moment_column, refer_to_columns
from airflow_merge_provider.jobs.merge_load.scd2.history import History
from airflow_merge_provider.jobs.merge_load.scd2.intervals import (
    TIME,
    list_absences,
    list_loaded_events,
    list_pins,
    list_stored_events,
)
from airflow_merge_provider.jobs.merge_load.scd2.late_arrivals import LateArrivals
from airflow_merge_provider.jobs.merge_load.sequences import Sequences
from airflow_merge_provider.jobs.merge_load.snapshot_scope import AREA, EVERYWHERE
from airflow_merge_provider.jobs.merge_load.staging import FLAGGED, StagedLoad, keep_rows
from airflow_merge_provider.jobs.merge_load.writing import CountedChanges, count_changes
from airflow_merge_provider.jobs.spark.sql import quote_column


@dataclass(frozen=True, slots=True)
class RemainingTimes:
    """The recorded load times of a history without that of the removed load; None if there are none."""

    times: DataFrame | None
    version: int | None = None

    def has_rows(self, started_at: int) -> bool:
        """Return whether there are remaining times."""
        return self.times is not None and not self.times.isEmpty()

    def read_rows(self) -> DataFrame | None:
        """Return the remaining times."""
        return self.times

    def save_times(self, times: DataFrame, *, full: bool, needed: bool) -> None:
        """Record nothing: the undo replaces the recorded times."""


@dataclass(frozen=True, slots=True)
class RemovedLoad:
    """One load that is taken out of the stored versions of a history; ``held`` releases cached rows."""

    removal: LoadRemoval
    stored: DataFrame
    sequences: Sequences
    held: ExitStack

    def find_changes(self, recorded_times: DataFrame | None) -> tuple[CountedChanges, DataFrame | None]:
        """Return the changes of versions, and the recorded times without that of the load.

        :raises DataError: if the time of the load is not recorded.
        """
        remaining_times = self._list_remaining_times(recorded_times)
        history = self._build_history(remaining_times)
        naming = history.naming
        begins, ends = quote_column(naming.valid_from), quote_column(naming.valid_to)
        is_active, time = history.is_active(), self._time
        keys = self.stored.where((begins == time) | (~is_active & (ends == time)))
        keys = keep_rows(keys.select(*refer_to_columns(naming.keys)).distinct(), self.held)
        key_versions = keep_rows(self.stored.join(keys, list(naming.keys), "left_semi"), self.held)
        was_valid = (begins < time) & (is_active | (ends >= time))
        if naming.mark is not None:
            was_valid &= ~quote_column(naming.mark)
        previous_rows = key_versions.where(was_valid).select(
            *refer_to_columns((*naming.columns, HASH_COLUMN)),
            time.alias(TIME),
            F.lit(False).alias(FLAGGED),
        )
        present = previous_rows.select(*refer_to_columns(naming.keys))
        absent = keys.join(present, list(naming.keys), "left_anti")
        events = [
            list_loaded_events(previous_rows, naming, F.lit(False)),
            list_absences(absent, naming, time),
            list_stored_events(key_versions, naming, is_active),
            *self._limit_validity(history, previous_rows, keys, key_versions),
        ]
        return count_changes(history.compare_versions(events, key_versions), self.held), remaining_times

    def list_remaining_sequences(self) -> DataFrame | None:
        """Return the recorded sequences without those of the load; None if it has recorded none."""
        rows = self.sequences.read_rows()
        if rows is None or TIME not in rows.columns:
            return None
        is_removed = quote_column(TIME) == self._time
        return None if rows.where(is_removed).isEmpty() else rows.where(~is_removed)

    @property
    def _time(self) -> Column:
        return moment_column(self.removal.load_time)

    def _build_history(self, remaining_times: DataFrame | None) -> History:
        """Return the load that repeats the state before, into a history that takes late loads."""
        config = self.removal.config.model_copy(update={"on_late": "repair"})
        fields = [field for field in self.stored.schema.fields if field.name not in config.added_columns]
        none = self.stored.limit(0)
        staged_load = StagedLoad(
            none, none, TargetColumns(tuple(fields)), build_requirements(config), config, "the history"
        )
        times = RemainingTimes(remaining_times)
        return History(
            staged_load, self.stored, config, self.removal.load_time, times, self.sequences, self.held
        )

    def _limit_validity(
        self, history: History, previous_rows: DataFrame, keys: DataFrame, key_versions: DataFrame
    ) -> Sequence[DataFrame]:
        """Return the events until which the state before is valid: the later loads of each key."""
        remaining_times = history.memory.read_rows()
        if history.config.mode == "snapshot":
            load = StagedLoad(
                previous_rows,
                previous_rows,
                history.staged_load.layout,
                history.staged_load.requirements,
                history.config,
                history.staged_load.name,
            )
            return LateArrivals(history).until_next(keys, load, key_versions)
        if remaining_times is None:
            return []
        return [list_pins(remaining_times.join(keys, list(history.naming.keys), "left_semi"), history.naming)]

    def _list_remaining_times(self, recorded_times: DataFrame | None) -> DataFrame | None:
        """Return the recorded times without that of the load, and with the next time that the history shows.

        A history without late loads records only the times that it does not show, and the removal may hide
        the next one.

        :raises DataError: if a history with late loads does not record the time of the load.
        """
        is_removed = quote_column(TIME) == self._time
        if self.removal.config.on_late == "repair":
            if recorded_times is None or recorded_times.where(is_removed).isEmpty():
                raise _build_unrecorded_error(self.removal.load_time)
            return recorded_times.where(~is_removed)
        remaining_times = None if recorded_times is None else recorded_times.where(~is_removed)
        next_time = self._find_next_time(remaining_times)
        if next_time is None:
            return remaining_times
        shown_time = self.stored.sparkSession.range(1).select(
            F.lit(EVERYWHERE).alias(AREA), moment_column(next_time).alias(TIME)
        )
        return shown_time if remaining_times is None else union_rows([remaining_times, shown_time]).distinct()

    def _find_next_time(self, remaining_times: DataFrame | None) -> datetime | None:
        """Return the next load time after the load that is recorded, shown by versions, or on a commit."""
        config = self.removal.config
        columns = [(self.stored, name) for name in config.validity_column_names]
        if remaining_times is not None:
            columns.append((remaining_times, TIME))
        later_times = [time for time in self.removal.load_times if time > self.removal.load_time]
        end = config.active_record_timestamp
        for rows, name in columns:
            micros = F.min(F.when(quote_column(name) > self._time, F.unix_micros(quote_column(name))))
            value = rows.agg(micros.alias("at")).collect()[0]["at"]
            if value is not None and (end is None or from_micros(value) != end):
                later_times.append(from_micros(value))
        return min(later_times, default=None)


def _build_unrecorded_error(load_time: datetime) -> DataError:
    """Return the error of a load whose time is not recorded."""
    message = f"the load time {load_time.isoformat()} is not recorded beside the history"
    hint = "leave out only: an undo of the run then undoes all later runs too"
    return DataError.from_problems([Problem("only", "undo", message, hint)])
