"""Random tables with awkward values, how they change, and the text of a row that equal rows share.

Many tables are rows of one wide table: each has a number, a few of the columns and a key of one to three
columns of any type. Its other columns are NULL, and its other key columns have one value. So a single run
of a capability processes all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from random import Random
from typing import Any

import pyarrow as pa

from tests.values.catalog import NESTED, SIMPLE, TWICE, Kind, build_list, build_struct

Row = dict[str, Any]
Rows = list[Row]
# A value, or a tuple of values, that equals another one exactly if their values are equal.
Folded = Any

NUMBER = "t"
# Key columns of simple types and of nested ones; other columns of simple types, nested ones, nested twice.
_KEYS, _COLUMNS = (5, 1), (10, 10, 6)
# The number of values that a column has, in all tables.
_VALUES = 44
_KEY_KINDS = tuple(kind for kind in SIMPLE if kind.name != "boolean")
_NESTED_KEYS = tuple(build(kind) for build in (build_list, build_struct) for kind in _KEY_KINDS)
_NULL_SHARE = 0.15
# The share of changed values that become the next one of their column, such as the next number.
_NEIGHBOUR_SHARE = 0.3


@dataclass(frozen=True)
class RandomTable:
    """The columns of one of the tables, and those of them that are its key."""

    number: int
    keys: tuple[str, ...]
    columns: tuple[str, ...]

    def describe(self, kinds: Mapping[str, Kind]) -> str:
        """Return the number, the key and the columns with their types."""
        parts = (
            ", ".join(f"{name} {kinds[name].spark}" for name in names) for names in (self.keys, self.columns)
        )
        return f"table {self.number}, key ({next(parts)}), columns ({next(parts)})"


class RandomTables:
    """Tables side by side, repeatable by the seed: their rows, and the rows after random changes."""

    def __init__(self, seed: int, count: int, *, nested_keys: bool = True) -> None:
        self.seed, self._count = seed, count
        self.random = Random(f"values/{seed}")  # noqa: S311 - repeatable
        key_kinds = self._sample((_KEY_KINDS, _NESTED_KEYS), _KEYS if nested_keys else (sum(_KEYS), 0))
        self._key_kinds = {f"k{number}": kind for number, kind in enumerate(key_kinds)}
        kinds = self._sample((SIMPLE, NESTED, TWICE), _COLUMNS)
        self._column_kinds = {f"c{number}": kind for number, kind in enumerate(kinds)}
        self.kinds: dict[str, Kind] = {**self._key_kinds, **self._column_kinds}
        self._values = {name: kind.draw_values(seed, _VALUES) for name, kind in self.kinds.items()}
        self._folds = {name: build_fold(kind.arrow) for name, kind in self.kinds.items()}
        self.tables = {number: self._draw_table(number) for number in range(count)}
        self.rows = [row for table in self.tables.values() for row in self._draw_rows(table, {})]
        self.changes, self.deleted = self._draw_changes()

    @cached_property
    def without_nested_keys(self) -> RandomTables:
        """Other tables of this seed, for capabilities that refuse lists and structs in keys."""
        return RandomTables(self.seed, self._count, nested_keys=False)

    @property
    def keys(self) -> list[str]:
        """The names of the key columns: the number of the table, and those of all tables."""
        return [NUMBER, *self._key_kinds]

    @property
    def columns(self) -> list[str]:
        """The names of the other columns."""
        return list(self._column_kinds)

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the wide table."""
        return pa.schema([(NUMBER, pa.int32()), *((name, kind.arrow) for name, kind in self.kinds.items())])

    @cached_property
    def changed_rows(self) -> Rows:
        """The rows after the changes and deletions."""
        rows = {self.fold_key(row): row for row in self.rows}
        for key in self.deleted:
            del rows[key]
        return list((rows | {self.fold_key(row): row for row in self.changes}).values())

    def fold_key(self, row: Mapping[str, Any]) -> Folded:
        """Return the key of a row as a value that equal keys share."""
        return self.fold(row, self.keys)

    def fold(self, row: Mapping[str, Any], names: Iterable[str]) -> Folded:
        """Return some values of a row as a tuple that rows with equal values share."""
        folds = self._folds
        return tuple(folds[name](row[name]) if name in folds else row[name] for name in names)

    def shuffle(self, rows: Rows) -> Rows:
        """Return equal rows in another order, whose maps have another order and whose zeros another sign."""
        varied = [
            {name: vary(value, self.kinds[name].arrow) if name in self.kinds else value
             for name, value in row.items()}
            for row in rows
        ]  # fmt: skip
        self.random.shuffle(varied)
        return varied

    def _sample(self, groups: Sequence[Sequence[Kind]], counts: Sequence[int]) -> list[Kind]:
        samples = (self.random.sample(kinds, count) for kinds, count in zip(groups, counts, strict=True))
        return list(chain.from_iterable(samples))

    def _draw_table(self, number: int) -> RandomTable:
        count = self.random.randint(3, 8)
        keys = self.random.sample(list(self._key_kinds), self.random.randint(1, min(3, count - 1)))
        columns = self.random.sample(list(self._column_kinds), count - len(keys))
        return RandomTable(number, tuple(keys), tuple(columns))

    def _draw_rows(self, table: RandomTable, existing: dict[Folded, Row]) -> Rows:
        """Return rows with keys of their own; fewer if the types of the key have fewer values."""
        count = self.random.randint(5, 30)
        rows: dict[Folded, Row] = {}
        for _ in range(3 * count):
            row: Row = {NUMBER: table.number}
            row |= {name: self._values[name][0] for name in self._key_kinds}
            row |= {name: self.random.choice(self._values[name]) for name in table.keys}
            row |= {
                name: self.draw_value(name) if name in table.columns else None for name in self._column_kinds
            }
            key = self.fold_key(row)
            if key not in existing and len(rows) < count:
                rows.setdefault(key, row)
        return list(rows.values())

    def draw_value(self, name: str) -> Any:
        """Return a random value of a column, or NULL."""
        return None if self.random.random() < _NULL_SHARE else self.random.choice(self._values[name])

    def _change_value(self, name: str, value: Any) -> Any:
        """Return another value: often the next one, because the catalog has neighbours side by side."""
        if value is None or self.random.random() > _NEIGHBOUR_SHARE:
            return self.draw_value(name)
        values, fold = self._values[name], self._folds[name]
        position = next(index for index, one in enumerate(values) if fold(one) == fold(value))
        return values[position - 1]

    def _draw_changes(self) -> tuple[Rows, set[Folded]]:
        """Return rows that are new, changed or as before, and the keys of deleted ones."""
        changes: Rows = []
        deleted = set()
        before = {self.fold_key(row): row for row in self.rows}
        for key, row in before.items():
            draw = self.random.random()
            if draw < 0.1:
                deleted.add(key)
            elif draw < 0.5:
                columns = self.tables[row[NUMBER]].columns
                changed = self.random.sample(columns, self.random.randint(1, len(columns)))
                changes.append(row | {name: self._change_value(name, row[name]) for name in changed})
            elif draw < 0.7:
                changes.append(row)
        for table in self.tables.values():
            changes += self.random.sample(new := self._draw_rows(table, before), min(len(new), 4))
        return changes, deleted


