"""Compare the clusters that a change affects with the previous state: what to write, and the totals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.equality import Rule
from airflow_merge_provider.core.source_offset import RunState
from airflow_merge_provider.jobs.merge_source.cluster.clustering import ClusteringResult
from airflow_merge_provider.jobs.merge_source.diff.id_lineage import LineageEvent, build_id_lineage
from airflow_merge_provider.jobs.merge_source.model import (
    NOWHERE,
    AffectedEntities,
    Difference,
    Entities,
    Flags,
    FullScanRequired,
    Numbers,
    OutputAssignment,
    PreviousState,
    SourceDelta,
)
from airflow_merge_provider.jobs.merge_source.scan.incremental_scan import (
    PreviousScan,
    check_delta,
    find_affected,
)
from airflow_merge_provider.jobs.merge_source.scan.source_scan import ScanResult

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


def find_totals(state: RunState) -> Totals | None:
    """Return the totals that a run has left; None if it has left none."""
    return dict(state[TOTALS]) if state.get(TOTALS) else None


@dataclass(frozen=True)
class ComparedClusters(ClusteringResult):
    """The clusters of a run that compares its outputs with the target's: ``difference`` is the result.

    ``replaced`` counts the previous state of what was evaluated, None if that is everything. ``stable`` are
    the stable IDs of outputs, ``next_stable`` is the next free one, and ``events`` are the changes of IDs.
    """

    difference: Difference = field(kw_only=True)
    replaced: Totals | None = None
    stable: pa.Table | None = None
    next_stable: int | None = None
    events: Sequence[LineageEvent] = ()


def compare_clusters(
    scans: Sequence[ScanResult],
    previous_state: PreviousState,
    previous_scan: PreviousScan,
    rules: Sequence[Rule],
    config: MergeSourceConfig,
    solve: Callable[[Sequence[Entities]], ClusteringResult],
) -> ComparedClusters:
    """Cluster the entities that a change can affect, and compare the clusters with the previous state.

    :raises FullScanRequired: if the changes alone do not determine the result.
    """
    for scan in scans:
        check_delta(scan, previous_state, rules)
    deltas = list_deltas(scans, config, complete=previous_scan.everything)
    affected = find_affected(deltas, previous_state, everything=previous_scan.everything)
    try:
        clustering = solve(affected.sources)
    except DataError as error:
        if previous_scan.everything:
            raise
        # A full run may report more: errors in clusters that the change does not affect.
        raise FullScanRequired(f"changed entities cannot be merged: {error.message}") from error
    difference = find_difference(
        clustering.assignment, affected, previous_state, config, same_rules=previous_scan.same_rules
    )
    replaced = None if previous_scan.everything else count_past(previous_state, affected.touched)
    compared = ComparedClusters(**vars(clustering), difference=difference, replaced=replaced)
    if not (config.stable_id or config.replaced_by):
        return compared
    lineage = build_id_lineage(
        clustering.assignment,
        affected,
        previous_state,
        difference,
        next_stable=previous_scan.next_stable if config.stable_id else None,
        successors=config.replaced_by,
    )
    return replace(compared, **vars(lineage))


def list_deltas(
    scans: Sequence[ScanResult], config: MergeSourceConfig, *, complete: bool
) -> list[SourceDelta]:
    """Return the scans of all datasets; the scan of a missing dataset is empty."""
    delta_by_offset = {scan.reading.source.offset: scan.delta for scan in scans}
    empty_delta = SourceDelta(Entities.create_empty(), complete=complete)
    return [delta_by_offset.get(offset, empty_delta) for offset in range(len(config.dataset_ids))]
