"""Tests of the merge source configuration and its error messages."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig, from_pipe

TWO = {"version": 2, "datasets": ["A a", "B b"]}
CONCAT_WARNING = (
    "concat in lower(concat(a.x, a.y)) = b.x returns '' for entities without the values,"
    " and '' matches '': use tuples"
)
OPEN_SET_WARNING = (
    "equality_sets[0]: only neighbours form rules, so entities of A and A are merged only through an"
    " entity of B: set equality_sets_mode to 'all_pairs' to link them directly"
)


def list_problems(**settings: Any) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        MergeSourceConfig.parse(TWO | settings)
    return [f"{problem.path}: {problem.message}" for problem in refused.value.problems]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"datasets": []}, "datasets: must be a list with at least one '<dataset> <alias>' string"),
        ({"datasets": "A a"}, "datasets: must be a list with at least one '<dataset> <alias>' string"),
        ({"datasets": ["A a", 5]}, "datasets[1]: expected '<dataset> <alias>', not 5"),
        ({"datasets": ["A a", ""]}, "datasets[1]: expected '<dataset> <alias>', not ''"),
        (
            {"datasets": ["A 1"]},
            "datasets[0]: invalid alias '1' (use a letter, followed by letters, digits, _ and -)",
        ),
        ({"datasets": ["A a", "A b"]}, "datasets[1]: dataset 'A' appears more than once"),
        ({"datasets": ["A a", "B a"]}, "datasets[1]: alias 'a' appears more than once"),
        ({"datasets": ["A?B a"]}, "datasets[0]: 'A?B' is not a valid dataset"),
        ({"version": "2"}, "version: must be 1 or 2"),
        ({"version": 3}, "version: must be 1 or 2"),
        ({"version": 1.5}, "version: must be 1 or 2"),
        ({"version": None}, "version: must be 1 or 2"),
        ({"version": []}, "version: must be 1 or 2"),
        ({"identity": None}, "identity: must be 'composite' or 'first'"),
        ({"strategy": "union"}, "strategy: must be 'default', 'compact' or 'list'"),
        ({"max_merged": True}, "max_merged: must be an integer >= 1"),
        ({"max_merged": "9"}, "max_merged: must be an integer >= 1"),
        ({"max_merged": -1}, "max_merged: must be an integer >= 1"),
        ({"equality": {"eq": 1}}, "equality: must be a list of eq functions"),
        ({"equality": "a.x"}, "equality: must be a list of eq functions"),
        (
            {"equality_sets": [["a.x"], "a.x"]},
            "equality_sets[1]: must be a list with at least one value expression",
        ),
        ({"equality_sets": {}}, "equality_sets: must be a list of lists of value expressions"),
        (
            {"equality_sets": [["a.x", 5]]},
            "equality_sets[0][1]: each side must reference exactly one dataset alias (found none)",
        ),
        ({"equality_sets": [["a.x", "b.x", "A.x"]]}, "equality_sets[0][2]: unknown dataset alias 'A'"),
        (
            {"equality": [["eq", "a.x", "b.x"], ["eq", "a.x", ["list", "b.x", "a.x"]]]},
            "equality[1]: each side must reference exactly one dataset alias (found a, b)",
        ),
        (
            {"equality": [["eq", "a.x", ["filter", "_.y", ["lower", "b.'x"]]]]},
            "equality[0]: unterminated quote",
        ),
        ({"equality": [["neq", "a.x", "b.x"]]}, 'equality[0]: must be an eq function (["eq", left, right])'),
        ({"initial_datasets": ["A", 1]}, "initial_datasets: must be a list of dataset ids"),
        (
            {"initial_datasets": ["A", "A"]},
            "initial_datasets: a dataset appears more than once (list each dataset once)",
        ),
        ({"initial_datasets": ["a"]}, "initial_datasets: 'a' is not listed in datasets"),
        ({"ignore_non_existent_datasets": "true"}, "ignore_non_existent_datasets: must be a boolean"),
        ({"include_internal_properties": 1}, "include_internal_properties: must be a boolean"),
        ({"require_populated_input": None}, "require_populated_input: must be a boolean"),
        (
            {"is_since_comparable": 1},
            "is_since_comparable: is fixed to true for the merge source (leave it out)",
        ),
        (
            {"is_chronological": None},
            "is_chronological: is fixed to true for the merge source (leave it out)",
        ),
        ({"if_source_empty": True}, "if_source_empty: must be 'accept' or 'fail'"),
        ({"on_config_change": "ignore"}, "on_config_change: must be 'refresh' or 'fail'"),
        ({"target": "B"}, "target: 'B' is also one of the datasets (choose another target)"),
        ({"target": "no such?"}, "target: 'no such?' is not a valid dataset"),
        ({"target": 5}, "target: must be a string"),
        ({"id_column": ""}, "id_column: must not be empty"),
        ({"max_key_fanout": True}, "max_key_fanout: must be an integer >= 2"),
        ({"on_over_merge": "skip"}, "on_over_merge: must be 'fail' or 'quarantine'"),
        ({"stable_id": "yes"}, "stable_id: must be a boolean"),
        (
            {"change_detection": "feed"},
            "change_detection: must be 'auto', 'sequence', 'change_feed' or 'hash'",
        ),
        ({"metrics": "no such?"}, "metrics: 'no such?' is not a valid dataset"),
    ],
)
def test_a_wrong_setting_is_refused(settings: dict[str, Any], message: str) -> None:
    """One wrong setting gives one error, at its path and with the documented text."""
    assert list_problems(**settings) == [message]


def test_all_problems_come_at_once() -> None:
    """Errors of fields, between fields and inside expressions are reported together."""
    problems = list_problems(
        version=1,
        max_merged=5,
        identity="last",
        equality=[["eq", "z.x", ["lowr", "b.x"]], ["eq", "a.", "b.x"]],
        equality_set=[],
    )

    assert problems == [
        "identity: must be 'composite' or 'first'",
        "equality_set: unknown property 'equality_set'",
        "max_merged: is not supported in version 1",
        "equality[0]: unknown dataset alias 'z'",
        "equality[0]: unsupported DTL function 'lowr'",
        "equality[1]: empty path after 'a.'",
    ]


def test_a_dataset_id_in_place_of_its_alias_is_explained() -> None:
    """A dataset ID in place of its alias is rejected with the alias to use."""
    with pytest.raises(ConfigError, match="dataset 'A' has the alias 'a'"):
        MergeSourceConfig.parse(TWO | {"equality": [["eq", "A.x", "b.x"]]})


@pytest.mark.parametrize("dataset", ["lake.crm.people", "s3://lake/people", "/data/people", "people-1"])
def test_any_reference_without_blanks_is_a_dataset(dataset: str) -> None:
    """A dataset reference without blanks is accepted, with an alias after it."""
    assert MergeSourceConfig.parse({"datasets": [f"  {dataset}\tp "]}).dataset_ids == (dataset,)


@pytest.mark.parametrize(
    ("settings", "most"),
    [({}, 50_000), ({"max_merged": 2}, 2), ({"version": 1}, None), ({"version": 2.0}, 50_000)],
)
def test_the_limit_of_a_cluster(settings: dict[str, Any], most: int | None) -> None:
    """Version 2 always has a limit for clusters, given or default; version 1 has none."""
    assert MergeSourceConfig.parse(TWO | settings).most_merged == most


def test_the_version_is_2_unless_somebody_says_1() -> None:
    """The default version is 2, also for a pasted Sesam source.

    Sesam itself would reject max_merged in a source without a version.
    """
    assert MergeSourceConfig.parse({"datasets": ["A a"]}).version == 2
    assert MergeSourceConfig.parse({"datasets": ["A a"], "type": "merge"}).version == 2
    assert MergeSourceConfig.parse({"datasets": ["A a"], "max_merged": 5}).most_merged == 5
    with pytest.raises(ConfigError, match="not supported in version 1"):
        MergeSourceConfig.parse({"datasets": ["A a"], "type": "merge", "max_merged": 5})


def test_adjacent_is_another_word_for_neighbours() -> None:
    """`adjacent` is accepted as Sesam's word for `neighbours`."""
    assert (
        MergeSourceConfig.parse(TWO | {"equality_sets_mode": "adjacent"}).equality_sets_mode == "neighbours"
    )


