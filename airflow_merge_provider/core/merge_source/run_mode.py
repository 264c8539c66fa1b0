"""Choose the run mode of a merge source, given the state of the previous run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_source import refusals
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.fingerprint import compute_signature
from airflow_merge_provider.core.run_mode import (
    CONFIG_CHANGED,
    FULL_REFRESH,
    NO_TARGET,
    NOTHING_CHANGED,
    STATE_EXPIRED,
    TARGET_CHANGED,
    RunMode,
    describe_changed_sources,
)
from airflow_merge_provider.core.source_offset import SourceOffset, is_same_reads

# The key in the state of a run that holds the columns of each dataset.
COLUMNS = "columns"
OVERRIDES_HASH = "overrides_hash"
# Keys in the states of earlier releases.
_FORMER_OVERRIDES_HASH = "decided"
_OPEN_CLUSTERS = {
    "suppressed": "several deleted entities have the same ID, which requires a scan of all sources",
    "quarantined": "keys are quarantined, and their effect depends on all entities",
    "cut": "overrides split a cluster, and the split depends on all of its entities",
}


def choose_run_mode(
    config: MergeSourceConfig,
    previous_state: Mapping[str, Any] | None,
    sources: Mapping[str, SourceOffset],
    *,
    full_refresh: bool,
    overrides_hash: str = "",
    is_target_changed: bool = False,
) -> tuple[RunMode, str]:
    """Return the run mode and the reason for it.

    :param previous_state: None if there is no target, empty if the commit of the previous run has expired.
    :param sources: how far this run reads every dataset.
    :param overrides_hash: a hash of the overrides that hold now.
    :param is_target_changed: whether another writer has changed rows of the target.
    :raises ConfigError: if version 1 would have to move a dataset.
    :raises DataError: if the configuration has changed and ``on_config_change`` is ``fail``.
    """
    if previous_state is None:
        return "initial", NO_TARGET
    if config.reset:
        return "full", "reset is set"
    if not previous_state:
        return "full", STATE_EXPIRED
    has_changed = _has_changed(config, previous_state, full_refresh=full_refresh)
    reasons = {
        CONFIG_CHANGED: has_changed,
        FULL_REFRESH: full_refresh,
        TARGET_CHANGED: is_target_changed,
        "the overrides have changed since the previous run": _get_hash(previous_state) != overrides_hash,
    }
    if reason := next((reason for reason, holds in reasons.items() if holds), None):
        return "full", reason
    if is_same_reads(previous_state, sources.values()):
        return "noop", NOTHING_CHANGED
    if reason := next((why for key, why in _OPEN_CLUSTERS.items() if previous_state.get(key)), None):
        return "full", reason
    return "incremental", describe_changed_sources(previous_state, sources)


def check_columns(
    config: MergeSourceConfig, previous_state: Mapping[str, Any], columns: Mapping[str, Sequence[str]]
) -> None:
    """Check that datasets still have the columns that the previous run merged, unless they may lack them.

    :param columns: the columns of every dataset that is there.
    :raises DataError: with every column that no longer exists.
    """
    if config.schema_evolution == "allow_missing" or config.reset:
        return
    error = refusals.refuse_missing_columns(previous_state.get(COLUMNS, {}), columns)
    if error is not None:
        raise error


def _has_changed(config: MergeSourceConfig, previous_state: Mapping[str, Any], *, full_refresh: bool) -> bool:
    """Return whether the configuration differs from that of the previous run."""
    if config.version == 1:
        error = refusals.refuse_moved_dataset(previous_state.get("datasets", ()), config.dataset_ids)
        if error is not None:
            raise error
    has_changed: bool = previous_state.get("fingerprint") != compute_signature(config)
    if has_changed and config.on_config_change == "fail" and not full_refresh:
        raise _refuse_change()
    return has_changed


def _get_hash(previous_state: Mapping[str, Any]) -> str:
    return str(previous_state.get(OVERRIDES_HASH, previous_state.get(_FORMER_OVERRIDES_HASH, "")))


def _refuse_change() -> DataError:
    return DataError.from_problems(
        [
            Problem(
                "on_config_change",
                "changed",
                "the configuration has changed since the previous run",
                "run once with full_refresh=True, or set on_config_change to 'refresh'",
            )
        ]
    )
