"""Test how clusters are assigned to outputs, on numbers and without Spark."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.jobs.merge_source.cluster.clustering import assign_outputs
from airflow_merge_provider.jobs.merge_source.model import (
    HASH,
    LABEL,
    Entities,
    EntityGraph,
    HashCollisionError,
    OutputAssignment,
)


def build_graph(
    datasets: list[list[str]], clusters: list[list[int]], deleted: tuple[str, ...] = (), start: int = 0
) -> EntityGraph:
    """Build a graph of datasets given by their ids, and of clusters given by the entities' numbers."""
    count = sum(map(len, datasets))
    of_entity = np.empty(count, np.int64)
    for number, members in enumerate(clusters):
        of_entity[members] = number
    sources = []
    for ids in datasets:
        hashes = np.arange(start, start + len(ids), dtype=np.int64)
        flags = np.array([id_ in deleted for id_ in ids], np.bool_)
        sources.append(Entities(pa.array(ids, pa.string()), hashes, flags, 0 * hashes, {}))
        start += len(ids)
    return EntityGraph(sources, of_entity, len(clusters))


def parse_config(**settings: Any) -> MergeSourceConfig:
    return MergeSourceConfig.parse({"version": 2, "datasets": ["A a", "B b"], **settings})


def list_labels(assignment: OutputAssignment) -> dict[int, tuple[int, bool]]:
    """Return the output of each entity, by its number, and whether the entity shares it."""
    rows = zip(assignment.labels[HASH].to_pylist(), assignment.labels[LABEL].to_pylist(), strict=True)
    return {number: (label >> 1, bool(label & 1)) for number, label in rows}


def test_outputs_are_numbered_by_their_first_members() -> None:
    """Outputs are ordered by dataset and id of their first members, whatever the numbers of clusters.

    Deleted members count too.
    """
    assignment = assign_outputs(
        build_graph([["a2", "a1"], ["b1"]], [[2], [0], [1]], deleted=("a1",)), parse_config()
    )

    assert list_labels(assignment) == {1: (0, False), 0: (1, False), 2: (2, False)}
    assert assignment.live_sizes.tolist() == [1, 1]


def test_members_of_a_cluster_share_an_output() -> None:
    """The lowest bit of the label is set if the output has more than one member."""
    assignment = assign_outputs(build_graph([["a1", "a2"], ["b1"]], [[0, 2], [1]]), parse_config())

    assert list_labels(assignment) == {0: (0, True), 2: (0, True), 1: (1, False)}
    assert assignment.find_largest(1, 9) == [(2, [(0, "a1"), (1, "b1")])]


def test_the_largest_clusters_are_those_that_come_first() -> None:
    """The largest clusters come first, equal ones in output order; singletons only if there are no others."""
    ids = [[f"a{number}" for number in range(9)], [f"b{number}" for number in range(4)]]
    clusters = [[8], [7, 12], [5, 6], [4, 11], [0, 1, 2], [3, 10], [9]]
    assignment = assign_outputs(build_graph(ids, clusters), parse_config())
    singletons = assign_outputs(build_graph([["a2", "a1"], ["b1"]], [[0], [1], [2]]), parse_config())

    assert [(size, members[0][1]) for size, members in assignment.find_largest(3, 1)] == [
        (3, "a0"), (2, "a3"), (2, "a4"),
    ]  # fmt: skip
    assert [size for size, _ in assignment.find_largest(50, 9)] == [3, 2, 2, 2, 2]
    assert singletons.find_largest(5, 9) == [(1, [(0, "a1")])]


@pytest.mark.parametrize(("most", "fits"), [(2, False), (3, True)])
def test_a_cluster_may_have_max_merged_members(most: int, fits: bool) -> None:
    """A cluster may have ``max_merged`` members; one more is rejected with the names of the first members."""
    clusters = build_graph([["a1", "a2"], ["b1"]], [[0, 1, 2]])
    if fits:
        assert assign_outputs(clusters, parse_config(max_merged=most)).outputs == 1
        return

    with pytest.raises(DataError, match=r"max_merged: 3 entities .* limit is 2 .*A/a1, A/a2, B/b1"):
        assign_outputs(clusters, parse_config(max_merged=most))


def test_version_1_has_no_limit() -> None:
    """Version 1 does not apply ``max_merged``, not even its default."""
    ids = [f"a{number:06}" for number in range(50_001)]
    clusters = build_graph([ids, []], [list(range(50_001))])

    assert assign_outputs(clusters, parse_config(version=1)).outputs == 1
    with pytest.raises(DataError, match="the limit is 50000"):
        assign_outputs(clusters, parse_config())


