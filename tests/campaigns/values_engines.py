"""What merge engines make of records of random tables, in a few lines of Python for each engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.values.catalog import SIMPLE
from tests.values.random_tables import RandomTables, Row, Rows

# The column that orders records.
ORDER = "s"
_LATE_SHARE = _EXTRA_SHARE = 0.25
_SORTED = {kind.name for kind in SIMPLE if kind.name not in {"boolean", "binary"}}
_FIRST_AND_LAST = ("last_value", "last_non_null_value", "first_value", "first_non_null_value")
_Fold = Callable[[Row | None, Row], Row | None]


def build_engine(
    engine: str, tables: RandomTables
) -> tuple[dict[str, Any], Callable[[Row | None, Row], Row | None]]:
    """Return the configuration of an engine, and how it folds a record into the row of a key."""
    functions = {column: _choose_function(tables, column) for column in tables.columns}
    deletes = f"{engine}.remove-record-on-delete"
    texts = {f"fields.{column}.aggregate-function": name for column, name in functions.items()}
    options, fold = _ENGINES[engine](deletes, texts, tables, functions)
    order = {} if ORDER in options.values() else {"order_by": [ORDER]}
    config = {"merge_engine": engine, "primary_key": tables.keys, "row_kind_column": "op", "options": options}
    return config | order, fold


def list_records(tables: RandomTables) -> tuple[Rows, Rows]:
    """Return the records of the first rows and of their changes, each with its kind and order.

    Some keys have several records, and some of the second ones are older than the first.
    """
    random = tables.random
    deleted = [row for row in tables.rows if tables.fold_key(row) in tables.deleted]
    first = _add_records(tables, [(row, "+I") for row in tables.rows])
    second = _add_records(tables, [(row, "+U") for row in tables.changes] + [(row, "-D") for row in deleted])
    orders = iter(random.sample(range(len(first)), len(first)))
    later = iter(random.sample(range(len(first), len(first) + len(second)), len(second)))
    return (
        [row | {"op": kind, ORDER: 2 * next(orders)} for row, kind in first],
        [
            row
            | {
                "op": kind,
                ORDER: 2 * next(later) - (2 * len(first) if random.random() < _LATE_SHARE else 0) + 1,
            }
            for row, kind in second
        ],
    )


def _add_records(tables: RandomTables, records: list[tuple[Row, str]]) -> list[tuple[Row, str]]:
    extra = [
        (row | {name: tables.draw_value(name) for name in tables.tables[row["t"]].columns}, "+U")
        for row, _ in records
        if tables.random.random() < _EXTRA_SHARE
    ]
    return records + extra


def fold_records(tables: RandomTables, rows: Rows, records: Rows, fold: _Fold) -> Rows:
    """Return the rows of all keys after a batch of records."""
    state = {tables.fold_key(row): row for row in rows}
    for record in sorted(records, key=lambda record: record[ORDER]):
        key = tables.fold_key(record)
        row = fold(state.pop(key, None), record)
        if row is not None:
            state[key] = row
    return list(state.values())


def _deduplicate(row: Row | None, record: Row) -> Row | None:
    if row is not None and record[ORDER] < row[ORDER]:
        return row
    return None if record["op"] == "-D" else record


def _update_partially(row: Row | None, record: Row) -> Row | None:
    if record["op"] == "-D":
        return None
    return (row or record) | {name: value for name, value in record.items() if value is not None}


def _keep_first(row: Row | None, record: Row) -> Row | None:
    return row if row is not None or record["op"] == "-D" else record


def _aggregate(
    tables: RandomTables, functions: Mapping[str, str], row: Row | None, record: Row
) -> Row | None:
    if record["op"] == "-D":
        return None
    if row is None:
        return record
    values = {name: _FUNCTIONS[function](row[name], record[name]) for name, function in functions.items()}
    return record | values


def _choose_function(tables: RandomTables, column: str) -> str:
    names = _FIRST_AND_LAST + (("max", "min") if tables.kinds[column].name in _SORTED else ())
    return tables.random.choice(names)


def _rank(value: Any) -> tuple[bool, Any]:
    """Return a value to sort by: NaN is greater than any number."""
    return (value != value, 0 if value != value else value)  # noqa: PLR0124 - only NaN differs


_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "last_value": lambda _, new: new,
    "last_non_null_value": lambda old, new: old if new is None else new,
    "first_value": lambda old, _: old,
    "first_non_null_value": lambda old, new: new if old is None else old,
    "max": lambda old, new: max((one for one in (old, new) if one is not None), key=_rank, default=None),
    "min": lambda old, new: min((one for one in (old, new) if one is not None), key=_rank, default=None),
}
_ENGINES: dict[str, Any] = {
    "deduplicate": lambda *_: ({"sequence.field": ORDER}, _deduplicate),
    "partial-update": lambda deletes, *_: ({deletes: "true"}, _update_partially),
    "first-row": lambda *_: ({"ignore-delete": "true"}, _keep_first),
    "aggregation": lambda deletes, texts, tables, functions: (
        {deletes: "true", **texts},
        lambda row, record: _aggregate(tables, functions, row, record),
    ),
}
