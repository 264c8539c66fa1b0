"""The fold plan of a table: the role of each column, and whether Spark's plain aggregates compute it.

Source: docs/semantics/merge_engine.md, Fold of a key; Execution in Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from airflow_merge_provider.core.merge_engine.columns import Column
from airflow_merge_provider.core.merge_engine.functions import FUNCTIONS
from airflow_merge_provider.core.merge_engine.options import (
    AGGREGATION,
    DEDUPLICATE,
    FIRST_ROW,
    PARTIAL,
    ColumnOptions,
    Options,
    SequenceGroup,
)

_DEFAULT_OPTIONS = ColumnOptions()


class ColumnRole(StrEnum):
    """The role of a column in its engine."""

    KEY = "key"
    WHOLE_ROW = "set with the whole row"
    SEQUENCE = "value of the newest record"
    FREE = "newest value that is not NULL"
    ORDER = "ordering field of a sequence group"
    PROTECTED = "protected by a sequence group"
    FUNCTION = "aggregated"


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """How the value of one column is computed; ``group`` is the position of its sequence group.

    ``folded`` is the reason why plain aggregates cannot compute it; it is empty if they can.
    """

    column: Column
    role: ColumnRole
    function: str | None = None
    group: int | None = None
    options: ColumnOptions = _DEFAULT_OPTIONS
    folded: str = ""

    @property
    def name(self) -> str:
        """The name of the column."""
        return self.column.name

    @property
    def skips_nulls(self) -> bool:
        """Whether the value of the column is its newest value that is not null."""
        return self.role is ColumnRole.FREE or (self.function == "last_non_null_value" and self.group is None)

    @property
    def refuses_retracts(self) -> bool:
        """Whether a retract that reaches this column is an error."""
        return (
            self.function is not None
            and not FUNCTIONS[self.function].retracts
            and not self.options.ignore_retract
        )


@dataclass(frozen=True)
class Plan:
    """The plan of a checked table: its columns in order with their rules, and the order of records.

    ``options`` holds the exact names of the columns. ``retracts`` states whether records may retract; if none
    can, fewer columns need a fold. ``clears`` states whether records name columns that they empty, and
    ``remembers`` whether removed keys keep their position in the order.
    """

    engine: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    options: Options
    retracts: bool = True
    fail_on: tuple[str, ...] = ()
    clears: bool = False
    remembers: bool = False
    # One rule per column, in the order of the table. Not a cached property: its lock cannot be pickled.
    rules: tuple[ColumnRule, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", tuple(self._build_rule(column) for column in self.columns))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns, in the order of the table."""
        return tuple(column.name for column in self.columns)

    @property
    def values(self) -> tuple[str, ...]:
        """The names of the columns that are not in the key."""
        return tuple(name for name in self.names if name not in self.key)

    @property
    def sequence(self) -> tuple[str, ...]:
        """The columns that order the records of a key."""
        return self.options.sequence

    @property
    def groups(self) -> tuple[SequenceGroup, ...]:
        """The sequence groups."""
        return self.options.groups

    @property
    def removing_groups(self) -> tuple[int, ...]:
        """The positions of the groups whose deletes remove the row."""
        removing_fields = set(self.options.remove_on_groups)
        return tuple(index for index, group in enumerate(self.groups) if removing_fields & set(group.order))

    @property
    def clearable(self) -> tuple[str, ...]:
        """The columns that a record may empty: those where a null has no effect by itself."""
        return tuple(rule.name for rule in self.rules if self.clears and rule.skips_nulls)

    @property
    def remembered(self) -> tuple[str, ...]:
        """The columns that order the removal of a key, as they are stored for a removed key."""
        ordering = tuple(name for index in self.removing_groups for name in self.groups[index].order)
        return ordering or self.sequence

    @property
    def needs_policy(self) -> bool:
        """Whether no option defines the effect of a retract on a row, so that retracts are rejected."""
        if self.engine == FIRST_ROW:
            return True
        return self.engine == PARTIAL and not self.groups and not self.options.remove_on_delete

    @property
    def folded_rules(self) -> tuple[ColumnRule, ...]:
        """The rules that need the fold; a VOID column is always NULL, and Spark passes it to no Python."""
        return tuple(rule for rule in self.rules if rule.folded and rule.column.kind != "void")

    @property
    def folds_rows(self) -> bool:
        """Whether the fold decides about whole rows, and not only about columns."""
        return bool(self.removing_groups)

    def _build_rule(self, column: Column) -> ColumnRule:
        if column.name in self.key:
            return ColumnRule(column, ColumnRole.KEY)
        if self.engine in {DEDUPLICATE, FIRST_ROW}:
            return ColumnRule(column, ColumnRole.WHOLE_ROW)
        if self.engine == AGGREGATION:
            return self._build_aggregate_rule(column)
        return self._build_partial_rule(column)

    def _build_aggregate_rule(self, column: Column) -> ColumnRule:
        if column.name in self.sequence:
            return ColumnRule(column, ColumnRole.SEQUENCE)
        column_options = self.options.for_column(column.name)
        function = column_options.function or self.options.default_function or "last_non_null_value"
        return ColumnRule(
            column, ColumnRole.FUNCTION, function, None, column_options, _explain_fold(function)
        )

    def _build_partial_rule(self, column: Column) -> ColumnRule:
        row_reason = "deletes of a sequence group remove the row, which depends on the records before them"
        folded = row_reason if self.folds_rows else ""
        group_index = _find_group(column.name, self.groups)
        if group_index is None:
            return ColumnRule(column, ColumnRole.FREE, folded=folded)
        if column.name in self.groups[group_index].order:
            return ColumnRule(column, ColumnRole.ORDER, group=group_index, folded=folded)
        column_options = self.options.for_column(column.name)
        function = self.options.get_function(column.name)
        if function is None:
            return ColumnRule(column, ColumnRole.PROTECTED, group=group_index, folded=folded)
        reason = folded or _explain_fold_in_group(function, column_options, retracts=self.retracts)
        return ColumnRule(column, ColumnRole.FUNCTION, function, group_index, column_options, reason)


def _explain_fold(function: str) -> str:
    return f"{function} combines values one by one" if FUNCTIONS[function].folded else ""


def _explain_fold_in_group(function: str, column_options: ColumnOptions, *, retracts: bool) -> str:
    if not FUNCTIONS[function].chooses:
        return _explain_fold(function)
    if function in {"last_value", "primary-key"}:
        # A retract takes effect at any position in the group's order, an addition only if it is not older.
        may_retract = retracts and not column_options.ignore_retract
        return f"retractions of {function} take effect out of order" if may_retract else ""
    return f"older records change {function} in a sequence group"


def _find_group(name: str, groups: Sequence[SequenceGroup]) -> int | None:
    """Return the position of the group that a column belongs to."""
    return next(
        (index for index, group in enumerate(groups) if name in (*group.order, *group.protected)), None
    )


def explain_plan(plan: Plan) -> Mapping[str, str]:
    """Return one line per column: whether an aggregate or the fold computes its value, and why."""
    return {rule.name: _describe_rule(rule, plan) for rule in plan.rules}


def _describe_rule(rule: ColumnRule, plan: Plan) -> str:
    text = rule.function or str(rule.role)
    if rule.group is not None:
        text += f" ({', '.join(plan.groups[rule.group].order)})"
    if rule.role is ColumnRole.KEY:
        return text
    return f"{text}; fold: {rule.folded}" if rule.folded else f"{text}; aggregate"
