"""Check the records of files whose bin is to be merged against the expectations of the run.

Source: docs/semantics/merge_record.md, Expectations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, functions as F

from airflow_merge_provider.core.change_plan.shown_rows import mask_row
from airflow_merge_provider.core.errors import DataError, did_you_mean, format_count
from airflow_merge_provider.core.expectations.config import Expectation, parse_expectations
from airflow_merge_provider.core.expectations.result import ExpectationResult, build_result
from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.flowfile import FlowFile
from airflow_merge_provider.core.merge_record.schema import Schema
from airflow_merge_provider.jobs.merge_record.readers.formats import FILE
from airflow_merge_provider.jobs.merge_record.readers.scan import Records
from airflow_merge_provider.jobs.run.marked_rows import build_failure
from airflow_merge_provider.jobs.spark.errors import first_line
from airflow_merge_provider.jobs.spark.exact_text import JSON_OPTIONS
from airflow_merge_provider.jobs.spark.sql import quote_column

_EXAMPLE_COLUMNS = 8
_REJECTED_EXAMPLES_MAX = 2
_UNRESOLVED_COLUMN = "UNRESOLVED_COLUMN"


@dataclass(frozen=True, slots=True)
class RecordCheck:
    """The results of expectations on files, and why files are rejected, by their URI.

    ``warnings`` name the columns that files do not have.
    """

    results: Sequence[ExpectationResult] = ()
    rejected: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class _Failure:
    """Whether a record does not meet an expectation; ``missing`` says which column all records lack."""

    failed: Column
    missing: str | None = None


def check_records(
    records: Records,
    files: Sequence[FlowFile],
    schemas: Mapping[str, Schema],
    config: MergeRecordConfig,
    source: str,
) -> RecordCheck:
    """Count the records of each file that do not meet each expectation, with one Spark job for all files.

    A file without a column that an expectation names does not meet the expectation with any of its records.

    :param source: the name of the source folder in the report.
    :raises DataError: if a condition is not valid.
    """
    expectations = parse_expectations(config.expect)
    frames: list[DataFrame] = []
    missing: dict[tuple[str, str], str | None] = {}
    for key in dict.fromkeys(file.schema for file in files):
        uris = dict.fromkeys(file.uri for file in files if file.schema == key)
        frame = records.read_records(key, schemas[key], config.reader, uris)
        failures = [_find_failure(frame, schemas[key].names, item) for item in expectations]
        missing |= {
            (uri, item.name): failure.missing
            for uri in uris
            for item, failure in zip(expectations, failures, strict=True)
            if failure.missing
        }
        frames.append(_count_failures(frame, schemas[key].names, expectations, failures))
    uris_by_name = {records.format_file(file.uri): file.uri for file in files}
    rows = [
        {**row, FILE: uris_by_name[row[FILE]]}
        for row in reduce(DataFrame.unionAll, frames).toArrow().to_pylist()
        # A cached frame may have the records of further files.
        if row[FILE] in uris_by_name
    ]
    rows.sort(key=lambda row: str(row[FILE]))
    results = [_sum_up(item, number, rows, source) for number, item in enumerate(expectations)]
    return RecordCheck(
        results,
        _list_rejected(expectations, rows, missing),
        [
            _describe_missing(item, missing)
            for item in expectations
            if any(item.name == name for _, name in missing)
        ],
    )


def combine_checks(first: RecordCheck, second: RecordCheck) -> RecordCheck:
    """Add the results on further files to those on other ones."""
    if not first.results:
        return second
    results = [
        one.model_copy(
            update={
                "rows": one.rows + other.rows,
                "failed": one.failed + other.failed,
                "examples": [*one.examples, *other.examples][:_REJECTED_EXAMPLES_MAX],
            }
        )
        for one, other in zip(first.results, second.results, strict=True)
    ]
    return RecordCheck(results, {**first.rejected, **second.rejected}, [*first.warnings, *second.warnings])


def _find_failure(frame: DataFrame, names: Sequence[str], item: Expectation) -> _Failure:
    """Return whether a record does not meet an expectation.

    :raises DataError: if a condition is not valid for another reason than a missing column.
    """
    lacking = [name for name in item.columns if name not in names]
    if lacking:
        hints = [f" ({hint})" for name in lacking if (hint := did_you_mean(name, names))]
        return _Failure(F.lit(True), f"no column {', '.join(map(repr, lacking))}{''.join(hints)}")
    try:
        return _Failure(build_failure(frame, item))
    except DataError as error:
        cause = error.__cause__
        if isinstance(cause, AnalysisException) and (cause.getCondition() or "").startswith(
            _UNRESOLVED_COLUMN
        ):
            return _Failure(F.lit(True), f"a column is missing: {first_line(cause)}")
        raise


def _count_failures(
    frame: DataFrame, names: Sequence[str], expectations: Sequence[Expectation], failures: Sequence[_Failure]
) -> DataFrame:
    """Return for each file its records, and for each expectation the failed ones with an example."""
    counts = [F.count(F.lit(1)).alias("records")]
    for number, (item, failure) in enumerate(zip(expectations, failures, strict=True)):
        own = [name for name in item.columns if name in names]
        shown = [*own, *(name for name in names if name not in own)][:_EXAMPLE_COLUMNS]
        text = F.to_json(F.struct(*map(quote_column, shown)), {**JSON_OPTIONS, "ignoreNullFields": "false"})
        example = F.min(F.when(failure.failed, text)) if shown else F.lit(None).cast("string")
        counts += [F.count_if(failure.failed).alias(f"failed{number}"), example.alias(f"example{number}")]
    return frame.groupBy(FILE).agg(*counts)


def _sum_up(
    item: Expectation, number: int, rows: Sequence[Mapping[str, Any]], source: str
) -> ExpectationResult:
    """Return the result of an expectation on all files; its examples name their files."""
    failed_rows = [row for row in rows if row[f"failed{number}"]]
    return build_result(
        item,
        source,
        rows=sum(row["records"] for row in rows),
        failed=sum(row[f"failed{number}"] for row in failed_rows),
        examples=[_read_example(row, number) for row in failed_rows[:_REJECTED_EXAMPLES_MAX]],
    )


def _read_example(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    record = mask_row(json.loads(row[f"example{number}"] or "{}"))
    return {"file": str(row[FILE]).rpartition("/")[2], **record}


def _list_rejected(
    expectations: Sequence[Expectation],
    rows: Sequence[Mapping[str, Any]],
    missing: Mapping[tuple[str, str], str | None],
) -> dict[str, str]:
    """Return the reasons for which files are rejected, by their URI."""
    rejected: dict[str, list[str]] = {}
    for row in rows:
        for number, item in enumerate(expectations):
            if item.action != "quarantine" or not row[f"failed{number}"]:
                continue
            verb = "does" if row[f"failed{number}"] == 1 else "do"
            text = f"{row[f'failed{number}']} of {format_count(row['records'], 'record')} {verb} not meet "
            text += f"{item.path}: {item.describe_condition()}"
            if lack := missing.get((row[FILE], item.name)):
                text += f" ({lack})"
            rejected.setdefault(row[FILE], []).append(text)
    return {uri: "; ".join(texts) for uri, texts in rejected.items()}


def _describe_missing(item: Expectation, missing: Mapping[tuple[str, str], str | None]) -> str:
    uris = sorted(uri for uri, name in missing if name == item.name)
    lack = missing[uris[0], item.name]
    example = uris[0].rpartition("/")[2]
    files = format_count(len(uris), "file")
    return f"{item.path}: the records of {files} do not meet it, such as {example}: {lack}"
