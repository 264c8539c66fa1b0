"""Record sequence values that the target does not show: of deletions, and of states without a stored version.

Loads may arrive late: a row counts only if no row or deletion with a higher sequence was loaded before. The
values are stored in a side table, whose version the target's commit records. If a run wrote to it and did
not commit, the next run reverts that.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cached_property
from typing import ClassVar, Protocol

from pyspark.sql import DataFrame, SparkSession, functions as F

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.merge_load.requirements import PREFIX
from airflow_merge_provider.core.run.previous_run import PreviousRun
from airflow_merge_provider.jobs.delta.side_table import SideTable
from airflow_merge_provider.jobs.delta.writer import WriteOptions
from airflow_merge_provider.jobs.merge_load.changes import is_same, union_rows
from airflow_merge_provider.jobs.merge_load.columns import moment_column, refer_to_columns
from airflow_merge_provider.jobs.spark.sql import quote_column

SEQUENCES = "sequences"
LOADED_AT = f"{PREFIX}loaded_at"
# Late rows are compared with the deletion of their key for this long.
TOMBSTONE_DAYS = 90
_BEST = f"{PREFIX}best"


class RecordedRows(Protocol):
    """Rows that a target does not show, and that later loads need."""

    @property
    def version(self) -> int | None:
        """The version that the target's commit has to record; None if there is none."""

    def has_rows(self, started_at: int) -> bool:
        """Return whether there are rows that a full load replaces; it started at a time in microseconds."""

    def read_rows(self) -> DataFrame | None:
        """Return the recorded rows; None if there are none."""


class Sequences(RecordedRows, Protocol):
    """The recorded sequence values of a target."""

    def save_rows(self, rows: DataFrame, *, full: bool, since: datetime | None) -> None:
        """Add rows; ``full`` drops all others, ``since`` drops those that were loaded before it."""


class RecordedTable:
    """The side table of recorded rows that belongs to a target; ``name`` is the end of its name."""

    name: ClassVar[str]

    def __init__(
        self, spark: SparkSession, target: Dataset, previous: PreviousRun | None, options: WriteOptions
    ) -> None:
        self._spark, self._target, self._previous, self._options = spark, target, previous, options

    @property
    def version(self) -> int | None:
        return self._table.version

    def has_rows(self, started_at: int) -> bool:
        return self._table.has_rows(started_at)

    def read_rows(self) -> DataFrame | None:
        return self._table.read_rows()

    @cached_property
    def _table(self) -> SideTable:
        dataset, owner = self._target.with_suffix(f"__{self.name}"), f"merge_load_{self.name}"
        return SideTable.open(self._spark, dataset, owner, self.name, self._previous, options=self._options)


class SequencesTable(RecordedTable):
    """The side table of sequence values that belongs to a target."""

    name = SEQUENCES

    def save_rows(self, rows: DataFrame, *, full: bool, since: datetime | None) -> None:
        recorded_rows = None if full else self.read_rows()
        if recorded_rows is not None and since is not None:
            is_old = quote_column(LOADED_AT) < moment_column(since)
            if not recorded_rows.where(is_old).isEmpty():
                self._table.replace_rows(union_rows([recorded_rows.where(~is_old), rows]))
                return
        if recorded_rows is None:
            self._table.replace_rows(rows)
        else:
            self._table.append_rows(rows, new_columns=True)


def drop_outdated(
    rows: DataFrame, sequence_frames: Sequence[DataFrame], by: Sequence[str], sequence: Sequence[str]
) -> tuple[DataFrame, DataFrame]:
    """Drop rows whose sequence is below the highest recorded one of the same key.

    :param sequence_frames: frames with the columns ``by`` and ``sequence``.
    :param by: the columns that identify a state, such as the key.
    :return: the rows that count, and those of them that are above everything recorded.
    """
    usable_frames = [frame for frame in sequence_frames if {*by, *sequence} <= set(frame.columns)]
    if not usable_frames:
        return rows, rows
    best = union_rows([frame.select(*refer_to_columns((*by, *sequence))) for frame in usable_frames])
    # NULL is the lowest sequence value, on both sides.
    best = best.groupBy(*refer_to_columns(by)).agg(F.max(F.struct(*refer_to_columns(sequence))).alias(_BEST))
    pairs = rows.alias("s").join(best.alias("t"), is_same(by, "s", "t"), "left")
    row_sequence, highest = F.struct(*refer_to_columns(sequence, "s")), F.col(f"t.{_BEST}")
    has_best = highest.isNotNull()
    current_rows = pairs.where(~has_best | (row_sequence >= highest)).select("s.*")
    newer_rows = pairs.where(~has_best | (row_sequence > highest)).select("s.*")
    return current_rows, newer_rows


def list_sequences(
    rows: DataFrame, by: Sequence[str], sequence: Sequence[str], loaded_at: datetime
) -> DataFrame:
    """Return the rows to record: key, sequence and load time."""
    return rows.select(*refer_to_columns((*by, *sequence)), moment_column(loaded_at).alias(LOADED_AT))