@pytest.mark.parametrize(
    ("settings", "warnings"),
    [
        ({"version": 1}, ["version: 1 is deprecated, use version 2, the default"]),
        ({"equality": []}, ["there are no match rules: each entity becomes a separate output"]),
        (
            {"equality_sets": [["a.x"], ["a.x", "b.x"]]},
            ["equality_sets[0]: a set with one expression defines no match rule"],
        ),
        (
            {"equality": [["eq", "a.x", "b.x"], ["eq", "b.x", "a.x"]]},
            ["the rule b.x = a.x is defined more than once"],
        ),
        (
            {"equality": [["eq", ["lower", ["concat", "a.x", "a.y"]], "b.x"]]},
            [CONCAT_WARNING],
        ),
        (
            {"equality_sets": [["a.x", "b.x", "a.y"]]},
            [OPEN_SET_WARNING],
        ),
        ({"equality_sets": [["a.x", "b.x", "a.y"]], "equality_sets_mode": "all_pairs"}, []),
        (
            {"include_internal_properties": True},
            ["include_internal_properties: has no effect without strategy 'list'"],
        ),
        (
            {"ignore_non_existent_datasets": False},
            ["ignore_non_existent_datasets: if false, a run waits for datasets that do not exist, or fails"],
        ),
        ({}, []),
    ],
)
def test_what_is_probably_not_meant_is_said(settings: dict[str, Any], warnings: list[str]) -> None:
    """Each probable mistake gives a warning, and nothing else does."""
    rules = {} if {"equality", "equality_sets"} & settings.keys() else {"equality": [["eq", "a.x", "b.x"]]}

    assert MergeSourceConfig.parse(TWO | rules | settings).list_warnings() == warnings


def test_a_pipe_gives_its_source_and_its_id() -> None:
    """A whole pipe and its source object give the same configuration; the pipe's ID is the target."""
    source = {"type": "merge", "version": 2, "datasets": ["A a"]}

    assert from_pipe({"_id": "result", "type": "pipe", "source": source}) == source | {"target": "result"}
    assert from_pipe(source) == source
    with pytest.raises(ConfigError, match="source: must be an object"):
        from_pipe({"_id": "result", "source": []})


def test_the_schema_of_the_configuration_can_be_had() -> None:
    """The JSON Schema of the configuration requires only datasets; editors and documentation use it."""
    assert MergeSourceConfig.model_json_schema()["required"] == ["datasets"]
