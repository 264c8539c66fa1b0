"""Tests of the texts of the errors that stop a run."""

from __future__ import annotations

import pytest

from airflow_merge_provider.core.merge_source.config import MergeSourceConfig, list_awaited
from airflow_merge_provider.core.merge_source.refusals import (
    OverlappingClusters,
    OversizedCluster,
    refuse_duplicate_outputs,
    refuse_empty_source,
    refuse_missing_id,
    refuse_moved_dataset,
    refuse_oversized_clusters,
    refuse_shared_ids,
)
from airflow_merge_provider.core.population import list_unpopulated


def test_a_cluster_above_the_limit() -> None:
    """The error names size, limit and the first members of every listed cluster."""
    members = [("A", "a1"), ("A", "a2"), ("B", "b1")]

    error = refuse_oversized_clusters(2, [OversizedCluster(4, members), OversizedCluster(3, members)], 5)

    assert error.message.splitlines()[0].startswith(
        "max_merged: 4 entities would be merged into one, the limit is 2 (first members: A/a1, A/a2, B/b1)"
    )
    assert error.message.splitlines()[0].endswith("[1 of 5 problems, first 2 shown]")
    assert "3 entities would be" in error.message.splitlines()[1]


def test_two_outputs_with_one_id() -> None:
    """The suggested fix for two outputs with one ID depends on how IDs are created."""
    first = refuse_duplicate_outputs([OverlappingClusters("x1", ("A", "x1"), ("B", "x1"))], 1, "first")
    composite = refuse_duplicate_outputs(
        [OverlappingClusters("0|a|0|b", ("A", "a"), ("A", "a|0|b"))], 1, "composite"
    )

    assert first.message == (
        "duplicate output id 'x1': from A/x1 and B/x1"
        " (add an equality rule on _id or $ids for these datasets)"
    )
    assert composite.message.endswith("from A/a and A/a|0|b (remove '|' from the entity IDs)")


def test_what_version_one_refuses() -> None:
    """Version 1 rejects a moved dataset and one ID in two datasets."""
    moved = refuse_moved_dataset(["A", "B"], ["B"])

    assert moved is not None
    assert moved.message.startswith(
        "version 1: dataset 'B' moved from offset 1 to 0 (run once with reset=True"
    )
    assert refuse_moved_dataset(["A", "B"], ["A", "C", "D"]) is None
    assert refuse_shared_ids(["x1"], 1).message == (
        "version 1 with identity 'first': entity id 'x1' is in more than one dataset (use version 2)"
    )


def test_what_no_run_takes() -> None:
    """Every run rejects an entity without an ID, and an empty source if that is configured as an error."""
    assert str(refuse_missing_id("A")).startswith("dataset 'A': entity without a string _id")
    assert refuse_empty_source().message.startswith("if_source_empty: ")
    assert not refuse_empty_source().retryable


@pytest.mark.parametrize(("ignored", "waits"), [(True, ("B",)), (False, ("B", "C"))])
def test_who_is_waited_for(ignored: bool, waits: tuple[str, ...]) -> None:
    """A run always waits for an unpopulated dataset, and for a missing dataset only if that is configured."""
    config = MergeSourceConfig.parse({"datasets": ["A a", "B b", "C c"]})

    assert (
        list_unpopulated(
            list_awaited(config), {"A": "populated", "B": "unpopulated"}, ignore_non_existent=ignored
        )
        == waits
    )
