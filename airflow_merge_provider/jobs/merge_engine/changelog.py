"""How the net changes of a run get into a table of their own, so that target and log never disagree.

The log is written first and the target's commit names its version: what the log holds beyond that version
belongs to a run that did not get through, and the next run takes it out. Source: merge_engine spec §8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession, functions as F

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.merge_engine.plan import Plan
from airflow_merge_provider.jobs import tables
from airflow_merge_provider.jobs.merge_engine.outcome import changes
from airflow_merge_provider.jobs.tables import LastRun

CAPABILITY = "merge_engine_changelog"
KIND, RUN = "_kind", "_run"


@dataclass(frozen=True, slots=True)
class Changelog:
    """The log of a run: where it is, its last run, and the version that the target's last commit names."""

    dataset: Dataset
    last: LastRun | None
    named: int | None


def look(spark: SparkSession, dataset: Dataset, state: Mapping[str, Any]) -> Changelog:
    """Find the log before anything is read; ``state`` is what the target's last commit says.

    :raises DataError: when there is something else at its place.
    """
    named = (state.get("changelogs") or {}).get(dataset.uri)
    return Changelog(dataset, tables.last_run(spark, dataset, CAPABILITY), named)


def write(spark: SparkSession, log: Changelog, plan: Plan, found: DataFrame, number: int) -> int:
    """Append the changes of run ``number`` and give the version that the target's commit has to name.

    :raises ConflictError: when another run has written to the log first.
    """
    rows = changes(plan, found, KIND).withColumn(RUN, F.lit(number).cast("bigint"))
    if log.last is not None and log.named is not None and log.last.version != log.named:
        tables.restore(spark, log.dataset, log.named)

    def store() -> None:
        if log.last is None:
            tables.create_as(log.dataset, rows, CAPABILITY)
        elif log.named is None:
            tables.overwrite(log.dataset, rows)
        else:
            tables.append(log.dataset, rows)

    return tables.commit(spark, log.dataset, CAPABILITY, log.last, {"run": number}, store).version