def build_fold(kind: pa.DataType | None) -> Callable[[Any], Folded]:
    """Return the function that makes equal values of a type one value, whichever reader has read them."""
    fold = _choose_fold(kind)
    return lambda value: None if value is None else fold(value)


def _choose_fold(kind: pa.DataType | None) -> Callable[[Any], Folded]:
    if pa.types.is_list(kind):
        item = build_fold(kind.value_type)
        return lambda value: ("list", *map(item, value))
    if pa.types.is_struct(kind):
        fields = {field.name: build_fold(field.type) for field in kind}
        return lambda value: ("struct", *(fold(value[name]) for name, fold in fields.items()))
    if pa.types.is_map(kind):
        key, item = build_fold(kind.key_type), build_fold(kind.item_type)
        return lambda value: (
            "map",
            frozenset((key(one), item(other)) for one, other in _list_entries(value)),
        )
    if pa.types.is_floating(kind):
        return lambda value: "NaN" if value != value else value + 0.0  # noqa: PLR0124 - only NaN differs
    # In Python, True equals 1.
    return lambda value: (type(value).__name__, value)


def _list_entries(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return the entries of a map as Arrow, DuckDB or polars give it."""
    if isinstance(value, dict):
        return value.items()
    return ((entry["key"], entry["value"]) if isinstance(entry, dict) else entry for entry in value)


def vary(value: Any, kind: pa.DataType | None) -> Any:
    """Return an equal value: entries of maps are in another order, and zeros have another sign."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return [(key, vary(item, kind.item_type)) for key, item in reversed(value)]
    if pa.types.is_list(kind):
        return [vary(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {field.name: vary(value[field.name], field.type) for field in kind}
    return -value if pa.types.is_floating(kind) and value == 0 else value


def find_differences(
    tables: RandomTables, names: Sequence[str], expected: Rows, actual: Rows
) -> Iterator[str]:
    """Return where rows differ from the expected ones: table, key, column, type and both values.

    :param names: the columns to compare; names that the tables do not have are compared as they are.
    """
    expected_rows, actual_rows = (
        Counter(tables.fold(row, names) for row in rows) for rows in (expected, actual)
    )
    surplus: dict[Folded, list[Folded]] = {}
    keys = [index for index, name in enumerate(names) if name in tables.keys]
    for row in (actual_rows - expected_rows).elements():
        surplus.setdefault(tuple(row[index] for index in keys), []).append(row)
    for row in (expected_rows - actual_rows).elements():
        candidates = surplus.get(tuple(row[index] for index in keys))
        yield _describe_row(tables, names, row, candidates.pop(0) if candidates else None)
    for row in chain.from_iterable(surplus.values()):
        yield f"{_describe_key(tables, names, row)}: the row is not expected: {_list_values(names, row)}"


def _describe_row(tables: RandomTables, names: Sequence[str], row: Folded, other: Folded | None) -> str:
    key = _describe_key(tables, names, row)
    if other is None:
        return f"{key}: the row is missing: {_list_values(names, row)}"
    parts = (
        f"{name} {tables.kinds[name].spark if name in tables.kinds else ''}: expected {one!r}, is {two!r}"
        for name, one, two in zip(names, row, other, strict=True)
        if one != two
    )
    return f"{key}: {'; '.join(parts)}"


def _list_values(names: Sequence[str], row: Folded) -> dict[str, Any]:
    return {name: value for name, value in zip(names, row, strict=True) if value is not None}


def _describe_key(tables: RandomTables, names: Sequence[str], row: Folded) -> str:
    values = dict(zip(names, row, strict=True))
    table = tables.tables.get(values[NUMBER])
    if table is None:
        return f"no table {values[NUMBER]}"
    return f"{table.describe(tables.kinds)}, row {[values[name] for name in table.keys if name in values]}"
