"""Dispatch the rows of one load to several tables, by a column that holds the table names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.sql import SparkSession

from airflow_merge_provider.core.change_plan.shown_rows import mask_value
from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.expectations.config import parse_expectations
from airflow_merge_provider.core.merge_load.columns import check_named_columns
from airflow_merge_provider.core.merge_load.config import AnyLoad
from airflow_merge_provider.core.report import Report, RowCounts
from airflow_merge_provider.core.run.reporter import RunReporter, RunResult
from airflow_merge_provider.core.run.table_log import PinnedDataset
from airflow_merge_provider.core.run_mode import RunMode
from airflow_merge_provider.jobs.delta.table import read_dataset
from airflow_merge_provider.jobs.merge_load.report import build_details
from airflow_merge_provider.jobs.merge_load.staging import filter_source
from airflow_merge_provider.jobs.run.expectations import RunExpectations
from airflow_merge_provider.jobs.spark.sql import quote_column

# A column with more values than this is unlikely to hold table names.
_VALUES_MAX = 200
_TABLES_MAX = 20
# For several tables, the report has the run mode that comes first here.
_MODES: tuple[RunMode, ...] = ("full", "initial", "incremental", "noop")
# With such a folder in it, the folder of the tables would be one; names of side tables are longer.
_TABLE_NAME = re.compile(r"(?!_delta_log\Z)[A-Za-z0-9_][A-Za-z0-9_\-]{0,199}\Z")


def find_parts(
    spark: SparkSession, pinned: PinnedDataset, config: AnyLoad, target: Dataset
) -> dict[str, Dataset]:
    """Return the target of each value, ordered by value.

    :raises DataError: when a value cannot be the name of a table, or there are too many.
    """
    by, name = str(config.dispatch_by), f"the source {pinned.dataset.id}"
    source = filter_source(read_dataset(spark, pinned), config.source_filter)
    check_named_columns(source.columns, [by], name, config)
    distinct_values = (
        source.select(quote_column(by).cast("string").alias("value")).distinct().limit(_VALUES_MAX + 1)
    )
    values = [row["value"] for row in distinct_values.collect()]
    invalid_values = sorted(repr(value) for value in values if value is None or not _TABLE_NAME.match(value))
    problems = []
    if invalid_values:
        value = mask_value(invalid_values[0], [by])
        message = f"{name} has the value {value} in column {by!r}, which is not a valid table name"
        hint = (
            "use an ASCII letter, digit or _, followed by at most 199 ASCII letters, digits, _ and -, or "
            "filter other values out with source_filter"
        )
        problems.append(Problem("dispatch_by", "value", message, hint))
    if len(values) > _VALUES_MAX:
        message = f"{name} has more than {_VALUES_MAX} values in column {by!r}"
        problems.append(Problem("dispatch_by", "many", message, "dispatch by a column with fewer values"))
    spellings: dict[str, str] = {}
    for value in sorted(value for value in values if value is not None):
        first_spelling = spellings.setdefault(value.lower(), value)
        if first_spelling != value:
            message = (
                f"{name} has the values {mask_value(f'{first_spelling!r} and {value!r}', [by])} in {by!r}, "
                "which differ only in case"
            )
            problems.append(Problem("dispatch_by", "value", message, "use the same case upstream"))
        if (owner := value.lower().partition("__")[0]) != value.lower() and owner in spellings:
            pair = mask_value(f"{spellings[owner]!r} and {value!r}", [by])
            message = (
                f"{name} has the values {pair} in {by!r}: the one may be the name of a table beside the other"
            )
            problems.append(Problem("dispatch_by", "value", message, "use a name without __"))
    if problems:
        raise DataError.from_problems(problems)
    return {value: _nest_dataset(target, value) for value in sorted(values)}


def check_expectations(
    spark: SparkSession, pinned: PinnedDataset, config: AnyLoad, reporter: RunReporter
) -> None:
    """Check the expectations on all rows of the source, before a table is written.

    :raises DataError: if rows do not meet an expectation with the action ``fail``.
    """
    rows = filter_source(read_dataset(spark, pinned), config.source_filter)
    RunExpectations(parse_expectations(config.expect), reporter).check_sources({pinned.dataset.id: rows})


def merge_reports(reports: Mapping[str, Report], reporter: RunReporter) -> Report:
    """Return one report for all tables: the sums of their counts and rows, and the tables that changed.

    Its target is the folder or schema of the tables, which has no version.
    """
    changed = {name: report.target.version for name, report in reports.items() if report.changed}
    for report in reports.values():
        reporter.add_warnings(report.warnings)
    modes = {report.run_mode for report in reports.values()}
    mode: RunMode = next((mode for mode in _MODES if mode in modes), "noop")
    reasons = [report.run_mode_reason for report in reports.values() if report.run_mode == mode]
    rows = RowCounts(**_add_up([dict(report.rows) for report in reports.values()]))
    counts = _add_up([report.counts for report in reports.values()])
    counts |= {"tables": len(reports), "tables_changed": len(changed)}
    nested = {
        name: counted for report in reports.values() for name, counted in report.details["nested"].items()
    }
    details = build_details(nested, dict(list(changed.items())[:_TABLES_MAX]))
    reason = next(iter(reasons), "the source has no rows to dispatch")
    report = reporter.build_report(RunResult(mode, reason, rows, counts, details), changed=bool(changed))
    flags = [report.populated for report in reports.values() if report.populated is not None]
    return report.with_population(
        populated=all(flags) if flags else None,
        became_populated=any(report.became_populated for report in reports.values()),
    )


def _add_up(parts: Sequence[Mapping[str, int | None]]) -> dict[str, int | None]:
    """Return the sums of counts; None if one of the counts is unknown."""
    sums: dict[str, int | None] = {}
    for name in parts[0] if parts else ():
        values = [part[name] for part in parts]
        known_values = [value for value in values if value is not None]
        sums[name] = sum(known_values) if len(known_values) == len(values) else None
    return sums


def _nest_dataset(target: Dataset, name: str) -> Dataset:
    path = None if target.path is None else f"{target.path}/{name}"
    table = None if target.table is None else f"{target.table}.{name}"
    return replace(target, id=f"{target.id}/{name}", path=path, table=table)
