"""The trace of a fold: which record provides each value of a row, and why the others do not.

Source: docs/semantics/merge_engine.md, Counts and traces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

from airflow_merge_provider.core.merge_engine.fold import KeyFold, Record, sort_key
from airflow_merge_provider.core.merge_engine.functions import SERIALIZED
from airflow_merge_provider.core.merge_engine.options import DEDUPLICATE, FIRST_ROW
from airflow_merge_provider.core.merge_engine.plan import ColumnRole, ColumnRule, Plan
from airflow_merge_provider.core.value_text import Row

# The position of a record, None for what is stored.
_Entry = tuple[int | None, Record]


@dataclass(frozen=True, slots=True)
class ValueSource:
    """The origin of a column's value: the positions of the records that produced it, and the rule."""

    value: Any
    records: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class KeyTrace:
    """The effect of the records of one key: the values of its row, and what each record did."""

    is_live: bool
    values: Mapping[str, ValueSource]
    did: tuple[str, ...]


def trace_records(plan: Plan, records: Sequence[Record]) -> KeyTrace:
    """Fold the records of one key in a batch, oldest first, and record what each of them did.

    :raises FoldError: when they cannot be folded.
    """
    return trace_batches(plan, records, [range(len(records))])


def trace_batches(plan: Plan, records: Sequence[Record], batches: Iterable[Sequence[int]]) -> KeyTrace:
    """Fold the records of one key batch by batch, each into the row that the batches before it give.

    :param batches: the positions of the records of each batch, oldest first.
    :raises FoldError: when they cannot be folded.
    """
    if plan.engine in {DEDUPLICATE, FIRST_ROW}:
        return _trace_whole_rows(plan, records, batches)
    history = _KeyHistory(plan, records)
    for batch in batches:
        history.fold_batch(batch)
    row = history.row
    sources = {} if row is None else {rule.name: history.build_source(rule) for rule in history.rules}
    for rule in plan.rules:
        if rule.function in SERIALIZED and row is not None:
            sources[rule.name] = ValueSource(
                None, (), f"{rule.function} of all records; the trace does not read its binary value"
            )
    return KeyTrace(row is not None, sources, tuple(history.effects[at] for at in range(len(records))))


class _KeyHistory:
    """The row of a key after some batches, its recorded removals, and the records that gave each value."""

    def __init__(self, plan: Plan, records: Sequence[Record]) -> None:
        self._plan, self._records = plan, records
        self.rules = tuple(
            rule for rule in plan.rules if rule.role is not ColumnRole.KEY and rule.function not in SERIALIZED
        )
        self.row: Record | None = None
        self.effects: dict[int, str] = {}
        self._removals: list[Record] = []
        self._origins: dict[str, tuple[int, ...]] = {}

    def fold_batch(self, batch: Sequence[int]) -> None:
        """Fold a batch with the row before it, as a run does."""
        stored = [*self._removals, *([] if self.row is None else [self.row])]
        entries = _sort_records(
            self._plan, [*((None, one) for one in stored), *((at, self._records[at]) for at in batch)]
        )
        key_fold = _TracingKeyFold(self._plan, self.rules)
        key_fold.take_records([record for _, record in entries])
        for number, (position, record) in enumerate(entries):
            if position is not None:
                self.effects[position] = key_fold.describe_effect(number, record)
        values = {**dict.fromkeys(self._plan.names), **key_fold.finish_row()}
        positions = [position for position, _ in entries]
        for rule in self.rules:
            before = self._origins.get(rule.name, ())
            parts = (
                before if (position := positions[number]) is None else (position,)
                for number in key_fold.find_origin(rule)
            )
            self._origins[rule.name] = tuple(chain.from_iterable(parts))
        self._record_removals(key_fold, entries)
        self.row = Record(values, stored=True) if key_fold.is_live else None

    def build_source(self, rule: ColumnRule) -> ValueSource:
        """Return the origin of a value of the row."""
        value = None if self.row is None else self.row.values[rule.name]
        return _build_source(self._plan, rule, value, self._origins[rule.name], self._records)

    def _record_removals(self, key_fold: _TracingKeyFold, entries: Sequence[_Entry]) -> None:
        """Keep the place of the newest removal in the order of records, if the plan remembers removals."""
        removed = key_fold.removed
        removing = [number for number in key_fold.removing if entries[number][0] is not None]
        if not self._plan.folds_rows and removing:
            newest = entries[max(removing)][1].values
            removed = {name: newest[name] for name in self._plan.remembered}
        if self._plan.remembers and removed and any(value is not None for value in removed.values()):
            values = dict.fromkeys(self._plan.names) | dict(removed)
            self._removals.append(Record(values, adds=False, deletes=True, stored=True))


def _sort_records(plan: Plan, entries: Iterable[_Entry]) -> list[_Entry]:
    """Sort records, and what is stored before them, by the columns that order them; equal ones stay."""
    descending = plan.options.descending

    def find_key(entry: _Entry) -> list[tuple[Any, ...]]:
        return sort_key((entry[1].values[name] for name in plan.sequence), descending=descending)

    return sorted(entries, key=find_key, reverse=descending)


