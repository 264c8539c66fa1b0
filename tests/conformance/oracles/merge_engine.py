"""Oracle of the merge engines, slow and simple, over plain rows; it uses no code of the package.

A table is described as a vector is: schema, key, engine and options, all as texts. Values are those of JSON,
with decimals as ``Decimal``, rows and maps as dicts. Source: docs/semantics/merge_engine.md, Fold of a key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

Row = dict[str, Any]

NUMBERS = {"TINYINT": 2**7, "SMALLINT": 2**15, "INT": 2**31, "BIGINT": 2**63}
CANNOT_RETRACT = {
    "max", "min", "first_value", "first_non_null_value", "listagg", "bool_and", "bool_or",
    "merge_map_with_keytime", "nested_partial_update",
}  # fmt: skip


class RefusedError(Exception):
    """Raised if a batch must be rejected."""


class Oracle:
    """One table and its rows; ``commit`` folds a batch into it."""

    def __init__(self, vector: Mapping[str, Any]) -> None:
        self.schema: dict[str, str] = vector["schema"]
        self.key: list[str] = vector["primary_key"]
        self.engine: str = vector["engine"]
        self.options: dict[str, str] = vector["options"]
        self.rows: dict[Any, Row] = {}
        self.groups = [
            Group(name.split(".")[1].split(","), definition)
            for name, definition in self.options.items()
            if name.endswith(".sequence-group")
        ]
        # Sequences of removed keys: records of -D, and tuples of sequence groups.
        self.remembers: bool = bool(vector.get("tombstone_retention"))
        self.removed_rows: dict[Any, list[Row]] = {}
        self.removed_groups: dict[Any, dict[int, list[Any]]] = {}
        self.sequence = [name for name in self.get_option("sequence.field").split(",") if name]

    def get_option(self, name: str, otherwise: str = "") -> str:
        return self.options.get(name, otherwise)

    def remember_removal(self, key: Any, kind: str, row: Row) -> None:
        """Record a removal for older records in later batches."""
        removes = kind == "-D" or (self.engine == "deduplicate" and kind == "-U")
        removes = removes and not self.groups
        if self.remembers and removes and any(row[name] is not None for name in self.sequence):
            self.removed_rows.setdefault(key, []).append(row)

    def commit_batch(self, records: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Fold a batch of ``[kind, value, …]`` into the table; return the net changes."""
        batch: dict[Any, list[tuple[str, Row]]] = {}
        for kind, *values in records:
            row = dict(zip(self.schema, values, strict=True))
            if not self.is_dropped(kind):
                batch.setdefault(tuple(row[name] for name in self.key), []).append((kind, row))
        after = {key: self.fold_key(key, records) for key, records in batch.items()}
        changes: list[list[Any]] = []
        for key, folded in after.items():
            changes += self.list_changes(self.rows.pop(key, None), folded)
            if folded is not None:
                self.rows[key] = folded
        return changes

    def list_changes(self, before: Row | None, after: Row | None) -> list[list[Any]]:
        if before == after:
            return []
        if before is None:
            return [["+I", *after.values()]] if after else []
        if after is None:
            return [["-D", *before.values()]]
        return [["-U", *before.values()], ["+U", *after.values()]]

    def is_dropped(self, kind: str) -> bool:
        if self.get_option("ignore-delete") == "true":
            return kind in {"-U", "-D"}
        return self.get_option("ignore-update-before") == "true" and kind == "-U"

    def fold_key(self, key: Any, batch: list[tuple[str, Row]]) -> Row | None:
        stored = self.rows.get(key)
        records = [("-D", row) for row in self.removed_rows.get(key, [])]
        records += [*([("+I", stored)] if stored else []), *batch]
        # The order is stable: arrival decides ties.
        records = sorted(records, key=lambda record: self.build_order(record[1]))
        state = State(self, key)
        for number, (kind, row) in enumerate(records):
            state.take_record(kind, row, stored=stored is row and records[number][1] is stored)
        for kind, row in batch:
            self.remember_removal(key, kind, row)
        return state.build_row()

    def build_order(self, row: Row) -> Any:
        down = self.get_option("sequence.field.sort-order") == "descending"
        return [order_value(row[name], down=down) for name in self.sequence]


class Group:
    """Sequence group: a text of columns, or an object with more settings."""

    def __init__(self, order: list[str], definition: Any) -> None:
        settings = definition if isinstance(definition, Mapping) else {"columns": definition}
        self.order, self.protected = order, settings["columns"].split(",")
        self.descending, self.function = settings.get("descending", False), settings.get("function")

    def build_order(self, row: Row) -> list[Any]:
        return [order_value(row[name], down=self.descending) for name in self.order]

    def has_value(self, row: Row) -> bool:
        return any(row[name] is not None for name in self.order)


