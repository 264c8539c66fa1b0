"""Conflicts between options that do not depend on the columns of the table.

Source: docs/semantics/merge_engine.md, Option conflicts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_merge_provider.core.errors import Problem, suggest_name
from airflow_merge_provider.core.merge_engine.functions import FUNCTIONS
from airflow_merge_provider.core.merge_engine.options import (
    AGGREGATION,
    FIRST_ROW,
    PARTIAL,
    ColumnOptions,
    Options,
    options_of_functions,
)

_PRODUCER = "changelog-producer"
_COMPACTION_COMMITS = "full-compaction.delta-commits"
_SNAPSHOT = "sequence.snapshot-ordering"
_REMOVE_ON_DELETE = "partial-update.remove-record-on-delete"
_REMOVE_ON_GROUP = "partial-update.remove-record-on-sequence-group"
_AGGREGATION_REMOVE = "aggregation.remove-record-on-delete"
_NULLABLE_KEY = "primary-key.nullable"


def find_contradictions(
    options: Options, engine: str, primary_key: Sequence[str], partition_by: Sequence[str] = ()
) -> Iterator[Problem]:
    """Yield every problem between options, and between options and the key."""
    yield from _key_problems(options, primary_key)
    yield from _sequence_problems(options, primary_key, partition_by)
    yield from _producer_problems(options, engine)
    if engine == PARTIAL:
        yield from _removal_problems(options)
        yield from _group_problems(options, primary_key)
        yield from _outside_problems(options, primary_key)
    for column in options.columns:
        yield from _column_problems(column, options, engine)


def is_same_column(name: str, other_name: str) -> bool:
    """Return whether two column names are equal as Spark compares them.

    >>> is_same_column("Id", "ID")
    True
    """
    return name.casefold() == other_name.casefold()


def is_among(name: str, names: Sequence[str]) -> bool:
    """Return whether a name is in a list of names as Spark compares them."""
    return any(is_same_column(name, candidate) for candidate in names)


def _build_problem(option: str, message: str, hint: str = "", code: str = "contradiction") -> Problem:
    return Problem(f"options.{option}", code, message, hint)


def _key_problems(options: Options, primary_key: Sequence[str]) -> Iterator[Problem]:
    if primary_key:
        return
    for option in (_PRODUCER, _NULLABLE_KEY):
        if option in options.set_options:
            yield _build_problem(
                option, f"{option} requires a primary_key", "set primary_key to the key columns"
            )


def _sequence_problems(
    options: Options, primary_key: Sequence[str], partition_by: Sequence[str]
) -> Iterator[Problem]:
    for position, name in enumerate(options.sequence):
        if is_among(name, options.sequence[:position]):
            yield _build_problem("sequence.field", f"column {name!r} appears more than once")
        if column := next((column for column in options.columns if is_same_column(column, name)), None):
            option = f"fields.{column}.aggregate-function"
            if options.columns[column].function:
                message = f"column {name!r} of sequence.field always has the value of the newest record"
                yield _build_problem(option, message, "remove the function")
    outside = [name for name in partition_by if not is_among(name, primary_key)]
    if options.sequence and outside:
        message = (
            f"is not supported if primary_key ({', '.join(primary_key)}) does not contain all columns of "
            f"partition_by ({', '.join(partition_by)})"
        )
        yield _build_problem(
            "sequence.field", f"sequence.field {message}", f"add {', '.join(outside)} to primary_key"
        )
    if _SNAPSHOT in options.set_options:
        yield _build_problem(
            _SNAPSHOT,
            f"{_SNAPSHOT} is not supported: a run is one commit, which is folded in arrival order"
            + (" (sequence.field would replace that order)" if options.sequence else "")
            + (
                ""
                if "write-only" in options.set_options
                else "; in Paimon it also requires write-only = true"
            ),
            "remove it",
        )


def _producer_problems(options: Options, engine: str) -> Iterator[Problem]:
    if engine == FIRST_ROW and options.producer in {"input", "full-compaction"}:
        message = f"{_PRODUCER} must be none or lookup with merge_engine first-row, not {options.producer}"
        yield _build_problem(_PRODUCER, message)
    if engine == FIRST_ROW and "deletion-vectors.enabled" in options.set_options:
        message = (
            "deletion-vectors.enabled is not supported with merge_engine first-row: its rows never change"
        )
        yield _build_problem("deletion-vectors.enabled", message, "remove it")
    if options.producer == "lookup" and _COMPACTION_COMMITS in options.set_options:
        message = f"{_COMPACTION_COMMITS} cannot be combined with {_PRODUCER} = lookup"
        yield _build_problem(_COMPACTION_COMMITS, message, "remove one of them")


def _removal_problems(options: Options) -> Iterator[Problem]:
    conflict_text = "cannot be combined with"
    if options.ignore_delete and options.remove_on_delete:
        yield _build_problem(
            _REMOVE_ON_DELETE, f"{_REMOVE_ON_DELETE} {conflict_text} ignore-delete", "remove one of them"
        )
    if options.ignore_delete and options.remove_on_groups:
        yield _build_problem(
            _REMOVE_ON_GROUP, f"{_REMOVE_ON_GROUP} {conflict_text} ignore-delete", "remove one of them"
        )
    if options.groups and options.remove_on_delete:
        message = f"{_REMOVE_ON_DELETE} {conflict_text} a sequence-group ({options.groups[0].option})"
        yield _build_problem(
            _REMOVE_ON_DELETE,
            message,
            f"set {_REMOVE_ON_GROUP} to the ordering fields of groups that remove the row",
        )
    ordering = [name for group in options.groups for name in group.order]
    for name in options.remove_on_groups:
        if not is_among(name, ordering):
            message = f"{name!r} in {_REMOVE_ON_GROUP} is not an ordering field of a sequence-group"
            hint = suggest_name(name, ordering, "ordering fields") if ordering else "no sequence-group is set"
            yield _build_problem(_REMOVE_ON_GROUP, message, hint)


def _group_problems(options: Options, primary_key: Sequence[str]) -> Iterator[Problem]:
    ordered: dict[str, str] = {}
    protected: dict[str, str] = {}
    for group in options.groups:
        for name in dict.fromkeys(map(str.casefold, group.order)):
            if name in ordered:
                message = f"{ordered[name]} and {group.option} have the same ordering field {name!r}"
                yield _build_problem(
                    group.option,
                    message,
                    "use different ones, because each group would change the order of the other",
                )
            ordered.setdefault(name, group.option)
        for name in dict.fromkeys(map(str.casefold, group.protected)):
            if name in protected:
                message = f"column {name!r} is protected by {protected[name]} and by {group.option}"
                yield _build_problem(group.option, message, "remove it from one of these groups")
            protected.setdefault(name, group.option)
        for name in (*group.order, *group.protected):
            if is_among(name, primary_key):
                role = "ordering field" if name in group.order else "protected column"
                message = f"column {name!r} of primary_key cannot be an {role} of {group.option}"
                yield _build_problem(group.option, message.replace("an protected", "a protected"))
    for name, option in protected.items():
        if ordered.get(name, option) != option:
            message = f"column {name!r} is protected by {option} and is an ordering field of {ordered[name]}"
            yield _build_problem(
                option, message, "remove it from one, because each group would change the order of the other"
            )


def _outside_problems(options: Options, primary_key: Sequence[str]) -> Iterator[Problem]:
    grouped = [name for group in options.groups for name in (*group.order, *group.protected)]
    for column, column_options in options.columns.items():
        if is_among(column, grouped) or is_among(column, primary_key) or is_among(column, options.sequence):
            continue
        if column_options.function not in {None, "last_non_null_value"}:
            message = (
                f"column {column!r} is not in a sequence-group and supports only last_non_null_value, "
                f"not {column_options.function}"
            )
            hint = "add the column to a sequence-group, or set merge_engine to aggregation"
            yield _build_problem(f"fields.{column}.aggregate-function", message, hint)


def _column_problems(column: str, options: Options, engine: str) -> Iterator[Problem]:
    column_options = options.columns[column]
    function = options.get_function(column)
    supported_options = FUNCTIONS[function].options if function else ()
    for suffix in sorted(column_options.set_options & options_of_functions() - set(supported_options)):
        supporting_functions = ", ".join(
            name for name, definition in FUNCTIONS.items() if suffix in definition.options
        )
        message = (
            f"fields.{column}.{suffix} has no effect on "
            f"{function or 'a column without an aggregate function'}"
        )
        yield _build_problem(
            f"fields.{column}.{suffix}", message, f"it is supported by {supporting_functions}"
        )
    yield from _check_nested(column, column_options, function)
    if not column_options.ignore_retract:
        return
    option = f"fields.{column}.ignore-retract"
    if engine == AGGREGATION and options.remove_on_delete:
        yield _build_problem(option, f"{option} cannot be combined with {_AGGREGATION_REMOVE}")
    if engine == PARTIAL and function is None:
        yield _build_problem(
            option, f"{option} has no effect on a column without an aggregate function", "remove it"
        )


def _check_nested(column: str, column_options: ColumnOptions, function: str | None) -> Iterator[Problem]:
    if column_options.nested_key or function not in {"nested_update", "nested_partial_update"}:
        return
    key = f"fields.{column}.nested-key"
    for suffix in sorted(column_options.set_options & {"nested-sequence-field", "nested-key-null-strategy"}):
        option = f"fields.{column}.{suffix}"
        yield _build_problem(
            option, f"{option} requires {key}", "set it to the key fields of the nested rows"
        )
    if function == "nested_partial_update":
        option = f"fields.{column}.aggregate-function"
        yield _build_problem(
            option, f"nested_partial_update of column {column!r} requires {key}", "set it to the key fields"
        )
