"""Build a view of the links that hold the clusters of a target together, which is always up to date."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, functions as F
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from airflow_merge_provider.core import errors
from airflow_merge_provider.core.merge_source import explanation
from airflow_merge_provider.jobs.merge_source.scan.previous_state import MEMBERS
from airflow_merge_provider.jobs.spark.pickling import pickle_once

# In the order of the fields: the result of an Arrow function is matched by position.
LINK_COLUMNS = ("output_id", "left", "right", "rule", "key")
_TYPE = ArrayType(StructType([StructField(name, StringType()) for name in LINK_COLUMNS]))


def build_links(rows: DataFrame) -> DataFrame:
    """Return the links of a target's outputs, n - 1 rows for an output of n members.

    ``links(spark.table("golden")).createOrReplaceTempView("golden__links")`` makes a view for SQL queries.
    Source: docs/semantics/merge_source.md, Links of an output.
    """
    list_links = F.udf(_of_output(), _TYPE, useArrow=True)
    several = rows.where(F.size(MEMBERS) > 1)
    links = several.select(F.explode(list_links(F.col("_id"), F.col(MEMBERS))).alias("link"))
    return links.select(*(F.col("link")[name].alias(name) for name in LINK_COLUMNS))


def _of_output() -> Callable[[str, list[Any]], list[tuple[str, ...]]]:
    linked, names = explanation.list_links, LINK_COLUMNS

    def of_output(output_id: str, members: list[Any]) -> list[tuple[str, ...]]:
        return [tuple(row[name] for name in names) for row in linked(output_id, members)]

    return pickle_once(of_output, errors, explanation)
