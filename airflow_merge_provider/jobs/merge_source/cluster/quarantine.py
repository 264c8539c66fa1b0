"""Find the values that would link too many entities, and collect the statistics of clusters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, functions as F

from airflow_merge_provider.core.change_plan.shown_rows import mask_text
from airflow_merge_provider.core.merge_source import refusals
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.equality import Rule, get_rule_setting
from airflow_merge_provider.core.merge_source.explanation import format_key
from airflow_merge_provider.core.merge_source.refusals import HighFanoutKey, name_entity
from airflow_merge_provider.core.report import Details
from airflow_merge_provider.jobs.merge_source.model import Ends, EntityGraph, Flags, KeyMatches, Numbers
from airflow_merge_provider.jobs.merge_source.scan.match_keys import SourceKeys
from airflow_merge_provider.jobs.merge_source.scan.sources import Source
from airflow_merge_provider.jobs.spark.staging import stage_table

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

    def build_findings(self, graph: EntityGraph, names: Sequence[str]) -> Details:
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


QUARANTINE = "quarantine"
_EMPTY_TEXT_MAX_ENTITIES = 1000
_EMPTY_TEXT = "s:"
# A cluster with more entities than both limits is more likely a mistake than one real entity.
_SWALLOWED_MIN, _SWALLOWED_SHARE = 100, 0.01
_QUARANTINE_SCHEMA = pa.schema({
    "rule": pa.string(), "key": pa.string(), "entities": pa.int64(), "sample": pa.list_(pa.string()),
})  # fmt: skip


def find_quarantined_keys(
    graph: EntityGraph,
    link_statistics: LinkStatistics,
    opened: Sequence[tuple[Source, SourceKeys]],
    config: MergeSourceConfig,
    seed: int,
) -> list[HighFanoutKey]:
    """Return the values above ``max_key_fanout``, starting with those of most entities.

    If there are such values, one more pass over the sources reads their texts.

    :raises DataError: if ``on_over_merge`` stops the run.
    """
    over = sorted(link_statistics.over, key=lambda key: -key.entities)
    if not over:
        return []
    texts = _find_texts(over, opened, seed)
    names = config.dataset_ids
    keys = [
        HighFanoutKey(
            key.rule.text,
            texts.get(key.hashed),
            key.entities,
            tuple(list_sample(key, graph, names)),
        )
        for key in over
    ]
    failing = [
        index
        for index, key in enumerate(over)
        if get_rule_setting(config.on_over_merge, key.rule) != QUARANTINE
    ]
    if failing:
        limits = [get_rule_setting(config.max_key_fanout, over[index].rule) for index in failing]
        raise refusals.refuse_high_fanout([keys[index] for index in failing], limits)
    return keys


def list_warnings(
    link_statistics: LinkStatistics, opened: Sequence[tuple[Source, SourceKeys]], seed: int
) -> list[str]:
    """Return warnings for the empty string, a value like any other, if it links a great many entities."""
    large_keys = [key for key in link_statistics.largest if key.entities > _EMPTY_TEXT_MAX_ENTITIES]
    if not large_keys:
        return []
    spark = opened[0][0].frame.sparkSession
    # Spark computes the hash of a constant row while planning, without a job.
    empty = spark.sql("VALUES (1)").select(F.xxhash64(F.lit(seed), F.lit(_EMPTY_TEXT))).collect()[0][0]
    return [
        f"the empty string links {key.entities} entities by {key.rule.text}: exclude it with filter"
        for key in large_keys
        if key.hashed == empty
    ]


def find_swallowing(
    link_statistics: LinkStatistics,
    graph: EntityGraph,
    entities: int,
    opened: Sequence[tuple[Source, SourceKeys]],
    seed: int,
) -> list[str]:
    """Return the warning about a cluster with a large share of all entities, with its rule and value.

    If there is such a cluster, one more pass over the sources reads the text of that value.
    """
    size = int(graph.sizes.max()) if graph.count else 0
    if size <= max(_SWALLOWED_MIN, _SWALLOWED_SHARE * entities):
        return []
    cluster = int(graph.sizes.argmax())
    cluster_keys = [key for key in link_statistics.largest if graph.clusters[key.holders[0]] == cluster]
    largest_key = max(cluster_keys, key=lambda key: key.entities, default=None)
    if largest_key is None:
        by = "linked by a chain of values that each link few entities"
    else:
        text = _find_texts([largest_key], opened, seed).get(largest_key.hashed)
        value = "one value" if text is None else mask_text(format_key(text))
        by = f"{largest_key.entities} of them linked by {value} in {largest_key.rule.text}"
    share = f"{size} of {entities} entities ({size / entities:.0%})"
    return [f"one cluster contains {share}, {by}: exclude such values with filter, or set max_key_fanout"]


def list_unlinked(
    link_statistics: LinkStatistics, rules: Sequence[Rule], filled: Collection[int]
) -> list[str]:
    """Return the rules that link nothing, although all entities were evaluated.

    :param filled: the offsets of datasets that have entities.
    """
    unlinked = link_statistics.unlinked_rules
    return [
        f"the rule {rule.text} links nothing: check whether both sides contain the same values"
        for rule in rules
        if rule.text in unlinked and {rule.left.dataset, rule.right.dataset} <= set(filled)
    ]


def build_quarantine_rows(keys: Sequence[HighFanoutKey]) -> pa.Table:
    """Return the rows of ``<target>__quarantine``. Source: docs/semantics/merge_source.md, Merge limits."""
    rows = [key._replace(key=key.key and format_key(key.key)) for key in keys]
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], []]
    return pa.table(
        [pa.array(column, kind) for column, kind in zip(columns, _QUARANTINE_SCHEMA.types, strict=True)],
        _QUARANTINE_SCHEMA,
    )


def _find_texts(
    over: Sequence[FanoutKey], opened: Sequence[tuple[Source, SourceKeys]], seed: int
) -> dict[int, str]:
    """Return the texts of keys by their hashes; a key that links is also on the left side of its rule."""
    left_orders = {key.rule.left.order for key in over}
    columns: list[DataFrame] = []
    for source, keys in opened:
        for side, values in zip(keys.sides, keys.keys, strict=True):
            if side.order in left_orders:
                listed = values.values if values.is_list else F.array(values.values)
                columns.append(source.frame.select(F.explode(listed).alias("text")))
    hashed = reduce(DataFrame.unionAll, columns).withColumn("hash", F.xxhash64(F.lit(seed), F.col("text")))
    spark = hashed.sparkSession
    with stage_table(spark, pa.table({"hash": pa.array([key.hashed for key in over], pa.int64())})) as hashes:
        rows = hashed.join(F.broadcast(hashes), "hash", "left_semi").distinct().collect()
    return {row["hash"]: row["text"] for row in rows}
