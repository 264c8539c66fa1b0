"""Find what to write: the clusters that have changed, and the previous outputs that have ended."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.jobs.merge_source.model import (
    NOWHERE,
    AffectedEntities,
    Difference,
    Flags,
    Numbers,
    OutputAssignment,
    PreviousState,
)

ID, NUMBER, REPLACED = "_id", "number", "replaced"


def find_difference(
    found: OutputAssignment,
    part: AffectedEntities,
    past: PreviousState,
    config: MergeSourceConfig,
    *,
    same_rules: bool,
) -> Difference:
    """Compare clusters with the previous outputs by their members and the contents of the members.

    Source: docs/semantics/merge_source.md, Emitted rows; Replaced and deleted IDs.
    """
    unchanged = _find_unchanged(found, part, past) if same_rules else np.zeros(found.graph.count, np.bool_)
    wanted = found.kept & ~unchanged
    ids = found.build_ids(wanted, config.identity)
    still = np.zeros(len(past.numbers), np.bool_)
    there = part.former != NOWHERE
    still[part.former[there & unchanged[found.graph.clusters]]] = True
    represented = np.zeros(len(past.numbers), np.bool_)
    represented[part.former[there & found.kept[found.graph.clusters]]] = True
    taken = pc.is_in(past.ids, value_set=ids).to_numpy(zero_copy_only=False).astype(np.bool_)
    left = part.touched & ~still & ~taken
    inhabited = past.sizes > 0
    return Difference(
        labels=found.label_entities(wanted),
        sizes=dict(zip(found.number[wanted].tolist(), found.graph.sizes[wanted].tolist(), strict=True)),
        ids=ids,
        retired=_build_retired(past, left & ~past.deleted, represented),
        emptied=past.ids.filter(pa.array(left & past.deleted & inhabited)),
        looked_at=past.numbers[part.touched],
        changed=part.changed,
        next_number=int(past.numbers.max(initial=-1)) + 1,
        wanted=wanted,
        still=still,
    )


def _find_unchanged(found: OutputAssignment, part: AffectedEntities, past: PreviousState) -> Flags:
    """Return which clusters equal one previous output, member by member."""
    graph = found.graph
    lowest, highest = np.full(graph.count, len(past.numbers)), np.full(graph.count, NOWHERE)
    np.minimum.at(lowest, graph.clusters, part.former)
    np.maximum.at(highest, graph.clusters, part.former)
    same = np.ones(graph.count, np.bool_)
    same[graph.clusters[~part.same]] = False
    one = same & found.kept & (lowest == highest) & (lowest != NOWHERE)
    whole: Numbers = np.where(one, past.sizes[np.where(one, lowest, 0)], 0) if len(past.sizes) else lowest
    unchanged: Flags = one & (whole == graph.sizes)
    return unchanged


def _build_retired(past: PreviousState, which: Flags, represented: Flags) -> pa.Table:
    rows = pa.table(
        {
            ID: past.ids.filter(pa.array(which)),
            NUMBER: past.numbers[which],
            REPLACED: represented[which],
        }
    )
    # Sorted by code point, as the bytes of UTF-8.
    return rows.sort_by(ID)
