"""Collect statistics of clusters: the links of each rule, and the keys that many entities share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from airflow_merge_provider.core.merge_source.equality import Rule
from airflow_merge_provider.core.merge_source.refusals import name_entity
from airflow_merge_provider.jobs.merge_source.model import Ends, EntityGraph, Flags, KeyMatches, Numbers

_RULES_MAX = 8
_KEYS_MAX = 5
_SAMPLE_MAX = 3
_KEY_TEXT_MAX_CHARS = 100


class FanoutKey(NamedTuple):
    """A key by which a rule links ``entities``: its hash, and the numbers of the first of them."""

    rule: Rule
    hashed: int
    entities: int
    holders: tuple[int, ...]


@dataclass(frozen=True)
class _LinkedEntities:
    rule: Rule
    pairs: int
    entities: Numbers


class RuleLinks(NamedTuple):
    """A rule and the keys that link by it: on either side (entity, number of the key)."""

    rule: Rule
    ends: Ends


class LinkStatistics:
    """Collector of statistics, which receives the key matches of every rule during clustering.

    Keys that more entities share than ``get_limit`` allows for their rule link nothing: they are ``over`` the
    limit. ``links`` and ``one_sided`` keys are kept only if they are needed.
    """

    def __init__(
        self, get_limit: Callable[[Rule], int | None] = lambda _: None, *, keep_links: bool = False
    ) -> None:
        self.links: list[RuleLinks] = []
        self.one_sided: list[dict[str, Any]] = []
        self._keep_links = keep_links
        self.over: list[FanoutKey] = []
        self.largest: list[FanoutKey] = []
        self._get_limit = get_limit
        self._rules: list[_LinkedEntities] = []

    def __call__(self, matches: KeyMatches) -> Flags:
        """Record the key matches of one rule, and return which keys link.

        A key that only one entity has on both sides of a rule is not a link, but it is harmless.
        """
        rule, ends, shared = matches.rule, matches.ends, matches.shared
        counts = [np.bincount(keys, minlength=len(shared)) for _, keys in ends]
        same = rule.left.order == rule.right.order
        both = _count_both_sides(ends, len(shared)) if rule.left.dataset == rule.right.dataset else 0
        entity_counts = counts[0] if same else counts[0] + counts[1] - both
        pairs = entity_counts * (entity_counts - 1) // 2 if same else counts[0] * counts[1] - both
        if (limit := self._get_limit(rule)) is not None:
            over = shared & (entity_counts > limit)
            self.over += _describe_keys(matches, over, entity_counts)
            shared = shared & ~over
        linking = shared & (entity_counts > 1)
        linked = np.concatenate([entities[linking[keys]] for entities, keys in ends])
        self._rules.append(_LinkedEntities(rule, int(pairs[shared].sum()), linked))
        if self._keep_links:
            linking_ends = [(entities[linking[keys]], keys[linking[keys]]) for entities, keys in ends]
            self.links.append(RuleLinks(rule, linking_ends))
            left, right = (count > 0 for count in counts)
            single_counts = [
                int(np.count_nonzero(count_flags)) for count_flags in (left & ~right, right & ~left)
            ]
            left_alone, right_alone = np.add(single_counts, matches.unmatched_counts).tolist()
            self.one_sided.append({"rule": rule.text, "left": left_alone, "right": right_alone})
        self.largest += _describe_keys(
            matches, _mark_largest(np.where(shared, entity_counts, 0)), entity_counts
        )
        return shared

    @property
    def unlinked_rules(self) -> set[str]:
        """The texts of rules that match no two entities; rules with keys over the limit do match some."""
        over = {key.rule.text for key in self.over}
        return {linked.rule.text for linked in self._rules if not linked.pairs} - over

    def build_findings(self, graph: EntityGraph, names: Sequence[str]) -> dict[str, Any]:
        """Return for each rule how many pairs of entities it links, and how many clusters depend on it alone.

        ``keys`` are those that link most entities, with some of these entities; keys of two entities are left
        out.
        """
        by_rule = {linked.rule.text: _mark_clusters(linked, graph) for linked in self._rules}
        causes = np.sum(list(by_rule.values()), axis=0, dtype=np.int16) if by_rule else np.zeros(0)
        rules = [
            {
                "rule": linked.rule.text[:_KEY_TEXT_MAX_CHARS],
                "pairs": linked.pairs,
                "sole_evidence": int((by_rule[linked.rule.text] & (causes == 1)).sum()),
            }
            for linked in sorted(self._rules, key=lambda rule_links: -rule_links.pairs)
        ]
        keys = [
            {
                "rule": key.rule.text[:_KEY_TEXT_MAX_CHARS],
                "entities": key.entities,
                "of": list_sample(key, graph, names),
            }
            for key in sorted(self.largest, key=lambda key: -key.entities)[:_KEYS_MAX]
        ]
        return {"rules": rules[:_RULES_MAX], "keys": keys}


def _describe_keys(matches: KeyMatches, chosen: Flags, entities: Numbers) -> list[FanoutKey]:
    """Describe some keys, starting with those of most entities."""
    if not chosen.any():
        return []
    holders: dict[int, set[int]] = {}
    for end_entities, keys in matches.ends:
        positions = np.flatnonzero(chosen[keys])
        for key, entity in zip(keys[positions].tolist(), end_entities[positions].tolist(), strict=True):
            holders.setdefault(key, set()).add(entity)
    fanout_keys = [
        FanoutKey(
            matches.rule,
            int(matches.hashes[key]),
            int(entities[key]),
            tuple(sorted(holder_numbers)[:_SAMPLE_MAX]),
        )
        for key, holder_numbers in holders.items()
    ]
    return sorted(fanout_keys, key=lambda fanout_key: (-fanout_key.entities, fanout_key.holders))


def list_sample(key: FanoutKey, graph: EntityGraph, names: Sequence[str]) -> list[str]:
    """List some of the entities that share a key, as ``dataset/id``."""
    entities = (graph.find_entity(number) for number in key.holders)
    return [name_entity(names[offset], id_) for offset, id_ in entities]


def _mark_clusters(linked: _LinkedEntities, graph: EntityGraph) -> Flags:
    """Mark the clusters of several entities that a rule links."""
    is_linked = np.zeros(graph.count, np.bool_)
    is_linked[graph.clusters[linked.entities]] = True
    return is_linked & (graph.sizes > 1)


def _count_both_sides(ends: Ends, count: int) -> Numbers:
    """Count, for every key, the entities that have it on both sides."""
    left, right = (np.unique(entities * count + keys) for entities, keys in ends)
    common = np.intersect1d(left, right, assume_unique=True)
    return np.bincount(common % count, minlength=count) if count else np.zeros(0, np.int64)


def _mark_largest(entities: Numbers) -> Flags:
    """Mark the keys that link most entities, if they link more than two."""
    # Most keys link two or fewer, and so many equal values would slow the partition down.
    positions = np.flatnonzero(entities > 2)  # noqa: PLR2004 - a pair
    if len(positions) > _KEYS_MAX:
        positions = positions[np.argpartition(entities[positions], -_KEYS_MAX)[-_KEYS_MAX:]]
    is_largest = np.zeros(len(entities), np.bool_)
    is_largest[positions] = True
    return is_largest
