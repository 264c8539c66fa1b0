"""Define ``@task.scd2``: ``Scd2Operator`` with arguments that a function computes."""

from __future__ import annotations

from airflow_merge_provider.decorators._decorated import build_decorator
from airflow_merge_provider.operators.scd2 import Scd2Operator

scd2_task = build_decorator(Scd2Operator, "scd2", __name__)
