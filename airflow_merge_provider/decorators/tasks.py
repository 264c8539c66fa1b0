"""Define the task decorators of the operators: ``@task.merge_source``, ``@task.upsert`` and so on."""

from __future__ import annotations

from airflow_merge_provider.decorators._decorated import build_decorator
from airflow_merge_provider.operators.delete_insert import DeleteInsertOperator
from airflow_merge_provider.operators.joiner import JoinerOperator
from airflow_merge_provider.operators.merge_engine import MergeEngineOperator
from airflow_merge_provider.operators.merge_record import MergeRecordOperator
from airflow_merge_provider.operators.merge_source import MergeSourceOperator
from airflow_merge_provider.operators.scd2 import Scd2Operator
from airflow_merge_provider.operators.upsert import UpsertOperator

delete_insert_task = build_decorator(DeleteInsertOperator, "delete_insert", __name__)
joiner_task = build_decorator(JoinerOperator, "joiner", __name__)
merge_engine_task = build_decorator(MergeEngineOperator, "merge_engine", __name__)
merge_record_task = build_decorator(MergeRecordOperator, "merge_record", __name__)
merge_source_task = build_decorator(MergeSourceOperator, "merge_source", __name__)
scd2_task = build_decorator(Scd2Operator, "scd2", __name__)
upsert_task = build_decorator(UpsertOperator, "upsert", __name__)
