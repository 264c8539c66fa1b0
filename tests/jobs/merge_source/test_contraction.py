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
    KEY,
    SIDE,
    connect_distributed,
)
from airflow_merge_provider.jobs.merge_source.resolution import KEYS_ON_DRIVER
from airflow_merge_provider.jobs.spark.staging import create_dataframe
from tests.jobs.merge_source.pipe import JSON, Pipe
from tests.jobs.merge_source.test_components import Workload, build_side, random_workload

EDGES = 100


def build_shapes() -> Workload:
    """Build a chain, a star, a clique and many pairs, all in one dataset."""
    rules = [Rule(build_side(0, "x"), build_side(0, "y")), Rule(build_side(0, "z"), build_side(0, "z"))]
    workload = Workload([2_000], rules)
    (x, y, z) = (workload.keys[build_side(0, name).order] for name in "xyz")
    places = random.Random(5).sample(range(2_000), 2_000)  # noqa: S311 - a workload
    chain, star, clique, pairs = places[:400], places[400:900], places[900:930], places[930:1_400]
    for key, (one, other) in enumerate(pairwise(chain)):
        x[one].add(key)
        y[other].add(key)
    for place in star:
        z[place].add(10_000)
    for number, (one, other) in enumerate((one, other) for one in clique for other in clique if one != other):
        x[one].add(20_000 + number)
        y[other].add(20_000 + number)
    for number, (one, other) in enumerate(zip(pairs[::2], pairs[1::2], strict=True)):
        z[one].add(30_000 + number)
        z[other].add(30_000 + number)
    return workload


def in_spark(spark: SparkSession, workload: Workload) -> tuple[list[int], list[int]]:
    """Return the cluster of every entity, by the driver and by Spark."""
    sources = workload.build_sources()
    numbers = {order: at for at, order in enumerate(workload.keys)}
    rows: dict[str, list[int]] = {SIDE: [], KEY: [], CHECK: [], ENTITY: []}
    for source in sources:
        for order, (places, hashes, checks) in source.keys.items():
            rows[SIDE] += [numbers[order]] * len(places)
            rows[KEY] += hashes.tolist()
            rows[CHECK] += checks.tolist()
            rows[ENTITY] += source.hashes[places].tolist()
    kinds = {SIDE: pa.int32(), KEY: pa.int64(), CHECK: pa.int64(), ENTITY: pa.int64()}
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
    return {frozenset(each) for each in members.values()}


def test_chains_stars_and_cliques_contract_to_their_clusters(lean: SparkSession) -> None:
    """With room for 100 edges, several rounds in Spark give the clusters of one computation in memory."""
    mine, theirs = in_spark(lean, build_shapes())

    assert to_partition(theirs) == to_partition(mine)
    assert sorted({len(each) for each in to_partition(theirs)}) == [1, 2, 30, 400, 500]


def test_a_hub_and_the_chain_that_hangs_on_it_are_one_cluster(lean: SparkSession) -> None:
    """A key of 100,000 entities of two datasets and a chain of 1,000 that starts at one are one cluster."""
    rules = [Rule(build_side(0, "hub"), build_side(1, "hub")), Rule(build_side(0, "x"), build_side(0, "y"))]
    workload = Workload([51_000, 50_010], rules)
    for dataset in (0, 1):
        for held in workload.keys[build_side(dataset, "hub").order][:50_000]:
            held.add(1)
    chain = [0, *random.Random(3).sample(range(50_000, 51_000), 1_000)]  # noqa: S311 - a workload
    for key, (one, other) in enumerate(pairwise(chain)):
        workload.keys[build_side(0, "x").order][one].add(100 + key)
        workload.keys[build_side(0, "y").order][other].add(100 + key)

    mine, theirs = in_spark(lean, workload)

    assert to_partition(theirs) == to_partition(mine)
    assert sorted(len(each) for each in to_partition(theirs)) == [*[1] * 10, 101_000]


@pytest.mark.parametrize("seed", range(12))
def test_random_rules_connect_alike(lean: SparkSession, seed: int) -> None:
    """Random rules give the same clusters in Spark as in memory.

    Rules are within and across datasets, with keys on one side only and deleted entities.
    """
    mine, theirs = in_spark(lean, random_workload(seed))

    assert to_partition(theirs) == to_partition(mine)


def test_a_run_writes_the_same_where_spark_connects(lean: SparkSession, tmp_path: Path) -> None:
    """A first run and a full refresh write the same with clusters from Spark as with keys in memory."""
    written = []
    for limit in ("0", "1000"):
        merge = Pipe(lean, tmp_path / limit, datasets=["A a", "B b"], equality=[["eq", "a.x", "b.x"]])
        lean.conf.set(KEYS_ON_DRIVER, limit)
        try:
            merge.write_json("A", [{"_id": "a1", "x": 1}, {"_id": "a2", "x": [1, 2]}, {"_id": "a3"}])
            merge.write_json("B", [{"_id": "b1", "x": 2}, {"_id": "b2", "x": "2"}])
            merge.run_job(**JSON)
            first = merge.read_new_rows()
            merge.write_json("B", [{"_id": "b1", "x": 3}])
            merge.run_job(**JSON, full_refresh=True)
            written.append([first, merge.read_new_rows()])
        finally:
            lean.conf.unset(KEYS_ON_DRIVER)

    assert written[0] == written[1]
    assert [entity["_id"] for entity in written[0][0]] == ["0|a1", "0|a2|1|b1", "0|a3", "1|b2"]
