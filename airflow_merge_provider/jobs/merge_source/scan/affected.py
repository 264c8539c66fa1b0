"""Find the part of the result that a change can affect: the changed entities, and their old and new outputs.

Clusters are closed under their own keys, so an output can change only if a member of it did, or if a
changed entity has one of its keys now: one step, without iterating to a fixpoint.
Source: docs/semantics/merge_source.md, Affected entities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from airflow_merge_provider.jobs.merge_source.model import (
    NOWHERE,
    AffectedEntities,
    Entities,
    Flags,
    Numbers,
    PreviousState,
    SourceDelta,
)


def find_affected(looks: Sequence[SourceDelta], past: PreviousState, *, everything: bool) -> AffectedEntities:
    """Find the affected part; with ``everything`` it is the whole.

    An entity that was not read is unchanged if its source was not read completely; otherwise it is gone.
    """
    matches = [_SourceMatch.match_entities(look, past.entities[at]) for at, look in enumerate(looks)]
    keys = _sort_key_hashes(
        [look.entities.select_entities(match.changed) for look, match in zip(looks, matches, strict=True)]
    )
    touched = np.full(len(past.numbers), everything)
    for at, match in enumerate(matches):
        outputs, known = past.outputs[at], past.entities[at]
        touched[outputs[match.gone | match.altered]] = True
        for positions, hashes, _ in known.keys.values():
            touched[outputs[positions[_is_among(hashes, keys)]]] = True
    parts = [
        match.select_part(look.entities, past.entities[at], past.outputs[at], touched)
        for at, (look, match) in enumerate(zip(looks, matches, strict=True))
    ]
    return AffectedEntities(
        [entities for entities, _, _ in parts],
        np.concatenate([former for _, former, _ in parts]),
        np.concatenate([same for _, _, same in parts]),
        touched,
        sum(int(match.changed.sum() + match.gone.sum()) for match in matches),
    )


def has_changes(now: Entities, past: Entities) -> bool:
    """Return whether an entity is new or differs from the previous state."""
    return bool(_SourceMatch.match_entities(SourceDelta(now, complete=True), past).changed.any())


@dataclass(frozen=True)
class _SourceMatch:
    """The entities of one source, matched with the previous ones.

    ``place`` is the position of an entity in the previous state; ``changed`` marks those that are new or
    differ; of the previous entities, ``read`` marks those that were read again, ``altered`` those that differ
    now, ``gone`` those that no longer exist.
    """

    place: Numbers
    changed: Flags
    read: Flags
    altered: Flags
    gone: Flags

    @staticmethod
    def match_entities(look: SourceDelta, past: Entities) -> _SourceMatch:
        now = look.entities
        place = _find_positions(now.hashes, past.hashes)
        there = place != NOWHERE
        differs = np.ones(len(place), np.bool_)
        known = place[there]
        differs[there] = (now.contents[there] != past.contents[known]) | (
            now.deleted[there] != past.deleted[known]
        )
        read = np.zeros(len(past.hashes), np.bool_)
        read[known] = True
        altered = np.zeros(len(past.hashes), np.bool_)
        altered[place[there & differs]] = True
        gone = ~read if look.complete else np.isin(past.hashes, look.gone)
        return _SourceMatch(place, differs, read, altered, gone)

    def select_part(
        self, now: Entities, past: Entities, outputs: Numbers, touched: Flags
    ) -> tuple[Entities, Numbers, Flags]:
        """Return the entities that belong to the affected part, their outputs, and which are unchanged."""
        former = np.full(len(self.place), NOWHERE, np.int64)
        there = self.place != NOWHERE
        former[there] = outputs[self.place[there]]
        mine = self.changed.copy()
        mine[there] |= touched[former[there]]
        kept = touched[outputs] & ~self.read & ~self.gone
        return (
            now.select_entities(mine).and_also(past.select_entities(kept)),
            np.concatenate([former[mine], outputs[kept]]),
            np.concatenate([~self.changed[mine], np.ones(int(kept.sum()), np.bool_)]),
        )


def _find_positions(wanted: Numbers, known: Numbers) -> Numbers:
    """Return the position of each number among distinct numbers; ``NOWHERE`` if it is not among them."""
    if not len(known):
        return np.full(len(wanted), NOWHERE, np.int64)
    order = np.argsort(known)
    found = np.minimum(np.searchsorted(known, wanted, sorter=order), len(known) - 1)
    place = order[found]
    return np.where(known[place] == wanted, place, NOWHERE)


def _sort_key_hashes(changed: Sequence[Entities]) -> Numbers:
    """Return the sorted hashes of all keys that changed entities have now."""
    hashes = [hashes for entities in changed for _, hashes, _ in entities.keys.values()]
    return np.sort(np.concatenate([np.empty(0, np.int64), *hashes]))


def _is_among(hashes: Numbers, ordered: Numbers) -> Flags:
    if not len(ordered):
        return np.zeros(len(hashes), np.bool_)
    place = np.minimum(np.searchsorted(ordered, hashes), len(ordered) - 1)
    among: Flags = ordered[place] == hashes
    return among
