"""How changes reach the target: counted first, and written in one commit, or in none when there are none."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import SparkSession, functions as F
from pyspark.sql.types import StructType

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.jobs import sql, tables
from airflow_merge_provider.jobs.merge_load.changes import ACTION, COUNTED, INSERT, NOTHING, WEIGHT, Changes
from airflow_merge_provider.jobs.merge_load.columns import refer
from airflow_merge_provider.jobs.tables import Committed, LastRun

CAPABILITY = "merge_load"
SHAPE = "merge.load"

# Planning a small MERGE anew after each of its stages costs more than it brings.
_SMALL = 200_000


@dataclass(frozen=True, slots=True)
class Shape:
    """What the rows of a table rest on, and the column that carries it."""

    column: str
    content: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Weighed:
    """Changes that have been computed, with how many of each kind there are."""

    changes: Changes
    counts: Mapping[str, int]
    inserts: int
    others: int

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return self.inserts + self.others == 0


@contextmanager
def weighed(changes: Changes) -> Iterator[Weighed]:
    """Compute changes once, and give them with their counts as long as the block lasts."""
    rows = changes.rows.persist()
    try:
        found = rows.groupBy(ACTION, COUNTED).agg(F.count("*").alias("n"), F.sum(WEIGHT).alias("w")).collect()
        counts: dict[str, int] = {}
        for row in found:
            if row[COUNTED] is not None:
                counts[row[COUNTED]] = counts.get(row[COUNTED], 0) + int(row["w"])
        inserts = sum(row["n"] for row in found if row[ACTION] == INSERT)
        others = sum(row["n"] for row in found if row[ACTION] not in {INSERT, NOTHING})
        yield Weighed(replace(changes, rows=rows), counts, inserts, others)
    finally:
        for frame in (rows, *changes.held):
            frame.unpersist()


def write(
    spark: SparkSession,
    target: Dataset,
    last: LastRun | None,
    found: Weighed,
    state: Mapping[str, Any],
    *,
    anew: bool,
    shape: Shape | None = None,
) -> Committed:
    """Make the run's one commit; ``anew`` says that the rows are the whole table.

    ``shape`` is what a new table says of itself for later runs: it lies on a column, so that it comes and
    goes with the rows it is about.
    """
    changes = found.changes
    inserts = changes.rows.where(sql.column(ACTION) == INSERT).select(*refer(changes.columns))
    if shape is not None and (last is None or anew):
        inserts = inserts.withMetadata(shape.column, {SHAPE: json.dumps(shape.content, sort_keys=True)})

    def one_statement() -> None:
        if last is None:
            tables.create_as(target, inserts, CAPABILITY)
        elif anew:
            tables.overwrite(target, inserts)
        elif not found.others:
            tables.append(target, inserts, new_columns=True)
        else:
            tables.merge(spark, target, changes.rows, changes.condition, changes.clauses)

    settings = {"spark.databricks.delta.schema.autoMerge.enabled": "true"}
    if found.inserts + found.others < _SMALL:
        settings["spark.sql.adaptive.enabled"] = "false"
    with tables.settings(spark, settings):
        return tables.commit(spark, target, CAPABILITY, last, state, one_statement)


def shape_of(schema: StructType, name: str) -> dict[str, Any] | None:
    """Read what a table says of itself on one of its columns; None when it says nothing."""
    if name not in schema.names:
        return None
    text = (schema[name].metadata or {}).get(SHAPE)
    return dict(json.loads(text)) if text else None
