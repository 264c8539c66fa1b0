"""Define ``@task.joiner``: ``JoinerOperator`` with arguments that a function computes."""

from __future__ import annotations

from airflow_merge_provider.decorators._decorated import build_decorator
from airflow_merge_provider.operators.joiner import JoinerOperator

joiner_task = build_decorator(JoinerOperator, "joiner", __name__)
