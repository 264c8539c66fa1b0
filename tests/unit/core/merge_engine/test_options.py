"""Tests of parsing table options, and of combinations that are rejected."""

from __future__ import annotations

import re
from datetime import timedelta
from itertools import permutations
from typing import Any

import pytest

from airflow_merge_provider.core.errors import ConfigError, DataError
from airflow_merge_provider.core.merge_engine.checks import (
    check_columns,
    check_names,
    list_text_orders,
    plan_fold,
)
from airflow_merge_provider.core.merge_engine.columns import parse_columns, type_text
from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.core.merge_engine.options import SequenceGroup
from airflow_merge_provider.core.merge_engine.plan import explain_plan
from airflow_merge_provider.core.schema.key_types import suggest_cast
from tests.conformance.flink_types import parse_column

GROUPS = {"fields.g.sequence-group": "a,b", "fields.h1,h2.sequence-group": "c"}
COLUMNS = {"k": "INT", "g": "INT", "h1": "INT", "h2": "INT", "a": "INT", "b": "INT", "c": "INT"}


def parse_config(engine: str, options: dict[str, Any], **more: Any) -> MergeEngineConfig:
    return MergeEngineConfig.parse({"primary_key": ["k"], "merge_engine": engine, "options": options, **more})


def list_problems(
    engine: str, options: dict[str, Any], schema: dict[str, str] | None = None, **more: Any
) -> list[str]:
    """Return the errors of options, one per line."""
    fields = [parse_column(name, text) for name, text in (schema or COLUMNS).items()]
    with pytest.raises(ConfigError) as refused:
        plan_fold(parse_config(engine, options, **more), parse_columns(fields))
    return [str(problem) for problem in refused.value.problems]


def test_values_may_be_texts_or_native() -> None:
    """Booleans in any case, lists with blanks and numbers as text equal the native values."""
    texts = parse_config("deduplicate", {"sequence.field": " a , b ", "ignore-delete": "TRUE"}).table_options
    native = parse_config("deduplicate", {"sequence.field": ["a", "b"], "ignore-delete": True}).table_options

    assert texts.sequence == native.sequence == ("a", "b")
    assert texts.ignore_delete is native.ignore_delete is True


@pytest.mark.parametrize("engine", ["deduplicate", "partial-update", "aggregation", "first-row"])
@pytest.mark.parametrize("old", ["first-row", "deduplicate", "partial-update"])
def test_old_names_of_ignore_delete_work_for_every_engine(engine: str, old: str) -> None:
    """Old names of ignore-delete are accepted for every engine.

    An old name that is false never disables a true one.
    """
    table_options = parse_config(
        engine, {f"{old}.ignore-delete": "true", "ignore-delete": "false"}
    ).table_options

    assert table_options.ignore_delete is True


def test_names_of_columns_are_found_whatever_their_case() -> None:
    """Column names match in any case; the plan uses the names of the table."""
    fields = [parse_column(name, text) for name, text in COLUMNS.items()]
    config = parse_config("partial-update", {"fields.G.sequence-group": "A, b"}, primary_key=["K"])

    plan = plan_fold(config, parse_columns(fields))

    assert plan.key == ("k",)
    assert plan.groups == (SequenceGroup(("g",), ("a", "b"), "fields.G.sequence-group"),)


def test_every_problem_is_said_at_once() -> None:
    """Errors of options, contradictions and an unknown engine are reported together."""
    with pytest.raises(ConfigError) as refused:
        parse_config("bogus", {"ignore-deletes": "true", "count": 1}, order_by=[""], target=7)

    assert [problem.path for problem in refused.value.problems] == [
        "target", "merge_engine", "order_by", "options.ignore-deletes", "options.count",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fields.z.sequence-group": "a"}, "options.fields.z.sequence-group: there is no column 'z'"),
        ({"fields.g.sequence-group": "k"}, "column 'k' of primary_key cannot be a protected column"),
        ({"fields.k.sequence-group": "a"}, "column 'k' of primary_key cannot be an ordering field"),
        ({"fields.g.sequence-group": "a", "fields.h1.sequence-group": "g"}, "'g' is protected by fields.h1"),
        ({**GROUPS, "fields.default-aggregate-function": "sum"}, ""),
        ({**GROUPS, "fields.a.ignore-retract": "true"}, "on a column without an aggregate function"),
        ({**GROUPS, "fields.a.aggregate-function": "sum", "fields.a.distinct": "true"}, "no effect on sum"),
    ],
)  # fmt: skip
def test_groups_that_cannot_be(options: dict[str, str], message: str) -> None:
    """An invalid group is rejected with its option and the column; a valid group is accepted."""
    if not message:
        plan_fold(
            parse_config("partial-update", options),
            parse_columns(parse_column(*pair) for pair in COLUMNS.items()),
        )
        return
    assert any(message in line for line in list_problems("partial-update", options))


