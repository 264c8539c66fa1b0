"""A MergeEngineOperator in a DAG run with real Spark and real tables: late and repeated changes of orders."""

from __future__ import annotations

import pyarrow as pa
import pytest
from airflow.sdk import DAG
from deltalake import DeltaTable, write_deltalake

from airflow_merge_provider.assets import dataset_asset
from airflow_merge_provider.operators.merge_engine import MergeEngineOperator

pytestmark = [pytest.mark.airflow, pytest.mark.spark]


def changes(**columns):
    return pa.table({"order": [1, 1, 2], "op": ["+I", "+I", "+I"], **columns})


def folding(dag_id, lake):
    """Make a DAG that adds amounts up."""
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
            spark_conn_id="no_such_connection",
        )
    return dag


def report(run):
    return run.get_task_instance("fold").xcom_pull(task_ids="fold", key="merge_report")


def test_runs_fold_what_is_new_and_tell_of_it(run_dag, asset_events, tmp_path):
    """Two batches add up, each in a commit of its own that updates the asset."""
    dag, uri = folding("engine_on_spark", str(tmp_path)), dataset_asset("totals", warehouse=str(tmp_path)).uri
    write_deltalake(tmp_path / "changes", changes(amount=[1, 2, 10]))
    first = run_dag(dag)
    write_deltalake(tmp_path / "changes", changes(amount=[4, None, 20], op=["-D", "+I", "+I"]), mode="append")

    second = run_dag(dag)

    assert [report(run)["changed"] for run in (first, second)] == [True, True]
    assert report(second)["counts"]["updated"] == 2
    assert report(second)["target"]["version"] == DeltaTable(tmp_path / "totals").version() == 1
    assert [event["version"] for event in asset_events(uri)] == [0, 1]
