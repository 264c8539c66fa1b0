"""The run mode: how much a run evaluates, and the reasons that reports give for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from airflow_merge_provider.core.source_offset import RunState, SourceOffset, find_offset, read_offsets

RunMode = Literal["initial", "full", "incremental", "noop", "undo"]

NO_TARGET = "the target did not exist before this run"
FULL_REFRESH = "full_refresh is set"
CONFIG_CHANGED = "the configuration has changed since the previous run"
NEVER_RUN = "no run has written the target before"
STATE_EXPIRED = "the commit of the previous run is no longer in the history of the target"
ALL_UNDONE = "all earlier runs of the target have been undone"
ADOPTED = "the target was written by another program, and the run takes it over"
TARGET_CHANGED = "another writer has changed rows of the target since the previous run"
NOTHING_CHANGED = "no source has changed since the previous run"

_NAMED_INPUTS_MAX = 3


def describe_changed_sources(state: RunState, sources: Mapping[str, SourceOffset]) -> str:
    """Return the reason that names the sources that have changed since the run with the given state."""
    offsets = read_offsets(state)
    return list_names(name for name, offset in sources.items() if _has_changed(offsets, offset))


def list_names(source_names: Iterable[str]) -> str:
    """Return the reason of a run whose sources have changed; only a few are named."""
    names = list(source_names)
    if not names:
        return NOTHING_CHANGED
    suffix = f" and {len(names) - _NAMED_INPUTS_MAX} more" if len(names) > _NAMED_INPUTS_MAX else ""
    return f"changed since the previous run: {', '.join(names[:_NAMED_INPUTS_MAX])}{suffix}"


def _has_changed(offsets: Iterable[SourceOffset], offset: SourceOffset) -> bool:
    previous_offset = find_offset(offsets, offset)
    return previous_offset is None or not previous_offset.is_same_read(offset)