def test_types_are_checked_before_data() -> None:
    """An error about types is reported before data is read, with the accepted types and the column's type."""
    schema = {"k": "INT", "v": "STRING", "w": "ARRAY<ROW<a INT>>"}
    options = {
        "fields.v.aggregate-function": "sum",
        "fields.w.aggregate-function": "nested_update",
        "fields.w.nested-key": "b",
    }

    number, nested = list_problems("aggregation", options, schema)

    assert (
        "options.fields.v.aggregate-function: sum requires a number, but column 'v' has type STRING" in number
    )
    assert (
        "options.fields.w.nested-key: the STRUCT of column 'w' has no field 'b' (valid fields: a)" in nested
    )


def test_keys_and_orders_need_an_order() -> None:
    """Arrays and maps are rejected as keys and as sequence fields because they have no order."""
    schema = {"k": "ARRAY<INT>", "s": "MAP<STRING,INT>"}

    problems = list_problems("deduplicate", {"sequence.field": "s"}, schema)

    assert "primary_key: column 'k' has type ARRAY<INT>, which is not supported in a key" in problems[0]
    assert (
        "options.sequence.field: column 's' has type MAP<STRING, INT>, which is not orderable" in problems[1]
    )


def test_what_has_no_effect_is_said() -> None:
    """Functions of key columns and file options are accepted with a warning, because they have no effect."""
    config = parse_config("aggregation", {"fields.k.aggregate-function": "sum", "bucket": "4"})

    warnings = config.list_warnings()

    assert warnings == [
        "options.fields.k.aggregate-function: has no effect on a column of primary_key",
        "options.bucket: has no effect (remove it)",
    ]


def test_an_order_of_whole_rows_is_warned_of_where_records_are_partial() -> None:
    """An order of whole rows gives a warning if records are partial.

    The first of the late records fills the empty columns, unless columns have their own sequence.
    """
    (warning,) = parse_config("partial-update", {"sequence.field": "s"}).list_warnings()

    assert warning.startswith("options.sequence.field: ")
    assert "sequence-group" in warning
    assert parse_config("deduplicate", {"sequence.field": "s"}).list_warnings() == []
    assert parse_config("partial-update", GROUPS).list_warnings() == []


def test_only_what_needs_the_fold_is_folded() -> None:
    """Only columns that need the fold are folded.

    Without retracts, the newest value of a group is an aggregate; a removal by group folds all columns.
    """
    options = {**GROUPS, "fields.a.aggregate-function": "last_value", "fields.b.aggregate-function": "sum"}
    fields = parse_columns(parse_column(*pair) for pair in COLUMNS.items())
    removal = {**options, "partial-update.remove-record-on-sequence-group": "g"}

    with_retracts = plan_fold(parse_config("partial-update", options), fields)
    without = plan_fold(parse_config("partial-update", options), fields, retracts=False)
    removing = plan_fold(parse_config("partial-update", removal), fields)

    assert [rule.name for rule in with_retracts.folded_rules] == ["a"]
    assert without.folded_rules == ()
    assert [rule.name for rule in removing.folded_rules] == list(COLUMNS)[1:]
    assert (
        explain_plan(with_retracts)["a"]
        == "last_value (g); fold: retractions of last_value take effect out of order"
    )
    assert explain_plan(with_retracts)["c"] == "protected by a sequence group (h1, h2); aggregate"


def test_a_group_may_be_an_object() -> None:
    """A group may be an object, which can reverse its order and set one function for its columns."""
    group = {"columns": ["a", "b"], "descending": "true", "function": "max"}
    options = {"fields.g.sequence-group": group, "fields.a.aggregate-function": "min"}

    plan = plan_fold(
        parse_config("partial-update", options),
        parse_columns(parse_column(*pair) for pair in COLUMNS.items()),
    )

    assert plan.groups == (SequenceGroup(("g",), ("a", "b"), "fields.g.sequence-group", True, "max"),)
    assert {rule.name: rule.function for rule in plan.rules if rule.function} == {"a": "min", "b": "max"}


