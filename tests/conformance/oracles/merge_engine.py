"""Oracle of the merge engines, slow and simple, over plain rows; it uses no code of the package.

A table is described as a vector is: schema, key, engine and options, all as texts. Values are those of JSON,
with decimals as ``Decimal``, rows and maps as dicts. Source: docs/semantics/merge_engine.md, Fold of a key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.conformance.oracles.merge_engine_functions import (
    CANNOT_RETRACT,
    RETRACT,
    RefusedError,
    add_value,
    check_size,
)

Row = dict[str, Any]


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
        if self.groups:
            state.fold_groups(records, stored)
        else:
            for kind, row in records:
                state.take_record(kind, row, stored=stored is row)
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

    def fold_groups(self, records: Sequence[tuple[str, Row]], stored: Row | None) -> None:
        """Fold records by their sequence groups: first those that a removal removes."""
        numbered = list(enumerate(records))
        candidates = [
            (at, kind, row) for at, (kind, row) in numbered if row is stored or not self.is_gone(row)
        ]
        removals = {
            at: groups for at, kind, row in candidates if (groups := self.find_removal(kind, row, stored))
        }
        for groups in removals.values():
            recorded = self.table.removed_groups.setdefault(self.key, {})
            recorded |= {group: max(tick, recorded.get(group, tick)) for group, tick in groups.items()}
        remaining = [record for record in candidates if record[0] not in removals]
        self.fold_part([record for record in remaining if self.is_removed(record, removals)], stored)
        if removals:
            self.reset_state()
        self.fold_part([record for record in remaining if not self.is_removed(record, removals)], stored)

    def find_removal(self, kind: str, row: Row, stored: Row | None) -> dict[int, Any]:
        """Return the groups by which a record removes the row, with its place in their orders."""
        names = self.table.get_option("partial-update.remove-record-on-sequence-group").split(",")
        return {
            at: group.build_order(row)
            for at, group in enumerate(self.table.groups)
            if kind == "-D" and set(names) & set(group.order) and group.has_value(row)
            if stored is None or not group.build_order(row) < group.build_order(stored)
        }

    def is_removed(self, record: tuple[int, str, Row], removals: Mapping[int, Mapping[int, Any]]) -> bool:
        """Return whether a removal is newer, or has no group that orders both of them."""
        at, _, row = record
        for removed_at, ticks in removals.items():
            orders = [
                ((self.table.groups[group].build_order(row), at), (tick, removed_at))
                for group, tick in ticks.items()
                if self.table.groups[group].has_value(row)
            ]
            if not orders or any(own < removal for own, removal in orders):
                return True
        return False

    def fold_part(self, records: Sequence[tuple[int, str, Row]], stored: Row | None) -> None:
        """Fold free columns in the order of records, and each group in its order around the stored row."""
        grouped = {name for group in self.table.groups for name in (*group.order, *group.protected)}
        for _, kind, row in records:
            if kind in {"+I", "+U"}:
                self.is_live = True
                self.values.update({n: v for n, v in row.items() if n not in grouped and v is not None})
        stored_at = [number for number, (_, _, row) in enumerate(records) if row is stored]
        middle = stored_at[0] if stored_at else -1
        for group in self.table.groups:
            before, after = list(records[: max(middle, 0)]), list(records[middle + 1 :])
            order = lambda record, group=group: group.build_order(record[2])  # noqa: E731
            parts = (
                sorted(before, key=order),
                records[middle : middle + 1] if stored_at else [],
                sorted(after, key=order),
            )
            for _, kind, row in (record for part in parts for record in part):
                if group.has_value(row):
                    self.update_group(group, row, kind in {"+I", "+U"}, row is stored)

    def is_gone(self, row: Row) -> bool:
        """Return whether a record is older than a recorded removal by one of its groups."""
        if not self.table.remembers:
            return False
        removals = self.table.removed_groups.get(self.key, {}).items()
        groups = [(self.table.groups[at], tick) for at, tick in removals]
        return any(group.has_value(row) and group.build_order(row) < tick for group, tick in groups)

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
