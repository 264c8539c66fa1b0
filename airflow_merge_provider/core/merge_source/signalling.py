"""What starts a run: a change of an input or the schedule, and the datasets that must be populated before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.population import State, list_unpopulated

INTERVAL_MIN_SECONDS = 120


def is_signalling(
    supports_signalling: bool | None,  # noqa: FBT001 - three values: yes, no, not said
    schedule: Mapping[str, Any] | None,
    *,
    use_signalling_internally: bool = False,
    shortest_interval: float = INTERVAL_MIN_SECONDS,
) -> bool:
    """Return whether changes start a run: by the source's setting, else by the global one and the schedule.

    ``schedule`` is ``{"interval": seconds}``, ``{"cron": text}`` or None. A cron expression or a short
    interval switches signalling off unless the source requests it.

    >>> is_signalling(None, {"interval": 3600}, use_signalling_internally=True)
    True
    """
    if supports_signalling is not None:
        return supports_signalling
    if not use_signalling_internally:
        return False
    if schedule is None:  # without a schedule, only changes start a run
        return True
    return "cron" not in schedule and schedule["interval"] >= shortest_interval


def is_populated(config: MergeSourceConfig, state: Mapping[str, State]) -> bool:
    """Return whether the source is populated: all datasets that it waits for are populated."""
    return not list_unpopulated(
        list_awaited(config), state, ignore_non_existent=config.ignore_non_existent_datasets
    )


def list_awaited(config: MergeSourceConfig) -> tuple[str, ...]:
    """Return the datasets that the source waits for: ``initial_datasets``, or all datasets."""
    return config.dataset_ids if config.initial_datasets is None else config.initial_datasets
