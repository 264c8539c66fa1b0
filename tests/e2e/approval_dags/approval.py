"""A DAG with a load that requests approval before it changes more than a fifth of its target."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from airflow_merge_provider.operators.upsert import UpsertOperator

with DAG("approval", schedule=None, catchup=False):
    UpsertOperator(
        task_id="load",
        source="orders",
        target="loaded",
        primary_key="id",
        max_change_ratio=0.2,
        on_risk="ask",
        execution_timeout=timedelta(minutes=10),
        retries=1,
        retry_delay=timedelta(seconds=1),
    )
