"""Test stable ids, and successors of ids that end, in every kind of run."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from deltalake import write_deltalake

from airflow_merge_provider.explain.merge_source import explain_output
from tests.jobs.delta_log import list_commits
from tests.jobs.merge_source.conftest import MakePipe
from tests.jobs.merge_source.pipe import Pipe, build_table
from tests.jobs.merge_source.test_changes import build_versions

RULE: dict[str, Any] = {"equality": [["eq", "a.x", "b.x"]]}


def read_stable_ids(pipe: Pipe) -> dict[str, int]:
    """Return the stable ids of the outputs, including deleted ones, by the members."""
    rows = pipe.target_rows().where("size(_members) > 0")
    return {row["_id"]: row["$stable_id"] for row in rows.collect()}


def read_lineage(pipe: Pipe) -> list[tuple[Any, ...]]:
    """Return the lineage events that the target's last commit names."""
    version = list_commits(pipe.target)[-1]["run"]["side_table_versions"]["lineage"]
    rows = pipe.spark.read.format("delta").option("versionAsOf", version).load(f"{pipe.target}__lineage")
    return [tuple(row) for row in rows.orderBy("run", "from_ids").collect()]


def make_merged_pipe(make_pipe: MakePipe, **settings: Any) -> Pipe:
    """Create a pipe over two tables with versions that has run once: a1 with b1, and a2."""
    pipe = make_pipe("AB", **{**RULE, **settings})
    pipe.write_rows("A", build_versions([1, 2], ["a1", "a2"], [1, 2]))
    pipe.write_rows("B", build_versions([1], ["b1"], [1]))
    pipe.run_job("first")
    return pipe


def test_the_oldest_id_survives_a_join_and_the_largest_part_a_split(
    make_memory_pipe: MakePipe,
) -> None:
    """A join keeps the oldest id, a split gives it to the largest part; new outputs get new ids.

    No id is assigned twice.
    """
    pipe = make_merged_pipe(make_memory_pipe, stable_id=True)
    assert read_stable_ids(pipe) == {"0|a1|1|b1": 0, "0|a2": 1}

    pipe.write_rows("B", build_versions([2, 3], ["b2", "b3"], [2, 7]))
    pipe.run_job("joined")
    assert read_stable_ids(pipe) == {"0|a1|1|b1": 0, "0|a2|1|b2": 1, "1|b3": 2}
    pipe.write_rows("A", build_versions([3], ["a2"], [1]))
    pipe.run_job("moved")
    assert read_stable_ids(pipe) == {"0|a1|0|a2|1|b1": 0, "1|b2": 3, "1|b3": 2}
    pipe.write_rows("B", build_versions([4], ["b1"], [9]))
    pipe.run_job("fell apart")
    after = read_stable_ids(pipe)
    assert after == {"0|a1": 0, "0|a2": 4, "1|b1": 5, "1|b2": 3, "1|b3": 2}

    assert pipe.run_job("full", full_refresh=True)["changed"] is False
    assert pipe.run_job("anew", reset=True)["changed"] is True
    assert sorted(read_stable_ids(pipe).values()) == list(range(len(after)))


def test_a_live_part_keeps_the_id_before_a_deleted_one(make_pipe: MakePipe) -> None:
    """In a split the live part keeps the id.

    The deleted part gets another id, and keeps it if it returns alone.
    """
    pipe = make_merged_pipe(make_pipe, stable_id=True)
    deleted_rows = build_table({"_updated": [3], "_id": ["a1"], "x": [1], "_deleted": [True]})
    write_deltalake(str(pipe.folder / "A"), deleted_rows, mode="append", schema_mode="merge")

    pipe.run_job("second")

    assert read_stable_ids(pipe) == {"1|b1": 0, "0|a2": 1, "0|a1": 2}


