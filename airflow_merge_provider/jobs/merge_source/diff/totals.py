"""Count all entities and rows, also after a run that evaluated only a few of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_merge_provider.jobs.merge_source.model import Flags, OutputAssignment, PreviousState

Totals = Mapping[str, int]
TOTALS = "totals"


def count_totals(assignment: OutputAssignment) -> Totals:
    """Count the entities and rows of a run, by the names of the report."""
    sizes = assignment.live_sizes
    return {
        "entities": len(assignment.graph.hashes),
        "deleted_entities": int(assignment.graph.deleted.sum()),
        "live_rows": len(sizes),
        "merged_rows": int((sizes > 1).sum()),
        "outputs": assignment.outputs,
    }


def count_past(previous: PreviousState, is_selected: Flags) -> Totals:
    """Count the entities and rows of some previous rows; IDs that have ended are not counted."""
    sizes = previous.sizes[is_selected]
    deleted = previous.deleted[is_selected] & (sizes > 0)
    return {
        "entities": int(sizes.sum()),
        "deleted_entities": int(deleted.sum()),
        "live_rows": int((~previous.deleted[is_selected]).sum()),
        "merged_rows": int((sizes > 1).sum()),
        "outputs": int((sizes > 0).sum()),
    }


def continue_totals(previous: Totals | None, replaced: Totals | None, current: Totals) -> Totals | None:
    """Return the totals after a run: the previous totals, minus the evaluated part, plus its result.

    ``replaced`` is None if everything was evaluated; the result is None if the previous run left no totals.
    """
    if replaced is None:
        return current
    return {name: previous[name] - replaced[name] + current[name] for name in current} if previous else None


def find_totals(state: Mapping[str, Any]) -> Totals | None:
    """Return the totals that a run has left; None if it has left none."""
    return dict(state[TOTALS]) if state.get(TOTALS) else None
