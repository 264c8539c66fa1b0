"""The fold of the records of one key, in order and column by column.

Source: docs/semantics/merge_engine.md, Fold of a key; Sequence groups; Order in a batch.
Spark's plain aggregates give the same result for most columns; the fold supports all columns except sketches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_merge_provider.core.merge_engine.accumulators import (
    ACCUMULATORS,
    Accumulator,
    comes_before,
    finish_value,
    order_key,
)
from airflow_merge_provider.core.merge_engine.exact_numbers import EMPTY, FoldError
from airflow_merge_provider.core.merge_engine.options import PARTIAL
from airflow_merge_provider.core.merge_engine.plan import ColumnRole, ColumnRule, Plan
from airflow_merge_provider.core.merge_engine.refusals import cannot_retract
from airflow_merge_provider.core.value_text import Row


@dataclass(frozen=True, slots=True)
class Record:
    """One record: whether it adds or retracts, whether its kind is ``-D``, whether it is the stored row.

    ``clears`` names the columns that the record empties on purpose. A stored record that deletes is a
    recorded removal.
    """

    values: Row
    adds: bool = True
    deletes: bool = False
    stored: bool = False
    clears: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class FoldResult:
    """The result of a key: the values of the folded columns, whether there is a row, and the problem.

    ``removed`` holds the ordering fields of the newest removals by a sequence group; None if there is none.
    """

    values: Row
    is_live: bool
    problem: str | None = None
    removed: Row | None = None


def fold_records(plan: Plan, rules: Iterable[ColumnRule], records: Iterable[Record]) -> FoldResult:
    """Fold the records of one key, oldest first, into the columns of ``rules``.

    The problem in the result is the text of the first problem; there are no values in that case.
    """
    key_fold = KeyFold(plan, tuple(rules))
    try:
        key_fold.take_records(list(records))
        return FoldResult(key_fold.finish_row(), key_fold.is_live, removed=key_fold.removed)
    except FoldError as error:
        return FoldResult({}, key_fold.is_live, str(error))


class GroupRemovals:
    """The removals of a key's row by its sequence groups, and which records are older than one of them.

    Only the ordering columns decide, so that the order in which the records of a batch arrive does not. A
    record that shares no ordering column with a removal of its batch is older than it.
    """

    def __init__(self, plan: Plan, records: Sequence[Record]) -> None:
        self._plan = plan
        self._newest: dict[int, tuple[list[Any], int]] = {}
        self._recorded: dict[int, tuple[list[Any], int]] = {}
        self._combinations: set[frozenset[int]] = set()
        self.positions: set[int] = set()
        deletes = [(position, record) for position, record in enumerate(records) if record.deletes]
        for position, record in deletes:
            if record.stored:
                self._add_removal(position, self._read_sequences(record))
        self._recorded = dict(self._newest)
        row = next((record for record in records if record.stored and record.adds), None)
        row_sequences = {} if row is None else self._read_sequences(row)
        for position, record in deletes:
            if not record.stored and not self.is_outdated(record):
                sequences = self._read_sequences(record)
                by_groups = {
                    index: sequence
                    for index, sequence in sequences.items()
                    if not self._is_older(index, sequence, row_sequences.get(index))
                }
                self._add_removal(position, by_groups)
                self._combinations |= {frozenset(by_groups)} if by_groups else set()

    @property
    def removed(self) -> Row | None:
        """The ordering fields of the newest removals; None if there is none."""
        pairs = [
            pair
            for group_index, (sequence, _) in self._newest.items()
            for pair in zip(self._plan.groups[group_index].order, sequence, strict=True)
        ]
        return dict(pairs) or None

    def is_outdated(self, record: Record) -> bool:
        """Return whether a record is older than a removal that was recorded by an earlier run."""
        return any(
            index in self._recorded and self._is_older(index, sequence, self._recorded[index][0])
            for index, sequence in self._read_sequences(record).items()
        )

    def is_removed(self, position: int, record: Record) -> bool:
        """Return whether a record is older than a removal, by a group of both or because they share none."""
        sequences = self._read_sequences(record)
        for index in self._newest.keys() & sequences.keys():
            sequence, (removal, removal_position) = sequences[index], self._newest[index]
            if self._is_older(index, sequence, removal):
                return True
            if position < removal_position and not self._is_older(index, removal, sequence):
                return True
        return any(sequences.keys().isdisjoint(groups) for groups in self._combinations)

    def _read_sequences(self, record: Record) -> dict[int, list[Any]]:
        """Return the ordering values of a record in each removing group, without those that are all NULL."""
        sequences = {index: read_sequence(self._plan, index, record) for index in self._plan.removing_groups}
        return {index: sequence for index, sequence in sequences.items() if _is_set(sequence)}

    def _is_older(self, index: int, sequence: list[Any], other: list[Any] | None) -> bool:
        return other is not None and is_older(self._plan, index, sequence, other)

    def _add_removal(self, position: int, sequences: Mapping[int, list[Any]]) -> None:
        """Add a record that removes the row by these groups; it removes nothing if there are none."""
        for index, sequence in sequences.items():
            if index not in self._newest or not self._is_older(index, sequence, self._newest[index][0]):
                self._newest[index] = sequence, position
        if sequences:
            self.positions.add(position)


def read_sequence(plan: Plan, group_index: int, record: Record) -> list[Any]:
    """Return the ordering values of a record in a sequence group."""
    return [record.values[name] for name in plan.groups[group_index].order]


def is_older(plan: Plan, group_index: int, sequence: list[Any], other_sequence: list[Any]) -> bool:
    """Return whether ordering values of a sequence group are older than other ones."""
    pairs = zip(sequence, other_sequence, strict=True)
    return comes_before(pairs, descending=plan.groups[group_index].descending)


class KeyFold:
    """The state of the fold of one key.

    ``removing`` holds the positions of the records that removed the row, ``removed`` the ordering fields of
    the newest removals by a sequence group.
    """

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
        self.removing: set[int] = set()
        self.removed: Row | None = None
        self._reset_state()

    def _reset_state(self) -> None:
        self.is_live = False
        self._gathered: dict[str, Any] = {}
        self._clocks: dict[int, list[Any]] = {}

    def take_records(self, records: Sequence[Record]) -> None:
        """Fold all records of the key, oldest first; a removal empties the row between two parts of them."""
        for number, positions in enumerate(self._split_at_removals(records)):
            if number:
                self._reset_state()
            for position in positions:
                self._take_free_columns(position, records[position])
            for group_index, rules in self._groups:
                for position in self._sort_by_sequence(group_index, records, positions):
                    self._take_group(group_index, rules, position, records[position])

    def _split_at_removals(self, records: Sequence[Record]) -> list[list[int]]:
        """Return the positions of the records before, between and after the removals of the row."""
        if self._plan.folds_rows and any(record.deletes for record in records):
            removals = GroupRemovals(self._plan, records)
            self.removing, self.removed = removals.positions, removals.removed
            parts: list[list[int]] = [[], []] if self.removing else [[]]
            for position, record in enumerate(records):
                if position not in self.removing and not removals.is_outdated(record):
                    parts[0 if removals.is_removed(position, record) else -1].append(position)
            return parts
        removes = self._plan.options.remove_on_delete
        parts = [[]]
        for position, record in enumerate(records):
            if removes and record.deletes:
                self.removing.add(position)
                parts.append([])
            elif record.adds or not (removes and self._plan.engine == PARTIAL):
                parts[-1].append(position)
        return parts

    def _sort_by_sequence(
        self, group_index: int, records: Sequence[Record], positions: Sequence[int]
    ) -> list[int]:
        """Return the records that a group takes, oldest first; those of the batch around the stored row."""
        descending = self._plan.groups[group_index].descending
        stored_at = next((at for at in positions if records[at].stored), -1)
        keys: dict[int, Any] = {}
        for at in positions:
            sequence = read_sequence(self._plan, group_index, records[at])
            if _is_set(sequence):
                side = (at > stored_at) - (at < stored_at)
                keys[at] = -side if descending else side, sort_key(sequence, descending=descending)
        return sorted(keys, key=keys.__getitem__, reverse=descending)

    def finish_row(self) -> Row:
        """Return the values of the columns."""
        rules = [*self._free, *(rule for _, rules in self._groups for rule in rules)]
        values = {rule.name: finish_value(self._combine_waiting(rule), rule) for rule in rules}
        for rule in self._ordering:
            newest_sequence = self._clocks.get(rule.group or 0)
            order = self._plan.groups[rule.group or 0].order
            values[rule.name] = None if newest_sequence is None else newest_sequence[order.index(rule.name)]
        return values

    def _take_free_columns(self, position: int, record: Record) -> None:
        """Fold a record into the columns outside of groups."""
        for rule in self._free:
            value = record.values[rule.name]
            if rule.role is ColumnRole.FUNCTION:
                self._aggregate_value(rule, record, is_new=True)
            elif rule.role is not ColumnRole.FREE or (
                record.adds and (value is not None or _is_cleared(record, rule))
            ):
                self._gathered[rule.name] = value
        self.is_live = self.is_live or record.adds

    def _take_group(
        self,
        group_index: int,
        rules: list[ColumnRule],
        position: int,
        record: Record,
    ) -> None:
        """Fold a record into the columns of a group; its ordering values are not all NULL."""
        sequence, newest_sequence = (
            read_sequence(self._plan, group_index, record),
            self._clocks.get(group_index),
        )
        is_new = newest_sequence is None or not is_older(self._plan, group_index, sequence, newest_sequence)
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


def sort_key(sequence: Iterable[Any], *, descending: bool) -> list[tuple[Any, ...]]:
    """Return the key that sorts ordering values from the oldest, reversed if they are descending.

    NULL is the oldest value in both directions.

    >>> sorted([[1], [None], [2]], key=lambda values: sort_key(values, descending=True), reverse=True)
    [[None], [2], [1]]
    """
    return [(2,) if descending and value is None else order_key(value) for value in sequence]


def _is_set(sequence: list[Any]) -> bool:
    return any(value is not None for value in sequence)
