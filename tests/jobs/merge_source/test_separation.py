"""Test where clusters are cut, on random graphs against all possible cuts, without Spark."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product

import pytest

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.merge_source.dtl.expressions import Path
from airflow_merge_provider.core.merge_source.equality import Rule, Side
from airflow_merge_provider.core.merge_source.identity import Member
from airflow_merge_provider.core.merge_source.overrides import SAME_LEFT, SAME_RIGHT, Pair
from airflow_merge_provider.jobs.merge_source.cluster.components import connect_entities
from airflow_merge_provider.jobs.merge_source.cluster.min_cut import cut_clusters
from airflow_merge_provider.jobs.merge_source.cluster.quarantine import LinkStatistics
from tests.jobs.merge_source.test_components import Workload, build_side

RULES = (
    Rule(build_side(0, "x"), build_side(1, "x")),
    Rule(build_side(0, "y"), build_side(0, "y")),
    Rule(build_side(0, "z"), build_side(1, "w")),
)
DECIDED = Rule(
    Side(0, "override(A)", Path("", (SAME_LEFT,))), Side(1, "override(B)", Path("", (SAME_RIGHT,)))
)
Entity = tuple[int, int]


def build_member(dataset: int, number: int) -> Member:
    return Member(dataset, f"e{number}")


def cut_cluster(work: Workload, different: list[Pair]) -> tuple[set[frozenset[Entity]], int]:
    """Return the clusters after the cuts, and the number of separated pairs."""
    sources = work.build_sources()
    evidence = LinkStatistics(keep_links=True)
    result = cut_clusters(
        connect_entities(sources, work.rules, evidence), evidence.links, different, ["A", "B"]
    )
    clusters: dict[int, set[Entity]] = {}
    for number, cluster in enumerate(result.graph.clusters.tolist()):
        dataset, id_ = result.graph.find_entity(number)
        clusters.setdefault(cluster, set()).add((dataset, int(id_[1:])))
    assert sorted(clusters) == list(range(result.graph.count))
    return {frozenset(cluster) for cluster in clusters.values()}, len(result.cut)


def count_strengths(work: Workload) -> Counter[frozenset[Entity]]:
    """Return the number of values that each pair of entities shares."""
    strengths: Counter[frozenset[Entity]] = Counter()
    for rule in work.rules:
        left, right = work.keys[rule.left.order], work.keys[rule.right.order]
        once = rule.left.order == rule.right.order
        for left_number, right_number in product(range(len(left)), range(len(right))):
            pair = frozenset({(rule.left.dataset, left_number), (rule.right.dataset, right_number)})
            if len(pair) == 2 and (not once or left_number < right_number):
                strengths[pair] += len(left[left_number] & right[right_number])
    return strengths


def best_sides(
    work: Workload, cluster: frozenset[Entity], first: Entity, second: Entity
) -> list[frozenset[Entity]]:
    """Return the first entity's side of every cut through the fewest values."""
    strong = count_strengths(work)
    remaining = sorted(cluster - {first, second})
    strength_by_side: dict[frozenset[Entity], int] = {}
    for chosen in product((False, True), repeat=len(remaining)):
        near = frozenset(
            {first, *(entity for entity, is_near in zip(remaining, chosen, strict=True) if is_near)}
        )
        strength_by_side[near] = sum(
            count for pair, count in strong.items() if pair <= cluster and len(pair & near) == 1
        )
    least = min(strength_by_side.values())
    return [near for near, through in strength_by_side.items() if through == least]


@pytest.mark.parametrize("seed", range(60))
def test_a_pair_is_cut_apart_through_the_fewest_values(seed: int) -> None:
    """A pair is cut through the fewest values; several minimal cuts are rejected, other clusters stay."""
    draw = random.Random(seed)  # noqa: S311 - a workload, no secret
    work = Workload([draw.randint(2, 4), draw.randint(2, 4)], RULES)
    for of_entities in work.keys.values():
        for entity_keys in of_entities:
            entity_keys |= {draw.randint(0, 3) for _ in range(draw.choice((0, 1, 1, 2)))}
    before = work.find_expected()
    cluster = max(before, key=lambda members: (len(members), sorted(members)))
    if len(cluster) < 2:
        return
    first, second = draw.sample(sorted(cluster), 2)
    best = best_sides(work, cluster, first, second)
    different = [(build_member(*first), build_member(*second))]

    if len(best) > 1:
        with pytest.raises(DataError, match="there are several ways to split their cluster"):
            cut_cluster(work, different)
        return
    assert cut_cluster(work, different) == ((before - {cluster}) | {best[0], cluster - best[0]}, 1)


def build_pairs(*linked: tuple[int, int]) -> Workload:
    """Build three entities on either side, with one value for each linked pair."""
    work = Workload([3, 3], (RULES[0], DECIDED))
    for value, (first, second) in enumerate(linked):
        work.keys[RULES[0].left.order][first].add(value)
        work.keys[RULES[0].right.order][second].add(value)
    return work


