"""Define ``@task.delete_insert``: ``DeleteInsertOperator`` with arguments that a function computes."""

from __future__ import annotations

from airflow_merge_provider.decorators._decorated import build_decorator
from airflow_merge_provider.operators.delete_insert import DeleteInsertOperator

delete_insert_task = build_decorator(DeleteInsertOperator, "delete_insert", __name__)
