"""Find the connected components in Spark, by edge contraction, if there are too many keys for the driver.

In every round each node takes the name of its smallest neighbour, and the edges between different names are
kept, until the rest fits into memory. Entities are named by hashes, so chains shrink to a third in a round.
Source: docs/semantics/merge_source.md, Distributed clustering.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, SparkSession, Window, functions as F
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from airflow_merge_provider.core.merge_source.equality import Rule
from airflow_merge_provider.jobs.merge_source.cluster.components import build_graph
from airflow_merge_provider.jobs.merge_source.model import HASH, Entities, EntityGraph, Order
from airflow_merge_provider.jobs.merge_source.scan.match_keys import SourceKeys
from airflow_merge_provider.jobs.merge_source.scan.sources import SCAN_DELETED
from airflow_merge_provider.jobs.spark.expressions import build_array
from airflow_merge_provider.jobs.spark.staging import stage_table

SIDE, NODE_KEY, CHECK, ENTITY = "side", "key", "check", "entity"
_NODE, _NODE_NAME, _OTHER = "node", "name", "other"


def connect_distributed(
    spark: SparkSession,
    sources: Sequence[Entities],
    keys: DataFrame,
    rules: Sequence[Rule],
    sides: Mapping[Order, int],
    limit: int,
) -> EntityGraph:
    """Find the same clusters as ``components.connected``; ``keys`` stay in Spark.

    :param keys: one row for every key of an entity: the number of its SIDE, the KEY's two hashes (CHECK is
        the second), the hash of the ENTITY.
    :param sides: the number of each side, by its order.
    :param limit: how many edges may come to the driver.
    """
    edges = _build_edges(keys, rules, sides).localCheckpoint()
    nodes = edges.select(F.explode(F.array(_NODE, _OTHER)).alias(ENTITY)).distinct()
    names = nodes.withColumn(_NODE_NAME, F.col(ENTITY))
    while edges.count() > limit:
        smallest = _find_smallest(edges).localCheckpoint()
        edges = _rename_nodes(edges, smallest).localCheckpoint()
        names = _follow_names(names, smallest).localCheckpoint()
    with stage_table(spark, _connect_locally(edges.toArrow())) as local_names:
        named_entities = _follow_names(names, F.broadcast(local_names)).toArrow()
    return build_graph(
        sources, named_entities.column(ENTITY).to_numpy(), named_entities.column(_NODE_NAME).to_numpy()
    )


def _build_edges(keys: DataFrame, rules: Sequence[Rule], sides: Mapping[Order, int]) -> DataFrame:
    """Link the entities that share a key on one side with the smallest of them, and link these by the rules.

    For each key only the smallest entity of each side that rules link, also indirectly, is needed; so every
    key is grouped once, not once per rule.
    """
    linked = _keep_linked(rules, sides)
    _, families = connected_components(coo_matrix(linked), directed=False)
    positions = [int(np.count_nonzero(families[:side] == family)) for side, family in enumerate(families)]
    family, position = (
        _filter_side(map(F.lit, numbers), "int") for numbers in (families.tolist(), positions)
    )
    theirs = (
        F.array(*(F.lit(positions[linked_side]) for linked_side in np.flatnonzero(row))) for row in linked
    )
    linked_positions = _filter_side(theirs, "array<int>")
    by_key = Window.partitionBy(family, NODE_KEY, CHECK)
    first = [
        F.min(F.when(position == at, F.col(ENTITY))).over(by_key)
        for at in range(max(positions, default=-1) + 1)
    ]
    held = keys.select(F.col(ENTITY).alias(_NODE), SIDE, F.array(*first).cast("array<bigint>").alias("first"))
    own_entity = F.get("first", position)
    linked_entities = F.array_compact(F.transform(linked_positions, lambda at: F.get("first", at)))
    smaller = F.filter(linked_entities, lambda entity: entity < F.col(_NODE))
    ends = F.when(F.col(_NODE) == own_entity, smaller).when(F.size(linked_entities) > 0, F.array(own_entity))
    return held.select(_NODE, F.explode(ends).alias(_OTHER))


def _keep_linked(rules: Sequence[Rule], sides: Mapping[Order, int]) -> NDArray[np.bool_]:
    """Return which sides, by their numbers, are linked by a rule."""
    linked = np.zeros((len(sides), len(sides)), np.bool_)
    for rule in rules:
        left, right = (sides.get(side.order) for side in (rule.left, rule.right))
        if left is not None and right is not None:
            linked[left, right] = linked[right, left] = True
    return linked


def _filter_side(values: Iterable[Column], kind: str) -> Column:
    """Return the value that belongs to a row's side."""
    return F.get(F.array(*values).cast(f"array<{kind}>"), F.col(SIDE))


