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
NUMBER, STABLE, BY = "__merge_number", "__merge_stable", "by"


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
        found: list[int] = self.now[start:end].tolist()
        return found

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
    found: OutputAssignment, part: AffectedEntities, wanted: Flags, ids: Sequence[str]
) -> MemberMoves:
    """Count the moves of members; ``ids`` are the IDs of the ``wanted`` clusters, in their order."""
    clusters = found.graph.clusters
    moved = (part.former != NOWHERE) & found.kept[clusters]
    pairs = np.stack([part.former[moved], clusters[moved]])
    (former, now), members = np.unique(pairs, axis=1, return_counts=True)
    by_rank = found.graph.ranks[found.graph.firsts[now]]
    order = np.lexsort((by_rank, former))
    known = dict(zip(np.flatnonzero(wanted).tolist(), ids, strict=True))
    return MemberMoves(former[order], now[order], members[order], known)


def assign_stable_ids(
    found: OutputAssignment, who: MemberMoves, past: PreviousState, wanted: Flags, first: int
) -> tuple[Numbers, int]:
    """Return the stable ID of every wanted cluster, and the first free one after them.

    A previous output passes its stable ID on to one cluster: to a live one rather than to a deleted one, then
    to the one with most of its members, then to the first. A cluster that inherits several IDs keeps the
    oldest, and a cluster that inherits none gets the next one. Source: docs/semantics/merge_source.md, Stable
    IDs.
    """
    graph = found.graph
    deleted = graph.deleted[graph.firsts]
    rank = graph.ranks[graph.firsts]
    order = np.lexsort((rank[who.now], -who.members, deleted[who.now], who.former))
    former = who.former[order]
    heirs = order[np.unique(former, return_index=True)[1]]
    stable = np.full(graph.count, np.iinfo(np.int64).max)
    held = past.stable[who.former[heirs]]
    np.minimum.at(stable, who.now[heirs][held != NOWHERE], held[held != NOWHERE])
    new = wanted & (stable == np.iinfo(np.int64).max)
    fresh = np.flatnonzero(new)
    fresh = fresh[np.argsort(rank[fresh])]
    stable[fresh] = np.arange(first, first + len(fresh))
    return stable, first + len(fresh)


def list_events(
    found: OutputAssignment, who: MemberMoves, past: PreviousState, touched: Flags
) -> list[LineageEvent]:
    """Return the events of the ``touched`` live outputs, except those that are unchanged under their ID.

    Outputs that share members with the same current outputs are combined in one event.
    Source: docs/semantics/merge_source.md, Lineage events.
    """
    live = found.live
    count = found.graph.count
    nodes = count + len(past.numbers)
    graph = coo_matrix((np.ones(len(who.now), np.int8), (who.now, count + who.former)), shape=(nodes, nodes))
    labels = connected_components(graph, directed=False)[1].tolist()
    groups: dict[int, tuple[list[str], set[str]]] = {}
    for former in np.flatnonzero(touched & ~past.deleted).tolist():
        old, new = groups.setdefault(labels[count + former], ([], set()))
        old.append(past.ids[former].as_py())
        clusters = (cluster for cluster in who.find_clusters(former) if live[cluster])
        new.update(who.ids[cluster] for cluster in clusters if cluster in who.ids)
    told = [
        LineageEvent(_classify_event(old, new), tuple(sorted(old)), tuple(sorted(new)))
        for old, new in groups.values()
        if set(old) != new
    ]
    return sorted(told, key=lambda event: (event.from_ids, event.to_ids))


def _classify_event(old: Collection[str], new: Collection[str]) -> str:
    if not new:
        return DELETED
    if len(new) == 1:
        return MERGED if len(old) > 1 else MOVED
    return SPLIT if len(old) == 1 else MOVED


def build_lineage_rows(run: int, told: Sequence[LineageEvent]) -> pa.Table:
    """Return the rows of ``<target>__lineage``."""
    ids = pa.list_(pa.string())
    schema = pa.schema({"run": pa.int64(), "kind": pa.string(), "from_ids": ids, "to_ids": ids})
    return pa.Table.from_pylist([{"run": run, **asdict(each)} for each in told], schema)


def build_id_lineage(
    found: OutputAssignment,
    part: AffectedEntities,
    past: PreviousState,
    different: Difference,
    *,
    next_stable: int | None,
    successors: bool,
) -> IdLineage:
    """Build the lineage: stable IDs if ``next_stable`` is given, else the successors of ended outputs."""
    who = find_successors(found, part, different.wanted, different.ids.to_pylist())
    stable = None
    if next_stable is not None:
        given, next_stable = assign_stable_ids(found, who, past, different.wanted, next_stable)
        wanted = different.wanted
        stable = pa.table({NUMBER: found.number[wanted], STABLE: given[wanted]})
    if not successors:
        return IdLineage(different, stable, next_stable)
    places = {number: at for at, number in enumerate(past.numbers.tolist())}
    retired = different.retired.column("number").to_pylist()
    by = pa.array([who.format_successors(places[number]) for number in retired], pa.string())
    different = replace(different, retired=different.retired.append_column(BY, by))
    return IdLineage(
        different, stable, next_stable, list_events(found, who, past, part.touched & ~different.still)
    )
