"""Test clusters of random graphs against a union-find over all pairs, without Spark."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from airflow_merge_provider.core.merge_source.dtl.expressions import Path
from airflow_merge_provider.core.merge_source.equality import Rule, Side
from airflow_merge_provider.jobs.merge_source.cluster.components import connect_entities, count_sizes
from airflow_merge_provider.jobs.merge_source.model import Entities, HashCollisionError
from airflow_merge_provider.jobs.merge_source.scan.source_scan import read_entities

Keys = list[set[int]]
# Hashes are spread over all 64 bits, including negative ones.
_SPREAD = -7_046_029_254_386_353_131


def build_side(dataset: int, name: str) -> Side:
    return Side(dataset, f"{dataset}.{name}", Path(str(dataset), (name,)))


class Workload:
    """Datasets, their rules, and for each side of a rule the keys of every entity."""

    def __init__(self, sizes: Sequence[int], rules: Sequence[Rule]) -> None:
        self.sizes, self.rules = sizes, rules
        self.deleted = [[False] * size for size in sizes]
        self.keys: dict[tuple[int, str], Keys] = {
            end.order: [set() for _ in range(sizes[end.dataset])]
            for rule in rules
            for end in (rule.left, rule.right)
        }

    def build_sources(self) -> list[Entities]:
        return [self._build_source(dataset) for dataset in range(len(self.sizes))]

    def _build_source(self, dataset: int) -> Entities:
        keys = {}
        for order, of_entities in self.keys.items():
            if order[0] == dataset:
                pairs = [
                    (number, key)
                    for number, entity_keys in enumerate(of_entities)
                    for key in sorted(entity_keys)
                ]
                numbers = np.array([number for number, _ in pairs], np.int64)
                hashes = np.array([key for _, key in pairs], np.int64)
                keys[order] = (numbers, hashes * _SPREAD, hashes)
        ids = [f"e{number}" for number in range(self.sizes[dataset])]
        hashes = np.arange(len(ids), dtype=np.int64) + dataset * 1_000_000
        deleted = np.array(self.deleted[dataset], np.bool_)
        return Entities(pa.array(ids, pa.string()), hashes, deleted, 0 * hashes, keys)

    def find_expected(self) -> set[frozenset[tuple[int, int]]]:
        """Return the clusters of a union-find over every pair of every rule."""
        entities = [(dataset, number) for dataset, size in enumerate(self.sizes) for number in range(size)]
        cluster_of = {entity: {entity} for entity in entities}
        for rule in self.rules:
            left, right = self.keys[rule.left.order], self.keys[rule.right.order]
            for left_number, right_number in product(range(len(left)), range(len(right))):
                if left[left_number] & right[right_number]:
                    united = (
                        cluster_of[rule.left.dataset, left_number]
                        | cluster_of[rule.right.dataset, right_number]
                    )
                    cluster_of.update(dict.fromkeys(united, united))
        return {frozenset(cluster) for cluster in cluster_of.values()}

    def find_components(self) -> set[frozenset[tuple[int, int]]]:
        graph = connect_entities(self.build_sources(), self.rules)
        clusters: dict[int, set[tuple[int, int]]] = {}
        for number, cluster in enumerate(graph.clusters.tolist()):
            dataset, id_ = graph.find_entity(number)
            clusters.setdefault(cluster, set()).add((dataset, int(id_[1:])))
        assert sorted(clusters) == list(range(graph.count))
        return {frozenset(cluster) for cluster in clusters.values()}


def random_workload(seed: int) -> Workload:
    draw = random.Random(seed)  # noqa: S311 - a workload, no secret
    sizes = [draw.choice((0, 1, 2, 5, 12)) for _ in range(draw.randint(1, 4))]
    names = ("x", "y")
    rules = [
        Rule(
            build_side(draw.randrange(len(sizes)), draw.choice(names)),
            build_side(draw.randrange(len(sizes)), draw.choice(names)),
        )
        for _ in range(draw.randint(0, 4))
    ]
    workload = Workload(sizes, rules)
    distinct = draw.choice((1, 3, 10, 40))
    most = draw.choice((1, 1, 3))
    for entity_keys in (keys for of_entities in workload.keys.values() for keys in of_entities):
        entity_keys.update(draw.randrange(distinct) for _ in range(draw.randint(0, most)))
    return workload


@pytest.mark.parametrize("block", range(10))
def test_random_graphs_have_the_clusters_of_all_pairs(block: int) -> None:
    """Hub nodes give the same clusters as linking every pair, with self-rules and empty datasets."""
    for seed in range(block * 50, block * 50 + 50):
        workload = random_workload(seed)

        assert workload.find_components() == workload.find_expected(), f"seed {seed}"


def test_a_hub_makes_one_cluster() -> None:
    """A shared key links all its entities if the other side of the rule has the key, and none otherwise."""
    rule = Rule(build_side(0, "x"), build_side(1, "x"))
    workload = Workload((400, 1), [rule])
    for entity_keys in workload.keys[rule.left.order]:
        entity_keys.add(5)

    assert len(workload.find_components()) == 401

    workload.keys[rule.right.order][0].add(5)

    assert workload.find_components() == workload.find_expected()
    assert len(workload.find_components()) == 1


def test_a_long_chain_makes_one_cluster() -> None:
    """Entities of two datasets that form a chain are one cluster, however long the chain is."""
    rule = Rule(build_side(0, "x"), build_side(1, "x"))
    size = 5000
    workload = Workload((size, size), [rule])
    for number in range(size):
        workload.keys[rule.left.order][number] = {number, number + 1}
        workload.keys[rule.right.order][number] = {number}

    graph = connect_entities(workload.build_sources(), [rule])

    assert graph.count == 1
    assert list(count_sizes(graph.sizes)) == [(2 * size, 1)]


def test_a_self_rule_links_inside_its_dataset_only() -> None:
    """``a.x = a.x`` links duplicates within A, and leaves entities of B with the same key unlinked."""
    rule, other = Rule(build_side(0, "x"), build_side(0, "x")), Rule(build_side(1, "y"), build_side(1, "y"))
    workload = Workload((3, 2), [rule, other])
    for number in (0, 2):
        workload.keys[rule.left.order][number].add(1)

    assert frozenset({(0, 0), (0, 2)}) in workload.find_components()
    assert workload.find_components() == workload.find_expected()


def test_members_stand_in_the_order_of_datasets_and_code_points() -> None:
    """Members are ordered by dataset and by the code points of ids: not by locale, not by UTF-16 units."""
    ids = ["é", "e10", "e2", "\U0001f600", "\uffee", "Z"]
    numbers, live = np.arange(6, dtype=np.int64), np.zeros(6, np.bool_)
    source = Entities(pa.array(ids), numbers, live, 0 * numbers, {build_side(0, "x").order: _all_one(6)})
    graph = connect_entities([source], [Rule(build_side(0, "x"), build_side(0, "x"))])

    assert [id_ for _, id_ in graph.list_members(0)] == sorted(ids)


def test_two_keys_with_one_hash_are_noticed() -> None:
    """Keys that share only their first hash are not linked: the second hash differs, and the run rehashes."""
    x, y = build_side(0, "x"), build_side(1, "x")
    hashes = np.array([77], np.int64)
    sources = [
        Entities(
            pa.array(["e"]),
            hashes + n,
            hashes < 0,
            0 * hashes,
            {end.order: (hashes - 77, hashes, hashes + n)},
        )
        for n, end in enumerate((x, y))
    ]

    with pytest.raises(HashCollisionError):
        connect_entities(sources, [Rule(x, y)])


def test_an_id_in_two_rows_is_named() -> None:
    """A duplicate id is reported with its count; two ids with one hash are a collision."""
    hashes = np.array([1, 2, 1], np.int64)
    deleted = np.zeros(3, np.bool_)

    assert Entities(pa.array(["a", "b", "a"]), hashes, deleted, hashes, {}).find_repeated_id() == ("a", 2, 1)
    assert Entities(pa.array(["a", "b", "c"]), np.arange(3), deleted, hashes, {}).find_repeated_id() is None
    with pytest.raises(HashCollisionError):
        Entities(pa.array(["a", "b", "c"]), hashes, deleted, hashes, {}).find_repeated_id()


def test_thin_rows_are_read_whatever_their_chunks() -> None:
    """Key lists stay with their entities if a table has several chunks, and NULL lists have no keys."""
    kinds = pa.schema(
        {
            "id": pa.string(), "hash": pa.int64(), "deleted": pa.bool_(), "content": pa.int64(),
            "key0": pa.list_(pa.int64()), "check0": pa.list_(pa.int32()),
        }
    )  # fmt: skip
    rows = [
        ("a", 1, False, 4, [5, 6], [50, 60]),
        ("b", 2, True, 4, None, None),
        ("c", 3, False, 4, [7], [70]),
    ]
    pieces = [pa.Table.from_pylist([dict(zip(kinds.names, row, strict=True))], kinds) for row in rows]

    entities = read_entities(pa.concat_tables(pieces), [build_side(0, "x")])

    numbers, hashes, checks = entities.keys[build_side(0, "x").order]
    assert (numbers.tolist(), hashes.tolist(), checks.tolist()) == ([0, 0, 2], [5, 6, 7], [50, 60, 70])
    assert entities.deleted.tolist() == [False, True, False]


def _all_one(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    ones = np.ones(size, np.int64)
    return np.arange(size, dtype=np.int64), ones, ones
