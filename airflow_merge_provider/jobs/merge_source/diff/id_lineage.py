"""Trace the previous outputs: which outputs replaced them, and which outputs keep their stable IDs."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import pyarrow as pa
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from airflow_merge_provider.jobs.merge_source.model import (
    NOWHERE,
    AffectedEntities,
    Difference,
    Flags,
    Numbers,
    OutputAssignment,
    PreviousState,
)

LINEAGE = "lineage"
MERGED, SPLIT, MOVED, DELETED = "merged", "split", "moved", "deleted"
EVENT_NUMBER, STABLE, BY = "__merge_number", "__merge_stable", "by"


@dataclass(frozen=True)
class LineageEvent:
    """Live outputs that others replaced; ``to_ids`` is empty if nothing replaced them."""

    kind: str
    from_ids: tuple[str, ...]
    to_ids: tuple[str, ...]


@dataclass(frozen=True)
class MemberMoves:
    """Counts of the members that previous outputs (``former``) have in current clusters (``now``).

    ``ids`` are the IDs of the current clusters that are rendered, by their numbers in the graph.
    """

    former: Numbers
    now: Numbers
    members: Numbers
    ids: dict[int, str] = field(repr=False)

    def find_clusters(self, former: int) -> list[int]:
        """Return the clusters that hold members of a previous output now, in their order."""
        start, end = np.searchsorted(self.former, [former, former + 1])
        clusters: list[int] = self.now[start:end].tolist()
        return clusters

    def format_successors(self, former: int) -> str | None:
        """Return the IDs of the outputs that replaced one, as a JSON list; None if there are none."""
        ids = [self.ids[cluster] for cluster in self.find_clusters(former) if cluster in self.ids]
        return json.dumps(ids, ensure_ascii=False) if ids else None


@dataclass(frozen=True)
class IdLineage:
    """The difference with successors of ended outputs; stable IDs by the positions of outputs; and events."""

    difference: Difference
    stable: pa.Table | None = None
    next_stable: int | None = None
    events: Sequence[LineageEvent] = ()


def find_successors(
    assignment: OutputAssignment, affected: AffectedEntities, is_rendered: Flags, ids: Sequence[str]
) -> MemberMoves:
    """Count the moves of members; ``ids`` are the IDs of the rendered clusters, in their order."""
    clusters = assignment.graph.clusters
    moved = (affected.former != NOWHERE) & assignment.is_output[clusters]
    pairs = np.stack([affected.former[moved], clusters[moved]])
    (former, now), members = np.unique(pairs, axis=1, return_counts=True)
    by_rank = assignment.graph.ranks[assignment.graph.firsts[now]]
    order = np.lexsort((by_rank, former))
    id_by_cluster = dict(zip(np.flatnonzero(is_rendered).tolist(), ids, strict=True))
    return MemberMoves(former[order], now[order], members[order], id_by_cluster)


def assign_stable_ids(
    assignment: OutputAssignment, moves: MemberMoves, previous: PreviousState, is_rendered: Flags, first: int
) -> tuple[Numbers, int]:
    """Return the stable ID of every wanted cluster, and the first free one after them.

    A previous output passes its stable ID on to one cluster: to a live one rather than to a deleted one, then
    to the one with most of its members, then to the first. A cluster that inherits several IDs keeps the
    oldest, and a cluster that inherits none gets the next one. Source: docs/semantics/merge_source.md, Stable
    IDs.
    """
    # The next ID is unknown after the state of the previous run has aged out.
    first = max(first, int(previous.stable.max(initial=NOWHERE)) + 1)
    graph = assignment.graph
    deleted = graph.deleted[graph.firsts]
    rank = graph.ranks[graph.firsts]
    order = np.lexsort((rank[moves.now], -moves.members, deleted[moves.now], moves.former))
    former = moves.former[order]
    heirs = order[np.unique(former, return_index=True)[1]]
    stable = np.full(graph.count, np.iinfo(np.int64).max)
    inherited_ids = previous.stable[moves.former[heirs]]
    np.minimum.at(stable, moves.now[heirs][inherited_ids != NOWHERE], inherited_ids[inherited_ids != NOWHERE])
    new = is_rendered & (stable == np.iinfo(np.int64).max)
    new_clusters = np.flatnonzero(new)
    new_clusters = new_clusters[np.argsort(rank[new_clusters])]
    stable[new_clusters] = np.arange(first, first + len(new_clusters))
    return stable, first + len(new_clusters)


def list_events(
    assignment: OutputAssignment, moves: MemberMoves, previous: PreviousState, touched: Flags
) -> list[LineageEvent]:
    """Return the events of the ``touched`` live outputs, except those that are unchanged under their ID.

    Outputs that share members with the same current outputs are combined in one event.
    Source: docs/semantics/merge_source.md, Lineage events.
    """
    live = assignment.live
    count = assignment.graph.count
    nodes = count + len(previous.numbers)
    graph = coo_matrix(
        (np.ones(len(moves.now), np.int8), (moves.now, count + moves.former)), shape=(nodes, nodes)
    )
    labels = connected_components(graph, directed=False)[1].tolist()
    groups: dict[int, tuple[list[str], set[str]]] = {}
    for former in np.flatnonzero(touched & ~previous.deleted).tolist():
        old, new = groups.setdefault(labels[count + former], ([], set()))
        old.append(previous.ids[former].as_py())
        clusters = (cluster for cluster in moves.find_clusters(former) if live[cluster])
        new.update(moves.ids[cluster] for cluster in clusters if cluster in moves.ids)
    events = [
        LineageEvent(_classify_event(old, new), tuple(sorted(old)), tuple(sorted(new)))
        for old, new in groups.values()
        if set(old) != new
    ]
    return sorted(events, key=lambda event: (event.from_ids, event.to_ids))


def _classify_event(old: Collection[str], new: Collection[str]) -> str:
    if not new:
        return DELETED
    if len(new) == 1:
        return MERGED if len(old) > 1 else MOVED
    return SPLIT if len(old) == 1 else MOVED


def build_lineage_rows(run: int, events: Sequence[LineageEvent]) -> pa.Table:
    """Return the rows of ``<target>__lineage``."""
    ids = pa.list_(pa.string())
    schema = pa.schema({"run": pa.int64(), "kind": pa.string(), "from_ids": ids, "to_ids": ids})
    return pa.Table.from_pylist([{"run": run, **asdict(event)} for event in events], schema)


def build_id_lineage(
    assignment: OutputAssignment,
    affected: AffectedEntities,
    previous: PreviousState,
    difference: Difference,
    *,
    next_stable: int | None,
    successors: bool,
) -> IdLineage:
    """Build the lineage: stable IDs if ``next_stable`` is given, else the successors of ended outputs."""
    moves = find_successors(assignment, affected, difference.is_rendered, difference.ids.to_pylist())
    stable = None
    if next_stable is not None:
        stable_ids, next_stable = assign_stable_ids(
            assignment, moves, previous, difference.is_rendered, next_stable
        )
        is_rendered = difference.is_rendered
        stable = pa.table({EVENT_NUMBER: assignment.number[is_rendered], STABLE: stable_ids[is_rendered]})
    if not successors:
        return IdLineage(difference, stable, next_stable)
    positions = {number: at for at, number in enumerate(previous.numbers.tolist())}
    retired = difference.retired.column("number").to_pylist()
    by = pa.array([moves.format_successors(positions[number]) for number in retired], pa.string())
    difference = replace(difference, retired=difference.retired.append_column(BY, by))
    return IdLineage(
        difference,
        stable,
        next_stable,
        list_events(assignment, moves, previous, affected.touched & ~difference.still),
    )
