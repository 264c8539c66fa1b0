"""What is to be written: which clusters are not what they were, and which outputs of the past are no more."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.jobs.merge_source.affected import NOWHERE, Affected
from airflow_merge_provider.jobs.merge_source.components import Flags, Numbers
from airflow_merge_provider.jobs.merge_source.outcome import Outcome
from airflow_merge_provider.jobs.merge_source.past import Past

ID, NUMBER, REPLACED = "_id", "number", "replaced"


@dataclass(frozen=True)
class Difference:
    """The outputs that may differ from those of the past.

    ``labels`` are those of the entities to render, ``sizes`` the number of members by the place of the
    output, ``ids`` the ids these outputs have. ``retired`` are live outputs of the past whose id is none any
    more, in the order of their ids: with their numbers and whether a member of theirs lives on. ``emptied``
    are the ids of deletes whose entity is elsewhere now. ``looked_at`` are the numbers of the outputs that
    were evaluated anew. ``changed`` counts changed entities, ``next_number`` is above all numbers that were
    read. ``wanted`` marks clusters that are rendered, ``still`` outputs of the past that are as they were.
    """

    labels: pa.Table
    sizes: dict[int, int]
    ids: pa.Array
    retired: pa.Table
    emptied: pa.Array
    looked_at: Numbers
    changed: int
    next_number: int
    wanted: Flags
    still: Flags


def difference(
    found: Outcome, part: Affected, past: Past, config: MergeSourceConfig, *, same_rules: bool
) -> Difference:
    """Compare clusters with the outputs of the past by their members and what those say.

    Source: merge source spec §5.3, §5.4.
    """
    unchanged = _unchanged(found, part, past) if same_rules else np.zeros(found.graph.count, np.bool_)
    wanted = found.kept & ~unchanged
    ids = found.ids(wanted, config.identity)
    still = np.zeros(len(past.numbers), np.bool_)
    there = part.former != NOWHERE
    still[part.former[there & unchanged[found.graph.clusters]]] = True
    represented = np.zeros(len(past.numbers), np.bool_)
    represented[part.former[there & found.kept[found.graph.clusters]]] = True
    taken = pc.is_in(past.ids, value_set=ids).to_numpy(zero_copy_only=False).astype(np.bool_)
    left = part.touched & ~still & ~taken
    inhabited = past.sizes > 0
    return Difference(
        labels=found.labelled(wanted),
        sizes=dict(zip(found.number[wanted].tolist(), found.graph.sizes[wanted].tolist(), strict=True)),
        ids=ids,
        retired=_retired(past, left & ~past.deleted, represented),
        emptied=past.ids.filter(pa.array(left & past.deleted & inhabited)),
        looked_at=past.numbers[part.touched],
        changed=part.changed,
        next_number=int(past.numbers.max(initial=-1)) + 1,
        wanted=wanted,
        still=still,
    )


def _unchanged(found: Outcome, part: Affected, past: Past) -> Flags:
    """Tell which clusters are one output of the past, member by member."""
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


def _retired(past: Past, which: Flags, represented: Flags) -> pa.Table:
    rows = pa.table(
        {
            ID: past.ids.filter(pa.array(which)),
            NUMBER: past.numbers[which],
            REPLACED: represented[which],
        }
    )
    # By code point, as the bytes of UTF-8.
    return rows.sort_by(ID)
