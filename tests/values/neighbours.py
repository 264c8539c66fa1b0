"""Tables with a row for each value of each kind, the same rows with the neighbouring value, and readers.

A row of a kind differs from its counterpart in the column of the kind only, so that a run that changes the
row has seen this change, and a run that does not has missed it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from tests.values.catalog import ALL, SHORT, Kind

ID = "id"
_DIGITS = Context(prec=60)


def list_cells(uses: Iterable[str]) -> list[Any]:
    """Return the cells of a table of outcomes as parameters of tests; those of most nested types are long."""
    return [
        pytest.param(kind.name, use, marks=() if kind in SHORT else pytest.mark.long)
        for kind in ALL
        for use in uses
    ]


def is_short(name: str) -> bool:
    """Return whether a type shares its runs with those of ``SHORT``; the others are in runs with all."""
    return any(kind.name == name for kind in SHORT)


@dataclass(frozen=True)
class Neighbours:
    """Rows of kinds: number ``n`` of a kind has its ``n``-th value, or NULL, and any values of the others."""

    kinds: tuple[Kind, ...]

    @cached_property
    def ids(self) -> tuple[tuple[str, int], ...]:
        """The kind and the number of each row."""
        return tuple((kind.name, number) for kind in self.kinds for number in range(len(kind.values) + 1))

    @cached_property
    def before(self) -> pa.Table:
        """The rows."""
        return self._build_table(0)

    @cached_property
    def after(self) -> pa.Table:
        """The rows with the next value in the column of their kind."""
        return self._build_table(1)

    @cached_property
    def equal(self) -> pa.Table:
        """The same rows as ``after`` in another order, with other forms of equal values."""
        return flip_table(self.after)

    def list_rows(self, kind: str) -> list[int]:
        """Return the positions of the rows of a kind."""
        return [position for position, (name, _) in enumerate(self.ids) if name == kind]

    def _build_table(self, step: int) -> pa.Table:
        columns: dict[str, Any] = {ID: pa.array([name_row(*id_) for id_ in self.ids])}
        for kind in self.kinds:
            values = [*kind.values, None]
            items = [
                values[(number + step if name == kind.name else position) % len(values)]
                for position, (name, number) in enumerate(self.ids)
            ]
            columns[kind.name] = pa.array(items, kind.arrow)
        return pa.table(columns)


def build_keys(kinds: tuple[Kind, ...], value: str, *, with_nulls: bool = False) -> pa.Table:
    """Return rows of which each differs from the first one in one column of the key."""
    changes = [
        (kind.name, one) for kind in kinds for one in (*kind.values[1:], *([None] if with_nulls else []))
    ]
    columns = {
        kind.name: pa.array(
            [kind.values[0], *(one if name == kind.name else kind.values[0] for name, one in changes)],
            kind.arrow,
        )
        for kind in kinds
    }
    ids = ["first 0", *(f"{name} {number}" for number, (name, _) in enumerate(changes))]
    return pa.table({**columns, ID: ids, "v": [value] * len(ids)})


def name_row(kind: str, number: int) -> str:
    """Return the ID of a row."""
    return f"{kind} {number}"


def flip_table(rows: pa.Table) -> pa.Table:
    """Return equal rows in another order, with other forms of equal values."""
    columns = (
        pa.array(list(map(flip_value, reversed(rows[name].to_pylist()))), rows[name].type)
        for name in rows.column_names
    )
    return pa.table(list(columns), names=rows.column_names)


def flip_value(value: Any) -> Any:
    """Return another form of an equal value: -0.0, and a map in another order of its entries."""
    if isinstance(value, float) and value == 0:
        return -0.0
    if isinstance(value, dict):
        return {name: flip_value(one) for name, one in value.items()}
    if isinstance(value, list):
        items = [flip_value(one) for one in value]
        return items[::-1] if items and isinstance(items[0], tuple) else items
    return tuple(map(flip_value, value)) if isinstance(value, tuple) else value


def read_table(path: Path | str, reader: str = "delta-rs", by: str = ID) -> dict[str, list[Any]]:
    """Return the columns of a table, sorted by one of them, as a program reads them."""
    table = _READERS[reader](str(path))
    columns = {name: table[name].to_pylist() for name in table.column_names}
    order = sorted(range(table.num_rows), key=lambda position: str(columns[by][position]))
    return {name: [values[position] for position in order] for name, values in columns.items()}


def _read_with_delta_rs(path: str) -> pa.Table:
    return pa.table(QueryBuilder().register("t", DeltaTable(path)).execute("SELECT * FROM t").read_all())


def _read_with_duckdb(path: str) -> pa.Table:
    with duckdb.connect() as connection:
        files = [f"'{file}'" for file in DeltaTable(path).file_uris()]
        return connection.sql(f"SELECT * FROM read_parquet([{', '.join(files)}])").to_arrow_table()


def _read_with_polars(path: str) -> pa.Table:
    return pl.read_delta(path).to_arrow()


_READERS: dict[str, Callable[[str], pa.Table]] = {
    "delta-rs": _read_with_delta_rs, "DuckDB": _read_with_duckdb, "polars": _read_with_polars,
}  # fmt: skip
READERS = tuple(_READERS)


def to_plain(value: Any, kind: pa.DataType) -> Any:
    """Return a value in one form for all readers: maps as sorted entries, instants in UTC."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        entries = (one.values() if isinstance(one, dict) else one for one in value)
        pairs = [(to_plain(key, kind.key_type), to_plain(one, kind.item_type)) for key, one in entries]
        return sorted(pairs, key=repr)
    if pa.types.is_list(kind):
        return [to_plain(one, kind.value_type) for one in value]
    if pa.types.is_struct(kind):
        return {field.name: to_plain(value[field.name], field.type) for field in kind}
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return value.astimezone(UTC)
    return value + 0.0 if isinstance(value, float) else value


