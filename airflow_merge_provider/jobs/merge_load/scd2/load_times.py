"""Record the times of loads that left no trace in a history, in a small side table of the target.

A load without changes still confirms that nothing had changed. A late load is valid until the next load of
its keys, so a history can only be repaired exactly if such times are recorded. They are written before the
target: if the commit fails, an additional time is one at which the retried load changes nothing.
"""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.run.previous_run import PreviousRun
from airflow_merge_provider.jobs.delta.side_table import SideTable
from airflow_merge_provider.jobs.delta.writer import WriteOptions

TIMES = "times"
_TIMES_SUFFIX = "__times"
_TIMES_OWNER = "merge_load_times"
# The mark in the metadata of a write that removes a time, which counts only if the target names the version.
_REMOVES_TIME = "removes_time"


class LoadTimes(Protocol):
    """The load times that a target's history does not show."""

    @property
    def version(self) -> int | None:
        """The version that the target's commit has to record; None if there is none."""

    def has_rows(self, started_at: int) -> bool:
        """Return whether there are times that a full load replaces; it started at a time in microseconds."""

    def read_times(self) -> DataFrame | None:
        """Return the recorded times; None if there are none."""

    def save_times(self, times: DataFrame, *, full: bool, needed: bool) -> None:
        """Add times if they are needed; ``full`` drops those of a history that is replaced."""


class TimesTable:
    """The side table of recorded times that belongs to a target."""

    def __init__(
        self, spark: SparkSession, target: Dataset, previous: PreviousRun | None, options: WriteOptions
    ) -> None:
        self._spark, self._target, self._previous, self._options = spark, target, previous, options

    @property
    def version(self) -> int | None:
        """The version that the target's commit has to record; None if there is none."""
        return self._table.version

    def has_rows(self, started_at: int) -> bool:
        """Return whether there are times that a full load replaces; it started at a time in microseconds."""
        return self._table.has_rows(started_at)

    def read_times(self) -> DataFrame | None:
        """Return the recorded times; None if there are none."""
        return self._table.read_rows()

    def save_times(self, times: DataFrame, *, full: bool, needed: bool) -> None:
        """Add times if they are needed; ``full`` drops those of a history that is replaced."""
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
        previous = self._previous
        dataset = self._target.with_suffix(_TIMES_SUFFIX)
        table = SideTable.open(self._spark, dataset, _TIMES_OWNER, TIMES, previous, options=self._options)
        if previous is None or not previous.is_restored:
            table.version = table.find_version_before(_REMOVES_TIME)
        return table
