"""Write the tables that the example DAGs read: the worked example, and three published airport lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from demo import worked_example
from demo.nyc_flights import read_table
from demo.store import Warehouse
from demo.tables import Row, write_rows


def prepare_tables(warehouse: Warehouse) -> dict[str, int]:
    """Write the tables that do not have the expected content, and return the number of rows of each."""
    counts = {}
    for name, make in TABLES.items():
        rows = make()
        write_rows(warehouse.locate_table(name), rows, warehouse.options)
        counts[name] = len(rows)
    return counts


def _airports_world() -> list[Row]:
    import airportsdata  # noqa: PLC0415 - a package of the examples extra

    return _build_entities(airportsdata.load("ICAO").values(), "icao")


def _airports_nyc() -> list[Row]:
    return _build_entities(read_table("airports").to_dict("records"), "faa")


def _airports_us() -> list[Row]:
    from vega_datasets import data  # noqa: PLC0415 - a package of the examples extra

    return _build_entities(data.airports().to_dict("records"), "iata")


def _build_entities(records: Iterable[Mapping[str, Any]], id_column: str) -> list[Row]:
    """Return published records as rows with an id; empty text becomes NULL, because it is a missing value."""
    return [
        {"_id": record[id_column], **{name: _to_null(value) for name, value in record.items()}}
        for record in records
    ]


def _to_null(value: Any) -> Any:
    is_nothing = value == "" or value != value  # noqa: PLR0124 - pandas reads a missing text as NaN
    return None if is_nothing else value


TABLES: Mapping[str, Callable[[], list[Row]]] = {
    "A": lambda: worked_example.A,
    "B": lambda: worked_example.B,
    "C": lambda: worked_example.C,
    "airports_world": _airports_world,
    "airports_nyc": _airports_nyc,
    "airports_us": _airports_us,
}
