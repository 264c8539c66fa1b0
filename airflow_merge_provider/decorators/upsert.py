"""Define ``@task.upsert``: ``UpsertOperator`` with arguments that a function computes."""

from __future__ import annotations

from airflow_merge_provider.decorators._decorated import build_decorator
from airflow_merge_provider.operators.upsert import UpsertOperator

upsert_task = build_decorator(UpsertOperator, "upsert", __name__)
