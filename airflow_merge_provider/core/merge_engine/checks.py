"""Checks of a configuration against the table's columns: all unknown names and unsuitable types.

Source: docs/semantics/merge_engine.md, Column checks.
Names are compared as in Spark, ignoring case.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_merge_provider.core.errors import ConfigError, DataError, Problem, suggest_name
from airflow_merge_provider.core.merge_engine.columns import (
    Column,
    get_element_type,
    is_ordered,
    is_text,
    row_fields,
    type_text,
)
from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.core.merge_engine.functions import FUNCTIONS, SERIALIZED
from airflow_merge_provider.core.merge_engine.options import AGGREGATION, PARTIAL, Options, SequenceGroup
from airflow_merge_provider.core.merge_engine.plan import ColumnRole, ColumnRule, Plan
from airflow_merge_provider.core.run.columns import describe_text_order
from airflow_merge_provider.core.schema.key_types import (
    FILE_METADATA,
    FindExample,
    show_example,
    suggest_cast,
)

_NOT_STORED = re.compile(r"(^|[<, ])(TIME\(|INTERVAL\b)")


class _Names:
    """The columns of a table by name; each name that is not found becomes a problem."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._true = {column.name.casefold(): column.name for column in columns}
        self.problems: list[Problem] = []

    def find_column(self, path: str, name: str, hint: str = "") -> str:
        """Return the exact name of a column, or the given name if there is no such column."""
        exact_name = self._true.get(name.casefold())
        if exact_name is not None:
            return exact_name
        column_names = list(self._true.values())
        suggestion = hint or suggest_name(name, column_names, "columns")
        self.problems.append(Problem(path, "unknown", f"there is no column {name!r}", suggestion))
        return name

    def find_all(self, path: str, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(self.find_column(path, name) for name in names)


def plan_fold(config: MergeEngineConfig, columns: Sequence[Column], *, retracts: bool = True) -> Plan:
    """Return the plan to fold a table with these columns; ``retracts`` states whether records may retract.

    :raises ConfigError: with every problem between the configuration and the columns.
    """
    names = _Names(columns)
    key = names.find_all("primary_key", config.primary_key)
    names.find_all("partition_by", config.partition_by)
    options = _resolve_columns(config.table_options, names)
    plan = Plan(
        config.merge_engine,
        tuple(columns),
        key,
        options,
        retracts and not options.ignore_delete,
        config.fail_on,
        config.clear_column is not None,
        bool(config.tombstone_retention),
    )
    problems = [*names.problems, *_storage_problems(plan), *_key_problems(plan)]
    problems += [*_kind_problems(plan), *_order_problems(plan)]
    problems += [problem for rule in plan.rules for problem in _rule_problems(rule, plan)]
    problems += _default_problems(plan)
    if problems:
        raise ConfigError.from_problems(problems)
    return plan


def check_names(config: MergeEngineConfig, column_names: Sequence[str]) -> None:
    """Raise an error if the source lacks columns that the configuration names, or has a reserved one.

    :raises DataError: with every such column.
    """
    requested_columns = [("order_by", name) for name in config.order_by]
    column_options = {"row_kind_column": config.row_kind_column, "clear_column": config.clear_column}
    requested_columns += [(path, name) for path, name in column_options.items() if name is not None]
    problems = [
        Problem(
            path,
            "unknown",
            f"the source has no column {name!r}",
            suggest_name(name, column_names, "columns"),
        )
        for path, name in requested_columns
        if name.casefold() not in map(str.casefold, column_names)
    ]
    for name in column_names:
        if name.casefold() == FILE_METADATA:
            message = f"column {name!r} has the name of the column in which Spark has the file of a row"
            problems.append(Problem("source", "column", message, "rename it upstream"))
    if problems:
        raise DataError.from_problems(problems)


def check_columns(
    config: MergeEngineConfig,
    source_columns: Sequence[Column],
    columns: Sequence[Column],
    find_example: FindExample = lambda _: None,
) -> None:
    """Raise an error if the columns of the source do not suit those of the target.

    :param source_columns: without those that are read but not stored.
    :param find_example: returns a value of a column of the source.
    :raises DataError: with every column that is too much, missing, or of another type.
    """
    by_name = {column.name.casefold(): column for column in source_columns}
    if problems := list(_find_misfits(config, by_name, columns, find_example)):
        raise DataError.from_problems(problems)


def list_text_orders(config: MergeEngineConfig, plan: Plan) -> list[str]:
    """Return a warning for each column or field of text that orders records or entries."""
    kinds = {column.name.casefold(): column.kind for column in plan.columns}
    ordering = [("order_by", name) for name in config.order_by]
    ordering += [("options.sequence.field", name) for name in plan.sequence]
    ordering += [(f"options.{group.option}", name) for group in plan.groups for name in group.order]
    texts: list[tuple[str, ...]] = [
        (path, name) for path, name in ordering if is_text(kinds.get(name.casefold()))
    ]
    for rule in plan.rules:
        texts += _list_nested_texts(rule)
    return [describe_text_order(*text) for text in texts]


def _list_nested_texts(rule: ColumnRule) -> Iterator[tuple[str, ...]]:
    """Yield the fields of text that order the entries of a map, or the rows of a nested table."""
    path, element = f"options.fields.{rule.name}", get_element_type(rule.column.kind)
    names: Sequence[str] = ()
    if rule.function == "nested_update":
        path, names = f"{path}.nested-sequence-field", rule.options.nested_sequence
    elif rule.function == "merge_map_with_keytime":
        path, names = f"{path}.ts-field", [rule.options.ts_field or row_fields(element)[-1]]
    for field in element["fields"] if names else ():
        if field["name"] in names and is_text(field["type"]):
            yield path, rule.name, field["name"]


def _resolve_columns(options: Options, names: _Names) -> Options:
    """Replace the column names in the options with their exact names."""
    columns = {}
    for name, column_options in options.columns.items():
        option = next(
            (f"fields.{name}.{suffix}" for suffix in sorted(column_options.set_options)), f"fields.{name}"
        )
        columns[names.find_column(f"options.{option}", name, _path_hint(name, names))] = column_options
    groups = tuple(
        SequenceGroup(
            names.find_all(f"options.{group.option}", group.order),
            names.find_all(f"options.{group.option}", group.protected),
            group.option,
            group.descending,
            group.function,
        )
        for group in options.groups
    )
    kind = options.row_kind_field
    return replace(
        options,
        columns=columns,
        groups=groups,
        sequence=names.find_all("options.sequence.field", options.sequence),
        row_kind_field=None if kind is None else names.find_column("options.rowkind.field", kind),
        remove_on_groups=names.find_all(
            "options.partial-update.remove-record-on-sequence-group", options.remove_on_groups
        ),
    )


def _path_hint(name: str, names: _Names) -> str:
    """Return a hint for a name with a dot whose first part is a column."""
    outer = name.split(".", maxsplit=1)[0]
    if outer == name or outer.casefold() not in names._true:  # noqa: SLF001 - its own helper
        return ""
    return f"an option applies to a whole column: fields.{outer}.…"


def _storage_problems(plan: Plan) -> Iterator[Problem]:
    for column in plan.columns:
        kind = type_text(column.kind)
        if _NOT_STORED.search(kind):
            message = f"column {column.name!r} has type {kind}, which Delta tables do not support"
            yield Problem("source", "type", message, "cast it upstream, e.g. to BIGINT or STRING")


def _key_problems(plan: Plan) -> Iterator[Problem]:
    for column in plan.columns:
        if column.name in plan.key and not is_ordered(column.kind):
            message = (
                f"column {column.name!r} has type {type_text(column.kind)}, which is not supported in a key"
            )
            yield Problem(
                "primary_key",
                "type",
                message,
                "use columns of atomic types, such as a number, string, date or timestamp",
            )


def _kind_problems(plan: Plan) -> Iterator[Problem]:
    name = plan.options.row_kind_field
    for column in plan.columns:
        if column.name == name and not is_text(column.kind):
            message = f"column {name!r} of rowkind.field has type {type_text(column.kind)}, not STRING"
            yield Problem(
                "options.rowkind.field",
                "type",
                message,
                "use a STRING column with the values +I, -U, +U or -D",
            )


def _order_problems(plan: Plan) -> Iterator[Problem]:
    ordering_fields = [("sequence.field", name) for name in plan.sequence]
    ordering_fields += [(group.option, name) for group in plan.groups for name in group.order]
    kinds = {column.name: column.kind for column in plan.columns}
    for option, name in ordering_fields:
        if name in kinds and not is_ordered(kinds[name]):
            message = f"column {name!r} has type {type_text(kinds[name])}, which is not orderable"
            yield Problem(
                f"options.{option}", "type", message, "use a number, date, timestamp or string column"
            )


def _rule_problems(rule: ColumnRule, plan: Plan) -> Iterator[Problem]:
    name = rule.function
    if name is None or rule.role is not ColumnRole.FUNCTION:
        return
    path = _function_path(rule, plan)
    function, column = FUNCTIONS[name], rule.column
    if not function.accepts(column.kind):
        message = (
            f"{name} requires {function.takes}, but column {rule.name!r} has type {type_text(column.kind)}"
        )
        yield Problem(path, "type", message, "set another function, or cast the column upstream")
        return
    if function.unavailable:
        message = f"{name} of column {rule.name!r} is not supported: {function.unavailable}"
        yield Problem(
            path, "function", message, "store the values in an ARRAY column and set the function collect"
        )
    if name in SERIALIZED and plan.folds_rows:
        message = (
            f"{name} of column {rule.name!r} is not supported with "
            "partial-update.remove-record-on-sequence-group"
        )
        yield Problem(path, "function", message, "remove this option, or set another function")
    yield from _check_nested(rule)


def _function_path(rule: ColumnRule, plan: Plan) -> str:
    """Return the option that sets the function of a column."""
    if rule.options.function is not None:
        return f"options.fields.{rule.name}.aggregate-function"
    if rule.group is not None and plan.groups[rule.group].function is not None:
        return f"options.{plan.groups[rule.group].option}"
    return "options.fields.default-aggregate-function" if plan.options.default_function else "options"


def _check_nested(rule: ColumnRule) -> Iterator[Problem]:
    options, function = rule.options, str(rule.function)
    requested_fields: list[tuple[str, tuple[str, ...]]] = []
    if function == "merge_map_with_keytime" and options.ts_field is not None:
        requested_fields.append(("ts-field", (options.ts_field,)))
    if function.startswith("nested_"):
        requested_fields += [
            ("nested-key", options.nested_key),
            ("nested-sequence-field", options.nested_sequence),
        ]
    fields = row_fields(get_element_type(rule.column.kind)) if requested_fields else ()
    for suffix, names in requested_fields:
        for name in names:
            if name not in fields:
                hint = suggest_name(name, fields, "fields")
                message = f"the STRUCT of column {rule.name!r} has no field {name!r}"
                yield Problem(f"options.fields.{rule.name}.{suffix}", "unknown", message, hint)


def _default_problems(plan: Plan) -> Iterator[Problem]:
    if plan.engine not in {PARTIAL, AGGREGATION} or plan.options.default_function is None:
        return
    free_columns = [
        rule.name for rule in plan.rules if rule.role is ColumnRole.FREE and rule.name not in plan.sequence
    ]
    if free_columns:
        message = f"column {free_columns[0]!r} is not in a sequence-group, which a default function requires"
        hint = "add it to a sequence-group, or set fields.<column>.aggregate-function for each column instead"
        yield Problem(
            "options.fields.default-aggregate-function", "contradiction", f"{message} for each column", hint
        )


def _find_misfits(
    config: MergeEngineConfig,
    source_columns: Mapping[str, Column],
    columns: Sequence[Column],
    find_example: FindExample,
) -> Iterator[Problem]:
    allows_missing = config.merge_engine in {PARTIAL, AGGREGATION}
    target_columns = {column.name.casefold(): column for column in columns}
    for name, column in source_columns.items():
        if name not in target_columns:
            hint = "remove it upstream, or add it to the target with ALTER TABLE … ADD COLUMNS"
            yield Problem("source", "column", f"the target has no column {column.name!r}", hint)
        elif not _fits_type(column.kind, target_columns[name].kind):
            kind, target_kind = type_text(column.kind), type_text(target_columns[name].kind)
            message = (
                f"column {column.name!r} is {kind} in the source and {target_kind} in the target"
                f"{show_example(find_example, column.name)}"
            )
            yield Problem("source", "type", message, suggest_cast(column.name, kind, target_kind))
    key = {name.casefold() for name in config.primary_key}
    for name, column in target_columns.items():
        if name not in source_columns and (name in key or not allows_missing):
            yield Problem("source", "column", f"the source has no column {column.name!r}", "add it upstream")


def _fits_type(kind: Any, target_kind: Any) -> bool:
    """Return whether a column needs no cast, which could make different keys equal.

    A target does not keep the length of CHAR and VARCHAR columns that it takes from a source.
    """
    return type_text(kind) == type_text(target_kind) or (is_text(kind) and type_text(target_kind) == "STRING")