@pytest.mark.parametrize(
    ("engine", "options", "message"),
    [
        ("first-row", {}, "no option removes rows"),
        ("deduplicate", {"sequence.field": "g", "ignore-delete": True}, "no option removes rows"),
        ("aggregation", {"sequence.field": "g"}, "no option removes rows"),
        ("aggregation", {"aggregation.remove-record-on-delete": True}, "no option orders the records"),
    ],
)
def test_nothing_is_remembered_where_nothing_is_removed(
    engine: str, options: dict[str, Any], message: str
) -> None:
    """A retention is rejected if no row is removed or nothing orders records.

    The option would have no effect.
    """
    with pytest.raises(ConfigError, match=message):
        parse_config(engine, options, tombstone_retention=7)


@pytest.mark.parametrize(
    ("value", "hours"), [(7, 168), ("12 hours", 12), ("1.5 days", 36), (0, None), ("0", None), (None, None)]
)
def test_a_retention_is_days_or_a_text(value: Any, hours: float | None) -> None:
    """A retention is a number of days or a text; None means no retention."""
    retention = parse_config(
        "deduplicate", {"sequence.field": "g"}, tombstone_retention=value
    ).tombstone_retention

    assert retention == (None if hours is None else timedelta(hours=hours))


def test_a_column_with_the_name_of_sparks_file_column_is_refused() -> None:
    """Delta could not change the rows of the target."""
    with pytest.raises(DataError, match="source: column '_Metadata' has the name of the column in which"):
        check_names(parse_config("deduplicate", {}), ["k", "_Metadata"])


def test_text_that_orders_records_is_warned_of() -> None:
    """Each option that orders by a column or field of text names it, with the cast that helps."""
    schema = {
        "k": "STRING", "s": "STRING", "g": "VARCHAR(9)", "h": "INT", "a": "STRING", "c": "STRING",
        "m": "MAP<STRING,ROW<v STRING, at STRING>>", "n": "ARRAY<ROW<id INT, at STRING, no INT>>",
    }  # fmt: skip
    nested = {"aggregate-function": "nested_update", "nested-key": "id", "nested-sequence-field": "no,at"}
    options = {
        "sequence.field": "s",
        "fields.h,g.sequence-group": "a,m,n",
        "fields.m.aggregate-function": "merge_map_with_keytime",
        **{f"fields.n.{name}": value for name, value in nested.items()},
    }
    config = parse_config("partial-update", options, order_by=["C"])
    plan = plan_fold(config, parse_columns(parse_column(*pair) for pair in schema.items()))

    warnings = list_text_orders(config, plan)

    assert [warning.partition(" is text")[0] for warning in warnings] == [
        "order_by: column 'C'",
        "options.sequence.field: column 's'",
        "options.fields.h,g.sequence-group: column 'g'",
        "options.fields.m.ts-field: column 'm.at'",
        "options.fields.n.nested-sequence-field: column 'n.at'",
    ]
    assert all("CAST(" in warning for warning in warnings)


NUMBERS = ("INT", "BIGINT", "DOUBLE", "DECIMAL(38,2)", "DECIMAL(38,18)", "STRING")
TIMES = ("DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "STRING", "BIGINT")
TEXTS = ("STRING", "BYTES", "CHAR(3)", "VARCHAR(3)", "VARCHAR(4)")


@pytest.mark.parametrize("kinds", [NUMBERS, TIMES, TEXTS])
def test_keys_of_two_types_are_never_compared(kinds: tuple[str, ...]) -> None:
    """A source whose key has another type than the target is refused by name: no cast makes keys equal."""
    config = parse_config("deduplicate", {})
    for source, target in permutations(kinds, 2):
        columns = [parse_columns([parse_column("k", kind)]) for kind in (source, target)]
        if target == "STRING" and source in TEXTS and source != "BYTES":
            check_columns(config, *columns)
            continue
        texts = [type_text(column.kind) for (column,) in columns]
        message = (
            f"source: column 'k' is {texts[0]} in the source and {texts[1]} in the target, "
            f"with values such as 1 ({suggest_cast('k', *texts)})"
        )
        with pytest.raises(DataError, match=re.escape(message)):
            check_columns(config, columns[0], columns[1], {"k": "1"}.get)
