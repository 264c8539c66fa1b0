"""Test explanations of rows, read without Spark from the commits of runs."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from airflow_merge_provider.cli.main import main
from airflow_merge_provider.core.errors import ConfigError, DataError
from airflow_merge_provider.explain.merge_engine import explain_key
from tests.explanations import check_examples
from tests.jobs.merge_engine.conftest import MakeStream


def test_every_value_has_the_record_that_gave_it(
    make_stream: MakeStream, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each value is explained by its record: in groups, by functions, and in columns outside groups.

    Late records and records without a value are listed with the reason why they do not count. This is the
    example of the page.
    """
    options = {
        "fields.g.sequence-group": "a,total",
        "fields.total.aggregate-function": "sum",
    }
    stream = make_stream(merge_engine="partial-update", options=options, row_kind_column="op")
    stream.write_batch(
        {"k": [1, 2], "op": ["+I"] * 2, "g": [5, 1], "a": ["x", "y"], "total": [10, 1], "free": ["f", "f"]}
    )
    stream.run_job()
    stream.write_batch(
        {"k": [1], "op": ["+U"], "g": [3], "a": ["late"], "total": [7], "free": pa.nulls(1, pa.string())}
    )
    stream.write_batch({"k": [1], "op": ["+U"], "g": [9], "a": ["z"], "total": [1], "free": ["new"]})
    stream.run_job()

    explanation = explain_key("state", "1", warehouse=str(stream.folder))

    check_examples("merge_engine.md", stream.folder, capsys)
    assert explanation.trace.is_live
    assert {name: (column.value, column.records) for name, column in explanation.trace.values.items()} == {
        "g": (9, (2,)), "a": ("z", (2,)), "total": (18, (0, 1, 2)), "free": ("new", (2,)),
    }  # fmt: skip


def test_the_command_line_explains(make_stream: MakeStream, capsys: pytest.CaptureFixture[str]) -> None:
    """The command line prints the explanation as text, or as JSON for programs."""
    stream = make_stream()
    stream.write_batch({"k": [1, 1], "v": ["a", "b"]})
    stream.run_job()
    options = ["--warehouse", str(stream.folder)]

    codes = [main(["explain", "state", "1", *options]), main(["explain", "state", "1", "--json", *options])]

    lines, json_text = capsys.readouterr().out.split("{", 1)
    assert codes == [0, 0]
    assert '  v = "b": the newest record (record 1)\n' in lines
    assert json.loads("{" + json_text)["columns"]["v"]["records"] == [1]


def test_a_removed_row_is_explained_too(make_stream: MakeStream) -> None:
    """A removed row is explained: late records count less than the removal, dropped records are marked.

    Keys of several columns are given as JSON.
    """
    stream = make_stream(
        primary_key=["k", "day"],
        options={"sequence.field": "s", "ignore-update-before": True},
        row_kind_column="op",
    )
    stream.write_batch(
        {
            "k": [1] * 4,
            "day": ["mon"] * 4,
            "op": ["+I", "-U", "-D", "+I"],
            "s": [1, 2, 9, 3],
            "v": [1, 1, 1, 2],
        }
    )
    stream.run_job()

    explanation = explain_key("state", '{"k": 1, "day": "mon"}', warehouse=str(stream.folder)).as_object()

    assert explanation["row"] is False
    assert [(record["kind"], record["did"]) for record in explanation["records"]] == [
        ("+I", "overridden by record 2"), ("-U", "dropped by ignore-update-before"),
        ("+I", "overridden by record 2"), ("-D", "removed the row"),
    ]  # fmt: skip
    with pytest.raises(DataError, match="contain no record with"):
        explain_key("state", '{"k": 7, "day": "mon"}', warehouse=str(stream.folder))
    with pytest.raises(ConfigError, match="must be a JSON object with the key columns"):
        explain_key("state", "1", warehouse=str(stream.folder))
    with pytest.raises(DataError, match="has no commit of a merge engine in its history"):
        explain_key("changes", "1", warehouse=str(stream.folder))
