"""Test that clusters contracted in Spark equal those of the driver, on graphs of all shapes and in runs."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_merge_provider.core.merge_source.equality import Rule
from airflow_merge_provider.jobs.merge_source.cluster.components import connect_entities
from airflow_merge_provider.jobs.merge_source.cluster.components_distributed import (
    CHECK,
    ENTITY,
    NODE_KEY,
    SIDE,
    connect_distributed,
)
from airflow_merge_provider.jobs.merge_source.resolution import KEYS_ON_DRIVER
from airflow_merge_provider.jobs.spark.staging import create_dataframe
from tests.jobs.merge_source.pipe import JSON, Pipe
from tests.jobs.merge_source.test_components import Workload, build_side, random_workload
from tests.long import all_long_but

EDGES = 100


def build_shapes() -> Workload:
    """Build a chain, a star, a clique and many pairs, all in one dataset."""
    rules = [Rule(build_side(0, "x"), build_side(0, "y")), Rule(build_side(0, "z"), build_side(0, "z"))]
    workload = Workload([2_000], rules)
    (x, y, z) = (workload.keys[build_side(0, name).order] for name in "xyz")
    entities = random.Random(5).sample(range(2_000), 2_000)  # noqa: S311 - a workload
    chain, star, clique, pairs = entities[:400], entities[400:900], entities[900:930], entities[930:1_400]
    for key, (first, second) in enumerate(pairwise(chain)):
        x[first].add(key)
        y[second].add(key)
    for entity in star:
        z[entity].add(10_000)
    for number, (first, second) in enumerate(
        (first, second) for first in clique for second in clique if first != second
    ):
        x[first].add(20_000 + number)
        y[second].add(20_000 + number)
    for number, (first, second) in enumerate(zip(pairs[::2], pairs[1::2], strict=True)):
        z[first].add(30_000 + number)
        z[second].add(30_000 + number)
    return workload


def in_spark(spark: SparkSession, workload: Workload) -> tuple[list[int], list[int]]:
    """Return the cluster of every entity, by the driver and by Spark."""
    sources = workload.build_sources()
    numbers = {order: at for at, order in enumerate(workload.keys)}
    rows: dict[str, list[int]] = {SIDE: [], NODE_KEY: [], CHECK: [], ENTITY: []}
    for source in sources:
        for order, (entities, hashes, checks) in source.keys.items():
            rows[SIDE] += [numbers[order]] * len(entities)
            rows[NODE_KEY] += hashes.tolist()
            rows[CHECK] += checks.tolist()
            rows[ENTITY] += source.hashes[entities].tolist()
    kinds = {SIDE: pa.int32(), NODE_KEY: pa.int64(), CHECK: pa.int64(), ENTITY: pa.int64()}
    keys = create_dataframe(
        spark, pa.table({name: pa.array(rows[name], kind) for name, kind in kinds.items()})
    )
    graph = connect_distributed(spark, sources, keys, workload.rules, numbers, EDGES)
    return connect_entities(sources, workload.rules).clusters.tolist(), graph.clusters.tolist()


def to_partition(clusters: list[int]) -> set[frozenset[int]]:
    """Return clusters as sets of entities, whatever their numbers."""
    members: dict[int, set[int]] = {}
    for entity, cluster in enumerate(clusters):
        members.setdefault(cluster, set()).add(entity)
    return {frozenset(entities) for entities in members.values()}


def test_chains_stars_and_cliques_contract_to_their_clusters(lean: SparkSession) -> None:
    """With room for 100 edges, several rounds in Spark give the clusters of one computation in memory."""
    driver_clusters, spark_clusters = in_spark(lean, build_shapes())

    assert to_partition(spark_clusters) == to_partition(driver_clusters)
    assert sorted({len(cluster) for cluster in to_partition(spark_clusters)}) == [1, 2, 30, 400, 500]


@pytest.mark.long
def test_a_hub_and_the_chain_that_hangs_on_it_are_one_cluster(lean: SparkSession) -> None:
    """A key of 100,000 entities of two datasets and a chain of 1,000 that starts at one are one cluster."""
    rules = [Rule(build_side(0, "hub"), build_side(1, "hub")), Rule(build_side(0, "x"), build_side(0, "y"))]
    workload = Workload([51_000, 50_010], rules)
    for dataset in (0, 1):
        for entity_keys in workload.keys[build_side(dataset, "hub").order][:50_000]:
            entity_keys.add(1)
    chain = [0, *random.Random(3).sample(range(50_000, 51_000), 1_000)]  # noqa: S311 - a workload
    for key, (first, second) in enumerate(pairwise(chain)):
        workload.keys[build_side(0, "x").order][first].add(100 + key)
        workload.keys[build_side(0, "y").order][second].add(100 + key)

    driver_clusters, spark_clusters = in_spark(lean, workload)

    assert to_partition(spark_clusters) == to_partition(driver_clusters)
    assert sorted(len(cluster) for cluster in to_partition(spark_clusters)) == [*[1] * 10, 101_000]


@pytest.mark.parametrize("seed", all_long_but(range(12), *range(4)))
def test_random_rules_connect_alike(lean: SparkSession, seed: int) -> None:
    """Random rules give the same clusters in Spark as in memory.

    Rules are within and across datasets, with keys on one side only and deleted entities.
    """
    driver_clusters, spark_clusters = in_spark(lean, random_workload(seed))

    assert to_partition(spark_clusters) == to_partition(driver_clusters)


@pytest.mark.long
def test_a_run_writes_the_same_where_spark_connects(lean: SparkSession, tmp_path: Path) -> None:
    """A first run and a full refresh write the same with clusters from Spark as with keys in memory."""
    written = []
    for limit in ("0", "1000"):
        pipe = Pipe(lean, tmp_path / limit, datasets=["A a", "B b"], equality=[["eq", "a.x", "b.x"]])
        lean.conf.set(KEYS_ON_DRIVER, limit)
        try:
            pipe.write_json("A", [{"_id": "a1", "x": 1}, {"_id": "a2", "x": [1, 2]}, {"_id": "a3"}])
            pipe.write_json("B", [{"_id": "b1", "x": 2}, {"_id": "b2", "x": "2"}])
            pipe.run_job(**JSON)
            first = pipe.read_new_rows()
            pipe.write_json("B", [{"_id": "b1", "x": 3}])
            pipe.run_job(**JSON, full_refresh=True)
            written.append([first, pipe.read_new_rows()])
        finally:
            lean.conf.unset(KEYS_ON_DRIVER)

    assert written[0] == written[1]
    assert [entity["_id"] for entity in written[0][0]] == ["0|a1", "0|a2|1|b1", "0|a3", "1|b2"]
