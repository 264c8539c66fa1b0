"""What each capability makes of random tables, in a few lines of Python, and the sources of its runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import pyarrow as pa

from tests.campaigns.values_engines import ORDER, build_engine, fold_records, list_records
from tests.values.random_tables import NUMBER, Folded, RandomTables, Row, Rows

Sources = dict[str, tuple[pa.Table, Any]]


@dataclass(frozen=True)
class Case:
    """The runs of a capability: its sources, and the rows that its target has after the first and second.

    ``sources`` has the rows by dataset, and how they are written, for each run; the third, if there is one,
    has rows equal to those of the second. ``show`` returns a row of the target as it is compared, or None for
    one that is left out; ``names`` are its columns.
    """

    name: str
    tables: RandomTables
    job: str
    config: dict[str, Any]
    sources: dict[int, Sources]
    expected: dict[int, Rows]
    names: tuple[str, ...]
    show: Callable[[Row], Row | None] = lambda row: row


def build_case(name: str, tables: RandomTables) -> Case:
    """Return the runs of a capability for tables; the same ones, whatever has run before."""
    tables = tables.without_nested_keys if name.startswith("merge_engine") else tables
    tables.random.seed(f"{tables.seed}/{name}")
    return CASES[name](name, tables)


def _build_table(tables: RandomTables, rows: Rows, **more: pa.DataType) -> pa.Table:
    schema = pa.schema([*tables.schema, *more.items()])
    return pa.Table.from_pylist(rows, schema)


def _replace(tables: RandomTables, *steps: Rows, **more: pa.DataType) -> dict[int, Sources]:
    """Return sources that each run replaces; the last run has the rows of the second in other words."""
    rows = [*steps, tables.shuffle(steps[1])]
    return {
        step: {"source": (_build_table(tables, one, **more), "overwrite")} for step, one in enumerate(rows, 1)
    }


def _flag(tables: RandomTables) -> tuple[Rows, Rows]:
    """Return the first rows, and the changes together with the deleted rows, with a flag."""
    deleted = [row for row in tables.rows if tables.fold_key(row) in tables.deleted]
    changes = [row | {"gone": False} for row in tables.changes]
    return [row | {"gone": False} for row in tables.rows], changes + [row | {"gone": True} for row in deleted]


def _build_upsert(name: str, tables: RandomTables) -> Case:
    return _load_by_key(name, tables, {"strategy": "upsert", "hard_delete": "gone"})


def _build_snapshot(name: str, tables: RandomTables) -> Case:
    """Upsert whole snapshots, which delete the rows that they do not have."""
    config = {"strategy": "upsert", "variant": "cdc", "primary_key": tables.keys}
    sources = _replace(tables, tables.rows, tables.changed_rows)
    return _build_load(name, tables, config, sources, tables.rows, tables.changed_rows)


def _build_delete_insert(name: str, tables: RandomTables) -> Case:
    return _load_by_key(name, tables, {"strategy": "delete-insert", "hard_delete": "gone"})


def _load_by_key(name: str, tables: RandomTables, config: dict[str, Any]) -> Case:
    sources = _replace(tables, *_flag(tables), gone=pa.bool_())
    config = {"primary_key": tables.keys, **config}
    return _build_load(name, tables, config, sources, tables.rows, tables.changed_rows)


def _build_groups(name: str, tables: RandomTables) -> Case:
    """Delete the tables that a load has, and insert its rows."""
    chosen = set(tables.random.sample(sorted(tables.tables), max(1, len(tables.tables) // 2)))
    load = [row for row in tables.changed_rows if row[NUMBER] in chosen]
    loaded = {row[NUMBER] for row in load}
    after = [row for row in tables.rows if row[NUMBER] not in loaded] + load
    config = {"strategy": "delete-insert", "merge_key": NUMBER}
    return _build_load(name, tables, config, _replace(tables, tables.rows, load), tables.rows, after)


def _build_history(name: str, tables: RandomTables) -> Case:
    """Keep closed versions of the rows that snapshots change or delete."""
    before = {tables.fold(row, tables.schema.names): row for row in tables.rows}
    after = {tables.fold(row, tables.schema.names): row for row in tables.changed_rows}
    closed = [row | {"valid": False} for key, row in before.items() if key not in after]
    expected = {
        1: [row | {"valid": True} for row in tables.rows],
        2: [*closed, *(row | {"valid": True} for row in tables.changed_rows)],
    }
    key = {"natural_key": tables.keys} if name == "scd2" else {}
    return Case(
        name,
        tables,
        "merge_load",
        {"source": "source", "strategy": "scd2", **key},
        _replace(tables, tables.rows, tables.changed_rows),
        expected,
        (*tables.schema.names, "valid"),
        lambda row: row | {"valid": row["valid_to"] is None},
    )


def _build_load(
    name: str, tables: RandomTables, config: dict[str, Any], sources: dict[int, Sources], *expected: Rows
) -> Case:
    config = {"source": "source", **config}
    rows, names = dict(enumerate(expected, 1)), tuple(tables.schema.names)
    return Case(name, tables, "merge_load", config, sources, rows, names)


# Joiner and merge source: the columns of a table come from two datasets with the same keys.


@dataclass(frozen=True)
class _Halves:
    """The rows of two datasets: each has half of the columns, and most of the rows."""

    tables: RandomTables

    def split(self, rows: Rows) -> tuple[Rows, Rows]:
        """Return the rows of both datasets."""
        return tuple(
            [
                {name: row[name] for name in (*self.tables.keys, *self.tables.columns[half::2])}
                for row in rows
                if self._digest(row) % 5 != half
            ]
            for half in (0, 1)
        )  # type: ignore[return-value]

    def build_id(self, row: Row) -> str:
        """Return a text that only equal keys share."""
        return f"{self._digest(row):x}"

    def join(self, left: Rows, right: Rows, matches: Callable[[Folded], bool]) -> Iterator[Row]:
        """Return the rows of a full outer join, with the sides that they come from."""
        unmatched = {self.tables.fold_key(row): row for row in right}
        nothing = dict.fromkeys(self.tables.schema.names)
        for row in left:
            key = self.tables.fold_key(row)
            other = unmatched.pop(key) if key in unmatched and matches(key) else None
            yield nothing | (other or {}) | row | {"sides": "both" if other else "left"}
        yield from (nothing | row | {"sides": "right"} for row in unmatched.values())

    def _digest(self, row: Row) -> int:
        return int(
            sha256(repr(self.tables.fold_key(row)).encode("utf-8", "surrogatepass")).hexdigest()[:24], 16
        )


_SIDES = {"l": ("both", "left"), "r": ("both", "right"), "l,r": ("both",), "": ("both", "left", "right")}


def _blank_keys(tables: RandomTables, rows: Rows) -> Rows:
    """Return rows with NULL in key columns of other tables, in half of the seeds: NULL matches NULL."""
    blank = {
        number: dict.fromkeys(set(tables.keys) - {NUMBER, *table.keys})
        for number, table in tables.tables.items()
    }
    return [row | blank[row[NUMBER]] for row in rows] if tables.seed % 2 else rows


def _build_joiner(name: str, tables: RandomTables) -> Case:
    halves = _Halves(tables)
    required = tables.random.choice(list(_SIDES))
    steps = [halves.split(_blank_keys(tables, rows)) for rows in (tables.rows, tables.changed_rows)]
    schemas = [tables.schema.names[: len(tables.keys)] + tables.columns[half::2] for half in (0, 1)]
    fields = [f"l.{column}" for column in schemas[0]]
    fields += [f"r.{column} as {f'r_{column}' if column in tables.keys else column}" for column in schemas[1]]

    def show(row: Row) -> Row:
        sides = "both" if None not in (row[NUMBER], row[f"r_{NUMBER}"]) else ""
        sides = sides or ("left" if row[NUMBER] is not None else "right")
        keys = {key: row[f"r_{key}"] for key in tables.keys} if sides == "right" else {}
        return row | keys | {"sides": sides}

    return Case(
        name,
        tables,
        "joiner",
        {
            "inputs": {"l": "left", "r": "right"},
            "join_keys": " & ".join(f"l.{key} = r.{key}" for key in tables.keys),
            "join_type": "outerjoin",
            "required_inputs": required,
            "selected_fields": ", ".join(fields),
        },
        {
            step: {
                dataset: (_build_table(tables, rows).select(schema), "overwrite")
                for dataset, rows, schema in zip(("left", "right"), sides, schemas, strict=True)
            }
            for step, sides in enumerate(steps, 1)
        },
        {
            step: [row for row in halves.join(*sides, lambda _: True) if row["sides"] in _SIDES[required]]
            for step, sides in enumerate(steps, 1)
        },
        (*tables.schema.names, "sides"),
        show,
    )


def _build_merge_source(name: str, tables: RandomTables) -> Case:
    halves = _Halves(tables)
    key_type = pa.struct([(key, tables.schema.field(key).type) for key in tables.keys])
    steps = [halves.split(rows) for rows in (tables.rows, tables.changed_rows)]
    steps.append(tuple(map(tables.shuffle, steps[1])))

    def build_dataset(rows: Rows, half: int) -> pa.Table:
        columns = tables.columns[half::2]
        entities = [
            {"_id": halves.build_id(row), "key": {key: row[key] for key in tables.keys}}
            | {column: row[column] for column in columns}
            for row in rows
        ]
        fields = [tables.schema.field(column) for column in columns]
        return pa.Table.from_pylist(entities, pa.schema([("_id", pa.string()), ("key", key_type), *fields]))

    def show(row: Row) -> Row | None:
        if row["_deleted"]:
            return None
        sides = "both" if len(row["$ids"]) == 2 or "|1|" in row["_id"] else ""
        sides = sides or ("left" if row["_id"].startswith("0|") else "right")
        return {**row, **row["key"], "sides": sides}

    return Case(
        name,
        tables,
        "merge_source",
        {
            "version": 2,
            "datasets": ["left l", "right r"],
            "equality": [["eq", "l.key", "r.key"]],
            "values": "columns",
            "survivorship": {"*": "first"},
        },
        {
            step: {
                dataset: (build_dataset(rows, half), "overwrite")
                for half, (dataset, rows) in enumerate(zip(("left", "right"), sides, strict=True))
            }
            for step, sides in enumerate(steps, 1)
        },
        {
            step: list(halves.join(*sides, lambda key: not has_no_equal(key)))
            for step, sides in enumerate(steps[:2], 1)
        },
        (*tables.schema.names, "sides"),
        show,
    )


def has_no_equal(key: Folded) -> bool:
    """Return whether a key has NaN or an infinity, which match nothing in a merge source."""
    if isinstance(key, tuple):
        return key[0] != "str" and any(map(has_no_equal, key))
    return key == "NaN" or (isinstance(key, float) and key in (float("inf"), float("-inf")))


def _build_engine(name: str, tables: RandomTables) -> Case:
    config, fold = build_engine(name.removeprefix("merge_engine_"), tables)
    first, second = list_records(tables)
    before = fold_records(tables, [], first, fold)
    after = fold_records(tables, before, second, fold)
    again = tables.shuffle([row | {"op": "+I"} for row in after])
    sources: dict[int, Sources] = {
        step: {"source": (_build_table(tables, rows, op=pa.string(), s=pa.int64()), "append")}
        for step, rows in enumerate((first, second, again), 1)
    }
    config = {"source": "source", **config}
    return Case(
        name, tables, "merge_engine", config, sources, {1: before, 2: after}, (*tables.schema.names, ORDER)
    )


CASES: dict[str, Callable[[str, RandomTables], Case]] = {
    "upsert": _build_upsert,
    "upsert_cdc": _build_snapshot,
    "delete-insert": _build_delete_insert,
    "delete-insert_groups": _build_groups,
    "scd2": _build_history,
    "scd2_without_key": _build_history,
    "joiner": _build_joiner,
    "merge_source": _build_merge_source,
    "merge_engine_deduplicate": _build_engine,
    "merge_engine_partial-update": _build_engine,
    "merge_engine_aggregation": _build_engine,
    "merge_engine_first-row": _build_engine,
}
