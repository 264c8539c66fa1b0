"""Counts of the input rows, and the check that keys are unique in the inputs that ``expect`` names.

Each input is counted in a separate query. Counting within the join would be wrong: Spark removes an observed
input from the plan if the other side is empty, and reads an input of a nested loop join more than once.
The row count of a Delta table comes from its log.
Source: docs/semantics/joiner.md, Row counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from airflow_merge_provider.core.change_plan.shown_rows import mask_value
from airflow_merge_provider.core.errors import DataError, Problem, format_count
from airflow_merge_provider.core.joiner.plan import JoinPlan
from airflow_merge_provider.core.run.table_log import PinnedDataset
from airflow_merge_provider.jobs.delta.table import count_records
from airflow_merge_provider.jobs.joiner.transform import Frames, list_key_columns
from airflow_merge_provider.jobs.spark.exact_text import shown_row
from airflow_merge_provider.jobs.spark.expressions import combine_with_and
from airflow_merge_provider.jobs.spark.parallel import run_in_parallel
from airflow_merge_provider.jobs.spark.sql import quote_column


def count_input_records(
    spark: SparkSession, frames: Frames, pinned: Mapping[str, PinnedDataset]
) -> dict[str, int]:
    """Count the rows of every input in parallel, with a query only where the log does not hold the count.

    Each input is a separate query: Delta answers a plain count from its log, but not a count that is part of
    another query.

    :return: the number of rows by input name.
    """

    def count_rows(stage: str) -> int:
        row_count = count_records(spark, pinned[stage], live=True)
        return frames[stage].count() if row_count is None else row_count

    return dict(zip(frames, run_in_parallel(spark, count_rows, frames), strict=True))


def check_unique(frames: Frames, plan: JoinPlan) -> None:
    """Check that no key repeats in the inputs whose keys ``expect`` declares as unique.

    :raises DataError: with every such input, how many keys repeat, and one of them.
    """
    if not plan.unique:
        return
    counted = [_count_repeated_keys(frames[stage], plan, stage) for stage in plan.unique]
    rows = reduce(DataFrame.unionAll, counted).collect()
    repeats = {row["stage"]: row.asDict() for row in rows if row["keys"]}
    if repeats:
        raise DataError.from_problems(
            [
                _build_problem(repeats[stage], _find_example(frames[stage], plan, stage), plan)
                for stage in plan.unique
                if stage in repeats
            ]
        )


def _count_repeated_keys(frame: DataFrame, plan: JoinPlan, stage: str) -> DataFrame:
    return _group_repeated_keys(frame, plan, stage).agg(
        F.lit(stage).alias("stage"), F.count(F.lit(1)).alias("keys"), F.max("__merge_rows").alias("most")
    )


def _find_example(frame: DataFrame, plan: JoinPlan, stage: str) -> str:
    """Return a repeated key as text; if all keys were counted with one, Spark would sort their rows."""
    text = shown_row(frame, plan.keys[stage])
    repeated_keys = _group_repeated_keys(frame, plan, stage, F.min(text).alias("__merge_example"))
    return str(repeated_keys.agg(F.min("__merge_example")).collect()[0][0])


def _group_repeated_keys(frame: DataFrame, plan: JoinPlan, stage: str, *aggregates: Column) -> DataFrame:
    if not plan.nulls_match:
        fields = map(quote_column, plan.keys[stage])
        frame = frame.where(combine_with_and(field.isNotNull() for field in fields))
    groups = frame.groupBy(*list_key_columns(plan, stage))
    return groups.agg(F.count(F.lit(1)).alias("__merge_rows"), *aggregates).where("__merge_rows > 1")


def _build_problem(repeat: Mapping[str, Any], example: str, plan: JoinPlan) -> Problem:
    stage = str(repeat["stage"])
    message = (
        f"input {stage!r} has {format_count(repeat['keys'], 'repeated key')}, up to {repeat['most']} times"
        f" (for example {mask_value(example, plan.keys[stage])})"
    )
    fields = ", ".join(plan.keys[stage])
    return Problem(
        "expect", "fan-out", message, f"remove the duplicate rows, or add a field to the key {fields}"
    )
