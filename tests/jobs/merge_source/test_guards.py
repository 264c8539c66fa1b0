"""Test limits that stop a run before it writes: changed rows, and entities linked by one value."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_merge_provider.core.errors import ConfigError, DataError
from airflow_merge_provider.core.risk import RiskError
from tests.jobs.delta_log import list_commits
from tests.jobs.merge_source.conftest import MakePipe
from tests.jobs.merge_source.pipe import Pipe, build_table

RULE: dict[str, Any] = {"equality": [["eq", "a.x", "b.x"]]}


def make_merged_pipe(make_pipe: MakePipe, **settings: Any) -> Pipe:
    """Create a pipe whose target has four outputs, one of two entities."""
    pipe = make_pipe("AB", **{**RULE, **settings})
    pipe.write_rows(
        "A", build_table({"_id": ["a1", "a2", "a3", "a4"], "x": [1, 2, 3, 4], "_updated": [1, 2, 3, 4]})
    )
    pipe.write_rows("B", build_table({"_id": ["b1"], "x": [1], "_updated": [1]}))
    pipe.run_job("first", max_change_ratio=0.0)
    return pipe


def test_a_run_that_changes_too_much_writes_nothing(make_pipe: MakePipe) -> None:
    """A run that deletes two of four rows and adds one fails at the limit; a higher limit lets it pass."""
    pipe = make_merged_pipe(make_pipe)
    pipe.write_rows("A", build_table({"_id": ["a2"], "x": [1], "_updated": [5]}))

    dry = pipe.run_job("dry", until="transform", max_change_ratio=0.5)
    with pytest.raises(
        RiskError, match=r"3 rows to a target of 4 rows, a change ratio of 0.75; the limit is 0.5"
    ) as refused:
        pipe.run_job("second", max_change_ratio=0.5)

    assert pipe.read_version() == 0
    assert dry["warnings"][0].startswith("max_change_ratio: the run would write 3 rows")
    assert refused.value.report.counts == dry["counts"]
    assert pipe.run_job("second", max_change_ratio=0.75)["changed"] is True
    assert pipe.read_version() == 1


def test_a_run_that_changes_nothing_is_never_stopped(make_pipe: MakePipe) -> None:
    """A run without changes passes a limit of zero, also in full mode."""
    pipe = make_merged_pipe(make_pipe)

    assert pipe.run_job("second", full_refresh=True, max_change_ratio=0.0)["changed"] is False


def write_crowd(make_pipe: MakePipe) -> Pipe:
    """Create inputs where the value N/A links four entities and another value links two."""
    pipe = make_pipe("AB", **RULE)
    pipe.write_rows(
        "A",
        build_table(
            {"_id": ["a1", "a2", "a3", "a4"], "x": ["N/A", "N/A", "N/A", "k"], "_updated": [1, 2, 3, 4]}
        ),
    )
    pipe.write_rows("B", build_table({"_id": ["b1", "b2"], "x": ["N/A", "k"], "_updated": [1, 2]}))
    return pipe


def read_quarantine(pipe: Pipe) -> list[dict[str, Any]]:
    version = list_commits(pipe.target)[-1]["run"]["side_table_versions"]["quarantine"]
    rows = pipe.spark.read.format("delta").option("versionAsOf", version).load(f"{pipe.target}__quarantine")
    return [row.asDict() for row in rows.collect()]


def test_a_value_that_links_too_many_is_named(make_pipe: MakePipe) -> None:
    """The run fails with the value, its rule and some of its entities; exactly the limit is allowed."""
    pipe = write_crowd(make_pipe)

    with pytest.raises(
        DataError, match=r'the value "N/A" of a.x = b.x links 4 entities, the limit is 3 \(first: A/a1'
    ):
        pipe.run_job(max_key_fanout=3)

    assert pipe.read_version() is None
    assert pipe.run_job(max_key_fanout=4)["counts"]["merged_rows"] == 2


def test_rules_may_have_limits_of_their_own(make_pipe: MakePipe) -> None:
    """Rules may have their own limits, by rule text in either direction; others use ``*`` or have none."""
    pipe = write_crowd(make_pipe)
    with pytest.raises(DataError, match=r'the value "N/A" of a.x = b.x links 4 entities, the limit is 3'):
        pipe.run_job(max_key_fanout={"b.x = a.x": 3, "*": 100})
    with pytest.raises(DataError, match="the limit is 2"):
        pipe.run_job(max_key_fanout={"*": 2}, on_over_merge={"*": "fail"})
    with pytest.raises(
        ConfigError, match=r"max_key_fanout: 'a.y = b.x' is not a match rule \(did you mean 'a.x = b.x'"
    ):
        pipe.run_job(max_key_fanout={"a.y = b.x": 3})

    report = pipe.run_job(max_key_fanout={"a.x = b.x": 2}, on_over_merge={"a.x = b.x": "quarantine"})

    assert report["details"]["quarantined"]["keys"] == 1
    assert pipe.read_clusters() == [["a1"], ["a2"], ["a3"], ["a4", "b2"], ["b1"]]


@pytest.mark.long
def test_values_in_quarantine_link_nothing_until_few_have_them(make_pipe: MakePipe) -> None:
    """Quarantined values link no entities until few enough have them.

    While there are any, each run compares everything, so that the remaining entities are linked again.
    """
    pipe = write_crowd(make_pipe)
    settings = {"max_key_fanout": 2, "on_over_merge": "quarantine"}

    report = pipe.run_job("first", **settings)

    assert pipe.read_clusters() == [["a1"], ["a2"], ["a3"], ["a4", "b2"], ["b1"]]
    worst = {"rule": "a.x = b.x", "key": '"N/A"', "entities": 4}
    assert report["details"]["quarantined"] == {"keys": 1, "largest": [worst]}
    assert read_quarantine(pipe) == [{**worst, "sample": ["A/a1", "A/a2", "A/a3"]}]

    pipe.write_rows("A", build_table({"_id": ["a1"], "x": ["other"], "_updated": [5]}))
    pipe.run_job("second", **settings)
    assert read_quarantine(pipe)[0]["entities"] == 3
    pipe.write_rows("A", build_table({"_id": ["a2"], "x": ["other"], "_updated": [6]}))
    pipe.read_new_rows()
    dry = pipe.run_job("dry", until="transform", **settings)
    assert "removes all rows from quarantine" in dry["plan"]["other_changes"]
    report = pipe.run_job("third", **settings)

    assert dry["counts"] == report["counts"]
    assert read_quarantine(pipe) == []
    assert [row["_id"] for row in pipe.read_new_rows()] == ["0|a3", "1|b1", "0|a2", "0|a3|1|b1"]
    assert pipe.run_job("full", full_refresh=True, **settings)["changed"] is False


def test_an_empty_text_that_links_a_thousand_is_told(make_pipe: MakePipe) -> None:
    """An empty string that links a thousand entities gives a warning, not an error.

    It is a regular value, but mostly unintended.
    """
    pipe = make_pipe("AB", **RULE)
    pipe.write_rows("A", build_table({"_id": [f"a{number}" for number in range(1001)], "x": [""] * 1001}))
    pipe.write_rows("B", build_table({"_id": ["b1"], "x": [""]}))

    report = pipe.run_job(until="transform")

    swallowed, empty = report["warnings"]
    assert swallowed.startswith(
        'one cluster contains 1002 of 1002 entities (100%), 1002 of them linked by "" in a.x = b.x'
    )
    assert empty == "the empty string links 1002 entities by a.x = b.x: exclude it with filter"
