"""A MergeEngineOperator in a DAG run with real Spark and real tables: late and repeated changes of orders."""

from __future__ import annotations

import pyarrow as pa
import pytest
from airflow.sdk import DAG
from deltalake import DeltaTable, write_deltalake
from pyarrow import parquet

from airflow_merge_provider.assets import dataset_asset
from airflow_merge_provider.operators.merge_engine import MergeEngineOperator

pytestmark = [pytest.mark.airflow, pytest.mark.spark]


def changes(**columns):
    return pa.table({"order": [1, 1, 2], "op": ["+I", "+I", "+I"], **columns})


def folding(dag_id, lake, **kwargs):
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
            **kwargs,
        )
    return dag


def report(run):
    return run.get_task_instance("fold").xcom_pull(task_ids="fold", key="merge_report")


def test_runs_fold_what_is_new_and_tell_once(run_dag, asset_events, tmp_path):
    """Two batches add up; a run without a new one is silent."""
    dag, uri = folding("engine_on_spark", str(tmp_path)), dataset_asset("totals", warehouse=str(tmp_path)).uri
    write_deltalake(tmp_path / "changes", changes(amount=[1, 2, 10]))
    first = run_dag(dag)
    write_deltalake(tmp_path / "changes", changes(amount=[4, None, 20], op=["-D", "+I", "+I"]), mode="append")

    second, third = run_dag(dag), run_dag(dag)

    assert [report(run)["changed"] for run in (first, second, third)] == [True, True, False]
    assert report(second)["counts"]["updated"] == 2
    files = DeltaTable(tmp_path / "totals").file_uris()
    assert report(second)["target"]["version"] == DeltaTable(tmp_path / "totals").version() == 1
    assert len(asset_events(uri)) == 2
    assert files
    assert parquet.read_table(files[-1], columns=["order", "amount"]).num_rows


def test_a_refused_record_fails_for_good(run_dag, tmp_path):
    """A kind that is none is an error of the data: no retry, no table."""
    dag = folding("engine_refuses", str(tmp_path), retries=2)
    write_deltalake(tmp_path / "changes", changes(amount=[1, 2, 3], op=["+I", "?", "+I"]))

    run = run_dag(dag)

    assert run.get_task_instance("fold").state == "failed"
    assert run.get_task_instance("fold").try_number == 1
    assert not DeltaTable.is_deltatable(str(tmp_path / "totals"))