def test_two_live_clusters_cannot_have_one_first_id() -> None:
    """Two live clusters with the same first id are rejected; the error has both entities and a remedy."""
    clusters = build_graph([["x1"], ["x1"]], [[0], [1]])

    with pytest.raises(
        DataError, match=r"duplicate output id 'x1': from A/x1 and B/x1 \(add an equality rule"
    ):
        assign_outputs(clusters, parse_config(identity="first"))


def test_every_overlap_and_every_crowd_is_named() -> None:
    """Every overlap and every oversized cluster is named in one error, at most ten of each."""
    ids = [f"x{number:02}" for number in range(12)]
    overlapping = build_graph([ids, ids], [[number] for number in range(24)])
    crowds = build_graph([["a1", "a2", "a3", "a4", "a5"], ["b1"]], [[0, 1], [2, 3, 4], [5]])

    with pytest.raises(DataError, match="1 of 12 problems, first 10 shown") as overlaps:
        assign_outputs(overlapping, parse_config(identity="first"))
    with pytest.raises(DataError, match="1 of 12 problems, first 10 shown"):
        assign_outputs(overlapping, parse_config(version=1, identity="first"))
    with pytest.raises(DataError) as crowded:
        assign_outputs(crowds, parse_config(max_merged=1))

    named = [str(problem).split("'")[1] for problem in overlaps.value.problems]
    assert named == ids[:10]
    assert [str(problem).split()[1] for problem in crowded.value.problems] == ["3", "2"]


def test_every_composite_id_that_two_outputs_have_is_named() -> None:
    """Every composite id that two outputs share is named: here two pairs of outputs."""
    meeting = build_graph([["a", "b", "a|0|b", "c", "d", "c|0|d"]], [[0, 1], [2], [3, 4], [5]])

    with pytest.raises(DataError) as refused:
        assign_outputs(meeting, parse_config(datasets=["A a"]))

    assert len(refused.value.problems) == 2


@pytest.mark.parametrize(("deleted_first", "owner"), [(True, 1), (False, 0)])
def test_a_live_cluster_owns_its_id(deleted_first: bool, owner: int) -> None:
    """With identity first, a deleted entity with the id of a live output is left out, in either order."""
    clusters = build_graph([["x1"], ["x1"]], [[0], [1]])
    clusters.sources[0].deleted[:] = deleted_first
    clusters.sources[1].deleted[:] = not deleted_first

    assignment = assign_outputs(clusters, parse_config(identity="first"))

    assert list_labels(assignment) == {owner: (0, False)}


def test_of_deleted_entities_with_one_id_the_first_dataset_counts() -> None:
    """Two deleted entities with one id give one delete, from the first dataset."""
    assignment = assign_outputs(
        build_graph([["x1"], ["x1"]], [[0], [1]], deleted=("x1",)), parse_config(identity="first")
    )

    assert list_labels(assignment) == {0: (0, False)}
    assert assignment.live_sizes.tolist() == []


def test_version_1_refuses_an_id_in_two_datasets() -> None:
    """Version 1 rejects an id in two datasets, even if both entities are in one cluster."""
    with pytest.raises(DataError, match=r"entity id 'x1' is in more than one dataset \(use version 2"):
        assign_outputs(build_graph([["x1"], ["x1"]], [[0, 1]]), parse_config(version=1, identity="first"))


def test_a_bar_in_an_id_is_allowed_until_two_ids_meet() -> None:
    """A bar in an id is allowed until two composite ids are equal.

    ``0|a|0|b`` of two entities is also the id of one entity with this name.
    """
    assert assign_outputs(build_graph([["a|b"], ["b1"]], [[0], [1]]), parse_config()).outputs == 2

    with pytest.raises(DataError, match=r"duplicate output id '0\|a\|0\|b': from A/a and A/a\|0\|b"):
        assign_outputs(build_graph([["a", "b", "a|0|b"], []], [[0, 1], [2]]), parse_config())


def test_entities_with_one_hash_are_noticed() -> None:
    """Two entities with one hash stop the attempt, because labels are looked up by hash."""
    clusters = build_graph([["a"], ["b"]], [[0], [1]])
    clusters.sources[1].hashes[:] = clusters.sources[0].hashes

    with pytest.raises(HashCollisionError):
        assign_outputs(clusters, parse_config())


def test_no_entities_make_no_outputs() -> None:
    """Empty datasets give no outputs and no error."""
    assignment = assign_outputs(build_graph([[], []], []), parse_config())

    assert (assignment.outputs, assignment.find_largest(1, 9), list_labels(assignment)) == (0, [], {})
