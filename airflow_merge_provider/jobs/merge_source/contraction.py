"""Which entities are the same, where their keys are too many for the driver: edges contracted by Spark.

Every round lets each node take the name of its smallest neighbour and keeps the edges between names, until
what is left fits into memory. Entities are named by hashes, so chains fall to a third in a round.
Source: design §6, performance spec §D.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, functions as F
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from airflow_merge_provider.core.merge_source.equality import Rule
from airflow_merge_provider.jobs.merge_source.components import Entities, Graph, Order, clustered
from airflow_merge_provider.jobs.merge_source.keys import SourceKeys
from airflow_merge_provider.jobs.merge_source.outcome import HASH
from airflow_merge_provider.jobs.merge_source.staging import staged

SIDE, KEY, CHECK, ENTITY = "side", "key", "check", "entity"
_END, _NODE, _NAME, _OTHER = "end", "node", "name", "other"


def contracted(
    spark: SparkSession,
    sources: Sequence[Entities],
    keys: DataFrame,
    rules: Sequence[Rule],
    sides: Mapping[Order, int],
    limit: int,
) -> Graph:
    """Find the clusters as ``components.connected`` does; ``keys`` stay in Spark.

    :param keys: one row for every key of an entity: the number of its SIDE, the KEY's two hashes (CHECK is
        the second), the hash of the ENTITY.
    :param sides: the number of each side, by its order.
    :param limit: how many edges may come to the driver.
    """
    edges = _edges(keys, rules, sides).localCheckpoint()
    nodes = edges.select(F.explode(F.array(_NODE, _OTHER)).alias(ENTITY)).distinct()
    names = nodes.withColumn(_NAME, F.col(ENTITY))
    while edges.count() > limit:
        smallest = _smallest(edges).localCheckpoint()
        edges = _renamed(edges, smallest).localCheckpoint()
        names = _followed(names, smallest).localCheckpoint()
    with staged(spark, _solved(edges.toArrow())) as rest:
        found = _followed(names, F.broadcast(rest)).toArrow()
    return clustered(sources, found.column(ENTITY).to_numpy(), found.column(_NAME).to_numpy())


def _edges(keys: DataFrame, rules: Sequence[Rule], sides: Mapping[Order, int]) -> DataFrame:
    """Link the entities of a key with the smallest of them, where a rule has it on both of its sides."""
    ends = [
        F.struct(
            F.lit(sides[side.order]).alias(SIDE), F.lit(number).alias("rule"), F.lit(is_left).alias("left")
        )
        for number, rule in enumerate(rules)
        for side, is_left in ((rule.left, True), (rule.right, False))
        if side.order in sides
    ]
    own = F.filter(F.array(*ends), lambda end: end[SIDE] == F.col(SIDE))
    held = keys.select(ENTITY, KEY, CHECK, F.explode(own).alias(_END))
    held = held.select(ENTITY, KEY, CHECK, f"{_END}.rule", f"{_END}.left")
    by_key = ("rule", KEY, CHECK)
    shared = held.groupBy(*by_key).agg(
        F.bool_or("left").alias("on_left"),
        F.bool_or(~F.col("left")).alias("on_right"),
        F.min(ENTITY).alias(_OTHER),
    )
    shared = shared.where("on_left AND on_right").select(*by_key, _OTHER)
    linked = held.join(shared, list(by_key)).where(F.col(ENTITY) != F.col(_OTHER))
    return linked.select(F.col(ENTITY).alias(_NODE), _OTHER).distinct()


def _smallest(edges: DataFrame) -> DataFrame:
    """Name every node after the smallest of its neighbours and itself."""
    both = edges.unionByName(edges.select(F.col(_OTHER).alias(_NODE), F.col(_NODE).alias(_OTHER)))
    return both.groupBy(_NODE).agg(F.least(F.col(_NODE), F.min(_OTHER)).alias(_NAME))


def _renamed(edges: DataFrame, names: DataFrame) -> DataFrame:
    """Give the edges between names; those inside one name are gone."""
    one = edges.join(names, _NODE).select(F.col(_NAME).alias("one"), F.col(_OTHER).alias(_NODE))
    two = one.join(names, _NODE).select("one", F.col(_NAME).alias("two")).where("one != two")
    return two.select(F.greatest("one", "two").alias(_NODE), F.least("one", "two").alias(_OTHER)).distinct()


def _followed(names: DataFrame, further: DataFrame) -> DataFrame:
    """Give every entity the name that its name has now."""
    after = further.select(F.col(_NODE).alias(_NAME), F.col(_NAME).alias(_OTHER))
    return names.join(after, _NAME, "left").select(ENTITY, F.coalesce(_OTHER, _NAME).alias(_NAME))


def _solved(edges: pa.Table) -> pa.Table:
    """Solve what is left in memory: every node that has an edge, with the name of its component."""
    ends = [edges.column(name).to_numpy() for name in (_NODE, _OTHER)]
    nodes = np.unique(np.concatenate(ends))
    one, other = (np.searchsorted(nodes, end) for end in ends)
    links = coo_matrix((np.ones(len(one), np.int8), (one, other)), (len(nodes), len(nodes)))
    _, labels = connected_components(links, directed=False)
    names = np.full(labels.max(initial=-1) + 1, np.iinfo(np.int64).max)
    np.minimum.at(names, labels, nodes)
    return pa.table({_NODE: nodes, _NAME: names[labels]})


def key_rows(entities: DataFrame, keys: SourceKeys, numbers: Mapping[Order, int], seed: int) -> DataFrame:
    """Give one row for every key of a source's entities, in one pass."""

    def row(side: int) -> Callable[[Column], Column]:
        return lambda key: F.struct(
            F.lit(side).alias(SIDE),
            F.xxhash64(F.lit(seed), key).alias(KEY),
            F.hash(key).cast("bigint").alias(CHECK),
        )

    lists = []
    for side, held in zip(keys.sides, keys.keys, strict=True):
        rows = held.mapped(row(numbers[side.order]))
        lists.append(rows if held.many else F.array_compact(F.array(rows)))
    none = F.array().cast(f"array<struct<{SIDE}:int,{KEY}:bigint,{CHECK}:bigint>>")
    every = F.explode(F.concat(none, *lists)).alias("row")
    return entities.select(F.col(HASH).alias(ENTITY), every).select(ENTITY, "row.*")