def test_a_decision_settles_where_to_cut() -> None:
    """B/e0 is linked to A/e0 and A/e1 by as many values; a decision determines where to cut."""
    work = build_pairs((0, 0), (1, 0))
    different = [(build_member(0, 0), build_member(0, 1))]
    with pytest.raises(DataError, match="A/e0 and A/e1 are declared different, and there are several"):
        cut_cluster(work, different)

    work.keys[DECIDED.left.order][1].add(99)
    work.keys[DECIDED.right.order][0].add(99)

    clusters, count = cut_cluster(work, different)
    assert count == 1
    assert frozenset({(0, 1), (1, 0)}) in clusters


def test_decisions_that_contradict_each_other_are_refused() -> None:
    """Decisions that contradict each other are rejected: entities decided to be the same cannot be cut."""
    work = Workload([3, 3], (RULES[0], DECIDED))
    for number in (0, 1):
        work.keys[DECIDED.left.order][number].add(7)
    work.keys[DECIDED.right.order][0].add(7)

    with pytest.raises(
        DataError,
        match="A/e0 and A/e1 are declared different, but other overrides merge them: A/e0 = B/e0 = A/e1",
    ):
        cut_cluster(work, [(build_member(0, 0), build_member(0, 1))])


def test_pairs_that_are_not_one_anyway_are_left_alone() -> None:
    """Pairs that are not in one cluster, or whose entities do not exist, cause no cut."""
    work = build_pairs((0, 0), (1, 1))

    clusters, count = cut_cluster(
        work, [(build_member(0, 0), build_member(1, 1)), (build_member(0, 0), build_member(1, 9))]
    )

    assert (clusters, count) == (work.find_expected(), 0)


def test_several_pairs_of_one_cluster_are_cut_one_after_the_other() -> None:
    """Several pairs of one cluster are cut in turn; the first cut may separate the second pair too."""
    work = build_pairs((0, 0), (0, 0), (1, 0), (1, 1), (1, 1))

    clusters, count = cut_cluster(
        work, [(build_member(0, 0), build_member(0, 1)), (build_member(1, 0), build_member(1, 1))]
    )

    assert count == 1
    assert {frozenset({(0, 0), (1, 0)}), frozenset({(0, 1), (1, 1)})} <= clusters


def build_shared(*entities: Entity) -> Workload:
    """Build entities that share one value, so that each is linked with every other one."""
    sizes = [
        1 + max((number for side_, number in entities if side_ == dataset), default=0) for dataset in (0, 1)
    ]
    rules = (
        RULES[0],
        Rule(build_side(0, "x"), build_side(0, "x")),
        Rule(build_side(1, "x"), build_side(1, "x")),
    )
    work = Workload(sizes, rules)
    ends = {end.order: end for rule in rules for end in (rule.left, rule.right)}
    for order, end in ends.items():
        for number in (number for dataset, number in entities if dataset == end.dataset):
            work.keys[order][number].add(1)
    return work


def test_several_decisions_together_say_whose_the_rest_is() -> None:
    """Of three or four equally linked entities, one is separated from two others, which stay one cluster."""
    one, two, three = (0, 0), (0, 1), (1, 0)
    work = build_shared(one, two, three)
    with pytest.raises(DataError, match="several ways"):
        cut_cluster(work, [(build_member(*one), build_member(*two))])

    different = [(build_member(*two), build_member(*one)), (build_member(*one), build_member(*three))]
    for decisions in (different, different[::-1]):
        clusters, count = cut_cluster(work, decisions)

        assert clusters == {frozenset({one}), frozenset({two, three})}
        assert count == 2

    more = (1, 1)
    clusters, _ = cut_cluster(build_shared(one, two, three, more), different)
    assert clusters == {frozenset({one}), frozenset({two, three, more})}


@pytest.mark.parametrize("seed", range(20))
def test_where_every_pair_is_decided_it_is_as_they_say(seed: int) -> None:
    """If all pairs of a cluster are decided, the result follows the decisions, whatever the links are."""
    draw = random.Random(seed)  # noqa: S311 - a workload, no secret
    entities = [(0, number) for number in range(draw.randint(1, 3))] + [(1, number) for number in range(3)]
    groups = {entity: draw.randint(0, 2) for entity in entities}
    work = build_shared(*entities)
    different = [
        (build_member(*first), build_member(*second))
        for first in entities
        for second in entities
        if first < second and groups[first] != groups[second]
    ]
    draw.shuffle(different)

    clusters, _ = cut_cluster(work, different)

    expected: dict[int, set[Entity]] = {}
    for entity, group in groups.items():
        expected.setdefault(group, set()).add(entity)
    assert clusters == {frozenset(group) for group in expected.values()}
