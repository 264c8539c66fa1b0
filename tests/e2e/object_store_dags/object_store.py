"""A DAG over a warehouse on S3: wait for a dataset, load it, and merge the files of a landing folder."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_merge_provider.operators.merge_record import MergeRecordOperator
from airflow_merge_provider.operators.upsert import UpsertOperator
from airflow_merge_provider.sensors.dataset_populated import DatasetPopulatedSensor

with DAG("object_store", schedule=None, catchup=False):
    wait = DatasetPopulatedSensor(task_id="wait", datasets=["orders"], poke_interval=1.0)
    load = UpsertOperator(task_id="load", source="orders", target="loaded", primary_key="id")
    merge = MergeRecordOperator(
        task_id="merge",
        source="landing",
        merged="merged",
        failure="failure",
        original="original",
        state_path="state",
        reader="json",
        min_records=2,
        deferrable=True,
        poll_interval=1.0,
    )
    wait >> load >> merge
