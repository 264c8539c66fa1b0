"""Tests of the survivorship rules: accepted notations and errors."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.decision import compute_signature
from airflow_merge_provider.core.merge_source.survivorship import (
    Preference,
    SurvivorshipRule,
    apply_default,
    find_problems,
    parse_choices,
)

DATASETS = ["crm", "erp"]


def test_every_form_of_a_rule_is_read() -> None:
    """A rule is a word, a preference, a list of both, or a group whose properties come from one member."""
    raw = {
        "email": ["most_common", {"prefer": ["erp"]}],
        "address": {"group": ["street", "zip"], "rule": "most_complete"},
        "seats": {"group": ["a", "b"]},
    }

    assert list(find_problems(raw, DATASETS)) == []
    assert parse_choices(raw) == (
        SurvivorshipRule(("a", "b"), (Preference("first"),)),
        SurvivorshipRule(("email",), (Preference("most_common"), Preference("prefer", ("erp",)))),
        SurvivorshipRule(("street", "zip"), (Preference("most_complete"),)),
    )
    assert parse_choices(None) == ()


def test_the_default_rule_is_for_properties_without_a_rule() -> None:
    """The rule for ``"*"`` applies to each property that has no rule of its own and is in no group."""
    raw = {"*": ["latest", {"prefer": ["erp"]}], "a": "first", "g": {"group": ["b", "c"]}}

    assert list(find_problems(raw, DATASETS)) == []
    default = (Preference("latest"), Preference("prefer", ("erp",)))
    assert apply_default(parse_choices(raw), ["a", "b", "d", "e"]) == [
        SurvivorshipRule(("a",), (Preference("first"),)),
        SurvivorshipRule(("b", "c"), (Preference("first"),)),
        SurvivorshipRule(("d",), default),
        SurvivorshipRule(("e",), default),
    ]
    assert apply_default(parse_choices({"a": "first"}), ["a", "b"]) == list(parse_choices({"a": "first"}))


def test_another_default_rule_is_another_configuration() -> None:
    """The signature differs, so that the next run computes all outputs."""
    rules = [None, {"*": "first"}, {"*": "latest"}, {"*": "first", "x": "latest"}]
    configs = [
        MergeSourceConfig.parse({"target": "t", "datasets": ["crm c", "erp e"], "survivorship": rule})
        for rule in rules
    ]

    assert len({compute_signature(config) for config in configs}) == len(rules)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"x": "newest"}, "survivorship.x: unknown rule 'newest'"),
        ({"x": "frist"}, "survivorship.x: unknown rule 'frist' (did you mean 'first'?)"),
        ({"x": ["first", 3]}, "survivorship.x[1]: 3 is not a valid rule"),
        ({"x": []}, "survivorship.x: must name at least one rule"),
        ({"x": "most_complete"}, "survivorship.x: unknown rule 'most_complete'"),
        ({"x": {"prefer": "crm"}}, "survivorship.x.prefer: must be a list of datasets"),
        ({"x": {"prefer": ["crn"]}}, "survivorship.x.prefer: 'crn' is not listed in datasets"),
        ({"g": {"group": ["x"]}}, "survivorship.g.group: must be a list of at least two properties"),
        ({"g": {"group": ["x", "y"], "rule": "longest"}}, "survivorship.g: unknown rule 'longest'"),
        (
            {"g": {"group": ["x", "y"], "rules": 1}},
            "survivorship.g: unknown key 'rules' (did you mean 'rule'",
        ),
        ({"g": {"group": ["x", "y"]}, "y": "first"}, "survivorship.y: property 'y' already has a rule"),
        ({"*": "newest"}, "survivorship.*: unknown rule 'newest'"),
        ({"*": "most_complete"}, "survivorship.*: unknown rule 'most_complete'"),
        ({"*": {"group": ["x", "y"]}}, "survivorship.*: '*' stands for each other property alone"),
        ({"g": {"group": ["x", "*"]}}, "survivorship.g: '*' stands for each other property alone"),
        ({"_x": "first"}, "survivorship._x: '_x' is a system property, which is not merged"),
        ({"$ids": "first"}, "survivorship.$ids: '$ids' is a system property, which is not merged"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(raw: Any, message: Any) -> None:
    """One mistake gives one error with its path."""
    (problem,) = map(str, find_problems(raw, DATASETS))

    assert problem.startswith(message)
