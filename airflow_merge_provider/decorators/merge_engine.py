"""Define ``@task.merge_engine``: ``MergeEngineOperator`` with arguments that a function computes."""

from __future__ import annotations

from airflow_merge_provider.decorators._decorated import build_decorator
from airflow_merge_provider.operators.merge_engine import MergeEngineOperator

merge_engine_task = build_decorator(MergeEngineOperator, "merge_engine", __name__)
