"""Check the invariants of an SCD2 history, and count their violations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window, functions as F

from airflow_merge_provider.core.dataset import Dataset, resolve_dataset
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_load.columns import check_named_columns, read_history_settings
from airflow_merge_provider.core.merge_load.config import CHECK_COUNTS, INVARIANTS, Scd2CheckConfig
from airflow_merge_provider.core.merge_load.requirements import PREFIX
from airflow_merge_provider.core.merge_load.scd2 import HASH_COLUMN
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.report import Report, RowCounts
from airflow_merge_provider.core.run.previous_run import PreviousRun
from airflow_merge_provider.core.run.reporter import Progress, RunReporter, RunResult
from airflow_merge_provider.core.run.table_log import PinnedDataset
from airflow_merge_provider.jobs.delta.table import build_row_counter, pin_dataset, read_dataset
from airflow_merge_provider.jobs.merge_load.columns import moment_column, refer_to_columns
from airflow_merge_provider.jobs.merge_load.report import build_details
from airflow_merge_provider.jobs.merge_load.staging import filter_source
from airflow_merge_provider.jobs.spark.sql import quote_column

_BEGIN, _END, _ACTIVE, _DELETED = (f"{PREFIX}{suffix}" for suffix in ("begin", "end", "active", "deleted"))
_CURRENT, _SURROGATE, _LAST_END, _LAST_HASH = (
    f"{PREFIX}{suffix}" for suffix in ("current", "surrogate", "last_end", "last_hash")
)


def run_check(
    spark: SparkSession, request: JobRequest, config: Scd2CheckConfig, progress: Progress
) -> Report:
    """Check a history.

    Source: docs/semantics/merge_load.md, History invariants.

    :raises DataError: with everything that does not hold, or when the target is no history.
    """
    with progress.time_step("resolve inputs"):
        pinned = pin_dataset(spark, resolve_dataset(config.target, request.warehouse, at="target"))
        source = None
        if config.source is not None:
            source = pin_dataset(spark, resolve_dataset(config.source, request.warehouse, at="source"))
    return check_history(spark, request, config, pinned, source, progress)


def check_history(
    spark: SparkSession,
    request: JobRequest,
    config: Scd2CheckConfig,
    pinned: PinnedDataset,
    source: PinnedDataset | None,
    progress: Progress,
) -> Report:
    """Check a pinned history, compare its keys with a pinned source if given, and return the report.

    :raises DataError: with everything that does not hold, or when the target is no history.
    """
    target = pinned.dataset
    previous = None if pinned.version is None else PreviousRun(0, pinned.version, None, {})
    sources = {} if source is None else {source.dataset.id: source}
    with progress.time_step("check"):
        history = _HistoryVersions.from_stored(read_dataset(spark, pinned), target)
        counts = history.count_violations()
        if source is not None:
            rows = filter_source(read_dataset(spark, source), config.source_filter)
            counts |= history.compare_with_snapshot(rows, f"the source {source.dataset.id}")
    problems = [
        Problem(
            target.id,
            name,
            f"has {counts[name]} {description}",
            "rebuild the history, or fix the job that wrote it",
        )
        for name, description in INVARIANTS.items()
        if counts.get(name)
    ]
    if problems:
        raise DataError.from_problems(problems)
    reporter = RunReporter(
        build_row_counter(spark), request, progress, CHECK_COUNTS, target, sources, previous
    )
    unchanged = RowCounts.for_noop(unchanged=counts["versions"])
    result = RunResult("full", "a check reads the whole history", unchanged, counts, build_details())
    return reporter.build_report(result)


@dataclass(frozen=True, slots=True)
class _HistoryVersions:
    """The versions of a table, with the column names from its history settings."""

    versions: DataFrame
    keys: tuple[str, ...]
    has_natural_key: bool

    @classmethod
    def from_stored(cls, stored: DataFrame, target: Dataset) -> _HistoryVersions:
        shape = read_history_settings(stored.schema.jsonValue()["fields"])
        if shape is None:
            message = "is not an SCD2 history that this package wrote"
            raise DataError.from_problems(
                [Problem(target.id, "shape", message, "set target to the target of an SCD2 load")]
            )
        begin, end = shape["validity_column_names"]
        keys = tuple(shape["natural_key"]) or (HASH_COLUMN,)
        thin = stored.select(
            *refer_to_columns(keys),
            *([] if HASH_COLUMN in keys else refer_to_columns([HASH_COLUMN])),
            quote_column(begin).alias(_BEGIN),
            quote_column(end).alias(_END),
            _is_active(end, shape).alias(_ACTIVE),
            _get_named(shape, "deleted_column", "boolean", _DELETED),
            _get_named(shape, "current_column", "boolean", _CURRENT),
            _get_named(shape, "surrogate_key_column", "string", _SURROGATE),
        )
        return cls(thin, keys, bool(shape["natural_key"]))

    def count_violations(self) -> dict[str, int]:
        """Count the versions, the keys, and the violations of each invariant."""
        in_order = Window.partitionBy(*refer_to_columns(self.keys)).orderBy(
            _BEGIN, F.col(_END).asc_nulls_last()
        )
        ordered_versions = self.versions.withColumns(
            {
                _LAST_END: F.lag(F.when(~quote_column(_ACTIVE), quote_column(_END))).over(in_order),
                _LAST_HASH: F.lag(HASH_COLUMN).over(in_order),
                f"{PREFIX}place": F.row_number().over(in_order),
            }
        )
        later = quote_column(f"{PREFIX}place") > 1
        last_end, begin, end = quote_column(_LAST_END), quote_column(_BEGIN), quote_column(_END)
        repeats = (last_end == begin) & (quote_column(_LAST_HASH) == quote_column(HASH_COLUMN))
        current = quote_column(_CURRENT)
        by_key = ordered_versions.groupBy(*refer_to_columns(self.keys)).agg(
            F.count(F.lit(1)).alias("versions"),
            F.count_if(begin.isNull() | (~quote_column(_ACTIVE) & (end <= begin))).alias("empty"),
            F.count_if(later & (last_end.isNull() | (last_end > begin))).alias("overlapping"),
            F.count_if(quote_column(_ACTIVE)).alias("active"),
            F.count_if(current.isNotNull() & ~current.eqNullSafe(quote_column(_ACTIVE))).alias(
                "wrongly_current"
            ),
            F.count_if(repeats & F.lit(self.has_natural_key)).alias("repeated"),
        )
        summed = ("versions", "empty", "overlapping", "wrongly_current", "repeated")
        totals = by_key.agg(
            F.count(F.lit(1)).alias("keys"),
            F.count_if(F.col("active") > 1).alias("valid_twice"),
            *[F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in summed],
        ).collect()[0]
        surrogates = self.versions.groupBy(_SURROGATE).count()
        duplicate_count = surrogates.where(
            quote_column(_SURROGATE).isNotNull() & (F.col("count") > 1)
        ).count()
        return {name: int(value) for name, value in totals.asDict().items()} | {
            "surrogates_twice": duplicate_count
        }

    def compare_with_snapshot(self, rows: DataFrame, name: str) -> dict[str, int]:
        """Compare the keys of valid versions with those of a snapshot."""
        check_named_columns(rows.columns, self.keys, name)
        source_keys = rows.select(*refer_to_columns(self.keys)).distinct()
        deleted = F.coalesce(quote_column(_DELETED), F.lit(False))
        valid = (
            self.versions.where(quote_column(_ACTIVE) & ~deleted)
            .select(*refer_to_columns(self.keys))
            .distinct()
        )
        keys = list(self.keys)
        return {
            "not_valid": source_keys.join(valid, keys, "left_anti").count(),
            "not_loaded": valid.join(source_keys, keys, "left_anti").count(),
        }


def _is_active(end: str, shape: Mapping[str, Any]) -> Column:
    at = shape["active_record_timestamp"]
    if at is None:
        return quote_column(end).isNull()
    return quote_column(end).isNull() | (quote_column(end) == moment_column(datetime.fromisoformat(at)))


def _get_named(shape: Mapping[str, Any], option: str, kind: str, alias: str) -> Column:
    name = shape.get(option)
    return (F.lit(None).cast(kind) if name is None else quote_column(name)).alias(alias)
