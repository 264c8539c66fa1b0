"""Which rows came out nowhere, and the table that keeps them.

A row is left out when some required input has no row for its key. The table is written before the target, by
a commit of its own: while the target's commit has not landed nobody takes it for the result, and the next try
writes it anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.joiner.plan import JoinPlan
from airflow_merge_provider.jobs.delta.table import PreviousRun, commit_once, load_previous_run
from airflow_merge_provider.jobs.delta.writer import create_table, overwrite_table
from airflow_merge_provider.jobs.joiner.transform import Frames
from airflow_merge_provider.jobs.spark.expressions import every
from airflow_merge_provider.jobs.spark.sql import column

CAPABILITY = "joiner_unmatched"


@dataclass(frozen=True)
class Unmatched:
    """The table of the rows that came out nowhere, as it was when the run began."""

    dataset: Dataset
    last: PreviousRun | None

    @classmethod
    def find(cls, spark: SparkSession, dataset: Dataset) -> Unmatched:
        """Look at the table before anything is read.

        :raises DataError: when it is no Delta table, or one that something else wrote.
        """
        return cls(dataset, load_previous_run(spark, dataset, CAPABILITY))

    def write(self, spark: SparkSession, rows: DataFrame, state: Mapping[str, Any]) -> int | None:
        """Replace the table's rows and tell how many they are."""

        def write() -> None:
            if self.last is None:
                create_table(self.dataset, rows, CAPABILITY)
            else:
                overwrite_table(self.dataset, rows)

        return commit_once(spark, self.dataset, CAPABILITY, self.last, state, write).rows


def unmatched(frames: Frames, plan: JoinPlan) -> DataFrame:
    """Give the name of the input and the whole row, as JSON, of every row that comes out nowhere."""
    left_out = [_left_out(frames, plan, stage) for stage in plan.schemas if plan.required - {stage}]
    return reduce(DataFrame.unionAll, left_out)


def _left_out(frames: Frames, plan: JoinPlan, stage: str) -> DataFrame:
    """Give an input's rows that lack a partner in some other required input."""
    others = [each for each in plan.order if each in plan.required and each != stage]
    row = F.to_json(F.struct(*map(column, frames[stage].columns)), {"ignoreNullFields": "false"})
    left_out = [F.lit(stage).alias("input"), row.alias("row")]
    if plan.expression is not None:
        mine, theirs = (frames[each].alias(plan.aliases[each]) for each in (stage, *others))
        return mine.join(theirs, F.expr(plan.expression), "left_anti").select(*left_out)
    mine = frames[stage].select(*left_out, *_keys(plan, stage))
    partners = reduce(
        lambda found, each: found.join(
            frames[each].select(*_keys(plan, each)), _match(plan, others[0], each), "left_semi"
        ),
        others[1:],
        frames[others[0]].select(*_keys(plan, others[0])),
    )
    return mine.join(partners, _match(plan, stage, others[0]), "left_anti").select("input", "row")


def _keys(plan: JoinPlan, stage: str) -> list[Column]:
    return [column(field).alias(_key(stage, place)) for place, field in enumerate(plan.keys[stage])]


def _match(plan: JoinPlan, left: str, right: str) -> Column:
    pairs = [(column(_key(left, place)), column(_key(right, place))) for place in range(len(plan.keys[left]))]
    return every(a.eqNullSafe(b) if plan.nulls_match else a == b for a, b in pairs)


def _key(stage: str, place: int) -> str:
    return f"__merge_key_{stage}_{place}"
