"""Tests of the join plan: the order of the inputs and the keys they are joined by."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_merge_provider.core.joiner.config import JoinerConfig
from airflow_merge_provider.core.joiner.plan import JoinPlan, Salt, plan_join
from airflow_merge_provider.core.joiner.schema import Field, parse_fields

SCHEMAS = {
    "a": parse_fields({"k": "int", "v": "string", "w": "string"}),
    "b": parse_fields({"k": "int?", "v": "string"}),
    "c": parse_fields({"k": "int?", "v": "string"}),
    "d": parse_fields({"k": "int", "v": "string"}),
}


def plan_stages(stages: str, **more: Any) -> JoinPlan:
    keys = " = ".join(f"{stage}.k" for stage in stages)
    raw = {"inputs": {stage: stage for stage in stages}, "join_keys": keys, "selected_fields": "b.v", **more}
    schemas = {stage: SCHEMAS[stage] for stage in stages}
    return plan_join(JoinerConfig.parse(raw, schemas), schemas)


def list_steps(plan: JoinPlan) -> list[tuple[str, str]]:
    return [(step.how, step.stage) for step in plan.steps]


def test_required_inputs_come_first_and_the_others_are_left_joined() -> None:
    """Required inputs are joined first and the others are left joined, in any declared order."""
    plan = plan_stages("abcd", required_inputs="d,b")

    assert plan.first == "b"
    assert list_steps(plan) == [("inner", "d"), ("left", "a"), ("left", "c")]
    assert not plan.coalesced


def test_without_required_inputs_all_are_full_joined() -> None:
    """Without required inputs all inputs are full joined, and the key is that of any input that has one."""
    plan = plan_stages("abc", required_inputs="")

    assert list_steps(plan) == [("full", "b"), ("full", "c")]
    assert plan.coalesced


def test_only_what_keys_and_columns_need_is_read() -> None:
    """Only the columns for keys and output are read; the other fields are not read from the files."""
    plan = plan_stages("ab", required_inputs="a,b")

    assert (plan.list_needed_fields("a"), plan.list_needed_fields("b")) == (("k",), ("k", "v"))


@pytest.mark.parametrize(
    ("stages", "more", "expected"),
    [
        ("bc", {"join_type": "innerjoin"}, [True, True]),
        ("abd", {"required_inputs": ""}, [False, True, False]),
        ("bc", {"join_type": "innerjoin", "join_null_keys": False}, [False, False]),
    ],
)
def test_a_null_can_match_only_where_there_is_one_and_it_may(
    stages: str, more: dict[str, Any], expected: list[bool]
) -> None:
    """Null-safe equality is used only if keys may be null and nulls may match.

    Everywhere else plain equality gives the same rows and costs less.
    """
    assert [plan_stages(stages, **more).null_keys[stage][0] for stage in stages] == expected


def test_inputs_in_memory_are_joined_to_those_that_are_not() -> None:
    """Broadcast inputs are joined to inputs that are not broadcast.

    Spark can only broadcast them then: the first input is the streamed side.
    """
    plan = plan_stages("abc", join_type="innerjoin", in_memory_inputs="a,c")

    assert plan.order == ("b", "a", "c")
    assert [step.in_memory for step in plan.steps] == [True, True]
    assert not plan.first_in_memory


def test_the_skewed_input_is_the_first() -> None:
    """The skewed input is the first: it is salted, and copies of the other input are joined to it."""
    plan = plan_stages(
        "ab",
        join_type="innerjoin",
        distribution_enabled=True,
        distribution_factor=4,
        distribution_stage_name="b",
    )

    assert plan.first == "b"
    assert plan.salt == Salt("b", 4)


@pytest.mark.parametrize(
    ("expect", "unique"),
    [
        ({"b": "one_to_one"}, ("a", "b")),
        ({"b": "one_to_many"}, ("a",)),
        ({"b": "many_to_one", "c": "many_to_one"}, ("b", "c")),
        (None, ()),
    ],
)
def test_what_is_expected_says_where_keys_may_not_repeat(expect: Any, unique: tuple[str, ...]) -> None:
    """The expected cardinality states which side has unique keys.

    The left word is for the first required input, the right word for the input that it is declared for.
    """
    assert plan_stages("abc", join_type="innerjoin", expect=expect).unique == unique


def test_a_plan_tells_itself() -> None:
    """The description of a plan has one line per input with the compared fields."""
    description = plan_stages("abc", required_inputs="b", in_memory_inputs="c").explain_plan()

    assert description.splitlines() == ["b", "left join a", "left join c, in memory", "on b.k = a.k = c.k"]


@pytest.mark.parametrize(
    ("stages", "required", "nullable"),
    [("bc", "b,c", True), ("ab", "a", False), ("ab", "b", True), ("ad", "", False), ("ab", "", True)],
)
def test_a_key_column_is_null_only_where_a_key_can_be(stages: str, required: str, nullable: bool) -> None:
    """A key column is nullable only if a key can be null.

    A required input without null keys is in every row, with its key.
    """
    column = f"{stages[0]}.v"
    plan = plan_stages(stages, required_inputs=required, key_columns="key", selected_fields=column)

    assert plan.key_columns == (Field("key", "int", nullable),)
