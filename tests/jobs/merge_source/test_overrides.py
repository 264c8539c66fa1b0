"""Test the effect of override decisions on outputs in every kind of run."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.explain.merge_source import explain_output
from tests.jobs.merge_source.conftest import MakePipe
from tests.jobs.merge_source.pipe import Pipe, build_table
from tests.jobs.merge_source.test_changes import format_rows

TEXT = pa.string()
SCHEMA = pa.schema({"kind": TEXT, "left": TEXT, "right": TEXT, "until": pa.timestamp("us", "UTC")})


def write_decisions(pipe: Pipe, *decisions: tuple[Any, ...]) -> None:
    """Replace the content of the table by these decisions."""
    rows = [dict(zip(SCHEMA.names, (*decision, None)[:4], strict=True)) for decision in decisions]
    pipe.write_rows("decisions", pa.Table.from_pylist(rows, SCHEMA), "overwrite")


def make_merged_pipe(make_pipe: MakePipe, *decisions: tuple[Any, ...], **settings: Any) -> Pipe:
    """Create a pipe where a1, a2 and b1 share a value, and run it once with some decisions."""
    pipe = make_pipe(
        "AB", equality=[["eq", "a.x", "b.x"], ["eq", "a.y", "b.y"]], overrides="decisions", **settings
    )
    rows = {"_id": ["a1", "a2", "a3"], "x": [1, 1, 3], "y": [7, None, None], "_updated": [1, 2, 3]}
    pipe.write_rows("A", build_table(rows))
    pipe.write_rows("B", build_table({"_id": ["b1", "b2"], "x": [1, 9], "y": [7, None], "_updated": [1, 2]}))
    write_decisions(pipe, *decisions)
    pipe.run_job("first")
    return pipe


@pytest.mark.long
def test_decisions_count_in_every_run(make_pipe: MakePipe) -> None:
    """Decisions apply to first, incremental and full runs, also new and withdrawn ones."""
    pipe = make_merged_pipe(make_pipe, ("same", "A/a3", "B/b2"))
    assert format_rows(pipe.read_new_rows()) == ["+0|a1|0|a2|1|b1", "+0|a3|1|b2"]
    (link,) = explain_output(str(pipe.target), "0|a3|1|b2").links
    assert (link.rule, link.value) == ("override(A) = override(B)", "s:A/a3 = B/b2")

    write_decisions(pipe, ("same", "A/a3", "B/b2"), ("different", "A/a2", "B/b1"))
    report = pipe.run_job("second")
    assert format_rows(pipe.read_new_rows()) == ["~0|a1|0|a2|1|b1", "+0|a1|1|b1", "+0|a2"]
    assert report["details"]["overrides"] == {
        "same": 1,
        "different": 1,
        "cut": 1,
        "cut_apart": [["A/a2", "B/b1"]],
    }
    assert pipe.run_job("again")["changed"] is False

    pipe.write_rows("B", build_table({"_id": ["b3"], "x": [1], "y": [None], "_updated": [3]}))
    with pytest.raises(DataError, match="A/a2 and B/b1 are declared different, and there are several"):
        pipe.run_job("third")
    write_decisions(pipe, ("same", "A/a1", "B/b3"), ("same", "A/a3", "B/b2"), ("different", "A/a2", "B/b1"))
    pipe.run_job("third", max_merged=4)
    assert format_rows(pipe.read_new_rows()) == ["~0|a1|1|b1", "+0|a1|1|b1|1|b3"]

    write_decisions(pipe)
    pipe.run_job("fourth")
    assert format_rows(pipe.read_new_rows()) == [
        "~0|a1|1|b1|1|b3",
        "~0|a2",
        "~0|a3|1|b2",
        "+0|a1|0|a2|1|b1|1|b3",
        "+0|a3",
        "+1|b2",
    ]
    assert pipe.run_job("full", full_refresh=True)["changed"] is False


def test_a_decision_ends_by_itself(make_pipe: MakePipe) -> None:
    """An expired decision does not apply to later runs, although no table has changed."""
    ends = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=2)
    pipe = make_merged_pipe(make_pipe, ("same", "A/a3", "B/b2", ends))
    assert format_rows(pipe.read_new_rows())[-1] == "+0|a3|1|b2"

    pipe.run_job("second")

    assert format_rows(pipe.read_new_rows()) == ["~0|a3|1|b2", "+0|a3", "+1|b2"]


@pytest.mark.long
def test_whole_entities_can_be_corrected_too(make_pipe: MakePipe) -> None:
    """Decisions apply to whole entities of any form, by separate key columns."""
    pipe = make_pipe("AB", equality=[["eq", "a.x", "b.x"]], overrides="decisions", entity_column="entity")
    pipe.write_json("A", [{"_id": "a1", "x": "~:n:1"}, {"_id": "a2", "x": 2}])
    pipe.write_json("B", [{"_id": "b1", "x": 5}, {"_id": "b2", "x": 2}])
    write_decisions(pipe, ("same", "B/b1", "A/a1"), ("different", "B/b2", "A/a2"))

    pipe.run_job()

    assert pipe.read_clusters() == [["a1", "b1"], ["a2"], ["b2"]]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (None, "dataset 'decisions' does not exist"),
        (pa.table({"kind": ["same"], "left": ["A/a1"]}), "has no column right"),
        (pa.table({"kind": ["same"], "left": ["a1"], "right": ["B/b1"]}), "left must be '<dataset>/<id>'"),
    ],
    ids=["no table", "no column", "no dataset"],
)
def test_a_table_of_something_else_is_refused(
    make_pipe: MakePipe, rows: pa.Table | None, message: str
) -> None:
    """A table of another kind is rejected and nothing is written, as decisions would be wrong or missing."""
    pipe = make_pipe("A", overrides="decisions")
    pipe.write_rows("A", build_table({"_id": ["a1"]}))
    if rows is not None:
        pipe.write_rows("decisions", rows)

    with pytest.raises(DataError, match=message):
        pipe.run_job()

    assert pipe.read_version() is None
