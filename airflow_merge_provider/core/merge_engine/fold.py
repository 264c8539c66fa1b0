"""The fold of the records of one key, in order and column by column.

Source: docs/semantics/merge_engine.md, Fold of a key; Sequence groups.
Spark's plain aggregates give the same result for most columns; the fold supports all columns except sketches.
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
    finish_value,
)
from airflow_merge_provider.core.merge_engine.options import PARTIAL
from airflow_merge_provider.core.merge_engine.plan import ColumnRole, ColumnRule, Plan
from airflow_merge_provider.core.merge_engine.refusals import cannot_retract


@dataclass(frozen=True, slots=True)
class Record:
    """One record: whether it adds or retracts, whether its kind is ``-D``, whether it is the stored row.

    ``clears`` names the columns that the record empties on purpose. A stored record that deletes is a
    recorded removal.
    """

    values: Mapping[str, Any]
    adds: bool = True
    deletes: bool = False
    stored: bool = False
    clears: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class FoldResult:
    """The result of a key: the values of the folded columns, whether there is a row, and the problem.

    ``removed`` holds the ordering fields of the newest removals by a sequence group; None if there is none.
    """

    values: Mapping[str, Any]
    is_live: bool
    problem: str | None = None
    removed: Mapping[str, Any] | None = None


def fold_records(plan: Plan, rules: Iterable[ColumnRule], records: Iterable[Record]) -> FoldResult:
    """Fold the records of one key, oldest first, into the columns of ``rules``.

    The problem in the result is the text of the first problem; there are no values in that case.
    """
    key_fold = KeyFold(plan, tuple(rules))
    try:
        for record in records:
            key_fold.take_record(record)
        return FoldResult(key_fold.finish_row(), key_fold.is_live, removed=key_fold.find_removals())
    except FoldError as error:
        return FoldResult({}, key_fold.is_live, str(error))


class KeyFold:
    """The state of the fold between two records of a key."""

    def __init__(self, plan: Plan, rules: tuple[ColumnRule, ...]) -> None:
        self._plan = plan
        self._free = [rule for rule in rules if rule.group is None]
        self._groups = [
            (
                group_index,
                [rule for rule in rules if rule.group == group_index and rule.role is not ColumnRole.ORDER],
            )
            for group_index in sorted({rule.group for rule in rules if rule.group is not None})
        ]
        self._ordering = [rule for rule in rules if rule.role is ColumnRole.ORDER]
        self._removes = plan.options.remove_on_delete
        self._removals: dict[int, list[Any]] = {}
        self._reset_state()

    def _reset_state(self) -> None:
        self.is_live = False
        self._gathered: dict[str, Any] = {}
        self._clocks: dict[int, list[Any]] = {}

    def take_record(self, record: Record) -> None:
        """Fold one more record."""
        if self._plan.remembers and self._is_behind_removal(record):
            return
        if record.deletes and (self._removes or self._is_removal(record)):
            self._reset_state()
            return
        if self._removes and self._plan.engine == PARTIAL and not record.adds:
            return
        for rule in self._free:
            self._take_free(rule, record)
        for group_index, rules in self._groups:
            self._take_group(group_index, rules, record)
        self.is_live = self.is_live or record.adds

    def finish_row(self) -> dict[str, Any]:
        """Return the values of the columns."""
        rules = [*self._free, *(rule for _, rules in self._groups for rule in rules)]
        values = {rule.name: finish_value(self._combine_waiting(rule), rule) for rule in rules}
        for rule in self._ordering:
            newest_sequence = self._clocks.get(rule.group or 0)
            order = self._plan.groups[rule.group or 0].order
            values[rule.name] = None if newest_sequence is None else newest_sequence[order.index(rule.name)]
        return values

    def _read_clock(self, group_index: int, record: Record) -> list[Any]:
        return [record.values[name] for name in self._plan.groups[group_index].order]

    def find_removals(self) -> dict[str, Any] | None:
        """Return the ordering fields of the newest removals by a sequence group."""
        pairs = [
            pair
            for group_index, sequence in self._removals.items()
            for pair in zip(self._plan.groups[group_index].order, sequence, strict=True)
        ]
        return dict(pairs) or None

    def _is_new(self, group_index: int, sequence: list[Any], newest_sequence: list[Any] | None) -> bool:
        """Return whether a tuple is at least as new as the newest sequence of a group."""
        if newest_sequence is None:
            return True
        pairs = zip(sequence, newest_sequence, strict=True)
        return not comes_before(pairs, descending=self._plan.groups[group_index].descending)

    def _is_removal(self, record: Record) -> bool:
        """Return whether a ``-D`` record removes the row, and record its position in the order."""
        sequences = {
            group_index: self._read_clock(group_index, record) for group_index in self._plan.removing_groups
        }
        removing = {
            group_index: sequence
            for group_index, sequence in sequences.items()
            if _is_set(sequence) and self._is_new(group_index, sequence, self._clocks.get(group_index))
        }
        self._removals |= removing
        return bool(removing)

    def _is_behind_removal(self, record: Record) -> bool:
        """Return whether a record is older than a removal of the row by one of its groups."""
        sequences = ((group_index, self._read_clock(group_index, record)) for group_index in self._removals)
        return any(
            _is_set(sequence) and not self._is_new(group_index, sequence, self._removals[group_index])
            for group_index, sequence in sequences
        )

    def _take_free(self, rule: ColumnRule, record: Record) -> None:
        value = record.values[rule.name]
        if rule.role is ColumnRole.FUNCTION:
            self._aggregate_value(rule, record, is_new=True)
        elif rule.role is not ColumnRole.FREE or (
            record.adds and (value is not None or _is_cleared(record, rule))
        ):
            self._gathered[rule.name] = value

    def _take_group(self, group_index: int, rules: list[ColumnRule], record: Record) -> None:
        sequence = self._read_clock(group_index, record)
        if not _is_set(sequence):
            return
        is_new = self._is_new(group_index, sequence, self._clocks.get(group_index))
        for rule in rules:
            if rule.role is ColumnRole.FUNCTION:
                self._aggregate_value(rule, record, is_new=is_new)
            elif is_new:
                self._gathered[rule.name] = record.values[rule.name] if record.adds else None
        if is_new:
            self._clocks[group_index] = sequence

    def _aggregate_value(self, rule: ColumnRule, record: Record, *, is_new: bool) -> None:
        accumulator, value = ACCUMULATORS[str(rule.function)], record.values[rule.name]
        if record.adds and rule.skips_nulls and _is_cleared(record, rule):
            self._gathered[rule.name] = None
        elif not record.adds:
            if rule.options.ignore_retract:
                return
            if accumulator.retract is None:
                raise FoldError(cannot_retract(rule))
            self._gathered[rule.name] = accumulator.retract(self._combine_waiting(rule), value, rule)
        elif rule.function == "count" and record.stored:
            # Adds to the previous count instead of counting one more; late records may have come first.
            self._gathered[rule.name] = ACCUMULATORS["sum"].add(self._combine_waiting(rule), value, rule)
        else:
            is_last = is_new or rule.function in {"collect", "count"}
            self._add_value(accumulator, rule, value, is_last=is_last)

    def _add_value(self, accumulator: Accumulator, rule: ColumnRule, value: Any, *, is_last: bool) -> None:
        """Add a value after or before the others; values that are combined at once are only queued."""
        gathered = self._gathered.get(rule.name, EMPTY)
        if (
            accumulator.combine is None
            or gathered is EMPTY
            or gathered is None
            or (accumulator.in_order and not is_last)
        ):
            gathered = self._combine_waiting(rule)
            self._gathered[rule.name] = (
                accumulator.add(gathered, value, rule) if is_last else accumulator.add(value, gathered, rule)
            )
        elif value is not None:
            if accumulator.check is not None:
                accumulator.check(value, rule)
            pending_values = gathered if isinstance(gathered, _PendingValues) else _PendingValues((gathered,))
            (pending_values.append if is_last else pending_values.appendleft)(value)
            self._gathered[rule.name] = pending_values

    def _combine_waiting(self, rule: ColumnRule) -> Any:
        """Return the gathered value after combining the queued values."""
        gathered = self._gathered.get(rule.name, EMPTY)
        if not isinstance(gathered, _PendingValues):
            return gathered
        combine = ACCUMULATORS[str(rule.function)].combine
        return combine(tuple(gathered), rule) if combine else gathered


class _PendingValues(deque[Any]):
    """The values of a column that are combined when their result is needed, oldest first."""


def _is_cleared(record: Record, rule: ColumnRule) -> bool:
    return rule.name.casefold() in record.clears


def _is_set(sequence: list[Any]) -> bool:
    return any(value is not None for value in sequence)
