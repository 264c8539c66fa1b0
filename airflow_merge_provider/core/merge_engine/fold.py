"""What is left of the records of one key: the walk through them in order, column by column.

Source: merge_engine spec §9.1. Plain aggregates of Spark give the same for most columns; this is the form
that can do all of them but sketches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_merge_provider.core.merge_engine.accumulators import (
    ACCUMULATORS,
    EMPTY,
    Accumulator,
    FoldError,
    comes_before,
    finished,
)
from airflow_merge_provider.core.merge_engine.options import PARTIAL
from airflow_merge_provider.core.merge_engine.plan import Plan, Role, Rule
from airflow_merge_provider.core.merge_engine.refusals import cannot_retract


@dataclass(frozen=True, slots=True)
class Record:
    """One record: whether it adds or retracts, whether its kind is ``-D``, whether it is the stored row.

    ``clears`` names the columns that it empties on purpose. A stored record that deletes is a removal that
    was remembered.
    """

    values: Mapping[str, Any]
    adds: bool = True
    deletes: bool = False
    stored: bool = False
    clears: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Folded:
    """What is left of a key: the values of the folded columns, whether there is a row, what went wrong.

    ``removed`` holds the ordering fields of the newest removals by a sequence group, None without one.
    """

    values: Mapping[str, Any]
    alive: bool
    problem: str | None = None
    removed: Mapping[str, Any] | None = None


def fold(plan: Plan, rules: Iterable[Rule], records: Iterable[Record]) -> Folded:
    """Fold the records of one key, oldest first, into the columns of ``rules``.

    A problem is the text of the first one; there are no values then.
    """
    walk = Walk(plan, tuple(rules))
    try:
        for record in records:
            walk.take(record)
        return Folded(walk.finish(), walk.alive, removed=walk.removed())
    except FoldError as error:
        return Folded({}, walk.alive, str(error))


class Walk:
    """The state between two records of a key."""

    def __init__(self, plan: Plan, rules: tuple[Rule, ...]) -> None:
        self._plan = plan
        self._free = [rule for rule in rules if rule.group is None]
        self._groups = [
            (place, [rule for rule in rules if rule.group == place and rule.role is not Role.ORDER])
            for place in sorted({rule.group for rule in rules if rule.group is not None})
        ]
        self._ordering = [rule for rule in rules if rule.role is Role.ORDER]
        self._removes = plan.options.remove_on_delete
        self._removals: dict[int, list[Any]] = {}
        self._reset()

    def _reset(self) -> None:
        self.alive = False
        self._gathered: dict[str, Any] = {}
        self._clocks: dict[int, list[Any]] = {}

    def take(self, record: Record) -> None:
        """Fold one more record."""
        if self._plan.remembers and self._is_behind_removal(record):
            return
        if record.deletes and (self._removes or self._is_removal(record)):
            self._reset()
            return
        if self._removes and self._plan.engine == PARTIAL and not record.adds:
            return
        for rule in self._free:
            self._take_free(rule, record)
        for place, rules in self._groups:
            self._take_group(place, rules, record)
        self.alive = self.alive or record.adds

    def finish(self) -> dict[str, Any]:
        """Give the values of the columns."""
        rules = [*self._free, *(rule for _, rules in self._groups for rule in rules)]
        values = {rule.name: finished(self._combine_waiting(rule), rule) for rule in rules}
        for rule in self._ordering:
            clock = self._clocks.get(rule.group or 0)
            order = self._plan.groups[rule.group or 0].order
            values[rule.name] = None if clock is None else clock[order.index(rule.name)]
        return values

    def _clock(self, place: int, record: Record) -> list[Any]:
        return [record.values[name] for name in self._plan.groups[place].order]

    def removed(self) -> dict[str, Any] | None:
        """Give the ordering fields of the newest removals by a sequence group."""
        pairs = [
            pair
            for place, tick in self._removals.items()
            for pair in zip(self._plan.groups[place].order, tick, strict=True)
        ]
        return dict(pairs) or None

    def _is_new(self, place: int, tick: list[Any], clock: list[Any] | None) -> bool:
        """Tell whether a tuple is not older than a group's clock."""
        if clock is None:
            return True
        pairs = zip(tick, clock, strict=True)
        return not comes_before(pairs, descending=self._plan.groups[place].descending)

    def _is_removal(self, record: Record) -> bool:
        """Tell whether a ``-D`` removes the row, and remember where it stands in the order."""
        ticks = {place: self._clock(place, record) for place in self._plan.removing_groups}
        removing = {
            place: tick
            for place, tick in ticks.items()
            if _is_set(tick) and self._is_new(place, tick, self._clocks.get(place))
        }
        self._removals |= removing
        return bool(removing)

    def _is_behind_removal(self, record: Record) -> bool:
        """Tell whether a record is older than a removal of the row by one of its groups."""
        ticks = ((place, self._clock(place, record)) for place in self._removals)
        return any(
            _is_set(tick) and not self._is_new(place, tick, self._removals[place]) for place, tick in ticks
        )

    def _take_free(self, rule: Rule, record: Record) -> None:
        value = record.values[rule.name]
        if rule.role is Role.FUNCTION:
            self._aggregate(rule, record, is_new=True)
        elif rule.role is not Role.FREE or (record.adds and (value is not None or _clears(record, rule))):
            self._gathered[rule.name] = value

    def _take_group(self, place: int, rules: list[Rule], record: Record) -> None:
        tick = self._clock(place, record)
        if not _is_set(tick):
            return
        is_new = self._is_new(place, tick, self._clocks.get(place))
        for rule in rules:
            if rule.role is Role.FUNCTION:
                self._aggregate(rule, record, is_new=is_new)
            elif is_new:
                self._gathered[rule.name] = record.values[rule.name] if record.adds else None
        if is_new:
            self._clocks[place] = tick

    def _aggregate(self, rule: Rule, record: Record, *, is_new: bool) -> None:
        does, value = ACCUMULATORS[str(rule.function)], record.values[rule.name]
        if record.adds and rule.skips_nulls and _clears(record, rule):
            self._gathered[rule.name] = None
        elif not record.adds:
            if rule.options.ignore_retract:
                return
            if does.retract is None:
                raise FoldError(cannot_retract(rule))
            self._gathered[rule.name] = does.retract(self._combine_waiting(rule), value, rule)
        elif rule.function == "count" and record.stored:
            # What was counted before, not one more; late records may have come first.
            self._gathered[rule.name] = ACCUMULATORS["sum"].add(self._combine_waiting(rule), value, rule)
        else:
            is_last = is_new or rule.function in {"collect", "count"}
            self._add_value(does, rule, value, is_last=is_last)

    def _add_value(self, does: Accumulator, rule: Rule, value: Any, *, is_last: bool) -> None:
        """Gather a value, after or before the others; those that are combined at once wait until then."""
        gathered = self._gathered.get(rule.name, EMPTY)
        if does.combine is None or gathered is EMPTY or gathered is None or (does.in_order and not is_last):
            gathered = self._combine_waiting(rule)
            self._gathered[rule.name] = (
                does.add(gathered, value, rule) if is_last else does.add(value, gathered, rule)
            )
        elif value is not None:
            if does.check is not None:
                does.check(value, rule)
            waiting = gathered if isinstance(gathered, _Waiting) else _Waiting((gathered,))
            (waiting.append if is_last else waiting.appendleft)(value)
            self._gathered[rule.name] = waiting

    def _combine_waiting(self, rule: Rule) -> Any:
        """Return what is gathered, after combining what waits."""
        gathered = self._gathered.get(rule.name, EMPTY)
        if not isinstance(gathered, _Waiting):
            return gathered
        combine = ACCUMULATORS[str(rule.function)].combine
        return combine(tuple(gathered), rule) if combine else gathered


class _Waiting(deque[Any]):
    """Values of a column that are combined once their result is needed, oldest first."""


def _clears(record: Record, rule: Rule) -> bool:
    return rule.name.casefold() in record.clears


def _is_set(tick: list[Any]) -> bool:
    return any(each is not None for each in tick)
