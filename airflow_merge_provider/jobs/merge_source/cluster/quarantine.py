"""Find the values that would link too many entities, by their hashes, and their texts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame, functions as F

from airflow_merge_provider.core.change_plan.shown_rows import mask_text
from airflow_merge_provider.core.merge_source import refusals
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.equality import Rule, get_rule_setting
from airflow_merge_provider.core.merge_source.explanation import format_key
from airflow_merge_provider.core.merge_source.refusals import HighFanoutKey
from airflow_merge_provider.jobs.merge_source.cluster.link_statistics import (
    FanoutKey,
    LinkStatistics,
    list_sample,
)
from airflow_merge_provider.jobs.merge_source.model import EntityGraph
from airflow_merge_provider.jobs.merge_source.scan.match_keys import SourceKeys
from airflow_merge_provider.jobs.merge_source.scan.sources import Source
from airflow_merge_provider.jobs.spark.staging import stage_table

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
