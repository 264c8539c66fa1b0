"""Cluster the entities that a change can affect, and compare the clusters with the previous state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.equality import Rule
from airflow_merge_provider.jobs.merge_source.cluster.clustering import ClusteringResult
from airflow_merge_provider.jobs.merge_source.diff.difference import find_difference
from airflow_merge_provider.jobs.merge_source.diff.id_lineage import LineageEvent, build_id_lineage
from airflow_merge_provider.jobs.merge_source.diff.totals import Totals, count_past
from airflow_merge_provider.jobs.merge_source.model import (
    Difference,
    Entities,
    FullScanRequired,
    PreviousState,
    SourceDelta,
)
from airflow_merge_provider.jobs.merge_source.scan.affected import find_affected
from airflow_merge_provider.jobs.merge_source.scan.incremental_scan import PreviousScan, check_delta
from airflow_merge_provider.jobs.merge_source.scan.source_scan import ScanResult


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
