"""Write the inputs of the example pipeline: airport lists, flight changes, weather readings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from demo.inputs import TABLES
from demo.nyc_flights import read_table
from demo.tables import write_rows

AIRPORTS = ("airports_world", "airports_nyc", "airports_us")
CHANGES, LANDING = "flight_changes", "weather_landing"

_LIST_OF_CODES = "airports_nyc"
_MONTH, _DAYS = 1, 7
_FLIGHT = ["flight_id", "time_hour", "carrier", "flight", "tailnum", "origin", "dest", "sched_dep_time"]
# The columns that are known when a flight is planned, has departed, and has arrived.
_STAGES: Mapping[str, list[str]] = {
    "planned_at": _FLIGHT,
    "departed_at": ["flight_id", "dep_time", "dep_delay"],
    "arrived_at": ["flight_id", "arr_time", "arr_delay", "air_time"],
}


def publish_tables(warehouse: Path, rename: Mapping[str, str] | None = None) -> list[str]:
    """Write the missing inputs, and airports under new names; return what was written.

    ``rename`` maps FAA codes of airports to new names, which are kept until others are given.
    """
    written = [name for name in AIRPORTS if write_rows(warehouse / name, _read_airports(name, rename or {}))]
    if not (warehouse / CHANGES / "_delta_log").is_dir():
        _write_changes(warehouse / CHANGES)
        written.append(CHANGES)
    if not (warehouse / LANDING).is_dir():
        _write_readings(warehouse / LANDING)
        written.append(LANDING)
    return written


def _read_airports(name: str, rename: Mapping[str, str]) -> list[dict[str, Any]]:
    rows = TABLES[name]()
    if name != _LIST_OF_CODES:
        return rows
    return [{**row, "name": rename.get(row["faa"], row["name"])} for row in rows]


def _write_changes(path: Path) -> None:
    """Write three changes for each flight, as from three systems that each have their own columns."""
    import pyarrow as pa
    from deltalake import write_deltalake

    flights = _of_the_days("flights")
    flights["flight_id"] = (
        flights[["year", "month", "day", "carrier", "flight", "origin"]].astype(str).agg("-".join, axis=1)
    )
    changes = []
    for at, columns in _STAGES.items():
        stage_rows = flights[columns].assign(**{at: flights["time_hour"]})
        changes.append(pa.Table.from_pandas(stage_rows[stage_rows[columns[1]].notna()], preserve_index=False))
    write_deltalake(str(path), pa.concat_tables(changes, promote_options="default"))


def _write_readings(path: Path) -> None:
    """Write each weather reading as a separate file, in one folder per station."""
    for row in _of_the_days("weather").to_dict("records"):
        folder = path / f"station={row['origin']}"
        folder.mkdir(parents=True, exist_ok=True)
        reading = {name: row[name] for name in ("origin", "time_hour")}
        reading |= {name: _to_number(row[name]) for name in ("temp", "wind_speed", "visib")}
        name = f"{row['month']:02}{row['day']:02}{row['hour']:02}.json"
        (folder / name).write_text(json.dumps(reading) + "\n", encoding="utf-8")


def _of_the_days(table: str) -> Any:
    rows = read_table(table)
    return rows[(rows["month"] == _MONTH) & (rows["day"] <= _DAYS)].reset_index(drop=True)


def _to_number(value: Any) -> float | None:
    return None if value != value else float(value)  # noqa: PLR0124 - pandas reads a missing number as NaN
