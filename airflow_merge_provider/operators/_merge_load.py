"""What the three operators of merge loads have in common: one job, told apart by a strategy."""

from __future__ import annotations

from typing import Any, ClassVar

from airflow_merge_provider.core.merge_load.config import AnyLoad, warnings
from airflow_merge_provider.core.model import Config
from airflow_merge_provider.operators._spark_job import SparkJobOperator


class MergeLoadOperator(SparkJobOperator):
    """Load a source into a target; a subclass names the strategy and takes its arguments."""

    job = "merge_load"
    strategy: ClassVar[str]

    template_fields_renderers: ClassVar[dict[str, str]] = {
        **SparkJobOperator.template_fields_renderers,
        "source_filter": "sql",
        "destination_scope": "sql",
        "dedup_sort": "json",
    }

    def references(self, config: AnyLoad) -> dict[str, Any]:
        return {"source": config.source, "target": config.target}

    def warnings(self, config: AnyLoad) -> list[str]:
        return warnings(config)

    def _checked(self) -> tuple[Config, dict[str, Any]]:
        config, given = super()._checked()
        return config, {"strategy": self.strategy, **given}