def parse_shown(shown: Any, kind: pa.DataType, read_bytes: Callable[[str], bytes]) -> Any:
    """Return the value that JSON shows; a struct leaves out its NULLs."""
    if shown is None:
        return None
    if pa.types.is_map(kind):
        entries: Iterable[Any] = shown.items() if isinstance(shown, dict) else _list_entries(shown)
        pairs = [
            (parse_shown(key, kind.key_type, read_bytes), parse_shown(one, kind.item_type, read_bytes))
            for key, one in entries
        ]
        return sorted(pairs, key=repr)
    if pa.types.is_list(kind):
        return [parse_shown(one, kind.value_type, read_bytes) for one in shown]
    if pa.types.is_struct(kind):
        return {field.name: parse_shown(shown.get(field.name), field.type, read_bytes) for field in kind}
    return _parse_scalar(shown, kind, read_bytes)


def read_base64(text: str) -> bytes:
    """Return bytes that Spark shows."""
    return base64.b64decode(text, validate=True)


def read_hexadecimal(text: str) -> bytes:
    """Return bytes that an explanation shows."""
    assert text.startswith("0x")
    return bytes.fromhex(text[2:])


def _list_entries(shown: Sequence[Mapping[str, Any]]) -> list[tuple[Any, Any]]:
    return [(entry["key"], entry.get("value")) for entry in shown]


def _parse_scalar(shown: Any, kind: pa.DataType, read_bytes: Callable[[str], bytes]) -> Any:
    if pa.types.is_decimal(kind):
        return Decimal(str(shown)).quantize(Decimal(1).scaleb(-kind.scale), context=_DIGITS)
    if pa.types.is_floating(kind):
        return pa.scalar(float(shown), pa.float64()).cast(kind, safe=False).as_py() + 0.0
    if pa.types.is_integer(kind):
        return int(shown)
    if pa.types.is_binary(kind):
        return read_bytes(shown)
    if pa.types.is_date(kind):
        return date.fromisoformat(shown)
    if pa.types.is_timestamp(kind):
        at = datetime.fromisoformat(shown)
        assert (at.tzinfo is None) == (kind.tz is None), shown
        return at if kind.tz is None else at.astimezone(UTC)
    return shown


def check_images(rows: Neighbours, plan: Mapping[str, list[Any]], kind: Kind) -> None:
    """Check that the rows of a plan have both values of each changed row."""
    images: dict[tuple[str, str], list[Any]] = {}
    for side in ("before", "after"):
        for text in filter(None, plan[side]):
            row = json.loads(text, parse_float=Decimal)
            images.setdefault((side, row[ID]), []).append(row.get(kind.name))
    for position in rows.list_rows(kind.name):
        for side, table in (("before", rows.before), ("after", rows.after)):
            value = table[kind.name][position].as_py()
            shown = images[side, name_row(*rows.ids[position])]
            assert write_plain(value, kind) in [write_shown(one, kind) for one in shown], (side, shown)


def write_plain(value: Any, kind: Kind) -> str:
    """Return the text of a value by which two values of a kind can be compared."""
    assert kind.arrow is not None
    return repr(to_plain(value, kind.arrow))


def write_shown(shown: Any, kind: Kind, read_bytes: Callable[[str], bytes] = read_base64) -> str:
    assert kind.arrow is not None
    return repr(parse_shown(shown, kind.arrow, read_bytes))


def list_values(kind: Kind, columns: Mapping[str, list[Any]]) -> list[str]:
    return [write_plain(value, kind) for value in columns[kind.name]]


def list_expected(kind: Kind, rows: pa.Table) -> list[str]:
    """Return the values of a column in the order of the IDs."""
    ids = rows[ID].to_pylist()
    values = rows[kind.name].to_pylist()
    return [write_plain(values[position], kind) for position in sorted(range(len(ids)), key=ids.__getitem__)]
