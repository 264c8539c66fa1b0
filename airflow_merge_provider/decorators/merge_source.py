"""Define ``@task.merge_source``: ``MergeSourceOperator`` with arguments that a function computes."""

from __future__ import annotations

from airflow_merge_provider.decorators._decorated import build_decorator
from airflow_merge_provider.operators.merge_source import MergeSourceOperator

merge_source_task = build_decorator(MergeSourceOperator, "merge_source", __name__)
