"""Tests of the match rules that a configuration defines, and of rule identity."""

from __future__ import annotations

from typing import Any

from hypothesis import given, strategies as st

from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.decision import compute_signature
from airflow_merge_provider.core.merge_source.equality import find_unknown_columns, list_rules, plan_rules

SIDES = st.sampled_from(["a.x", "a.y", "b.x", "b.'x'", "c.x", ["lower", "c.x"]])
RULES = st.lists(st.tuples(st.just("eq"), SIDES, SIDES).map(list), max_size=5)


def parse_config(**settings: Any) -> MergeSourceConfig:
    return MergeSourceConfig.parse({"version": 2, "datasets": ["A a", "B b", "C c"]} | settings)


@given(RULES, st.randoms(use_true_random=False))
def test_the_plan_depends_on_the_set_of_rules_alone(rules: list[list[Any]], random: Any) -> None:
    """Order, direction and repetition of rules change neither the plan nor the signature."""
    other = [
        [name, right, left] if random.random() < 0.5 else [name, left, right] for name, left, right in rules
    ]
    other += rules[:1]
    random.shuffle(other)

    assert plan_rules(parse_config(equality=rules)) == plan_rules(parse_config(equality=other))
    assert compute_signature(parse_config(equality=rules)) == compute_signature(parse_config(equality=other))


@given(RULES)
def test_the_plan_holds_every_rule_once(rules: list[list[Any]]) -> None:
    """The plan holds every configured rule once, in one direction, and no other rule."""
    written = list_rules(parse_config(equality=rules))
    planned = plan_rules(parse_config(equality=rules))

    assert {frozenset((rule.left.order, rule.right.order)) for rule in written} == {
        frozenset((rule.left.order, rule.right.order)) for rule in planned
    }
    assert len({rule.order for rule in planned}) == len(planned)


def test_a_rule_is_written_for_people() -> None:
    """The text of a rule has both sides, with their datasets."""
    (rule,) = list_rules(parse_config(equality=[["eq", "b.f2", ["lower", "c.f3"]]]))

    assert rule.text == "b.f2 = lower(c.f3)"
    assert (rule.left.dataset, rule.right.dataset) == (1, 2)


def test_all_pairs_of_a_set() -> None:
    """A set of three gives three rules with all pairs and two rules with neighbours."""
    sets = [["a.x", "b.x", "c.x"]]

    assert len(list_rules(parse_config(equality_sets=sets, equality_sets_mode="all_pairs"))) == 3
    assert len(list_rules(parse_config(equality_sets=sets))) == 2


def test_a_rule_of_one_alias_with_itself() -> None:
    """A rule may have the same side twice, to deduplicate one dataset."""
    (rule,) = plan_rules(parse_config(equality=[["eq", "a.x", "a.x"]]))

    assert rule.left == rule.right


def test_the_signature_knows_what_changes_results() -> None:
    """The signature covers identity, strategy, order of datasets and rules.

    Limits, comments and schedules are not part of it.
    """
    plain = compute_signature(parse_config())

    assert (
        compute_signature(parse_config(comment="now", max_merged=7, supports_signalling=True, target="t"))
        == plain
    )
    assert compute_signature(parse_config(initial_datasets=[], require_populated_input=True)) == plain
    configs = [
        parse_config(version=1),
        parse_config(identity="first"),
        parse_config(strategy="list"),
        parse_config(include_internal_properties=True),
        parse_config(datasets=["B b", "A a", "C c"]),
        parse_config(equality=[["eq", "a.x", "b.x"]]),
        parse_config(id_column="key"),
    ]
    assert len({plain, *map(compute_signature, configs)}) == len(configs) + 1


def test_columns_that_datasets_do_not_have_are_found() -> None:
    """Unknown columns are reported once each, also inside functions.

    Items of lists and datasets without columns are not checked.
    """
    rules = list_rules(
        parse_config(
            equality=[
                ["eq", ["concat", "a.x", "a.y.z"], "b.x"],
                ["eq", ["filter", ["eq", "_.kind", 1], "a.xs"], "b.q"],
                ["eq", "a.y", "b.x"],
            ],
        )
    )

    problems = list(find_unknown_columns(rules, {0: ["x", "xs"]}, ["A", "B", "C"]))

    assert [problem.message.rpartition(": ")[2] for problem in problems] == ["dataset 'A' has no column 'y'"]
    assert list(find_unknown_columns(rules, {}, ["A", "B", "C"])) == []
