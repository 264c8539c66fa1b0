"""Check the rows of a run against its expectations, and save the rows that it leaves out.

Source: docs/expectations.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, functions as F
from pyspark.sql.types import StringType

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.expectations.columns import find_unknown_columns, require_columns
from airflow_merge_provider.core.expectations.config import REJECTED, REJECTED_SUFFIX, Expectation
from airflow_merge_provider.core.expectations.result import (
    EXAMPLES_MAX,
    ExpectationResult,
    build_result,
    check_freshness,
    require_success,
)
from airflow_merge_provider.core.run.previous_run import PreviousRun
from airflow_merge_provider.core.run.reporter import RunReporter
from airflow_merge_provider.jobs.delta.side_table import SideTable
from airflow_merge_provider.jobs.delta.table import pin_dataset, read_dataset
from airflow_merge_provider.jobs.run.change_set import AFTER, BEFORE, KIND
from airflow_merge_provider.jobs.spark.errors import first_line
from airflow_merge_provider.jobs.spark.expressions import build_array, combine_with_and, combine_with_or
from airflow_merge_provider.jobs.spark.parallel import run_in_parallel
from airflow_merge_provider.jobs.spark.sql import quote_column

_OWNER = "rejected_rows"
_INTERNAL = "__merge_"
_ROWS = f"{_INTERNAL}rows"
_EXAMPLE_COLUMNS = 8
ReadKeys = Callable[[SparkSession, Expectation], DataFrame]
_KEY = ("source", "expectations", "row")


class RunExpectations:
    """The expectations of one run; ``rejected`` are the rows that the run leaves out, by their sources."""

    def __init__(self, expectations: Sequence[Expectation], reporter: RunReporter) -> None:
        self._expectations, self._reporter = expectations, reporter
        self._rejected: dict[str, DataFrame] = {}

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
            not suit the columns.
        """
        checked = {
            name: _MarkedRows(
                rows, expectations, self._read_keys, where=f"the source {name!r}", hidden=hidden
            )
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
        return combine_with_or(_build_failure(rows, item) for item in left_out) if left_out else None

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
                marked = _MarkedRows(rows, [expectation], self._read_keys, where="the target")
                results += marked.count_failures(None, 0)
        self._reporter.add_expectations(results)
        require_success(results)

    def has_rejected_rows(self, previous: PreviousRun | None) -> bool:
        """Return whether the run leaves out rows that the table of rejected rows does not have yet."""
        if not self._rejected:
            return False
        return not self._select_new(self._open_table(previous, 0)).isEmpty()

    def save_rejected_rows(self, previous: PreviousRun | None, next_number: int) -> dict[str, int]:
        """Append the rows that the run leaves out to ``<target>__rejected``, each once.

        :return: the version of that table, which the commit of the target records; empty without a table.
        """
        recorded = previous.side_table_versions.get(REJECTED) if previous else None
        if not self._rejected:
            return {} if recorded is None else {REJECTED: recorded}
        with self._reporter.progress.time_step("save rejected rows"):
            table = self._open_table(previous, next_number)
            rows = self._select_new(table)
            if table.version is None or not rows.isEmpty():
                table.append_rows(rows)
        return {} if table.version is None else {REJECTED: table.version}

    def _open_table(self, previous: PreviousRun | None, next_number: int) -> SideTable:
        return SideTable(
            next(iter(self._rejected.values())).sparkSession,
            replace(self._reporter.target.with_suffix(REJECTED_SUFFIX), format="delta", options={}),
            _OWNER,
            previous.side_table_versions.get(REJECTED) if previous else None,
            run_number=previous.run_number if previous else 0,
            next_number=next_number,
        )

    def _select_new(self, table: SideTable) -> DataFrame:
        """Return the rejected rows that the table does not have: a full read rejects the same rows again."""
        rows = reduce(DataFrame.unionByName, self._rejected.values())
        stored = table.read_rows()
        if stored is None:
            return rows
        return rows.join(stored.select(*_KEY), list(_KEY), "left_anti").select(*rows.columns)

    def _describe_rejected(self, source: str, rejected: DataFrame) -> DataFrame:
        """Return the columns of the table of rejected rows."""
        request = self._reporter.request
        conditions = {item.name: item.describe_condition() for item in self.list_for(source)}
        pinned = next((p for name, p in self._reporter.sources.items() if name == source), None)
        texts = F.create_map(*[F.lit(text) for pair in conditions.items() for text in pair])
        return rejected.select(
            F.lit(source).alias("source"),
            F.lit(pinned.version if pinned else None).cast("bigint").alias("source_version"),
            F.col(_MarkedRows.FAILED).alias("expectations"),
            F.array_join(F.transform(_MarkedRows.FAILED, lambda name: texts[name]), "; ").alias("reason"),
            F.col(_MarkedRows.ROW).alias("row"),
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


class _MarkedRows:
    """Rows, and for each expectation whether a row does not meet it.

    A row does not meet a condition if the condition is false, as in a CHECK constraint: NULL is no violation.
    """

    FAILED, ROW = f"{_INTERNAL}failed", f"{_INTERNAL}row"

    def __init__(
        self,
        rows: DataFrame,
        expectations: Sequence[Expectation],
        read_keys: ReadKeys,
        *,
        where: str,
        hidden: Collection[str] = (),
    ) -> None:
        """Check that the rows have the columns that the expectations name.

        :param where: what the rows belong to, for messages.
        :param hidden: columns that are not those of the source.
        :raises DataError: if they do not have them.
        """
        self.rows, self.expectations, self._read_keys = rows, expectations, read_keys
        own = {name for name in rows.columns if name.startswith(_INTERNAL)} | set(hidden)
        self._visible = [name for name in rows.columns if name not in own]
        require_columns(self._visible, expectations, where)

    def count_failures(self, source: str | None, now: int) -> list[ExpectationResult]:
        """Count the rows that do not meet each expectation, in one Spark action."""
        marked, failures = self._mark_rows(self.expectations)
        counts = {f"{_INTERNAL}{name}": F.count_if(failed) for name, failed in failures.items()}
        times = {
            f"{_INTERNAL}{item.name}": F.max(F.unix_micros(_read_time(item)))
            for item in self.expectations
            if item.kind == "freshness"
        }
        values = {**counts, **times, _ROWS: F.count(F.lit(1))}
        row = marked.agg(*(value.alias(name) for name, value in values.items())).collect()[0]
        results = []
        for item in self.expectations:
            value = row[f"{_INTERNAL}{item.name}"]
            if item.kind == "freshness":
                failed = 0 if check_freshness(item, value, now) else max(int(row[_ROWS]), 1)
                result = build_result(item, source, rows=row[_ROWS], failed=failed, newest=value)
            else:
                examples = self._collect_examples(marked, item, failures[item.name]) if value else []
                result = build_result(item, source, rows=row[_ROWS], failed=value, examples=examples)
            results.append(result)
        return results

    def split_rows(self, names: Sequence[str]) -> tuple[DataFrame, DataFrame]:
        """Return the rows that meet the named expectations, and the others with their text and their names.

        The keys of failed rows are broadcast, which keeps the order and the metadata columns of the rows.
        """
        chosen = [item for item in self.expectations if item.name in names]
        marked, failures = self._mark_rows(chosen, broadcast=True)
        is_rejected = combine_with_or(failures.values())
        columns = [quote_column(name) for name in self.rows.columns]
        kept_rows = marked.where(~is_rejected).select(*columns)
        empty = F.array().cast("array<string>")
        failed = build_array([(value, [F.lit(name)]) for name, value in failures.items()], empty)
        text = F.to_json(F.struct(*map(quote_column, self._visible)), {"ignoreNullFields": "false"})
        rejected = marked.where(is_rejected).select(failed.alias(self.FAILED), text.alias(self.ROW))
        return kept_rows, rejected

    def _mark_rows(
        self, expectations: Sequence[Expectation], *, broadcast: bool = False
    ) -> tuple[DataFrame, dict[str, Column]]:
        """Return the rows, and whether a row does not meet an expectation, by the name of the expectation."""
        marked, failures = self.rows, {}
        for number, item in enumerate(expectations):
            if item.is_row_condition:
                failures[item.name] = _build_failure(self.rows, item)
            elif item.kind != "freshness":
                keys = self._find_failed_keys(item, number)
                marked = _join_keys(marked, F.broadcast(keys) if broadcast else keys, item, number)
                failures[item.name] = F.col(_name_mark(number)).isNotNull()
        return marked, failures

    def _find_failed_keys(self, item: Expectation, number: int) -> DataFrame:
        """Return the keys that are repeated, or that the referenced dataset does not have."""
        columns = [quote_column(name) for name in item.columns]
        names = [_name_key(number, position) for position in range(len(columns))]
        keys = self.rows.where(combine_with_and(column.isNotNull() for column in columns)).select(
            *(column.alias(name) for column, name in zip(columns, names, strict=True))
        )
        if item.kind == "unique":
            failed = keys.groupBy(*names).count().where(F.col("count") > 1).select(*names)
        else:
            valid = self._read_keys(self.rows.sparkSession, item).toDF(*(f"{name}_valid" for name in names))
            is_valid = combine_with_and(F.col(name) == F.col(f"{name}_valid") for name in names)
            failed = keys.distinct().join(valid, is_valid, "left_anti")
        return failed.withColumn(_name_mark(number), F.lit(True))

    def _collect_examples(self, marked: DataFrame, item: Expectation, failed: Column) -> list[dict[str, Any]]:
        """Return some rows that do not meet an expectation: its columns, and the first other ones."""
        other_names = [name for name in self._visible if name not in item.columns]
        names = [*item.columns, *other_names][:_EXAMPLE_COLUMNS]
        text = F.to_json(F.struct(*map(quote_column, names)), {"ignoreNullFields": "false"})
        rows = marked.where(failed).select(text.alias(self.ROW)).limit(EXAMPLES_MAX).collect()
        return [json.loads(row[self.ROW]) for row in rows]


def _build_failure(rows: DataFrame, item: Expectation) -> Column:
    """Return whether a row does not meet an expectation that depends on this row alone.

    :raises DataError: if the expectation does not suit the columns.
    """
    if item.kind == "condition":
        _require_condition(rows, item)
        return F.coalesce(~F.expr(item.condition), F.lit(False))
    if item.kind == "not_null":
        return combine_with_or(quote_column(name).isNull() for name in item.columns)
    (name,) = item.columns
    kind = rows.select(quote_column(name)).schema[0].dataType
    values = [_to_text(value) for value in item.values] if isinstance(kind, StringType) else item.values
    accepted = combine_with_or(
        F.coalesce(quote_column(name) == F.lit(value).try_cast(kind.simpleString()), F.lit(False))
        for value in values
    )
    return quote_column(name).isNotNull() & ~accepted


def _require_condition(rows: DataFrame, item: Expectation) -> None:
    """Check that a SQL condition suits the columns.

    :raises DataError: if it does not.
    """
    hint = "correct the condition; it is written as in WHERE"
    try:
        kind = rows.select(F.expr(item.condition)).schema[0].dataType.simpleString()
    except AnalysisException as error:
        raise DataError.from_problems(
            [Problem(item.path, "condition", f"{item.condition!r}: {first_line(error)}", hint)]
        ) from error
    if kind != "boolean":
        message = f"{item.condition!r} is a value of type {kind}, not a condition"
        raise DataError.from_problems([Problem(item.path, "condition", message, hint)])


def _read_time(item: Expectation) -> Column:
    return quote_column(item.columns[0]).try_cast("timestamp")


def _to_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _join_keys(rows: DataFrame, keys: DataFrame, item: Expectation, number: int) -> DataFrame:
    """Mark the rows that have one of the keys."""
    pairs = (
        quote_column(name) == F.col(_name_key(number, position)) for position, name in enumerate(item.columns)
    )
    return rows.join(keys, combine_with_and(pairs), "left")


def _name_key(number: int, position: int) -> str:
    return f"{_INTERNAL}key{number}_{position}"


def _name_mark(number: int) -> str:
    return f"{_INTERNAL}mark{number}"
