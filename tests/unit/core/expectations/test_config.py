"""Test the argument ``expect``: all problems of a value at once, and what valid values mean."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.expectations.config import Expectation, find_problems, parse_expectations
from airflow_merge_provider.core.joiner.config import JoinerConfig
from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.core.merge_load.config import load_config
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.decision import compute_signature

LOAD = {"strategy": "upsert", "source": "a", "target": "t", "primary_key": "id"}
QUARANTINE = {"condition": "n > 0", "action": "quarantine"}


def list_problems(raw: Any, **settings: Any) -> list[str]:
    return [str(problem) for problem in find_problems(raw, **settings)]


def test_every_kind_is_read() -> None:
    """A text is a SQL condition; the default action is ``fail``."""
    raw = {
        "paid": "amount > 0",
        "known": {"not_null": ["id", "name"], "action": "warn"},
        "single": {"unique": "id", "source": ["a", "b"]},
        "status": {"accepted_values": {"status": ["open", "closed"]}, "on": "changes"},
        "customer": {"foreign_key": {"columns": "customer", "dataset": "customers", "references": "id"}},
        "same": {"foreign_key": {"columns": ["x", "y"], "dataset": {"dataset": "/d", "format": "csv"}}},
        "fresh": {"freshness": {"column": "at", "max_age": "1.5 days"}},
    }

    assert list_problems(raw) == []
    expectations = {item.name: item for item in parse_expectations(raw)}
    assert expectations["paid"] == Expectation("paid", "condition", condition="amount > 0")
    assert expectations["known"].columns == ("id", "name")
    assert expectations["single"].applies_to("b")
    assert not expectations["single"].applies_to("c")
    assert expectations["status"].scope == "changes"
    assert not expectations["status"].applies_to("a")
    assert expectations["same"].references == ("x", "y")
    assert expectations["fresh"].max_age == timedelta(days=1.5)
    assert [item.describe_condition() for item in expectations.values()] == [
        "amount > 0", "id, name not null", "id unique", "status in 'open', 'closed'",
        "customer in customers (id)", "x, y in /d (x, y)", "at not older than 36 hours",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (7, "expect.x: must be a SQL condition, or an object with one kind (valid kinds: condition"),
        (" ", "expect.x.condition: must be a SQL condition (write it as in WHERE, such as 'amount > 0')"),
        ({}, "expect.x: has no kind (valid kinds: "),
        ({"unique": "a", "not_null": "a"}, "expect.x: has 2 kinds, but needs exactly one"),
        ({"uniqe": "a"}, "expect.x.uniqe: unknown argument 'uniqe' (did you mean 'unique'?)"),
        ({"unique": []}, "expect.x.unique: must be a column name, or a list of column names"),
        ({"accepted_values": {"a": []}}, "expect.x.accepted_values: must name one column and a list"),
        ({"foreign_key": {"columns": "a"}}, "expect.x.foreign_key: must have columns, a dataset, and"),
        (
            {"foreign_key": {"columns": "a", "dataset": "d", "references": ["b", "c"]}},
            "expect.x.foreign_key.references: has 1 columns, but references 2",
        ),
        ({"foreign_key": {"columns": "a", "dataset": ""}}, "expect.x.foreign_key.dataset: "),
        ({"freshness": {"column": "a"}}, "expect.x.freshness: must have a column and a max_age"),
        (
            {"freshness": {"column": "a", "max_age": "soon"}},
            "expect.x.freshness.max_age: 'soon' is not a valid duration (use seconds, minutes,",
        ),
        ({"unique": "a", "action": "drop"}, "expect.x.action: must be 'warn' or 'quarantine' or 'fail', not"),
        ({"unique": "a", "on": "target"}, "expect.x.on: must be 'source' or 'changes', not 'target'"),
        ({"unique": "a", "on": "changes"}, "expect.x.on: unique is not supported on changes"),
        (
            {"not_null": "a", "on": "changes", "action": "quarantine"},
            "expect.x.action: 'quarantine' is not supported on changes, which follow from all rows",
        ),
        (
            {"freshness": {"column": "a", "max_age": "1 day"}, "action": "quarantine"},
            "expect.x.action: 'quarantine' is not supported with freshness (set action to 'warn' or 'fail')",
        ),
        ({"not_null": "a", "on": "changes", "source": "a"}, "expect.x.source: has no effect on changes"),
        ({"not_null": "a", "source": 1}, "expect.x.source: must be the name of a source, or a list"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_at_its_path(value: Any, problem: str) -> None:
    """Each problem has a path, the value, and a remedy."""
    problems = list_problems({"x": value})

    assert [text for text in problems if text.startswith(problem)], problems


def test_all_mistakes_are_reported_at_once() -> None:
    """An invalid expectation does not hide those of others."""
    assert (
        len(list_problems({"1": "a > 0", "b": {"unique": 1}, "c": {"action": "no", "condition": "x"}})) == 3
    )
    assert list_problems([]) == [
        'expect: must be an object of named expectations (write {"name": "SQL condition"})'
    ]


def test_several_sources_have_to_be_named() -> None:
    """With several sources, an expectation names those that it applies to."""
    sources = ("a", "b")

    assert list_problems({"x": "n > 0"}, sources=sources) == [
        "expect.x.source: is required, because the run reads several sources (valid sources: a, b)"
    ]
    assert list_problems({"x": {"condition": "n > 0", "source": "bb"}}, sources=sources) == [
        "expect.x.source: unknown source 'bb' (did you mean 'b'?)"
    ]
    assert list_problems({"x": {"condition": "kind <> 'deleted'", "on": "changes"}}, sources=sources) == []


@pytest.mark.parametrize(
    "load",
    [
        {**LOAD, "variant": "cdc"},
        {"strategy": "delete-insert", "source": "a", "target": "t", "merge_key": "day"},
        {"strategy": "scd2", "source": "a", "target": "t"},
        {"strategy": "scd2", "source": "a", "target": "t", "natural_key": "id"},
    ],
)
def test_loads_that_delete_absent_rows_do_not_leave_rows_out(load: dict[str, Any]) -> None:
    """A row that is left out would be deleted or closed in the target."""
    with pytest.raises(ConfigError, match="the load would delete or close the stored rows of a row that it"):
        load_config({**load, "expect": {"x": QUARANTINE}})


def test_every_capability_checks_expectations() -> None:
    """A merge source accepts quarantine by row only; a join also takes cardinalities."""
    engine = {"source": "a", "target": "t", "primary_key": "id"}
    merge = {"target": "t", "datasets": ["a a", "b b"]}
    join = {"target": "t", "inputs": {"a": "a", "b": "b"}, "join_keys": "a.x = b.x"}

    load_config({**LOAD, "expect": {"x": QUARANTINE}})
    MergeEngineConfig.parse({**engine, "expect": {"x": QUARANTINE}})
    MergeSourceConfig.parse({**merge, "expect": {"x": {**QUARANTINE, "source": "a"}}})
    expect = {"b": "one_to_one", "x": {**QUARANTINE, "source": "a"}}
    assert [
        item.name for item in parse_expectations(JoinerConfig.parse({**join, "expect": expect}).expect)
    ] == ["x"]
    for config, raw in ((MergeEngineConfig, engine), (MergeSourceConfig, merge), (JoinerConfig, join)):
        with pytest.raises(ConfigError, match="expect"):
            config.parse({**raw, "expect": {"x": {"uniqe": "a"}}})
    with pytest.raises(ConfigError, match="runs read only changed rows"):
        MergeSourceConfig.parse(
            {**merge, "expect": {"x": {"unique": "_id", "source": "a", "action": "quarantine"}}}
        )
    with pytest.raises(ConfigError, match=r"must be 'one_to_one' or .* or an object"):
        JoinerConfig.parse({**join, "expect": {"b": "one_to_on"}})


def test_only_a_quarantine_changes_the_result_of_a_merge() -> None:
    """Another expectation does not lead to a full run."""
    merge = {"target": "t", "datasets": ["a a"]}
    without = compute_signature(MergeSourceConfig.parse(merge))

    assert compute_signature(MergeSourceConfig.parse({**merge, "expect": {"x": "n > 0"}})) == without
    assert compute_signature(MergeSourceConfig.parse({**merge, "expect": {"x": QUARANTINE}})) != without
