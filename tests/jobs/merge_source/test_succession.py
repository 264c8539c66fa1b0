"""Ids that survive, and what took the place of those that do not, in every kind of run."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from deltalake import write_deltalake

from airflow_merge_provider.explain.merge_source import explain
from tests.jobs.delta_log import commits
from tests.jobs.merge_source.conftest import MakePipe
from tests.jobs.merge_source.pipe import Pipe, table
from tests.jobs.merge_source.test_changes import versions

RULE: dict[str, Any] = {"equality": [["eq", "a.x", "b.x"]]}


def stable(made: Pipe) -> dict[str, int]:
    """Give the stable ids of the outputs, also of deleted ones, by the members."""
    rows = made.target_rows().where("size(_members) > 0")
    return {row["_id"]: row["$stable_id"] for row in rows.collect()}


def lineage(made: Pipe) -> list[tuple[Any, ...]]:
    """Give the events as the target's last commit names them."""
    version = commits(made.target)[-1]["run"]["side_table_versions"]["lineage"]
    rows = made.spark.read.format("delta").option("versionAsOf", version).load(f"{made.target}__lineage")
    return [tuple(row) for row in rows.orderBy("run", "from_ids").collect()]


def merging(pipe: MakePipe, **settings: Any) -> Pipe:
    """Make a pipe over two tables with versions that has run once: a1 with b1, and a2."""
    made = pipe("AB", **{**RULE, **settings})
    made.write("A", versions([1, 2], ["a1", "a2"], [1, 2]))
    made.write("B", versions([1], ["b1"], [1]))
    made.run("first")
    return made


def test_the_oldest_id_survives_a_join_and_the_largest_part_a_split(
    memory_pipe: MakePipe,
) -> None:
    """New outputs get new ids, and none is given twice."""
    made = merging(memory_pipe, stable_id=True)
    assert stable(made) == {"0|a1|1|b1": 0, "0|a2": 1}

    made.write("B", versions([2, 3], ["b2", "b3"], [2, 7]))
    made.run("joined")
    assert stable(made) == {"0|a1|1|b1": 0, "0|a2|1|b2": 1, "1|b3": 2}
    made.write("A", versions([3], ["a2"], [1]))
    made.run("moved")
    assert stable(made) == {"0|a1|0|a2|1|b1": 0, "1|b2": 3, "1|b3": 2}
    made.write("B", versions([4], ["b1"], [9]))
    made.run("fell apart")
    after = stable(made)
    assert after == {"0|a1": 0, "0|a2": 4, "1|b1": 5, "1|b2": 3, "1|b3": 2}

    assert made.run("full", full_refresh=True)["changed"] is False
    assert made.run("anew", reset=True)["changed"] is True
    assert sorted(stable(made).values()) == list(range(len(after)))


def test_a_live_part_keeps_the_id_before_a_deleted_one(pipe: MakePipe) -> None:
    """What is deleted gets another, and has it still when it comes back alone."""
    made = merging(pipe, stable_id=True)
    gone = table({"_updated": [3], "_id": ["a1"], "x": [1], "_deleted": [True]})
    write_deltalake(str(made.folder / "A"), gone, mode="append", schema_mode="merge")

    made.run("second")

    assert stable(made) == {"1|b1": 0, "0|a2": 1, "0|a1": 2}


def test_ids_that_are_no_more_say_what_took_their_place(pipe: MakePipe) -> None:
    """In their rows, in explanations, and as events: merged, split, moved, deleted."""
    made = merging(pipe, replaced_by=True)
    made.write("A", versions([3], ["a2"], [1]))
    made.run("merged")
    whole = "0|a1|0|a2|1|b1"
    made.write("B", versions([2], ["b1"], [3]))
    made.run("split")

    assert lineage(made) == [
        (2, "merged", ["0|a1|1|b1", "0|a2"], [whole]),
        (3, "split", [whole], ["0|a1", "0|a2", "1|b1"]),
    ]
    assert explain(str(made.target), "0|a1|1|b1").replaced_by == (whole,)
    found = explain(str(made.target), whole)
    assert found.replaced_by == ("0|a1", "0|a2", "1|b1")
    assert next(found.lines()).startswith(f"{whole}: replaced by 0|a1, 0|a2, 1|b1")

    made.write("A", versions([9], ["a1"], [3]), "overwrite")
    made.run("full", full_refresh=True)

    assert lineage(made)[2:] == [
        (4, "merged", ["0|a1", "1|b1"], ["0|a1|1|b1"]),
        (4, "deleted", ["0|a2"], []),
    ]


def test_events_of_a_run_that_did_not_commit_are_taken_back(pipe: MakePipe) -> None:
    """The next run appends to what the target's last commit names, whatever else the table holds."""
    made = merging(pipe, replaced_by=True)
    made.write("A", versions([3], ["a2"], [1]))
    made.run("merged")
    place = f"{made.target}__lineage"
    orphan = made.spark.sql("SELECT 3L AS run, 'moved' AS kind, array('x') AS from_ids, array('y') AS to_ids")
    orphan.write.format("delta").mode("append").save(place)
    made.write("B", versions([2], ["b1"], [3]))

    made.run("split")

    assert [event[:2] for event in lineage(made)] == [(2, "merged"), (3, "split")]
    rows = made.spark.read.format("delta").load(place)
    assert sorted(row["kind"] for row in rows.collect()) == ["merged", "split"]


def test_both_can_be_asked_for_later(memory_pipe: MakePipe) -> None:
    """A target that has neither column gets them; what says the same reaches no reader."""
    made = merging(memory_pipe)
    assert made.run("second", replaced_by=True)["changed"] is False

    report = made.run("third", stable_id=True, replaced_by=True)

    assert report["counts"]["rows_written"] == 2
    assert stable(made) == {"0|a1|1|b1": 0, "0|a2": 1}
    assert made.run("fourth", stable_id=True, replaced_by=True)["changed"] is False


@pytest.mark.parametrize("identity", ["composite", "first"])
def test_random_changes_keep_ids_as_defined(memory_pipe: MakePipe, identity: str) -> None:
    """Each id goes on in one output, the right one, after every change, and no id comes back."""
    draw = random.Random(11)  # noqa: S311 - a workload, no secret
    made = memory_pipe("AB", **RULE, identity=identity, stable_id=True)
    number, ids = 0, {"A": [f"a{at}" for at in range(6)], "B": [f"b{at}" for at in range(6)]}
    seen: set[int] = set()
    before: dict[int, set[str]] = {}
    for step in range(4):
        for dataset, known in ids.items():
            chosen = known if not step else draw.sample(known, 2)
            places = list(range(number, number + len(chosen)))
            number += len(chosen)
            made.write(dataset, versions(places, chosen, [draw.randint(0, 3) for _ in chosen]))
        made.run(str(step))
        rows = made.target_rows().where("size(_members) > 0").collect()
        now = {row["$stable_id"]: {each["id"] for each in row["_members"]} for row in rows}
        assert len(now) == len(rows)
        assert all(new > max(seen, default=-1) for new in set(now) - set(before))
        for old, members in before.items():
            heirs = Counter({key: len(members & inside) for key, inside in now.items() if members & inside})
            best = max(heirs.values())
            kept = [key for key, count in heirs.items() if count == best]
            assert heirs[old] == best if old in now else any(key < old for key in kept)
        seen |= set(now)
        before = now
