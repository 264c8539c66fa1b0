"""The population status of a merge source."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.population import State, list_unpopulated


def is_populated(config: MergeSourceConfig, state: Mapping[str, State]) -> bool:
    """Return whether the source is populated: all datasets that it waits for are populated."""
    return not list_unpopulated(
        list_awaited(config), state, ignore_non_existent=config.ignore_non_existent_datasets
    )


def list_awaited(config: MergeSourceConfig) -> tuple[str, ...]:
    """Return the datasets that the source waits for: ``initial_datasets``, or all datasets."""
    return config.dataset_ids if config.initial_datasets is None else config.initial_datasets
