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
    read: Sequence[ScanResult],
    past: PreviousState,
    before: PreviousScan,
    rules: Sequence[Rule],
    config: MergeSourceConfig,
    solve: Callable[[Sequence[Entities]], ClusteringResult],
) -> ComparedClusters:
    """Cluster the entities that a change can affect, and compare the clusters with the previous state.

    :raises FullScanRequired: if the changes alone do not determine the result.
    """
    for each in read:
        check_delta(each, past, rules)
    looks = list_deltas(read, config, complete=before.everything)
    part = find_affected(looks, past, everything=before.everything)
    try:
        found = solve(part.sources)
    except DataError as error:
        if before.everything:
            raise
        # A full run may report more: errors in clusters that the change does not affect.
        raise FullScanRequired(f"changed entities cannot be merged: {error.message}") from error
    different = find_difference(found.assignment, part, past, config, same_rules=before.same_rules)
    replaced = None if before.everything else count_past(past, part.touched)
    changed = ComparedClusters(**vars(found), difference=different, replaced=replaced)
    if not (config.stable_id or config.replaced_by):
        return changed
    handed = build_id_lineage(
        found.assignment,
        part,
        past,
        different,
        next_stable=before.next_stable if config.stable_id else None,
        successors=config.replaced_by,
    )
    return replace(changed, **vars(handed))


def list_deltas(
    read: Sequence[ScanResult], config: MergeSourceConfig, *, complete: bool
) -> list[SourceDelta]:
    """Return the scans of all datasets; the scan of a missing dataset is empty."""
    known = {each.reading.source.offset: each.delta for each in read}
    nothing = SourceDelta(Entities.create_empty(), complete=complete)
    return [known.get(offset, nothing) for offset in range(len(config.dataset_ids))]