def _trace_whole_rows(plan: Plan, records: Sequence[Record], batches: Iterable[Sequence[int]]) -> KeyTrace:
    """Trace engines whose row is one record: the newest one, or the first one that adds."""
    winner: int | None = None
    for batch in batches:
        stored = [at for at in (winner,) if at is not None and (records[at].adds or plan.remembers)]
        entries = _sort_records(plan, [(at, records[at]) for at in (*stored, *batch)])
        if plan.engine == FIRST_ROW:
            entries = [entry for entry in entries if entry[1].adds][:1]
        winner = entries[-1][0] if entries else winner
    if winner is None:
        return KeyTrace(is_live=False, values={}, did=())
    why = "the newest record" if plan.engine == DEDUPLICATE else "the first record"
    has_row = records[winner].adds
    effects = [f"overridden by record {winner}" for _ in records]
    effects[winner] = "set the whole row" if has_row else "removed the row"
    sources = {name: ValueSource(records[winner].values[name], (winner,), why) for name in plan.values}
    return KeyTrace(has_row, sources if has_row else {}, tuple(effects))


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
        self._effects: dict[int, list[str]] = {}
        super().__init__(plan, rules)
        self._rules = {rule.name: rule for rule in rules}

    def _reset_state(self) -> None:
        super()._reset_state()
        self._gathered, self._clocks = _RecordingDict(self._written), _RecordingDict(self._written)
        self._by.clear()

    def describe_effect(self, position: int, record: Record) -> str:
        """Return what a folded record did."""
        if position in self.removing:
            return "removed the row"
        changed = self._effects.get(position)
        return f"set {', '.join(changed)}" if changed else self._explain_no_effect(record)

    def _take_free_columns(self, position: int, record: Record) -> None:
        with self._record_effect(position, record):
            super()._take_free_columns(position, record)

    def _take_group(self, group_index: int, rules: list[ColumnRule], position: int, record: Record) -> None:
        with self._record_effect(position, record):
            super()._take_group(group_index, rules, position, record)

    @contextmanager
    def _record_effect(self, position: int, record: Record) -> Iterator[None]:
        """Record the columns that a record changes inside the block."""
        self._written.clear()
        values_before = dict(self._gathered)
        yield
        names = [name for written_key in self._written for name in self._list_written(written_key)]
        changed = [name for name in names if self._has_effect(name, record, values_before)]
        for name in changed:
            self._by.setdefault(name, []).append(position)
        self._effects.setdefault(position, []).extend(changed)

    def find_origin(self, rule: ColumnRule) -> tuple[int, ...]:
        """Return the records that produced a column's value: all that count, or the last that wrote it."""
        positions = self._by.get(rule.name, [])
        return tuple(positions if _is_gathering(rule) else positions[-1:])

    def _list_written(self, written: Any) -> Sequence[str]:
        """Return the columns behind what was written: a column, or the ordering columns of a group."""
        return [written] if isinstance(written, str) else self._plan.groups[written].order

    def _has_effect(self, name: str, record: Record, values_before: Row) -> bool:
        """Return whether a record changes a column, excluding values that the function skips."""
        rule = self._rules[name]
        keeps_first = rule.function in {"first_value", "first_non_null_value"}
        if rule.role is not ColumnRole.FUNCTION or (record.values[name] is not None and not keeps_first):
            return True
        return name not in values_before or values_before.get(name) is not self._gathered.get(name)

    def _explain_no_effect(self, record: Record) -> str:
        if not record.adds and not self._plan.groups:
            return "no effect: there is no value to retract"
        for group in self._plan.groups:
            if any(record.values[name] is not None for name in group.order):
                return f"late: older than the row by {', '.join(group.order)}"
        return "no effect: its values are NULL"


def _is_gathering(rule: ColumnRule) -> bool:
    single_value_functions = {
        "last_value",
        "last_non_null_value",
        "first_value",
        "first_non_null_value",
        "primary-key",
    }
    return rule.role is ColumnRole.FUNCTION and rule.function not in single_value_functions


def _build_source(
    plan: Plan, rule: ColumnRule, value: Any, positions: tuple[int, ...], records: Sequence[Record]
) -> ValueSource:
    group = "" if rule.group is None else f" of the group {', '.join(plan.groups[rule.group].order)}"
    if not positions:
        return ValueSource(value, positions, "no record sets this column")
    if rule.role is ColumnRole.FUNCTION:
        return ValueSource(value, positions, f"{rule.function} over {len(positions)} records{group}")
    if rule.role is ColumnRole.FREE:
        is_cleared = value is None and rule.name.casefold() in records[positions[-1]].clears
        why = "cleared by clear_column" if is_cleared else "the newest value that is not NULL"
        return ValueSource(value, positions, why)
    is_retracted = rule.role is ColumnRole.PROTECTED and not records[positions[-1]].adds
    return ValueSource(
        value, positions, f"the newest record{group}" + (", a retraction" if is_retracted else "")
    )
