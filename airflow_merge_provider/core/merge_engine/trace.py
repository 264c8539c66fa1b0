"""The trace of a fold: which record provides each value of a row, and why the others do not.

Source: docs/semantics/merge_engine.md, Counts and traces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_merge_provider.core.merge_engine.fold import KeyFold, Record
from airflow_merge_provider.core.merge_engine.functions import SERIALIZED
from airflow_merge_provider.core.merge_engine.options import DEDUPLICATE, FIRST_ROW
from airflow_merge_provider.core.merge_engine.plan import ColumnRole, ColumnRule, Plan


@dataclass(frozen=True, slots=True)
class ValueSource:
    """The origin of a column's value: the positions of the records that produced it, and the rule."""

    value: Any
    records: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class KeyTrace:
    """The effect of the records of one key: the values of its row, and what each record did."""

    alive: bool
    values: Mapping[str, ValueSource]
    did: tuple[str, ...]


def trace_records(plan: Plan, records: Sequence[Record]) -> KeyTrace:
    """Fold the records of one key, oldest first, and record what each of them did.

    :raises FoldError: when they cannot be folded.
    """
    if plan.engine in {DEDUPLICATE, FIRST_ROW}:
        return _whole_row(plan, records)
    rules = [
        rule for rule in plan.rules if rule.role is not ColumnRole.KEY and rule.function not in SERIALIZED
    ]
    walk = _TracingKeyFold(plan, tuple(rules))
    did = [walk.note_record(place, record) for place, record in enumerate(records)]
    values = walk.finish_row()
    made = {
        rule.name: _build_source(plan, rule, values[rule.name], walk.find_origin(rule), records)
        for rule in rules
    }
    for rule in plan.rules:
        if rule.function in SERIALIZED:
            made[rule.name] = ValueSource(
                None, (), f"{rule.function} of all records; the trace does not read its binary value"
            )
    return KeyTrace(walk.alive, made if walk.alive else {}, tuple(did))


def _whole_row(plan: Plan, records: Sequence[Record]) -> KeyTrace:
    adding = [place for place, record in enumerate(records) if record.adds]
    winner = None
    if plan.engine == DEDUPLICATE:
        winner, why = len(records) - 1 if records else None, "the newest record"
    else:
        winner, why = adding[0] if adding else None, "the first record"
    if winner is None:
        return KeyTrace(alive=False, values={}, did=())
    alive = records[winner].adds
    did = [f"overridden by record {winner}" for _ in records]
    did[winner] = "set the whole row" if alive else "removed the row"
    made = {name: ValueSource(records[winner].values[name], (winner,), why) for name in plan.values}
    return KeyTrace(alive, made if alive else {}, tuple(did))


class _RecordingDict(dict[Any, Any]):
    """A dict that records which of its keys are written."""

    def __init__(self, written: list[Any]) -> None:
        super().__init__()
        self._written = written

    def __setitem__(self, key: Any, value: Any) -> None:
        self._written.append(key)
        super().__setitem__(key, value)


class _TracingKeyFold(KeyFold):
    """A fold that records the records that wrote each column since the last removal."""

    def __init__(self, plan: Plan, rules: tuple[ColumnRule, ...]) -> None:
        self._written: list[Any] = []
        self._by: dict[str, list[int]] = {}
        self._resets = -1
        super().__init__(plan, rules)
        self._rules = {rule.name: rule for rule in rules}

    def _reset_state(self) -> None:
        super()._reset_state()
        self._gathered, self._clocks = _RecordingDict(self._written), _RecordingDict(self._written)
        self._by.clear()
        self._resets += 1

    def note_record(self, place: int, record: Record) -> str:
        """Fold a record and return a description of what it did."""
        self._written.clear()
        before, resets = dict(self._gathered), self._resets
        self.take_record(record)
        if self._resets != resets:
            return "removed the row"
        names = [name for each in self._written for name in self._list_written(each)]
        changed = [name for name in names if self._has_effect(name, record, before)]
        for name in changed:
            self._by.setdefault(name, []).append(place)
        return f"set {', '.join(changed)}" if changed else self._explain_no_effect(record)

    def find_origin(self, rule: ColumnRule) -> tuple[int, ...]:
        """Return the records that produced a column's value: all that count, or the last that wrote it."""
        places = self._by.get(rule.name, [])
        return tuple(places if _is_gathering(rule) else places[-1:])

    def _list_written(self, written: Any) -> Sequence[str]:
        """Return the columns behind what was written: a column, or the clock of a group."""
        return [written] if isinstance(written, str) else self._plan.groups[written].order

    def _has_effect(self, name: str, record: Record, before: Mapping[str, Any]) -> bool:
        """Return whether a record changes a column, excluding values that the function skips."""
        rule = self._rules[name]
        keeps_first = rule.function in {"first_value", "first_non_null_value"}
        if rule.role is not ColumnRole.FUNCTION or (record.values[name] is not None and not keeps_first):
            return True
        return name not in before or before.get(name) is not self._gathered.get(name)

    def _explain_no_effect(self, record: Record) -> str:
        if not record.adds and not self._plan.groups:
            return "no effect: there is no value to retract"
        for group in self._plan.groups:
            if any(record.values[name] is not None for name in group.order):
                return f"late: older than the row by {', '.join(group.order)}"
        return "no effect: its values are NULL"


def _is_gathering(rule: ColumnRule) -> bool:
    kept = {"last_value", "last_non_null_value", "first_value", "first_non_null_value", "primary-key"}
    return rule.role is ColumnRole.FUNCTION and rule.function not in kept


def _build_source(
    plan: Plan, rule: ColumnRule, value: Any, places: tuple[int, ...], records: Sequence[Record]
) -> ValueSource:
    group = "" if rule.group is None else f" of the group {', '.join(plan.groups[rule.group].order)}"
    if not places:
        return ValueSource(value, places, "no record sets this column")
    if rule.role is ColumnRole.FUNCTION:
        return ValueSource(value, places, f"{rule.function} over {len(places)} records{group}")
    if rule.role is ColumnRole.FREE:
        emptied = value is None and rule.name.casefold() in records[places[-1]].clears
        why = "cleared by clear_column" if emptied else "the newest value that is not NULL"
        return ValueSource(value, places, why)
    taken_back = rule.role is ColumnRole.PROTECTED and not records[places[-1]].adds
    return ValueSource(value, places, f"the newest record{group}" + (", a retraction" if taken_back else ""))
