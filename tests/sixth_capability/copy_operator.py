"""The operator of a copy."""

from __future__ import annotations

from typing import Any

from airflow_merge_provider.operators._spark_job import SparkJobOperator
from tests.sixth_capability.config import CopyConfig


class CopyOperator(SparkJobOperator):
    """Copy a table."""

    job = "copy"
    config_class = CopyConfig

    def __init__(self, *, source: Any, target: Any, primary_key: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.target = target
        self.primary_key = primary_key
        self._declare_assets(target, [source])