@pytest.mark.long
def test_ids_that_are_no_more_say_what_took_their_place(make_pipe: MakePipe) -> None:
    """Rows, explanations and events have the successors of ids: merged, split, moved, deleted."""
    pipe = make_merged_pipe(make_pipe, replaced_by=True)
    pipe.write_rows("A", build_versions([3], ["a2"], [1]))
    pipe.run_job("merged")
    merged_id = "0|a1|0|a2|1|b1"
    pipe.write_rows("B", build_versions([2], ["b1"], [3]))
    pipe.run_job("split")

    assert read_lineage(pipe) == [
        (2, "merged", ["0|a1|1|b1", "0|a2"], [merged_id]),
        (3, "split", [merged_id], ["0|a1", "0|a2", "1|b1"]),
    ]
    assert explain_output(str(pipe.target), "0|a1|1|b1").replaced_by == (merged_id,)
    explanation = explain_output(str(pipe.target), merged_id)
    assert explanation.replaced_by == ("0|a1", "0|a2", "1|b1")
    assert next(explanation.format_lines()).startswith(f"{merged_id}: replaced by 0|a1, 0|a2, 1|b1")

    pipe.write_rows("A", build_versions([9], ["a1"], [3]), "overwrite")
    pipe.run_job("full", full_refresh=True)

    assert read_lineage(pipe)[2:] == [
        (4, "merged", ["0|a1", "1|b1"], ["0|a1|1|b1"]),
        (4, "deleted", ["0|a2"], []),
    ]


@pytest.mark.long
def test_events_of_a_run_that_did_not_commit_are_taken_back(make_pipe: MakePipe) -> None:
    """The next run appends to the events that the target's last commit names.

    Events of an uncommitted run in the table are removed.
    """
    pipe = make_merged_pipe(make_pipe, replaced_by=True)
    pipe.write_rows("A", build_versions([3], ["a2"], [1]))
    pipe.run_job("merged")
    location = f"{pipe.target}__lineage"
    orphan = pipe.spark.sql("SELECT 3L AS run, 'moved' AS kind, array('x') AS from_ids, array('y') AS to_ids")
    orphan.write.format("delta").mode("append").save(location)
    pipe.write_rows("B", build_versions([2], ["b1"], [3]))

    pipe.run_job("split")

    assert [event[:2] for event in read_lineage(pipe)] == [(2, "merged"), (3, "split")]
    rows = pipe.spark.read.format("delta").load(location)
    assert sorted(row["kind"] for row in rows.collect()) == ["merged", "split"]


def test_both_can_be_asked_for_later(make_memory_pipe: MakePipe) -> None:
    """A target without the two columns gets them on a later run.

    Unchanged rows are not emitted to readers.
    """
    pipe = make_merged_pipe(make_memory_pipe)
    assert pipe.run_job("second", replaced_by=True)["changed"] is False

    report = pipe.run_job("third", stable_id=True, replaced_by=True)

    assert report["counts"]["rows_written"] == 2
    assert read_stable_ids(pipe) == {"0|a1|1|b1": 0, "0|a2": 1}
    assert pipe.run_job("fourth", stable_id=True, replaced_by=True)["changed"] is False


@pytest.mark.parametrize("identity", ["composite", "first"])
def test_random_changes_keep_ids_as_defined(make_memory_pipe: MakePipe, identity: str) -> None:
    """After random changes each id continues in one output, as defined, and no ended id is used again."""
    draw = random.Random(11)  # noqa: S311 - a workload, no secret
    pipe = make_memory_pipe("AB", **RULE, identity=identity, stable_id=True)
    number, ids = 0, {"A": [f"a{at}" for at in range(6)], "B": [f"b{at}" for at in range(6)]}
    used_ids: set[int] = set()
    before: dict[int, set[str]] = {}
    for step in range(4):
        for dataset, dataset_ids in ids.items():
            chosen = dataset_ids if not step else draw.sample(dataset_ids, 2)
            versions = list(range(number, number + len(chosen)))
            number += len(chosen)
            pipe.write_rows(dataset, build_versions(versions, chosen, [draw.randint(0, 3) for _ in chosen]))
        pipe.run_job(str(step))
        rows = pipe.target_rows().where("size(_members) > 0").collect()
        now = {row["$stable_id"]: {member["id"] for member in row["_members"]} for row in rows}
        assert len(now) == len(rows)
        assert all(new > max(used_ids, default=-1) for new in set(now) - set(before))
        for old, members in before.items():
            heirs = Counter({key: len(members & inside) for key, inside in now.items() if members & inside})
            best = max(heirs.values())
            largest_heirs = [key for key, count in heirs.items() if count == best]
            assert heirs[old] == best if old in now else any(key < old for key in largest_heirs)
        used_ids |= set(now)
        before = now
