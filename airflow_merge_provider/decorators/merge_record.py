"""Define ``@task.merge_record``: ``MergeRecordOperator`` with arguments that a function computes."""

from __future__ import annotations

from airflow_merge_provider.decorators._decorated import build_decorator
from airflow_merge_provider.operators.merge_record import MergeRecordOperator

merge_record_task = build_decorator(MergeRecordOperator, "merge_record", __name__)
