"""Tests of the demo's description of the merged airports."""

from __future__ import annotations

from typing import Any

import pytest
from demo.golden_airports import Airport, Golden, chain_lines, distance_km, format_report

from airflow_merge_provider.core.merge_source.explanation import EntityRef

HERE = Airport("Here", "US", 32.2, -80.7)
THERE = Airport("There", "CN", 37.1, 97.3)
AIRPORTS = {EntityRef("airports_world", "KHXD"): HERE, EntityRef("airports_nyc", "HXD"): THERE}
MEMBERS = [
    {
        "dataset": "airports_world",
        "id": "KHXD",
        "keys": [{"rule": "w.lid = n.faa", "side": "left", "value": "s:HXD"}],
    },
    {
        "dataset": "airports_nyc",
        "id": "HXD",
        "keys": [{"rule": "w.lid = n.faa", "side": "right", "value": "s:HXD"}],
    },
]
REPORT = {
    "counts": {"entities": 3, "live_rows": 2, "merged_rows": 1},
    "details": {"cluster_sizes": {"1": 1, "2": 1}},
}


@pytest.mark.parametrize(
    ("origin", "destination", "km"),
    [
        (HERE, HERE, 0),
        (Airport("", None, 0, 0), Airport("", None, 0, 180), 20_015),
        (Airport("", None, 52.52, 13.405), Airport("", None, 48.857, 2.352), 878),
    ],
)
def test_distances_are_those_on_a_globe(origin: Any, destination: Any, km: Any) -> None:
    """Distances are those on a sphere: of a place and itself, of the two poles, and of Berlin and Paris."""
    assert distance_km(origin, destination) == pytest.approx(km, abs=1)
    assert distance_km(destination, origin) == pytest.approx(km, abs=1)


def test_a_chain_tells_places_and_the_code_that_joined_them() -> None:
    """The first line of a chain is its start.

    Each other line has the rule, the value and the airport that linked the next one.
    """
    first, second = chain_lines(MEMBERS, AIRPORTS)

    assert first.split() == ["airports_world/KHXD", "Here", "32N", "81W", "US"]
    assert second.split(maxsplit=5)[:5] == ["airports_nyc/HXD", "There", "37N", "97E", "CN"]
    assert second.endswith("HXD: w.lid = n.faa, airports_world/KHXD")


def test_the_story_counts_and_points_at_what_lies_far_apart() -> None:
    """Counts, histogram, largest cluster and most distant members are those of the run."""
    lines = list(format_report(REPORT, [Golden(MEMBERS, distance_km(HERE, THERE))], AIRPORTS))

    assert lines[0].startswith("3 entities in, 2 golden airports out")
    assert "      2        1 ########################################" in lines
    assert "Probably wrong: 1 golden airports have entities more than 1,000 km apart." in lines


def test_the_story_needs_nothing_far_apart() -> None:
    """If every cluster is one place, the description has no most distant members."""
    lines = list(format_report(REPORT, [Golden(MEMBERS, 1.0)], AIRPORTS))

    assert "Probably wrong: 0 golden airports have entities more than 1,000 km apart." in lines
    assert not any(line.startswith("The farthest") for line in lines)
