"""Test bridge entities of clusters on random graphs against removal of every entity, and in a run."""

from __future__ import annotations

import random

import pytest

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.merge_source.equality import Rule
from airflow_merge_provider.core.population import WRITER
from airflow_merge_provider.jobs.merge_source.cluster.components import connect_entities
from airflow_merge_provider.jobs.merge_source.cluster.quarantine import LinkStatistics
from airflow_merge_provider.jobs.merge_source.output.metrics import find_bridges
from tests.jobs.merge_source.conftest import MakePipe
from tests.jobs.merge_source.pipe import build_table
from tests.jobs.merge_source.test_components import Workload, build_side, random_workload

RULES = (
    Rule(build_side(0, "x"), build_side(1, "x")),
    Rule(build_side(0, "x"), build_side(0, "y")),
    Rule(build_side(1, "y"), build_side(1, "y")),
)


def drop_keys(work: Workload, dataset: int, number: int) -> Workload:
    """Return the keys without those of one entity."""
    remaining = Workload(work.sizes, work.rules)
    for order, of_entities in work.keys.items():
        remaining.keys[order] = [set(entity_keys) for entity_keys in of_entities]
        if order[0] == dataset:
            remaining.keys[order][number] = set()
    return remaining


@pytest.mark.parametrize("seed", range(60))
def test_bridges_are_entities_without_which_a_cluster_falls_apart(seed: int) -> None:
    """A bridge is an entity without which the rest of its cluster is no longer connected.

    The expected bridges are found by removing each entity in turn.
    """
    draw = random.Random(seed)  # noqa: S311 - a workload, no secret
    work = Workload([draw.randint(1, 6), draw.randint(1, 6)], RULES)
    for of_entities in work.keys.values():
        for entity_keys in of_entities:
            entity_keys |= {draw.randint(0, 7) for _ in range(draw.choice((0, 1, 1, 2)))}
    sources = work.build_sources()
    evidence = LinkStatistics(keep_links=True)
    graph = connect_entities(sources, RULES, evidence)

    bridges = {
        (dataset, int(id_[1:]))
        for numbers in find_bridges(graph, evidence.links)
        for dataset, id_ in map(graph.find_entity, numbers)
    }

    expected = {
        entity
        for cluster in work.find_expected()
        for entity in cluster
        if cluster - {entity} and cluster - {entity} not in drop_keys(work, *entity).find_expected()
    }
    assert bridges == expected


@pytest.mark.parametrize("seed", range(60))
def test_keys_of_one_side_are_counted(seed: int) -> None:
    """Keys on one side only are counted, whether one entity or several have them.

    This also holds if no other entity has such a key.
    """
    work = random_workload(seed)
    evidence = LinkStatistics(keep_links=True)

    connect_entities(work.build_sources(), work.rules, evidence)

    expected = []
    for rule in work.rules:
        left, right = (set().union(*work.keys[end.order]) for end in (rule.left, rule.right))
        expected.append({"rule": rule.text, "left": len(left - right), "right": len(right - left)})
    assert evidence.one_sided == expected


def test_a_long_chain_is_no_trouble() -> None:
    """In a long chain every inner entity is a bridge, and they are found without recursion."""
    count = 5000
    work = Workload([count, count], RULES[:1])
    for number in range(count):
        work.keys[RULES[0].left.order][number] |= {number, number + 1}
        work.keys[RULES[0].right.order][number] |= {number}
    sources = work.build_sources()
    evidence = LinkStatistics(keep_links=True)
    graph = connect_entities(sources, RULES[:1], evidence)

    assert sum(map(len, find_bridges(graph, evidence.links))) == 2 * count - 2


def test_each_run_leaves_a_row_of_figures(make_pipe: MakePipe) -> None:
    """Each run with changes writes one row of metrics: totals, and figures of the evaluated rows."""
    pipe = make_pipe("AB", equality=[["eq", "a.x", "b.x"]], metrics="figures")
    pipe.write_rows("A", build_table({"_id": ["a1", "a2", "a3"], "x": [1, 1, 3], "_updated": [1, 2, 3]}))
    pipe.write_rows("B", build_table({"_id": ["b1", "b2"], "x": [1, 9], "_updated": [1, 2]}))
    pipe.run_job("first")
    pipe.write_rows("B", build_table({"_id": ["b3"], "x": [3], "_updated": [3]}))
    pipe.run_job("dry", until="transform")
    pipe.run_job("second")
    pipe.run_job("third")

    rows = pipe.spark.read.format("delta").load(str(pipe.folder / "figures")).orderBy("run").collect()

    first, second = (row.asDict(recursive=True) for row in rows)
    assert {name: first[name] for name in ("run", "scope", "entities", "live_rows", "merged")} == {
        "run": 1, "scope": "all", "entities": 5, "live_rows": 3, "merged": 1,
    }  # fmt: skip
    assert first["largest"] == [{"id": "0|a1|0|a2|1|b1", "size": 3}]
    assert (first["same_dataset"], first["bridges"]) == (1, 1)
    assert first["one_sided"] == [{"rule": "a.x = b.x", "left": 1, "right": 1}]
    assert {name: second[name] for name in ("run", "scope", "entities", "live_rows", "merged")} == {
        "run": 2, "scope": "evaluated", "entities": 6, "live_rows": 3, "merged": 2,
    }  # fmt: skip
    assert second["cluster_sizes"] == [{"size": 2, "clusters": 1}]


def test_a_table_of_somebody_else_is_not_written_to(make_pipe: MakePipe) -> None:
    """Metrics are written only to a table that this job created or to a new one.

    If the table belongs to others, the target is not written either.
    """
    pipe = make_pipe("A", metrics="precious")
    pipe.write_rows("A", build_table({"_id": ["a1"]}))
    pipe.write_rows("precious", build_table({"_id": ["p"]}))

    with pytest.raises(DataError, match="was written by another writer, not by merge_source"):
        pipe.run_job()
    # As if another version of this package had written it.
    properties = f"SET TBLPROPERTIES ('{WRITER}' = 'merge_source')"
    pipe.spark.sql(f"ALTER TABLE delta.`{pipe.folder / 'precious'}` {properties}").collect()
    with pytest.raises(DataError, match="precious has no column 'target': another version has created it"):
        pipe.run_job()

    assert pipe.read_version() is None