class State:
    """A row while it is folded."""

    def __init__(self, table: Oracle, key: Any) -> None:
        self.table, self.key = table, key
        self.reset_state()

    def reset_state(self) -> None:
        self.is_live = False
        self.values: Row = dict.fromkeys(self.table.schema) | dict(zip(self.table.key, self.key, strict=True))
        self.started: set[str] = set()

    def build_row(self) -> Row | None:
        for name, value in self.values.items():
            check_size(self.table.schema[name], value, self.find_function(name))
        return self.values if self.is_live else None

    def find_function(self, name: str) -> str | None:
        table = self.table
        if name in table.key or (name in table.sequence and table.engine == "aggregation"):
            return None
        if any(name in group.order for group in table.groups):
            return None
        own_function = table.get_option(f"fields.{name}.aggregate-function")
        of_group = [group.function for group in table.groups if name in group.protected]
        default = table.get_option("fields.default-aggregate-function")
        return own_function or next(iter(of_group), None) or default or None

    def take_record(self, kind: str, row: Row, *, stored: bool) -> None:
        adds = kind in {"+I", "+U"}
        engine = self.table.engine
        if engine == "deduplicate":
            self.values, self.is_live = dict(row), adds
        elif engine == "first-row":
            if not adds:
                raise RefusedError("ignore-delete")
            if not self.is_live:
                self.values, self.is_live = dict(row), True
        elif engine == "aggregation":
            self.aggregate_row(kind, row, adds, stored)
        elif self.table.groups:
            self.update_groups(kind, row, adds, stored)
        else:
            self.update_row(kind, row, adds)

    def aggregate_row(self, kind: str, row: Row, adds: bool, stored: bool) -> None:
        if kind == "-D" and self.table.get_option("aggregation.remove-record-on-delete") == "true":
            self.reset_state()
            return
        for name in self.table.schema:
            if name in self.table.key:
                continue
            if name in self.table.sequence:
                self.values[name] = row[name]
            else:
                function = self.find_function(name) or "last_non_null_value"
                self.apply_function(name, function, row, adds, stored)
        self.is_live = self.is_live or adds

    def update_row(self, kind: str, row: Row, adds: bool) -> None:
        if adds:
            self.values.update({name: value for name, value in row.items() if value is not None})
            self.is_live = True
        elif self.table.get_option("partial-update.remove-record-on-delete") != "true":
            raise RefusedError("ignore-delete")
        elif kind == "-D":
            self.reset_state()

    def update_groups(self, kind: str, row: Row, adds: bool, stored: bool) -> None:
        if self.is_gone(row) or self.is_removing(kind, row):
            return
        grouped = {name for group in self.table.groups for name in (*group.order, *group.protected)}
        if adds:
            free = {name: value for name, value in row.items() if name not in grouped and value is not None}
            self.values.update(free)
        for group in self.table.groups:
            if group.has_value(row):
                self.update_group(group, row, adds, stored)
        self.is_live = self.is_live or adds

    def is_gone(self, row: Row) -> bool:
        """Return whether a record is older than a recorded removal by one of its groups."""
        if not self.table.remembers:
            return False
        removals = self.table.removed_groups.get(self.key, {}).items()
        groups = [(self.table.groups[at], tick) for at, tick in removals]
        return any(group.has_value(row) and group.build_order(row) < tick for group, tick in groups)

    def is_removing(self, kind: str, row: Row) -> bool:
        names = self.table.get_option("partial-update.remove-record-on-sequence-group").split(",")
        removing = {
            at: group.build_order(row)
            for at, group in enumerate(self.table.groups)
            if kind == "-D" and set(names) & set(group.order)
            if group.has_value(row) and self.is_new(group, row)
        }
        if removing:
            self.table.removed_groups.setdefault(self.key, {}).update(removing)
            self.reset_state()
        return bool(removing)

    def update_group(self, group: Group, row: Row, adds: bool, stored: bool) -> None:
        new = self.is_new(group, row)
        for name in group.protected:
            if name in group.order:
                continue
            function = self.find_function(name)
            if function:
                self.apply_function(name, function, row, adds, stored, reverse=adds and not new)
            elif new:
                self.values[name] = row[name] if adds else None
        if new:
            self.values.update({name: row[name] for name in group.order})

    def is_new(self, group: Group, row: Row) -> bool:
        return not group.build_order(row) < group.build_order(self.values)

    def apply_function(
        self, name: str, function: str, row: Row, adds: bool, stored: bool, *, reverse: bool = False
    ) -> None:
        value, gathered, all_options = row[name], self.values[name], self.table.options.items()
        of_column = [pair for pair in all_options if pair[0].startswith(f"fields.{name}.")]
        options = {option.rpartition(".")[2]: text for option, text in of_column}
        if not adds:
            if options.get("ignore-retract") == "true":
                return
            if function in CANNOT_RETRACT:
                raise RefusedError(function)
            self.values[name] = RETRACT[function](gathered, value, self.table.schema[name], options)
            return
        if function == "first_value":
            keeps = name in self.started and not reverse
            self.values[name] = gathered if keeps else value
        elif function == "count":
            step = value or 0 if stored else int(value is not None)
            self.values[name] = None if stored and value is gathered is None else (gathered or 0) + step
        elif reverse and function != "collect":
            self.values[name] = add_value(function, value, gathered, options)
        else:
            self.values[name] = add_value(function, gathered, value, options)
        self.started.add(name)


