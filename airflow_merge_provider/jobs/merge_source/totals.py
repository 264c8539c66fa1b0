"""How much is there in all: entities and outputs, also after a run that looked at a few of them."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_merge_provider.jobs.merge_source.components import Flags
from airflow_merge_provider.jobs.merge_source.outcome import Outcome
from airflow_merge_provider.jobs.merge_source.past import Past

Totals = Mapping[str, int]


def of_outcome(outcome: Outcome) -> Totals:
    """Count entities and outputs; ``golden`` are live outputs, ``merged`` those of several entities."""
    sizes = outcome.live_sizes
    return {
        "entities": len(outcome.graph.hashes),
        "deleted": int(outcome.graph.deleted.sum()),
        "golden": len(sizes),
        "merged": int((sizes > 1).sum()),
        "outputs": outcome.outputs,
    }


def of_past(past: Past, which: Flags) -> Totals:
    """Count the same of some outputs of the past; ids that are no more count for nothing."""
    sizes = past.sizes[which]
    deleted = past.deleted[which] & (sizes > 0)
    return {
        "entities": int(sizes.sum()),
        "deleted": int(deleted.sum()),
        "golden": int((~past.deleted[which]).sum()),
        "merged": int((sizes > 1).sum()),
        "outputs": int((sizes > 0).sum()),
    }


def continued(before: Totals | None, left: Totals | None, now: Totals) -> Totals | None:
    """Give the totals after a run: what there was, without what was evaluated anew, and with what came of it.

    ``left`` is None where that was everything; the result is None where the run before has left no totals.
    """
    if left is None:
        return now
    return {name: before[name] - left[name] + now[name] for name in now} if before else None
