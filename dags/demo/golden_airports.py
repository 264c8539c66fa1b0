"""Summarize the merge of the airports: how many, how large, and which clusters are probably wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from airflow_merge_provider.core.merge_source.explanation import EntityRef, Link, build_chain
from demo.store import Warehouse
from demo.tables import read_rows

TARGET = "airports_golden"
FAR_KM = 1000

Members = Sequence[Mapping[str, Any]]

_EARTH_KM = 6371.0
_BAR = 40
_LISTS = {
    "airports_world": '"_id", name, country AS region, lat AS latitude, lon AS longitude',
    "airports_nyc": '"_id", name, tzone AS region, lat AS latitude, lon AS longitude',
    "airports_us": '"_id", name, country AS region, latitude, longitude',
}


class Airport(NamedTuple):
    """An airport of one of the lists; ``region`` is the country, or the time zone where it is missing."""

    name: str
    region: str | None
    latitude: float
    longitude: float


class Golden(NamedTuple):
    """A golden airport with several members, and the distance between the two farthest of them."""

    members: Members
    apart_km: float


def read_airports(warehouse: Warehouse) -> dict[EntityRef, Airport]:
    """Return every airport of the three lists."""
    airports = {}
    for dataset, columns in _LISTS.items():
        for row in read_rows(warehouse.locate_table(dataset), columns, options=warehouse.options):
            entity = EntityRef(dataset, row.pop("_id"))
            airports[entity] = Airport(**row)
    return airports


def list_golden(
    warehouse: Warehouse, airports: Mapping[EntityRef, Airport], version: int | None = None
) -> list[Golden]:
    """Return the golden airports with several members, the largest distance first."""
    rows = read_rows(warehouse.locate_table(TARGET), '"_members"', version, warehouse.options)
    clusters = [row["_members"] for row in rows]
    golden_list = [
        Golden(members, _measure_distance(members, airports)) for members in clusters if len(members) > 1
    ]
    return sorted(golden_list, key=lambda golden: (-golden.apart_km, str(golden.members)))


def format_report(
    report: Mapping[str, Any], golden_list: Sequence[Golden], airports: Mapping[EntityRef, Airport]
) -> Iterator[str]:
    """Yield a summary of a run from its report and the golden airports with several members."""
    counts = report["counts"]
    yield f"{counts['entities']:,} entities in, {counts['live_rows']:,} golden airports out; of these,"
    merged = counts["merged_rows"]
    yield f"{merged:,} are merged from several entities. Golden airports by number of entities:"
    yield ""
    most = max(report["details"]["cluster_sizes"].values())
    for size, count in report["details"]["cluster_sizes"].items():
        yield f"  {size:>5} {count:>8,} {'#' * math.ceil(_BAR * count / most)}"
    largest = max(golden_list, key=lambda golden: len(golden.members))
    yield ""
    yield f"The largest has {len(largest.members)} entities; each line shows the code that links it:"
    yield from chain_lines(largest.members, airports)
    far = [golden for golden in golden_list if golden.apart_km > FAR_KM]
    yield ""
    yield f"Probably wrong: {len(far)} golden airports have entities more than {FAR_KM:,} km apart."
    for golden in far[:1]:
        yield f"The farthest entities of one golden airport, {golden.apart_km:,.0f} km:"
        yield from chain_lines(golden.members, airports)
    yield ""
    yield "The column _members of each row lists its entities: dataset, ID, and the keys (rule, side,"
    yield "value) that link it. A merge is wrong if a code means different airports on the two sides"
    yield "of a rule: remove the rule, or exclude such codes from the rule with a filter."


def chain_lines(members: Members, airports: Mapping[EntityRef, Airport]) -> Iterator[str]:
    """Yield a cluster as text: the first airport, then each other one with the code that links it."""
    yield f"  {_format_airport(_build_name(members[0]), airports)}".rstrip()
    for link in build_chain(members):
        yield f"  {_format_airport(link.reached, airports)} {_format_link(link)}"


def _format_link(link: Link) -> str:
    code = link.value.partition(":")[2]
    return f"{code}: {link.rule}, {link.leading.dataset}/{link.leading.id}"


def _format_airport(entity: EntityRef, airports: Mapping[EntityRef, Airport]) -> str:
    airport = airports[entity]
    latitude, longitude = _format_degrees(airport.latitude, "NS"), _format_degrees(airport.longitude, "EW")
    position = f"{latitude} {longitude} {airport.region or ''}"
    return f"{entity.dataset + '/' + entity.id:<20} {airport.name[:28]:<28} {position[:20]:<20}"


def _format_degrees(value: float, ends: str) -> str:
    return f"{abs(value):3.0f}{ends[0] if value >= 0 else ends[1]}"


def _build_name(member: Mapping[str, Any]) -> EntityRef:
    return EntityRef(member["dataset"], member["id"])


def _measure_distance(members: Members, airports: Mapping[EntityRef, Airport]) -> float:
    member_airports = [airports[_build_name(member)] for member in members]
    return max(distance_km(first, second) for first, second in combinations(member_airports, 2))


def distance_km(first: Airport, second: Airport) -> float:
    """Return the distance between two airports on the globe, in kilometres."""
    first_latitude, second_latitude = math.radians(first.latitude), math.radians(second.latitude)
    longitude_difference = math.radians(second.longitude - first.longitude)
    half = (
        math.sin((second_latitude - first_latitude) / 2) ** 2
        + math.cos(first_latitude) * math.cos(second_latitude) * math.sin(longitude_difference / 2) ** 2
    )
    return 2 * _EARTH_KM * math.asin(min(1.0, math.sqrt(half)))
