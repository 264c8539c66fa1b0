"""Which tables the rows of one load go to, when a column names the table of each row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_load.config import AnyLoad
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.jobs.delta.table import PinnedDataset, read_dataset
from airflow_merge_provider.jobs.merge_load.columns import require
from airflow_merge_provider.jobs.merge_load.intake import filtered
from airflow_merge_provider.jobs.run.progress import Progress
from airflow_merge_provider.jobs.spark.sql import column

# A column with more values than this was hardly meant to name tables.
_MOST_TABLES = 200
_MOST_TOLD = 20
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-]*\Z")


def parts(spark: SparkSession, pinned: PinnedDataset, config: AnyLoad, target: Dataset) -> dict[str, Dataset]:
    """Give the target of each value, in the order of their names.

    :raises DataError: when a value cannot be the name of a table, or there are too many.
    """
    by, name = str(config.dispatch_by), f"the source {pinned.dataset.id}"
    source = filtered(read_dataset(spark, pinned), config.source_filter)
    require(source, [by], name)
    found = source.select(column(by).cast("string").alias("value")).distinct().limit(_MOST_TABLES + 1)
    values = [row["value"] for row in found.collect()]
    wrong = sorted(repr(value) for value in values if value is None or not _NAME.match(value))
    problems = []
    if wrong:
        message = f"{name} has the value {wrong[0]} in {by!r}, which is no name of a table"
        hint = "names have letters, digits, _ and -; filter others out with source_filter"
        problems.append(Problem("dispatch_by", "value", message, hint))
    if len(values) > _MOST_TABLES:
        message = f"{name} has more than {_MOST_TABLES} values in {by!r}"
        problems.append(Problem("dispatch_by", "many", message, "dispatch by a column with few values"))
    spelled: dict[str, str] = {}
    for value in sorted(value for value in values if value is not None):
        other = spelled.setdefault(value.lower(), value)
        if other != value:
            message = f"{name} has the values {other!r} and {value!r} in {by!r}, which differ in case only"
            problems.append(Problem("dispatch_by", "value", message, "spell them alike upstream"))
    if problems:
        raise DataError.of(problems)
    return {value: _inside(target, value) for value in sorted(values)}


def report(
    reports: Mapping[str, Mapping[str, Any]],
    request: JobRequest,
    target: Dataset,
    pinned: PinnedDataset,
    progress: Progress,
) -> dict[str, Any]:
    """Put the reports of all tables together: what was counted in all of them, and what changed where."""
    counts: dict[str, int] = {}
    for each in reports.values():
        for kind, count in each["counts"].items():
            counts[kind] = counts.get(kind, 0) + count
    changed = {name: each["target"]["version"] for name, each in reports.items() if each["changed"]}
    told = dict(list(changed.items())[:_MOST_TOLD])
    said = dict.fromkeys(words for each in reports.values() for words in each["warnings"])
    return {
        "job": request.job,
        "changed": bool(changed),
        "dry_run": request.until != "commit",
        "target": {"dataset": target.id, "uri": target.uri, "version": None},
        "sources": {pinned.dataset.id: {"uri": pinned.dataset.uri, "version": pinned.version}},
        "counts": {"tables": len(reports), "tables_changed": len(changed), **counts},
        "tables": told,
        "seconds": dict(progress.seconds),
        "warnings": list(said)[:5],
    }


def _inside(target: Dataset, name: str) -> Dataset:
    path = None if target.path is None else f"{target.path}/{name}"
    table = None if target.table is None else f"{target.table}.{name}"
    return replace(target, id=f"{target.id}/{name}", path=path, table=table)
