"""Test link statistics of random graphs against a comparison of all pairs, without Spark."""

from __future__ import annotations

import random

import pytest

from airflow_merge_provider.core.merge_source.equality import Rule
from airflow_merge_provider.jobs.merge_source.cluster.components import connect_entities
from airflow_merge_provider.jobs.merge_source.cluster.quarantine import LinkStatistics
from tests.jobs.merge_source.test_components import Workload, build_side

RULES = (
    Rule(build_side(0, "x"), build_side(1, "x")),
    Rule(build_side(0, "x"), build_side(0, "y")),
    Rule(build_side(1, "y"), build_side(1, "y")),
    Rule(build_side(1, "x"), build_side(2, "x")),
)


def draw_workload(seed: int) -> Workload:
    draw = random.Random(seed)  # noqa: S311 - a workload, no secret
    work = Workload([draw.randint(0, 6) for _ in range(3)], RULES)
    for of_entities in work.keys.values():
        for entity_keys in of_entities:
            entity_keys |= {draw.randint(0, 8) for _ in range(draw.choice((0, 1, 1, 2)))}
    return work


def pairs_by_key(work: Workload, rule: Rule) -> dict[int, set[frozenset[tuple[int, int]]]]:
    """Return for every key the pairs of entities that have it on the two sides."""
    pairs: dict[int, set[frozenset[tuple[int, int]]]] = {}
    for left_number, left in enumerate(work.keys[rule.left.order]):
        for right_number, right in enumerate(work.keys[rule.right.order]):
            pair = frozenset({(rule.left.dataset, left_number), (rule.right.dataset, right_number)})
            for key in left & right if len(pair) == 2 else ():
                pairs.setdefault(key, set()).add(pair)
    return pairs


@pytest.mark.parametrize("seed", range(40))
def test_rules_and_keys_are_counted_as_all_pairs_say(seed: int) -> None:
    """The counts equal those of all pairs: pairs by rule, clusters of one rule, keys of most entities."""
    work = draw_workload(seed)
    sources = work.build_sources()
    evidence = LinkStatistics()
    graph = connect_entities(sources, RULES, evidence)

    findings = evidence.build_findings(graph, ["A", "B", "C"])

    by_rule = {rule.text: pairs_by_key(work, rule) for rule in RULES}
    clusters = [cluster for cluster in work.find_expected() if len(cluster) > 1]
    causes = [
        {
            text
            for text, keys in by_rule.items()
            if any(pair <= cluster for pairs in keys.values() for pair in pairs)
        }
        for cluster in clusters
    ]
    for rule_counts in findings["rules"]:
        pairs = by_rule[rule_counts["rule"]]
        if rule_counts["rule"] != RULES[1].text:
            assert rule_counts["pairs"] == sum(map(len, pairs.values()))
        assert rule_counts["sole_evidence"] == causes.count({rule_counts["rule"]})
    sizes = sorted(
        (len(frozenset().union(*pairs)) for keys in by_rule.values() for pairs in keys.values()), reverse=True
    )
    assert [key_counts["entities"] for key_counts in findings["keys"]] == [
        size for size in sizes if size > 2
    ][:5]


def test_a_key_is_told_with_some_of_its_entities() -> None:
    """A key is listed with its first entities by number, each with dataset and id.

    A key of two entities is not listed.
    """
    work = Workload([3, 1, 1], RULES)
    for entity_keys in (*work.keys[RULES[0].left.order], *work.keys[RULES[0].right.order]):
        entity_keys.add(7)
    work.keys[RULES[3].left.order][0].add(9)
    work.keys[RULES[3].right.order][0].add(9)
    sources = work.build_sources()
    evidence = LinkStatistics()
    graph = connect_entities(sources, RULES, evidence)

    findings = evidence.build_findings(graph, ["A", "B", "C"])

    assert findings["keys"] == [{"rule": RULES[0].text, "entities": 4, "of": ["A/e0", "A/e1", "A/e2"]}]
    assert [(rule_counts["pairs"], rule_counts["sole_evidence"]) for rule_counts in findings["rules"]][
        :1
    ] == [(3, 0)]
