"""When is a merge source populated."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.population import State, waiting_for


def populated(config: MergeSourceConfig, state: Mapping[str, State]) -> bool:
    """Tell whether the source is populated: no dataset is left that it waits for."""
    return not waiting_for(awaited(config), state, ignore_non_existent=config.ignore_non_existent_datasets)


def awaited(config: MergeSourceConfig) -> tuple[str, ...]:
    """Give the datasets that the source waits for: ``initial_datasets``, or all of them."""
    return config.dataset_ids if config.initial_datasets is None else config.initial_datasets
