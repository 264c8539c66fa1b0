"""A DAG with a task for each operator over a small lake, with several spellings of locations."""

from __future__ import annotations

import os

from airflow.sdk import DAG, task

from airflow_merge_provider.assets import dataset_asset
from airflow_merge_provider.operators.delete_insert import DeleteInsertOperator
from airflow_merge_provider.operators.joiner import JoinerOperator
from airflow_merge_provider.operators.merge_engine import MergeEngineOperator
from airflow_merge_provider.operators.merge_record import MergeRecordOperator
from airflow_merge_provider.operators.merge_source import MergeSourceOperator
from airflow_merge_provider.operators.scd2 import Scd2CheckOperator, Scd2Operator
from airflow_merge_provider.operators.undo import UndoOperator
from airflow_merge_provider.operators.upsert import UpsertOperator

LAKE = os.environ["AIRFLOW__MERGE__WAREHOUSE"]
NAME = LAKE.rpartition("/")[2]

with DAG("lineage", schedule=None):
    MergeSourceOperator(
        task_id="merge_source",
        target="golden",
        datasets=["crm c", f"{LAKE}/../{NAME}/erp/ e"],
        equality=[["eq", "c.email", ["lower", "e.mail"]]],
        values="columns",
        survivorship={"name": "longest"},
    )
    JoinerOperator(
        task_id="joiner",
        inputs={
            "crm": "crm",
            "orders": {"dataset": f"file://{LAKE}/orders", "format": "csv", "options": {"header": "true"}},
        },
        target="{{ 'joined' }}",
        join_keys="crm._id = orders.customer",
        required_inputs="crm",
        selected_fields="crm.name, orders.amount as total",
        unmatched="joined_unmatched",
    )
    MergeEngineOperator(
        task_id="merge_engine",
        source="changes",
        target="balances",
        primary_key=["id"],
        merge_engine="aggregation",
        options={"fields.amount.aggregate-function": "sum", "sequence.field": "at"},
        changelog="balances_log",
    )
    scd2 = Scd2Operator(
        task_id="scd2",
        source=dataset_asset("crm"),
        target="history",
        natural_key="_id",
        current_column="is_current",
    )
    check = Scd2CheckOperator(task_id="scd2_check", target="history")
    upsert = UpsertOperator(
        task_id="upsert", source="crm", target=f"file:{LAKE}//customers", primary_key="_id"
    )
    DeleteInsertOperator(
        task_id="delete_insert",
        source="crm",
        target="loaded",
        primary_key="_id",
        expect={
            "not_bob": {"condition": "name <> 'Bob'", "action": "quarantine"},
            "has_email": {"not_null": "email"},
        },
    )
    MergeRecordOperator(
        task_id="merge_record",
        source="landing",
        merged="merged",
        failure="failed",
        original="merged_sources",
        state_path="state",
        reader="json",
    )
    UpsertOperator(
        task_id="dry_run",
        source="crm",
        target="customers",
        primary_key="_id",
        dry_run=True,
        allow_concurrent_writes=True,
    )
    UpsertOperator(task_id="failing", source="absent", target="never", primary_key="_id")
    undo = UndoOperator(task_id="undo", target="customers")

    @task(inlets=[dataset_asset("customers")])
    def read_asset() -> None:
        """Read the dataset of an asset, in a task of another provider."""

    scd2 >> check
    upsert >> undo
    read_asset()
