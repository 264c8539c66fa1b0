"""Test MergeEngineOperator in a DAG run with real Spark and tables: late and repeated changes of orders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG
from deltalake import DeltaTable, write_deltalake

from airflow_merge_provider.assets import dataset_asset
from airflow_merge_provider.operators.merge_engine import MergeEngineOperator

pytestmark = [pytest.mark.airflow, pytest.mark.spark]


def build_changes(**columns: Any) -> Any:
    return pa.table({"order": [1, 1, 2], "op": ["+I", "+I", "+I"], **columns})


def build_dag(dag_id: Any, lake: Any) -> Any:
    """Build a DAG that sums amounts."""
    with DAG(dag_id, schedule=None) as dag:
        MergeEngineOperator(
            task_id="fold",
            source="changes",
            target="totals",
            primary_key=["order"],
            merge_engine="aggregation",
            options={"fields.amount.aggregate-function": "sum"},
            row_kind_column="op",
            warehouse=lake,
        )
    return dag


def read_report(run: Any) -> Any:
    return run.get_task_instance("fold").xcom_pull(task_ids="fold", key="merge_report")


def test_a_run_folds_what_is_new_and_tells_of_it(run_dag: Any, asset_events: Any, tmp_path: Path) -> None:
    """Two batches are summed in one commit, which the report and the asset event name."""
    dag, uri = (
        build_dag("engine_on_spark", str(tmp_path)),
        dataset_asset("totals", warehouse=str(tmp_path)).uri,
    )
    write_deltalake(tmp_path / "changes", build_changes(amount=[1, 2, 10]))
    write_deltalake(
        tmp_path / "changes", build_changes(amount=[4, None, 20], op=["-D", "+I", "+I"]), mode="append"
    )

    report = read_report(run_dag(dag))

    assert report["changed"] is True
    assert (report["counts"]["records"], report["rows"]["inserted"]) == (6, 2)
    assert report["target"]["version"] == DeltaTable(tmp_path / "totals").version() == 0
    assert [event["version"] for event in asset_events(uri)] == [0]
