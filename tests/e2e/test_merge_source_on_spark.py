"""Test MergeSourceOperator in a DAG run with real Spark and tables: the example of three datasets."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG, task
from deltalake import DeltaTable, write_deltalake
from pyarrow import parquet

from airflow_merge_provider.assets import dataset_asset
from airflow_merge_provider.operators.merge_source import MergeSourceOperator

pytestmark = [pytest.mark.airflow, pytest.mark.spark]


@pytest.fixture
def lake(tmp_path: Path) -> Any:
    """Write the datasets A, B and C of the worked example."""
    write_deltalake(tmp_path / "A", pa.table({"_id": ["a1", "a2"], "f1": [1, 2]}))
    write_deltalake(tmp_path / "B", pa.table({"_id": ["b1", "b2"], "f1": [1, 3], "f2": ["x", None]}))
    deleted = pa.array([None, True, True], pa.bool_())
    write_deltalake(
        tmp_path / "C", pa.table({"_id": ["c1", "c2", "c3"], "f3": ["X", "Y", "X"], "_deleted": deleted})
    )
    return str(tmp_path)


def build_dag(dag_id: Any, lake: Any, **kwargs: Any) -> Any:
    """Build a DAG that merges the three datasets, with one task after it."""
    with DAG(dag_id, schedule=None) as dag:

        @task
        def after() -> Any:
            return "ran"

        merge = MergeSourceOperator(
            task_id="merge",
            target="golden",
            datasets=["A a", "B b", "C c"],
            equality=[["eq", "a.f1", "b.f1"], ["eq", "b.f2", ["lower", "c.f3"]]],
            warehouse=lake,
            **kwargs,
        )
        merge >> after()
    return dag


def list_states(run: Any) -> Any:
    return {task_instance.task_id: str(task_instance.state) for task_instance in run.get_task_instances()}


def read_report(run: Any) -> Any:
    return run.get_task_instance("merge").xcom_pull(task_ids="merge", key="merge_report")


# More than 20 seconds: two tasks start Spark.
def test_two_runs_merge_once_and_tell_once(run_dag: Any, asset_events: Any, lake: Any) -> None:
    """The first run writes five entities and emits an event.

    The second one changes nothing and emits none.
    """
    dag = build_dag("on_spark", lake)
    uri = dataset_asset("golden", warehouse=lake).uri

    first = run_dag(dag)
    second = run_dag(dag)

    assert list_states(first) == list_states(second) == {"merge": "success", "after": "success"}
    assert (read_report(first)["changed"], read_report(second)["changed"]) == (True, False)
    assert read_report(first)["target"]["version"] == read_report(second)["target"]["version"]
    (event,) = asset_events(uri)
    assert event["run"] == first.run_id
    assert event["version"] == DeltaTable(f"{lake}/golden").version()
    files = DeltaTable(f"{lake}/golden").file_uris()
    ids = [id_ for file in files for id_ in parquet.read_table(file, columns=["_id"])["_id"].to_pylist()]
    assert sorted(ids) == ["0|a1|1|b1|2|c1", "0|a2", "1|b2", "2|c2", "2|c3"]


def test_a_missing_dataset_fails_for_good_without_writing(run_dag: Any, lake: Any) -> None:
    """A data error that only Spark can detect is not retried, and no target is created."""
    dag = build_dag("missing", f"{lake}/elsewhere", retries=2, retry_delay=timedelta(0))

    run = run_dag(dag)

    assert list_states(run) == {"merge": "failed", "after": "upstream_failed"}
    assert run.get_task_instance("merge").try_number == 1
    assert not DeltaTable.is_deltatable(f"{lake}/elsewhere/golden")