def order_value(value: Any, *, down: bool = False) -> Any:
    """Return a sort key with null first and values in ascending or descending order."""
    if value is None:
        return (0, 0)
    return (1, _Down(value)) if down else (1, value)


class _Down:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: _Down) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Down) and bool(self.value == other.value)

    def __hash__(self) -> int:
        return hash(self.value)


def add_value(function: str, gathered: Any, value: Any, options: Mapping[str, str]) -> Any:
    if function == "last_value" or (function == "first_non_null_value" and gathered is None):
        return value
    if function == "first_non_null_value":
        return gathered
    if value is None or (function == "listagg" and not value.strip()):
        if value is not None or gathered is None or function not in {"collect", "nested_update", "listagg"}:
            return gathered
        return add_value(function, None, gathered, options)  # late and first: used as first
    if function == "last_non_null_value":
        return value
    if function in {"collect", "nested_update"}:
        return add_rows(function, add_rows(function, [], gathered or [], options), value, options)
    if gathered is None or (function == "listagg" and not gathered.strip()):
        return value
    two = {
        "sum": lambda: gathered + value,
        "product": lambda: gathered * value,
        "max": lambda: max(gathered, value),
        "min": lambda: min(gathered, value),
        "bool_and": lambda: gathered and value,
        "bool_or": lambda: gathered or value,
        "merge_map": lambda: {**gathered, **value},
        "listagg": lambda: join_values(gathered, value, options),
    }
    return two[function]()  # type: ignore[no-untyped-call]


def join_values(gathered: str, value: str, options: Mapping[str, str]) -> str:
    delimiter = options.get("list-agg-delimiter", ",")
    if options.get("distinct") != "true":
        return gathered + delimiter + value
    for token in value.split(delimiter):
        if token.strip() and token not in gathered.split(delimiter):
            gathered += delimiter + token
    return gathered


def add_rows(function: str, gathered: list[Any], value: list[Any], options: Mapping[str, str]) -> list[Any]:
    if function == "collect":
        both = gathered + value
        if options.get("distinct") != "true":
            return both
        return [item for at, item in enumerate(both) if item not in both[:at]]
    rows = list(gathered)
    for item in value:
        key = options.get("nested-key", "").split(",")
        same = [at for at, row in enumerate(rows) if all(row[name] == item[name] for name in key if name)]
        if key != [""] and same:
            rows[same[0]] = item
        elif len(rows) < int(options.get("count-limit", 2**31)):
            rows.append(item)
    return rows


def _sum_back(gathered: Any, value: Any, kind: str, options: Mapping[str, str]) -> Any:
    return gathered if value is None else (gathered or 0) - value


def _product_back(gathered: Any, value: Any, kind: str, options: Mapping[str, str]) -> Any:
    if gathered is None or value is None:
        return gathered
    if value == 0:
        raise RefusedError("zero")
    return int(gathered / Decimal(value))


def _collect_back(gathered: Any, value: Any, kind: str, options: Mapping[str, str]) -> Any:
    if gathered is None or value is None:
        return gathered
    rows = list(gathered)
    for item in value:
        if item in rows:
            rows.remove(item)
    return rows


def _retract_nested(gathered: Any, value: Any, kind: str, options: Mapping[str, str]) -> Any:
    if gathered is None or value is None:
        return gathered
    key = [name for name in options.get("nested-key", "").split(",") if name] or list((value or [{}])[0])
    removed_keys = [[row[name] for name in key] for row in value]
    return [row for row in gathered if [row[name] for name in key] not in removed_keys]


def _map_back(gathered: Any, value: Any, kind: str, options: Mapping[str, str]) -> Any:
    if gathered is None or value is None:
        return gathered
    return {name: entry for name, entry in gathered.items() if name not in value}


RETRACT = {
    "sum": _sum_back,
    "count": lambda gathered, value, kind, options: (gathered or 0) - (value is not None),
    "product": _product_back,
    "last_value": lambda gathered, value, kind, options: None,
    "last_non_null_value": lambda gathered, value, kind, options: gathered if value is None else None,
    "collect": _collect_back,
    "merge_map": _map_back,
    "nested_update": _retract_nested,
}


def check_size(kind: str, value: Any, function: str | None) -> None:
    """Reject sums and products that the column cannot hold."""
    if value is None or function not in {"sum", "product", "count"}:
        return
    if kind.startswith("DECIMAL"):
        digits, scale = (int(word) for word in kind[8:-1].split(","))
        half: Any = Decimal(10) ** (digits - scale)
        fits = -half < value < half
    else:
        half = NUMBERS.get(kind)
        fits = half is None or -half <= value < half
    if not fits:
        raise RefusedError("overflow")
