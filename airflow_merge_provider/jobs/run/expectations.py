"""Check the rows of a run against its expectations, and save the rows that it leaves out.

Source: docs/expectations.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.expectations.config import (
    REJECTED,
    REJECTED_OWNER,
    REJECTED_SUFFIX,
    Expectation,
    find_unknown_columns,
    require_columns,
    require_sources,
)
from airflow_merge_provider.core.expectations.result import require_success
from airflow_merge_provider.core.run.previous_run import PreviousRun
from airflow_merge_provider.core.run.reporter import RunReporter
from airflow_merge_provider.jobs.delta.side_table import SideTable
from airflow_merge_provider.jobs.delta.table import pin_dataset, read_dataset
from airflow_merge_provider.jobs.delta.writer import WriteOptions
from airflow_merge_provider.jobs.run.change_set import AFTER, BEFORE, KIND, ChangeSet
from airflow_merge_provider.jobs.run.marked_rows import MarkedRows, build_failure
from airflow_merge_provider.jobs.spark.expressions import combine_with_or
from airflow_merge_provider.jobs.spark.parallel import run_in_parallel
from airflow_merge_provider.jobs.spark.sql import quote_column

_KEY = ("source", "expectations", "row")


class RunExpectations:
    """The expectations of one run; ``rejected`` are the rows that the run leaves out, by their sources."""

    def __init__(self, expectations: Sequence[Expectation], reporter: RunReporter) -> None:
        self._expectations, self._reporter = expectations, reporter
        self._rejected: dict[str, DataFrame] = {}
        self._new_rows: _NewRows | None = None

    @property
    def on_changes(self) -> list[Expectation]:
        """The expectations on the rows that the run changes."""
        return [expectation for expectation in self._expectations if expectation.scope == "changes"]

    def list_for(self, source: str) -> list[Expectation]:
        """Return the expectations on the rows of a source."""
        return [expectation for expectation in self._expectations if expectation.applies_to(source)]

    def check_sources(
        self, sources: Mapping[str, DataFrame], hidden: Collection[str] = ()
    ) -> dict[str, DataFrame]:
        """Check the rows of sources, and return those that the run does not leave out.

        :param sources: the rows that the run reads, by the names of the sources.
        :param hidden: their columns that are not those of the sources.
        :raises DataError: if rows do not meet an expectation with the action ``fail``, or if a condition does
            not suit the columns or names another source.
        """
        require_sources(list(self._reporter.sources), self._expectations)
        checked = {
            name: MarkedRows(rows, expectations, self._read_keys, where=f"the source {name!r}", hidden=hidden)
            for name, rows in sources.items()
            if (expectations := self.list_for(name))
        }
        if not checked:
            return dict(sources)
        with self._reporter.progress.time_step("check expectations"):
            now = self._reporter.request.started_at
            result_groups = run_in_parallel(
                next(iter(sources.values())).sparkSession,
                lambda name: checked[name].count_failures(name, now),
                checked,
            )
            results = [result for group in result_groups for result in group]
        self._reporter.add_expectations(results)
        require_success(results)
        self._new_rows = None
        kept_rows = dict(sources)
        for name, group in zip(checked, result_groups, strict=True):
            failed = [result.name for result in group if result.action == "quarantine" and result.failed]
            if failed:
                kept_rows[name], rejected = checked[name].split_rows(failed)
                self._rejected[name] = self._describe_rejected(name, rejected)
            else:
                self._rejected.pop(name, None)
        return kept_rows

    def build_rejection(self, source: str, rows: DataFrame) -> Column | None:
        """Return whether the run leaves out a row of a source; None if it leaves out none.

        Only a row itself decides, so this is for runs that read parts of a source.
        """
        left_out = [item for item in self.list_for(source) if item.action == "quarantine"]
        require_columns(rows.columns, left_out, f"the source {source!r}")
        return combine_with_or(build_failure(rows, item) for item in left_out) if left_out else None

    def check_changes(self, changes: DataFrame) -> None:
        """Check the rows that the run changes, with the columns of a change set.

        :raises DataError: if rows do not meet an expectation with the action ``fail``.
        """
        with self._reporter.progress.time_step("check expectations"):
            results = []
            for expectation in self.on_changes:
                if expectation.kind == "condition":
                    rows = changes.select(KIND, BEFORE, AFTER)
                else:
                    rows = changes.where(F.col(AFTER).isNotNull()).select(f"{AFTER}.*")
                marked = MarkedRows(rows, [expectation], self._read_keys, where="the target")
                results += marked.count_failures(None, 0)
        self._reporter.add_expectations(results)
        require_success(results)

    def has_rejected_rows(self, previous: PreviousRun | None, next_number: int) -> bool:
        """Return whether the run leaves out rows that the table of rejected rows does not have yet."""
        return bool(self._rejected) and not self._find_new_rows(previous, next_number).is_empty

    def add_rejected_rows(
        self, changes: ChangeSet, previous: PreviousRun | None, next_number: int
    ) -> ChangeSet:
        """Return a change set with what identifies the rows that the run adds to the table of rejected rows.

        A table that the target does not name is replaced.
        """
        if not self.has_rejected_rows(previous, next_number):
            return changes
        new_rows = self._find_new_rows(previous, next_number)
        replaced = {} if new_rows.table.version is not None else {REJECTED: new_rows.table}
        return replace(
            changes,
            recorded={**changes.recorded, REJECTED: new_rows.rows.select(*_KEY)},
            replaced={**changes.replaced, **replaced},
        )

    def save_rejected_rows(self, previous: PreviousRun | None, next_number: int) -> dict[str, int]:
        """Append the rows that the run leaves out to ``<target>__rejected``, each once.

        :return: the version of that table, which the commit of the target records; empty without a table.
        """
        recorded = previous.side_table_versions.get(REJECTED) if previous else None
        if not self._rejected:
            return {} if recorded is None else {REJECTED: recorded}
        with self._reporter.progress.time_step("save rejected rows"):
            new_rows = self._find_new_rows(previous, next_number)
            if not new_rows.is_empty:
                new_rows.table.append_rows(new_rows.rows)
        version = new_rows.table.version
        return {} if version is None else {REJECTED: version}

    def _find_new_rows(self, previous: PreviousRun | None, next_number: int) -> _NewRows:
        """Return the rejected rows that the table does not have: a full read rejects the same rows again."""
        if self._new_rows is not None:
            return self._new_rows
        rows = reduce(DataFrame.unionByName, self._rejected.values())
        dataset = replace(self._reporter.target.with_suffix(REJECTED_SUFFIX), format="delta", options={})
        spark = rows.sparkSession
        options = WriteOptions.from_request(self._reporter.request)
        table = SideTable.open(
            spark, dataset, REJECTED_OWNER, REJECTED, previous, next_number=next_number, options=options
        )
        stored = table.read_rows()
        if stored is not None:
            rows = rows.join(stored.select(*_KEY), list(_KEY), "left_anti").select(*rows.columns)
        # Plain files may have other rows when they are read again.
        rows = rows.localCheckpoint(eager=False)
        self._new_rows = _NewRows(table, rows, is_empty=rows.isEmpty())
        return self._new_rows

    def _describe_rejected(self, source: str, rejected: DataFrame) -> DataFrame:
        """Return the columns of the table of rejected rows."""
        request = self._reporter.request
        conditions = {item.name: item.describe_condition() for item in self.list_for(source)}
        pinned = self._reporter.sources.get(source)
        texts = F.create_map(*[F.lit(text) for pair in conditions.items() for text in pair])
        return rejected.select(
            F.lit(source).alias("source"),
            F.lit(pinned.version if pinned else None).cast("bigint").alias("source_version"),
            F.col(MarkedRows.FAILED).alias("expectations"),
            F.array_join(F.transform(MarkedRows.FAILED, lambda name: texts[name]), "; ").alias("reason"),
            F.col(MarkedRows.ROW).alias("row"),
            F.lit(request.run.run_id).alias("run_id"),
            F.timestamp_micros(F.lit(request.started_at)).alias("rejected_at"),
        )

    def _read_keys(self, spark: SparkSession, expectation: Expectation) -> DataFrame:
        """Return the keys that a foreign key references."""
        at = f"{expectation.path}.foreign_key"
        dataset = resolve_dataset(expectation.dataset, self._reporter.request.warehouse, at=f"{at}.dataset")
        pinned = pin_dataset(spark, dataset)
        if not pinned.exists:
            hint = "correct the name of the dataset, or run the task that writes it first"
            problem = Problem(f"{at}.dataset", "missing", f"{dataset.uri} does not exist", hint)
            raise DataError.from_problems([problem])
        rows = read_dataset(spark, pinned)
        if problems := find_unknown_columns(
            expectation.references, rows.columns, f"{at}.references", dataset.uri
        ):
            raise DataError.from_problems(problems)
        return rows.select(*map(quote_column, expectation.references)).distinct()


class _NewRows(NamedTuple):
    """Rows to append to the table of rejected rows."""

    table: SideTable
    rows: DataFrame
    is_empty: bool
