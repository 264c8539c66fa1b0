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


def find_affected(
    deltas: Sequence[SourceDelta], previous: PreviousState, *, everything: bool
) -> AffectedEntities:
    """Find the affected part; with ``everything`` it is the whole.

    An entity that was not read is unchanged if its source was not read completely; otherwise it is gone.
    """
    matches = [_SourceMatch.match_entities(delta, previous.entities[at]) for at, delta in enumerate(deltas)]
    keys = _sort_key_hashes(
        [delta.entities.select_entities(match.changed) for delta, match in zip(deltas, matches, strict=True)]
    )
    touched = np.full(len(previous.numbers), everything)
    for at, match in enumerate(matches):
        outputs, previous_entities = previous.outputs[at], previous.entities[at]
        touched[outputs[match.is_deleted | match.altered]] = True
        for positions, hashes, _ in previous_entities.keys.values():
            touched[outputs[positions[_is_among(hashes, keys)]]] = True
    parts = [
        match.select_part(delta.entities, previous.entities[at], previous.outputs[at], touched)
        for at, (delta, match) in enumerate(zip(deltas, matches, strict=True))
    ]
    return AffectedEntities(
        [entities for entities, _, _ in parts],
        np.concatenate([former for _, former, _ in parts]),
        np.concatenate([same for _, _, same in parts]),
        touched,
        sum(int(match.changed.sum() + match.is_deleted.sum()) for match in matches),
    )


def has_changes(current: Entities, previous: Entities) -> bool:
    """Return whether an entity is new or differs from the previous state."""
    return bool(_SourceMatch.match_entities(SourceDelta(current, complete=True), previous).changed.any())


@dataclass(frozen=True)
class _SourceMatch:
    """The entities of one source, matched with the previous ones.

    ``positions`` is the position of an entity in the previous state; ``changed`` marks those that are new or
    differ; of the previous entities, ``read`` marks those that were read again, ``altered`` those that differ
    now, ``is_deleted`` those that no longer exist.
    """

    positions: Numbers
    changed: Flags
    read: Flags
    altered: Flags
    is_deleted: Flags

    @staticmethod
    def match_entities(delta: SourceDelta, previous: Entities) -> _SourceMatch:
        current = delta.entities
        positions = _find_positions(current.hashes, previous.hashes)
        is_known = positions != NOWHERE
        differs = np.ones(len(positions), np.bool_)
        known_positions = positions[is_known]
        differs[is_known] = (current.contents[is_known] != previous.contents[known_positions]) | (
            current.deleted[is_known] != previous.deleted[known_positions]
        )
        is_read = np.zeros(len(previous.hashes), np.bool_)
        is_read[known_positions] = True
        is_altered = np.zeros(len(previous.hashes), np.bool_)
        is_altered[positions[is_known & differs]] = True
        is_gone = ~is_read if delta.complete else np.isin(previous.hashes, delta.deleted_hashes)
        return _SourceMatch(positions, differs, is_read, is_altered, is_gone)

    def select_part(
        self, current: Entities, previous: Entities, outputs: Numbers, touched: Flags
    ) -> tuple[Entities, Numbers, Flags]:
        """Return the entities that belong to the affected part, their outputs, and which are unchanged."""
        former = np.full(len(self.positions), NOWHERE, np.int64)
        is_known = self.positions != NOWHERE
        former[is_known] = outputs[self.positions[is_known]]
        is_selected = self.changed.copy()
        is_selected[is_known] |= touched[former[is_known]]
        is_kept = touched[outputs] & ~self.read & ~self.is_deleted
        return (
            current.select_entities(is_selected).and_also(previous.select_entities(is_kept)),
            np.concatenate([former[is_selected], outputs[is_kept]]),
            np.concatenate([~self.changed[is_selected], np.ones(int(is_kept.sum()), np.bool_)]),
        )


def _find_positions(numbers: Numbers, distinct_numbers: Numbers) -> Numbers:
    """Return the position of each number among distinct numbers; ``NOWHERE`` if it is not among them."""
    if not len(distinct_numbers):
        return np.full(len(numbers), NOWHERE, np.int64)
    order = np.argsort(distinct_numbers)
    insertions = np.minimum(
        np.searchsorted(distinct_numbers, numbers, sorter=order), len(distinct_numbers) - 1
    )
    positions = order[insertions]
    return np.where(distinct_numbers[positions] == numbers, positions, NOWHERE)


def _sort_key_hashes(changed: Sequence[Entities]) -> Numbers:
    """Return the sorted hashes of all keys that changed entities have now."""
    hashes = [hashes for entities in changed for _, hashes, _ in entities.keys.values()]
    return np.sort(np.concatenate([np.empty(0, np.int64), *hashes]))


def _is_among(hashes: Numbers, ordered: Numbers) -> Flags:
    if not len(ordered):
        return np.zeros(len(hashes), np.bool_)
    positions = np.minimum(np.searchsorted(ordered, hashes), len(ordered) - 1)
    among: Flags = ordered[positions] == hashes
    return among
