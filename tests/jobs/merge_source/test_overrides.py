"""What people's decisions do to outputs, in every kind of run."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.explain.merge_source import explain
from tests.jobs.merge_source.conftest import MakePipe
from tests.jobs.merge_source.pipe import Pipe, table
from tests.jobs.merge_source.test_changes import said

TEXT = pa.string()
SCHEMA = pa.schema({"kind": TEXT, "left": TEXT, "right": TEXT, "until": pa.timestamp("us", "UTC")})


def decide(made: Pipe, *decisions: tuple[Any, ...]) -> None:
    """Let the table hold these decisions and no others."""
    rows = [dict(zip(SCHEMA.names, (*decision, None)[:4], strict=True)) for decision in decisions]
    made.write("decisions", pa.Table.from_pylist(rows, SCHEMA), "overwrite")


def merging(pipe: MakePipe, *decisions: tuple[Any, ...], **settings: Any) -> Pipe:
    """Make a pipe where a1, a2 and b1 share a value, which has run once with some decisions."""
    made = pipe(
        "AB", equality=[["eq", "a.x", "b.x"], ["eq", "a.y", "b.y"]], overrides="decisions", **settings
    )
    rows = {"_id": ["a1", "a2", "a3"], "x": [1, 1, 3], "y": [7, None, None], "_updated": [1, 2, 3]}
    made.write("A", table(rows))
    made.write("B", table({"_id": ["b1", "b2"], "x": [1, 9], "y": [7, None], "_updated": [1, 2]}))
    decide(made, *decisions)
    made.run("first")
    return made


def test_decisions_count_in_every_run(pipe: MakePipe) -> None:
    """A first run, a new decision, a change of an input, one withdrawn, a full refresh: each is exact."""
    made = merging(pipe, ("same", "A/a3", "B/b2"))
    assert said(made.news()) == ["+0|a1|0|a2|1|b1", "+0|a3|1|b2"]
    (link,) = explain(str(made.target), "0|a3|1|b2").links
    assert (link.rule, link.value) == ("override(A) = override(B)", "s:A/a3 = B/b2")

    decide(made, ("same", "A/a3", "B/b2"), ("different", "A/a2", "B/b1"))
    report = made.run("second")
    assert said(made.news()) == ["~0|a1|0|a2|1|b1", "+0|a1|1|b1", "+0|a2"]
    assert report["details"]["overrides"] == {
        "same": 1,
        "different": 1,
        "cut": 1,
        "cut_apart": [["A/a2", "B/b1"]],
    }
    assert made.run("again")["changed"] is False

    made.write("B", table({"_id": ["b3"], "x": [1], "y": [None], "_updated": [3]}))
    with pytest.raises(DataError, match="A/a2 and B/b1 are decided to be different, and there are several"):
        made.run("third")
    decide(made, ("same", "A/a1", "B/b3"), ("same", "A/a3", "B/b2"), ("different", "A/a2", "B/b1"))
    made.run("third", max_merged=4)
    assert said(made.news()) == ["~0|a1|1|b1", "+0|a1|1|b1|1|b3"]

    decide(made)
    made.run("fourth")
    assert said(made.news()) == [
        "~0|a1|1|b1|1|b3",
        "~0|a2",
        "~0|a3|1|b2",
        "+0|a1|0|a2|1|b1|1|b3",
        "+0|a3",
        "+1|b2",
    ]
    assert made.run("full", full_refresh=True)["changed"] is False


def test_a_decision_ends_by_itself(pipe: MakePipe) -> None:
    """A run after its time no longer knows it, although no table has changed."""
    ends = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=2)
    made = merging(pipe, ("same", "A/a3", "B/b2", ends))
    assert said(made.news())[-1] == "+0|a3|1|b2"

    made.run("second")

    assert said(made.news()) == ["~0|a3|1|b2", "+0|a3", "+1|b2"]


def test_whole_entities_can_be_corrected_too(pipe: MakePipe) -> None:
    """Decisions are keys beside those of the entity, of whatever form it is."""
    made = pipe("AB", equality=[["eq", "a.x", "b.x"]], overrides="decisions", entity_column="entity")
    made.write_json("A", [{"_id": "a1", "x": "~:n:1"}, {"_id": "a2", "x": 2}])
    made.write_json("B", [{"_id": "b1", "x": 5}, {"_id": "b2", "x": 2}])
    decide(made, ("same", "B/b1", "A/a1"), ("different", "B/b2", "A/a2"))

    made.run()

    assert made.clusters() == [["a1", "b1"], ["a2"], ["b2"]]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (None, "dataset 'decisions' does not exist"),
        (pa.table({"kind": ["same"], "left": ["A/a1"]}), "has no column right"),
        (pa.table({"kind": ["same"], "left": ["a1"], "right": ["B/b1"]}), "left must be '<dataset>/<id>'"),
    ],
    ids=["no table", "no column", "no dataset"],
)
def test_a_table_of_something_else_is_refused(pipe: MakePipe, rows: pa.Table | None, words: str) -> None:
    """Nothing is written on wrong or missing decisions."""
    made = pipe("A", overrides="decisions")
    made.write("A", table({"_id": ["a1"]}))
    if rows is not None:
        made.write("decisions", rows)

    with pytest.raises(DataError, match=words):
        made.run()

    assert made.version() is None
