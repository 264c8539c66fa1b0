"""When is a merge source populated, and when does its output become so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from airflow_merge_provider.core.merge_source.config import MergeSourceConfig

State = Literal["populated", "unpopulated"]
Offset = Literal["if-source-populated", "never", "always", "initially", "onload"]
Run = Literal["none", "started", "failed", "success"]


def waiting_for(
    datasets: Iterable[str], state: Mapping[str, State], *, ignore_non_existent: bool = True
) -> tuple[str, ...]:
    """Give the datasets that are not populated yet; one that ``state`` does not name does not exist.

    >>> waiting_for(["A", "B"], {"A": "unpopulated"})
    ('A',)
    """
    missing = "populated" if ignore_non_existent else "unpopulated"
    return tuple(dataset for dataset in datasets if state.get(dataset, missing) != "populated")


def populated(config: MergeSourceConfig, state: Mapping[str, State]) -> bool:
    """Tell whether the source is populated: no dataset is left that it waits for."""
    return not waiting_for(awaited(config), state, ignore_non_existent=config.ignore_non_existent_datasets)


def awaited(config: MergeSourceConfig) -> tuple[str, ...]:
    """Give the datasets that the source waits for: ``initial_datasets``, or all of them."""
    return config.dataset_ids if config.initial_datasets is None else config.initial_datasets


def output_populated(mode: Offset, *, source_populated: bool, run: Run) -> bool:
    """Tell whether an output that was not populated is so after a run has come this far."""
    if mode == "onload":
        return True
    if mode == "initially":
        return run != "none"
    return run == "success" and (mode == "always" or (mode == "if-source-populated" and source_populated))
