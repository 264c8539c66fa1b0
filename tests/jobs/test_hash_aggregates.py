"""Test that rows are counted by key in hash tables: a text in an aggregate would make Spark sort them all."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.merge_load.config import load_config
from airflow_merge_provider.core.merge_load.requirements import build_requirements
from airflow_merge_provider.jobs.delta.table import MemoryDataset
from airflow_merge_provider.jobs.joiner.counting import check_unique
from airflow_merge_provider.jobs.joiner.job import prepare_join
from airflow_merge_provider.jobs.merge_load.staging import stage_load
from airflow_merge_provider.jobs.spark.plain_files import read_files

SORTED_GROUPS = re.compile(r"SortAggregate[^\n]*\nInput [^\n]*\nKeys \[[1-9]")
LOAD = {"strategy": "upsert", "primary_key": "id", "hard_delete": "gone", "source": "a", "target": "t"}
JOIN = {
    "inputs": {"a": "a", "b": "b"},
    "join_keys": "a.id = b.id",
    "required_inputs": "a",
    "expect": {"b": "one_to_one"},
    "selected_fields": "a.id, b.gone",
    "target": "t",
}


@pytest.mark.classic
def test_rows_are_not_sorted_to_count_them(spark: SparkSession, tmp_path: Path) -> None:
    """Neither the lines of CSV files, nor the keys of a load, nor the keys of a join are sorted."""
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text(f"id,gone\n{name},\n")
    dataset = Dataset(id="a", path=str(tmp_path), format="csv", options={"header": "true"})
    rows = read_files(spark, dataset)
    config = load_config(LOAD)
    with ExitStack() as held:
        load = stage_load(rows, "a", config, build_requirements(config), stored=None, added=(), held=held)
    join = prepare_join(spark, JOIN, {name: MemoryDataset(dataset, 0, rows=rows) for name in "ab"})
    check_unique(join.frames, join.plan)

    assert load.loaded == 2
    session = spark._jsparkSession
    session.sparkContext().listenerBus().waitUntilEmpty(10_000)
    executions = session.sharedState().statusStore().executionsList()
    plans = [executions.apply(number).physicalPlanDescription() for number in range(executions.size())]
    assert any("HashAggregate" in plan for plan in plans)
    assert [plan for plan in plans if SORTED_GROUPS.search(plan)] == []
