"""Which record gave a row each of its values, and why not another: a fold that takes notes.

Source: merge_engine spec §12.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_merge_provider.core.merge_engine.fold import Record, Walk
from airflow_merge_provider.core.merge_engine.functions import SERIALIZED
from airflow_merge_provider.core.merge_engine.options import DEDUPLICATE, FIRST_ROW
from airflow_merge_provider.core.merge_engine.plan import Plan, Role, Rule


@dataclass(frozen=True, slots=True)
class Source:
    """Where the value of a column comes from: the places of the records that made it, and the rule."""

    value: Any
    records: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Trace:
    """What became of the records of one key: the values of its row, and what each record did."""

    alive: bool
    values: Mapping[str, Source]
    did: tuple[str, ...]


def traced(plan: Plan, records: Sequence[Record]) -> Trace:
    """Fold the records of one key, oldest first, and note what each of them did.

    :raises FoldError: when they cannot be folded.
    """
    if plan.engine in {DEDUPLICATE, FIRST_ROW}:
        return _whole_row(plan, records)
    rules = [rule for rule in plan.rules if rule.role is not Role.KEY and rule.function not in SERIALIZED]
    walk = _NotingWalk(plan, tuple(rules))
    did = [walk.told(place, record) for place, record in enumerate(records)]
    values = walk.finish()
    made = {rule.name: _made(plan, rule, values[rule.name], walk.made_by(rule), records) for rule in rules}
    for rule in plan.rules:
        if rule.function in SERIALIZED:
            made[rule.name] = Source(
                None, (), f"{rule.function} of all records; such bytes are not read here"
            )
    return Trace(walk.alive, made if walk.alive else {}, tuple(did))


def _whole_row(plan: Plan, records: Sequence[Record]) -> Trace:
    adding = [place for place, record in enumerate(records) if record.adds]
    winner = None
    if plan.engine == DEDUPLICATE:
        winner, why = len(records) - 1 if records else None, "the newest record"
    else:
        winner, why = adding[0] if adding else None, "the first record"
    if winner is None:
        return Trace(alive=False, values={}, did=())
    alive = records[winner].adds
    did = [f"lost to record {winner}" for _ in records]
    did[winner] = "gave the whole row" if alive else "removed the row"
    made = {name: Source(records[winner].values[name], (winner,), why) for name in plan.values}
    return Trace(alive, made if alive else {}, tuple(did))


class _Noting(dict[Any, Any]):
    """A dict that notes which of its keys are written."""

    def __init__(self, written: list[Any]) -> None:
        super().__init__()
        self._written = written

    def __setitem__(self, key: Any, value: Any) -> None:
        self._written.append(key)
        super().__setitem__(key, value)


class _NotingWalk(Walk):
    """The walk of the fold, which remembers the records that wrote each column since the last removal."""

    def __init__(self, plan: Plan, rules: tuple[Rule, ...]) -> None:
        self._written: list[Any] = []
        self._by: dict[str, list[int]] = {}
        self._resets = -1
        super().__init__(plan, rules)
        self._rules = {rule.name: rule for rule in rules}

    def _reset(self) -> None:
        super()._reset()
        self._gathered, self._clocks = _Noting(self._written), _Noting(self._written)
        self._by.clear()
        self._resets += 1

    def told(self, place: int, record: Record) -> str:
        """Take a record and say what it did."""
        self._written.clear()
        before, resets = dict(self._gathered), self._resets
        self.take(record)
        if self._resets != resets:
            return "removed the row"
        names = [name for each in self._written for name in self._names(each)]
        changed = [name for name in names if self._counts(name, record, before)]
        for name in changed:
            self._by.setdefault(name, []).append(place)
        return f"set {', '.join(changed)}" if changed else self._idle(record)

    def made_by(self, rule: Rule) -> tuple[int, ...]:
        """Give the records that made a column's value: all that count, or the one that wrote it last."""
        places = self._by.get(rule.name, [])
        return tuple(places if _gathers(rule) else places[-1:])

    def _names(self, written: Any) -> Sequence[str]:
        """Name the columns behind what was written: a column, or the clock of a group."""
        return [written] if isinstance(written, str) else self._plan.groups[written].order

    def _counts(self, name: str, record: Record, before: Mapping[str, Any]) -> bool:
        """Leave out values that a function skipped."""
        rule = self._rules[name]
        keeps_first = rule.function in {"first_value", "first_non_null_value"}
        if rule.role is not Role.FUNCTION or (record.values[name] is not None and not keeps_first):
            return True
        return name not in before or before.get(name) is not self._gathered.get(name)

    def _idle(self, record: Record) -> str:
        if not record.adds and not self._plan.groups:
            return "did nothing: what it takes back is not there"
        for group in self._plan.groups:
            if any(record.values[name] is not None for name in group.order):
                return f"came too late: older than the row by {', '.join(group.order)}"
        return "did nothing: its values are null"


def _gathers(rule: Rule) -> bool:
    kept = {"last_value", "last_non_null_value", "first_value", "first_non_null_value", "primary-key"}
    return rule.role is Role.FUNCTION and rule.function not in kept


def _made(plan: Plan, rule: Rule, value: Any, places: tuple[int, ...], records: Sequence[Record]) -> Source:
    group = "" if rule.group is None else f" of the group {', '.join(plan.groups[rule.group].order)}"
    if not places:
        return Source(value, places, "no record says anything")
    if rule.role is Role.FUNCTION:
        return Source(value, places, f"{rule.function} over {len(places)} records{group}")
    if rule.role is Role.FREE:
        emptied = value is None and rule.name.casefold() in records[places[-1]].clears
        why = "emptied on purpose" if emptied else "the newest value that is not null"
        return Source(value, places, why)
    taken_back = rule.role is Role.PROTECTED and not records[places[-1]].adds
    return Source(value, places, f"the newest record{group}" + (", which takes back" if taken_back else ""))