def _find_smallest(edges: DataFrame) -> DataFrame:
    """Return the name of every node: the smallest of its neighbours and itself."""
    both = edges.unionByName(edges.select(F.col(_OTHER).alias(_NODE), F.col(_NODE).alias(_OTHER)))
    return both.groupBy(_NODE).agg(F.least(F.col(_NODE), F.min(_OTHER)).alias(_NODE_NAME))


def _rename_nodes(edges: DataFrame, names: DataFrame) -> DataFrame:
    """Return the edges between names, without those inside one name."""
    first_renamed = edges.join(names, _NODE).select(
        F.col(_NODE_NAME).alias("one"), F.col(_OTHER).alias(_NODE)
    )
    both_renamed = (
        first_renamed.join(names, _NODE).select("one", F.col(_NODE_NAME).alias("two")).where("one != two")
    )
    return both_renamed.select(
        F.greatest("one", "two").alias(_NODE), F.least("one", "two").alias(_OTHER)
    ).distinct()


def _follow_names(names: DataFrame, further: DataFrame) -> DataFrame:
    """Map every entity to the current name of its name."""
    after = further.select(F.col(_NODE).alias(_NODE_NAME), F.col(_NODE_NAME).alias(_OTHER))
    return names.join(after, _NODE_NAME, "left").select(
        ENTITY, F.coalesce(_OTHER, _NODE_NAME).alias(_NODE_NAME)
    )


def _connect_locally(edges: pa.Table) -> pa.Table:
    """Find the components of the remaining edges in memory; return every node with an edge, and its name."""
    ends = [edges.column(name).to_numpy() for name in (_NODE, _OTHER)]
    nodes = np.unique(np.concatenate(ends))
    heads, tails = (np.searchsorted(nodes, end) for end in ends)
    links = coo_matrix((np.ones(len(heads), np.int8), (heads, tails)), (len(nodes), len(nodes)))
    _, labels = connected_components(links, directed=False)
    names = np.full(labels.max(initial=-1) + 1, np.iinfo(np.int64).max)
    np.minimum.at(names, labels, nodes)
    return pa.table({_NODE: nodes, _NODE_NAME: names[labels]})


def build_key_rows(
    entities: DataFrame, keys: SourceKeys, numbers: Mapping[Order, int], seed: int
) -> DataFrame:
    """Return one row for every key of a source's entities, in one pass."""

    def build_row(side: int) -> Callable[[Column], Column]:
        return lambda key: F.struct(
            F.lit(side).alias(SIDE),
            F.xxhash64(F.lit(seed), key).alias(NODE_KEY),
            F.hash(key).cast("bigint").alias(CHECK),
        )

    none = F.array().cast(f"array<struct<{SIDE}:int,{NODE_KEY}:bigint,{CHECK}:bigint>>")
    lists = []
    columns, named = keys.project_keys()
    for side, held in zip(named.sides, named.keys, strict=True):
        of_side = build_row(numbers[side.order])
        lists.append(
            held.map_keys(of_side)
            if held.is_list
            else build_array([(held.has_key, [of_side(held.values)])], none)
        )
    every = F.explode(F.concat(none, *lists)).alias("row")
    rows = entities.select(F.col(HASH).alias(ENTITY), SCAN_DELETED, *columns)
    return rows.select(ENTITY, every).select(ENTITY, "row.*")
