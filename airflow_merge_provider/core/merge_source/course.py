"""How far does a run have to look back, given what the last one left behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_source import refusals
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.fingerprint import signature
from airflow_merge_provider.core.source_offset import SourceOffset, is_same_reads

Course = Literal["anew", "everything", "changes", "nothing"]


def course(
    config: MergeSourceConfig,
    before: Mapping[str, Any] | None,
    offsets: Sequence[SourceOffset],
    *,
    full_refresh: bool,
    decided: str = "",
    target_changes: Sequence[str] = (),
) -> tuple[Course, list[str]]:
    """Decide what a run does, and say why where that is not what a user would expect.

    ``anew`` writes the target as if there were none, ``everything`` compares the whole result with it,
    ``changes`` evaluates what a change can reach, and ``nothing`` is left where no source has a new version.
    ``before`` is what the last run left (empty where its commit has aged out), ``offsets`` is how far this
    one reads the datasets, ``decided`` the mark of the decisions that count now. ``target_changes`` are
    warnings that another writer has changed the target's rows. Source: spec §5.6.

    :raises ConfigError: when version 1 would have to move a dataset.
    :raises DataError: when the configuration is another one and ``on_config_change`` says ``fail``.
    """
    if before is None or config.reset:
        return "anew", []
    if not before:
        return "everything", ["what the last run saw has aged out of the history: everything is compared"]
    if config.version == 1:
        moved = refusals.moved_dataset(before.get("datasets", ()), config.dataset_ids)
        if moved is not None:
            raise moved
    if before.get("fingerprint") != signature(config):
        if config.on_config_change == "fail" and not full_refresh:
            raise _changed_rules()
        return "everything", ["the configuration has changed since the last run: everything is compared"]
    if full_refresh or target_changes or before.get("decided", "") != decided:
        return "everything", [f"{change}: everything is compared" for change in target_changes]
    if is_same_reads(before, offsets):
        return "nothing", []
    return _open(before), []


def _open(before: Mapping[str, Any]) -> Course:
    """Tell whether the outputs as they stand say enough of what a change can reach.

    A deleted entity that has no row of its own is in no state: only the sources know it. And clusters are not
    closed under links that count for nothing now and may count again.
    """
    open_ended = any(before.get(what) for what in ("suppressed", "quarantined", "cut"))
    return "everything" if open_ended else "changes"


def _changed_rules() -> DataError:
    return DataError.of(
        [
            Problem(
                "on_config_change",
                "changed",
                "the configuration is not that of the last run",
                "run once with full_refresh=True, or set on_config_change to 'refresh'",
            )
        ]
    )
