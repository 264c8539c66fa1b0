"""Decide whether a run may continue where the previous run ended."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import ConfigError, DataError, Problem
from airflow_merge_provider.core.merge_engine import stored_settings
from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.core.source_offset import SourceOffset, find_offset, find_replaced, read_offsets
from airflow_merge_provider.jobs.delta.table import PinnedDataset, is_continued
from airflow_merge_provider.jobs.run.previous_run import PreviousRun


def require_continuity(
    spark: SparkSession,
    config: MergeEngineConfig,
    target: Dataset,
    source: PinnedDataset,
    previous: PreviousRun | None,
    *,
    full_refresh: bool,
) -> None:
    """Raise an error if the previous run's configuration or offsets do not allow continuing.

    :raises ConfigError: if options have changed on which the stored rows depend.
    :raises DataError: if the offset of the source is unknown or belongs to another table.
    """
    if previous is None:
        return
    offsets = read_offsets(previous.state)
    offset = find_offset(offsets, source.offset)
    if full_refresh:
        own_offsets = (offset, find_replaced(offsets, source.offset))
        _require_single_source(
            target, [other_offset.uri for other_offset in offsets if other_offset not in own_offsets]
        )
        return
    if config.incremental:
        if previous.number and previous.run_version is None:
            message = f"the history of {target.uri} no longer contains the source offset of the previous run"
            raise build_refusal("source", message, "run once with full_refresh=True")
        if reason := _find_break(spark, source, offsets, offset):
            message = f"the changes of {source.dataset.uri} cannot be read: {reason}"
            raise build_refusal(
                "source", message, "run once with full_refresh=True, or set incremental=False"
            )
    problems = list(
        stored_settings.find_breaks(
            previous.state.get("fixed", {}), stored_settings.build_fixed_settings(config)
        )
    )
    if problems:
        raise ConfigError.from_problems(problems)


def build_refusal(path: str, message: str, hint: str) -> DataError:
    """Return the error of a run that may not continue."""
    return DataError.from_problems([Problem(path, "refused", message, hint)])


def _require_single_source(target: Dataset, other_uris: Sequence[str]) -> None:
    if other_uris:
        message = f"{target.uri} also contains rows of other sources: {', '.join(other_uris)}"
        raise build_refusal("full_refresh", message, "drop the target, and fold each source again")


def _find_break(
    spark: SparkSession, source: PinnedDataset, offsets: Sequence[SourceOffset], offset: SourceOffset | None
) -> str | None:
    """Return why a source does not continue the table that was folded; None if it does."""
    if offset is None:
        if find_replaced(offsets, source.offset) is not None:
            return "the table at this location was recreated after it was folded"
        copies = [
            candidate.uri
            for candidate in offsets
            if candidate.table_id and candidate.table_id == source.table_id
        ]
        return f"the folded table can be any of the copies {', '.join(copies)}" if copies else None
    if source.dataset.format != "delta" or source.version is None or is_continued(spark, source, offset):
        return None
    if offset.version is not None and source.version < offset.version:
        # Reading from the offset reports this error.
        return None
    return (
        f"its version {offset.version} is not the version that was folded, as in a copy with another history"
    )
