"""Read the rows that a target would have if all changes of its sources were folded, without writing.

This is merge on read: an append-only source serves as the log of the table. If it is folded rarely, the
only write costs are those of the appends, and readers who need current rows fold the changes since the last
run.
"""

from __future__ import annotations

import time
from datetime import timedelta

from pyspark.sql import DataFrame, SparkSession, functions as F

from airflow_merge_provider.core.dataset import Dataset, resolve_dataset
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.core.merge_engine.plan import Plan
from airflow_merge_provider.core.run.previous_run import PreviousRun, load_previous_run
from airflow_merge_provider.core.run.table_log import PinnedDataset
from airflow_merge_provider.jobs.delta.side_table import SideTable
from airflow_merge_provider.jobs.delta.table import SparkLog, pin_dataset, read_dataset
from airflow_merge_provider.jobs.merge_engine import side_tables, source_columns
from airflow_merge_provider.jobs.merge_engine.counting import AFTER
from airflow_merge_provider.jobs.merge_engine.records import RECORD_PROBLEM
from airflow_merge_provider.jobs.merge_engine.row_changes import fold_batch
from airflow_merge_provider.jobs.merge_engine.source import DatasetSource
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.expressions import combine_with_and

_MERGE_ENGINE = "merge_engine"


def read_current_rows(spark: SparkSession, target: str, warehouse: str | None = None) -> DataFrame:
    """Return the rows of a merge engine target, including source changes since its last run.

    :raises DataError: when the target is not there or says nothing of its sources; reading the rows fails
        where a run would refuse a record.
    """
    dataset = resolve_dataset(target, warehouse, at="target")
    last = load_previous_run(SparkLog(spark), dataset, _MERGE_ENGINE)
    if last is None or "configs" not in last.state:
        message = f"{dataset.uri} has no run metadata of a merge engine"
        raise DataError.from_problems([Problem("target", "foreign-target", message, "run its task once")])
    rows = read_dataset(spark, PinnedDataset(dataset, last.version))
    for uri, config in last.state["configs"].items():
        rows = _fold_source(spark, dataset, rows, MergeEngineConfig.parse(config), uri, last)
    return rows


def _fold_source(
    spark: SparkSession,
    target: Dataset,
    rows: DataFrame,
    config: MergeEngineConfig,
    uri: str,
    last: PreviousRun,
) -> DataFrame:
    """Fold the changes of one source since the last run into the rows."""
    named = uri.removeprefix("table:")
    source = Dataset(named, table=named) if named != uri else Dataset(named, path=uri)
    read = DatasetSource(spark, config, pin_dataset(spark, source)).read_gained(last.state["sources"][uri])
    if read is None:
        return rows
    plan = source_columns.plan_for_table(config, read, rows.schema)
    batch = source_columns.fit_rows(config, read.rows, plan.columns)
    removed = None
    if config.tombstone_retention is not None:
        since = time.time_ns() // 1000 - config.tombstone_retention // timedelta(microseconds=1)
        dataset = target.with_suffix(side_tables.REMOVALS_SUFFIX)
        side_table = SideTable.open(spark, dataset, side_tables.REMOVALS, side_tables.REMOVALS, last)
        removed = side_tables.read_removals(side_table, plan, since)
    folded_rows = fold_batch(plan, batch, rows, removed)
    problem = sql.quote_column(RECORD_PROBLEM)
    is_valid = F.when(problem.isNull(), F.lit(True)).otherwise(F.raise_error(problem).cast("boolean"))
    after = sql.quote_column(AFTER)
    values = [sql.quote_column(name) if name in plan.key else after[name].alias(name) for name in plan.names]
    return _select_untouched(plan, rows, batch).unionByName(
        folded_rows.where(is_valid & after.isNotNull()).select(*values)
    )


def _select_untouched(plan: Plan, rows: DataFrame, batch: DataFrame) -> DataFrame:
    keys = batch.select(*map(sql.quote_column, plan.key))
    pairs = [rows[sql.quote_name(name)].eqNullSafe(keys[sql.quote_name(name)]) for name in plan.key]
    return rows.join(keys, combine_with_and(pairs), "left_anti")
