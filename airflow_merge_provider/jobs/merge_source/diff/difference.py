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
    assignment: OutputAssignment,
    affected: AffectedEntities,
    previous: PreviousState,
    config: MergeSourceConfig,
    *,
    same_rules: bool,
) -> Difference:
    """Compare clusters with the previous outputs by their members and the contents of the members.

    Source: docs/semantics/merge_source.md, Emitted rows; Replaced and deleted IDs.
    """
    unchanged = (
        _find_unchanged(assignment, affected, previous)
        if same_rules
        else np.zeros(assignment.graph.count, np.bool_)
    )
    is_rendered = assignment.is_output & ~unchanged
    ids = assignment.build_ids(is_rendered, config.identity)
    is_kept = np.zeros(len(previous.numbers), np.bool_)
    has_former = affected.former != NOWHERE
    is_kept[affected.former[has_former & unchanged[assignment.graph.clusters]]] = True
    represented = np.zeros(len(previous.numbers), np.bool_)
    represented[affected.former[has_former & assignment.is_output[assignment.graph.clusters]]] = True
    is_reused = pc.is_in(previous.ids, value_set=ids).to_numpy(zero_copy_only=False).astype(np.bool_)
    has_ended = affected.touched & ~is_kept & ~is_reused
    inhabited = previous.sizes > 0
    return Difference(
        labels=assignment.label_entities(is_rendered),
        sizes=dict(
            zip(
                assignment.number[is_rendered].tolist(),
                assignment.graph.sizes[is_rendered].tolist(),
                strict=True,
            )
        ),
        ids=ids,
        retired=_build_retired(previous, has_ended & ~previous.deleted, represented),
        emptied=previous.ids.filter(pa.array(has_ended & previous.deleted & inhabited)),
        evaluated=previous.numbers[affected.touched],
        changed=affected.changed,
        next_number=int(previous.numbers.max(initial=-1)) + 1,
        is_rendered=is_rendered,
        still=is_kept,
    )


def _find_unchanged(
    assignment: OutputAssignment, affected: AffectedEntities, previous: PreviousState
) -> Flags:
    """Return which clusters equal one previous output, member by member."""
    graph = assignment.graph
    lowest, highest = np.full(graph.count, len(previous.numbers)), np.full(graph.count, NOWHERE)
    np.minimum.at(lowest, graph.clusters, affected.former)
    np.maximum.at(highest, graph.clusters, affected.former)
    same = np.ones(graph.count, np.bool_)
    same[graph.clusters[~affected.same]] = False
    is_single = same & assignment.is_output & (lowest == highest) & (lowest != NOWHERE)
    previous_sizes: Numbers = (
        np.where(is_single, previous.sizes[np.where(is_single, lowest, 0)], 0)
        if len(previous.sizes)
        else lowest
    )
    unchanged: Flags = is_single & (previous_sizes == graph.sizes)
    return unchanged


def _build_retired(previous: PreviousState, is_retired: Flags, represented: Flags) -> pa.Table:
    rows = pa.table(
        {
            ID: previous.ids.filter(pa.array(is_retired)),
            NUMBER: previous.numbers[is_retired],
            REPLACED: represented[is_retired],
        }
    )
    # Sorted by code point, as the bytes of UTF-8.
    return rows.sort_by(ID)
