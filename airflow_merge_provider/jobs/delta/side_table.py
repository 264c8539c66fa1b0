"""Side tables of a target that belong to its runs: change logs, removed keys, quarantine, lineage, lists.

A side table is written before the target, and the target's commit names the version that belongs to it.
Later versions of a side table belong to a run that did not commit, or that a RESTORE of the target undid:
runs do not read them, and the next write reverts them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.run.previous_run import PreviousRun
from airflow_merge_provider.core.run.table_log import (
    HISTORY_PAGE,
    RUN,
    PinnedDataset,
    SideTableHistory,
    find_last_number,
    get_app_id,
    parse_metadata,
    require_owner,
)
from airflow_merge_provider.core.table_history import HistoryEntry, trace_lineage
from airflow_merge_provider.jobs.delta.log import find_restored_version, read_history
from airflow_merge_provider.jobs.delta.table import SparkLog, count_live_rows, read_dataset
from airflow_merge_provider.jobs.delta.transaction import CommitResult, commit_once
from airflow_merge_provider.jobs.delta.writer import (
    DEFAULT_OPTIONS,
    WriteOptions,
    append_rows,
    create_table,
    delete_all_rows,
    merge_rows,
    overwrite_table,
    restore_table,
)
from airflow_merge_provider.jobs.spark.session import override_settings


class SideTable:
    """A side table of a target, at the version that the target's last commit names.

    ``version`` is that version, None if the target names none. After a write it is the version written, which
    the target's next commit has to name. ``next_number`` is the number of the run that writes now.
    """

    def __init__(
        self,
        spark: SparkSession,
        dataset: Dataset,
        owner: str,
        version: int | None,
        *,
        run_number: int = 0,
        next_number: int = 1,
        options: WriteOptions = DEFAULT_OPTIONS,
    ) -> None:
        """Find the table.

        :param owner: the writer that owns the table, as in its property ``merge.capability``.
        :param version: the version that the target's last commit names; ``UNNAMED`` if its name was lost.
        :param run_number: the number of the run whose rows the target holds.
        :param next_number: the number of the run that writes now.
        :param options: those of that run, for a table that it creates.
        :raises DataError: if the table exists and belongs to another writer.
        """
        self._spark, self.owner, self.dataset = spark, owner, dataset
        self._run_number, self.next_number, self._options = run_number, next_number, options
        self._history = self._read_history(version)
        self.version = version if self._history else None
        self._number = 0
        if self._history:
            require_owner(SparkLog(spark), dataset, owner)
            self._number = find_last_number(SparkLog(spark), dataset, owner, self._history)
        # The commit that names the version, or the one that made it, may have aged out.
        if self.version is not None and self._history[-1].version > self.version:
            self.version = self._trace_history().find_committed_version()

    @classmethod
    def open(
        cls,
        spark: SparkSession,
        dataset: Dataset,
        owner: str,
        name: str,
        previous: PreviousRun | None,
        *,
        next_number: int | None = None,
        options: WriteOptions = DEFAULT_OPTIONS,
    ) -> Self:
        """Open a side table at the version that belongs to the rows of its target.

        :param name: the name under which the commits of the target record it.
        :param previous: the previous run of the target; None if there is no target yet.
        :param next_number: the number of the run that writes; by default the one after all others.
        :raises DataError: if the table exists and belongs to another writer.
        """
        if previous is None:
            return cls(spark, dataset, owner, None, options=options)
        return cls(
            spark,
            dataset,
            owner,
            previous.find_side_table_version(name),
            run_number=previous.run_number,
            next_number=previous.number + 1 if next_number is None else next_number,
            options=options,
        )

    @property
    def latest_version(self) -> int | None:
        """The newest version, whether the target names it or not; None if there is no table."""
        return self._history[0].version if self._history else None

    def has_rows(self, started_at: int) -> bool:
        """Return whether there are rows that a replacement by this run removes.

        If the target names no version, these are all rows but those of an attempt of this run.

        :param started_at: microseconds since 1970 UTC; no attempt of this run has written earlier.
        """
        version = self.version
        if version is None:
            version = next(
                (entry.version for entry in self._history if not self._is_attempt(entry, started_at)), None
            )
        return version is not None and count_live_rows(self._spark, PinnedDataset(self.dataset, version)) > 0

    def read_rows(self) -> DataFrame | None:
        """Return the rows of ``version``; None if there is none."""
        if self.version is None:
            return None
        return read_dataset(self._spark, PinnedDataset(self.dataset, self.version))

    def replace_rows(self, rows: DataFrame, *, metadata: Mapping[str, Any] | None = None) -> CommitResult:
        """Replace all rows, or create the table; ``metadata`` is added to that of the commit.

        :raises ConflictError: if another run has written to the table since it was found.
        """
        return self._commit_write(partial(overwrite_table, self.dataset, rows), rows, metadata)

    def append_rows(self, rows: DataFrame, *, new_columns: bool = False) -> CommitResult:
        """Append rows to those that belong to the target, or create the table.

        :raises ConflictError: if another run has written to the table since it was found.
        """
        if self.version is None:
            return self.replace_rows(rows)
        self.restore()
        return self._commit_write(partial(append_rows, self.dataset, rows, new_columns=new_columns), rows)

    def delete_rows(self, keys: DataFrame, condition: str) -> CommitResult:
        """Delete the rows that match one of ``keys``; ``condition`` uses the aliases ``OLD`` and ``NEW``.

        :raises ConflictError: if another run has written to the table since it was found.
        """
        clauses = ["WHEN MATCHED THEN DELETE"]
        return self._commit_write(
            partial(merge_rows, self._spark, self.dataset, keys, condition, clauses), keys
        )

    def clear_rows(self) -> CommitResult:
        """Delete all rows of a table that exists, as a write of this run, which ``restore`` can revert.

        :raises ConflictError: if another run has written to the table since it was found.
        """
        return self._commit_write(partial(delete_all_rows, self._spark, self.dataset))

    def _commit_write(
        self,
        write: Callable[[], object],
        rows: DataFrame | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> CommitResult:
        """Commit a write, or create the table with ``rows`` if there is none."""
        latest_version = self.latest_version
        if latest_version is None and rows is not None:
            write = partial(create_table, self.dataset, rows, self.owner, options=self._options)
        number, since = self._number + 1, -1 if latest_version is None else latest_version
        own = {"capability": self.owner, "number": number, RUN: self.next_number}
        commit = commit_once(
            self._spark, self.dataset, self.owner, number, {**(metadata or {}), **own}, write, since=since
        )
        self.version, self._number = commit.version, number
        self._history = self._read_history(commit.version)
        return commit

    def restore(self) -> None:
        """Revert the writes of runs that did not commit or were undone; deletions by users are kept."""
        if self.version is None:
            return
        restored_version = self._trace_history().find_restored_version()
        if restored_version is not None:
            restore_table(self._spark, self.dataset, restored_version)
            self._history = self._read_history(self.version)
        self.version = self.latest_version

    def find_version_before(self, mark: str) -> int | None:
        """Return the newest version before any write after ``version`` that has a mark in its metadata.

        Without such a write, that is the newest version.
        """
        return self._trace_history().find_version_before(mark)

    def _is_attempt(self, entry: HistoryEntry, started_at: int) -> bool:
        metadata = parse_metadata(entry)
        is_own = metadata.get("capability") == self.owner and metadata.get(RUN) == self.next_number
        return is_own and entry.timestamp * 1000 >= started_at

    def _trace_history(self) -> SideTableHistory:
        lineage = trace_lineage(self._history, partial(find_restored_version, self._spark, self.dataset))
        return SideTableHistory(self.owner, self.version, self._run_number, self._history, lineage)

    def _read_history(self, version: int | None) -> Sequence[HistoryEntry]:
        """Return the history back to a version."""
        history = read_history(self._spark, self.dataset, HISTORY_PAGE)
        if version is None or not history or history[-1].version <= version:
            return history
        return read_history(self._spark, self.dataset, None)


def append_once(
    spark: SparkSession,
    dataset: Dataset,
    owner: str,
    writer: str,
    number: int,
    rows: DataFrame,
    *,
    options: WriteOptions,
) -> None:
    """Append rows to a table that several targets share; a second attempt with the same number adds nothing.

    :param writer: the target that counts its appends.
    :raises DataError: if the table belongs to another writer, or has columns of another version.
    """
    settings = {
        "spark.databricks.delta.write.txnAppId": get_app_id(f"{owner}/{writer}"),
        "spark.databricks.delta.write.txnVersion": str(number),
    }
    history = read_history(spark, dataset, 1)
    if history:
        require_owner(SparkLog(spark), dataset, owner)
        stored = read_dataset(spark, PinnedDataset(dataset, history[0].version)).columns
        if lacking := [name for name in rows.columns if name not in stored]:
            message = f"{dataset.uri} has no column {lacking[0]!r}: another version has created it"
            raise DataError.from_problems([Problem(dataset.id, "columns", message, "name another table")])
    with override_settings(spark, settings):
        if history:
            append_rows(dataset, rows, is_shared=True)
        else:
            create_table(dataset, rows, owner, options=options)
