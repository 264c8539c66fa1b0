"""The rows of the target that a merge changes, with the members that joined and left each output.

Source: docs/plan.md, Golden records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import Column, DataFrame, functions as F
from pyspark.sql.types import StringType, StructType

from airflow_merge_provider.core import errors, value_text
from airflow_merge_provider.core.merge_source import explanation
from airflow_merge_provider.core.merge_source.columns import REPLACED_COLUMN
from airflow_merge_provider.core.merge_source.explanation import MEMBERS_MAX
from airflow_merge_provider.jobs.merge_source.output.row_changes import ENTITY_HASH, ID, UPDATED_IN
from airflow_merge_provider.jobs.merge_source.scan.previous_state import MEMBERS
from airflow_merge_provider.jobs.run.change_set import (
    DELETED,
    INSERTED,
    KEPT,
    UPDATED,
    ChangeSet,
    build_change,
    pack_row,
)
from airflow_merge_provider.jobs.spark.exact_text import exact_text
from airflow_merge_provider.jobs.spark.pickling import pickle_once
from airflow_merge_provider.jobs.spark.sql import quote_name, quote_text

_OLD, _NEW = "__merge_old", "__merge_new"
_IS_JOINED, _LEFT, _SAME = "__merge_joined", "__merge_left", "__merge_same"
# Columns that follow from the others, or that say when a row was written.
_STATE_COLUMNS = (ENTITY_HASH, UPDATED_IN, "_previous", "_ts", MEMBERS)


def list_changed_rows(changes: DataFrame, stored: DataFrame | None, *, are_few: bool = False) -> ChangeSet:
    """Return whole rows that a run writes with the stored rows that they replace.

    The members of an output are internal: the detail names those that joined or left, with the rules and keys
    that linked them.

    :param changes: the rows, with all columns of the target.
    :param stored: the rows of the target; None if the rows are the whole target.
    :param are_few: whether the rows fit into memory, so that the rows of the target are not shuffled.
    """
    old = changes.limit(0) if stored is None else stored
    if are_few:
        old = F.broadcast(old.join(F.broadcast(changes.select(ID)), ID, "left_semi"))
    rows = changes.alias(_NEW).join(old.alias(_OLD), F.expr(f"{_OLD}.{ID} = {_NEW}.{ID}"), "left")
    members = {alias: _sort_members(alias) for alias in (_OLD, _NEW)}
    rows = rows.withColumns(_compare_members(members)).withColumn(_SAME, _has_same_content(changes, old))
    was_there = _refer_to(_OLD, ID).isNotNull()
    before = pack_row([name for name in old.columns if name != MEMBERS], _OLD)
    return ChangeSet(
        rows.select(
            *build_change(
                _classify_kind(),
                _classify_reason(),
                before=F.when(was_there, before),
                after=pack_row([name for name in changes.columns if name != MEMBERS], _NEW),
                detail=_describe_members(members),
                state=F.sha2(F.to_json(F.struct(members[_NEW])), 256),
            )
        )
    )


def _refer_to(alias: str, name: str) -> Column:
    return F.col(quote_name(alias, name))


def _is_live(alias: str) -> Column:
    return _refer_to(alias, ID).isNotNull() & ~F.coalesce(_refer_to(alias, "_deleted"), F.lit(False))


def _has_same_content(changes: DataFrame, old: DataFrame) -> Column:
    """Return whether a row keeps its values, which another program may have changed without their hash."""
    texts = [_format_values(alias, rows) for alias, rows in ((_OLD, old), (_NEW, changes))]
    is_same = _refer_to(_OLD, ENTITY_HASH).eqNullSafe(_refer_to(_NEW, ENTITY_HASH))
    return is_same & texts[0].eqNullSafe(texts[1])


def _format_values(alias: str, rows: DataFrame) -> Column:
    """Return the exact text of the values of an output."""
    fields = [field for field in rows.schema if field.name not in _STATE_COLUMNS]
    pairs = (f"{quote_text(field.name)}, {quote_name(alias, field.name)}" for field in fields)
    return exact_text(f"named_struct({', '.join(pairs)})", StructType(fields))


def _classify_kind() -> Column:
    """Return whether a row becomes live, stays live with other values, or is no longer live."""
    return (
        F.when(_is_live(_NEW) & ~_is_live(_OLD), F.lit(INSERTED))
        .when(_is_live(_OLD) & ~_is_live(_NEW), F.lit(DELETED))
        .when(_is_live(_NEW) & ~F.col(_SAME), F.lit(UPDATED))
        .otherwise(F.lit(KEPT))
    )


def _compare_members(members: dict[str, Column]) -> dict[str, Column]:
    """Return whether members joined an output, and whether members left it."""
    ids = {alias: F.transform(column, _name_member) for alias, column in members.items()}
    return {
        _IS_JOINED: F.size(F.array_except(ids[_NEW], ids[_OLD])) > 0,
        _LEFT: F.size(F.array_except(ids[_OLD], ids[_NEW])) > 0,
    }


def _classify_reason() -> Column:
    joined, left = F.col(_IS_JOINED), F.col(_LEFT)
    return (
        F.when(F.coalesce(_refer_to(_NEW, REPLACED_COLUMN), F.lit(False)), F.lit("replaced"))
        .when(_is_live(_OLD) & ~_is_live(_NEW), F.lit("removed"))
        .when(~_is_live(_OLD) & _is_live(_NEW), F.lit("new"))
        .when(joined & left, F.lit("regrouped"))
        .when(joined, F.lit("joined"))
        .when(left, F.lit("split"))
        .when(F.col(_SAME), F.lit("members"))
        .otherwise(F.lit("content"))
    )


def _name_member(member: Column) -> Column:
    return F.to_json(F.struct(member["dataset"], member["id"]))


def _sort_members(alias: str) -> Column:
    """Return the members in a fixed order; they are stored in the order in which they were collected."""
    column = _refer_to(alias, MEMBERS)
    return F.array_sort(F.coalesce(column, F.filter(column, lambda _: F.lit(False))))


def _describe_members(members: dict[str, Column]) -> Column:
    """Return which members an output gains and loses.

    Most rows of a first run gain all of their members, and most changed rows keep theirs. Only rows with
    other members before and after reach Python.
    """
    is_empty = {alias: F.coalesce(F.size(column), F.lit(0)) == 0 for alias, column in members.items()}
    has_both = ~is_empty[_OLD] & ~is_empty[_NEW]
    describe = F.udf(_build_description(), StringType(), useArrow=True)
    is_other = has_both & (F.col(_IS_JOINED) | F.col(_LEFT))
    text = describe(_refer_to(_NEW, ID), *(F.when(is_other, members[alias]) for alias in (_OLD, _NEW)))
    return (
        F.when(is_other, text)
        .when(has_both, F.lit(None))
        .when(~is_empty[_NEW], _list_members("joined", members[_NEW]))
        .when(~is_empty[_OLD], _list_members("left", members[_OLD]))
    )


def _list_members(word: str, members: Column) -> Column:
    """Return the text of ``describe_member_changes`` for an output whose members are all new or all gone."""
    names = F.array_sort(
        F.transform(members, lambda member: F.concat_ws("/", member["dataset"], member["id"]))
    )
    shown = F.array_join(F.slice(names, 1, MEMBERS_MAX), ", ")
    more = F.format_string(", and %d more", F.size(names) - F.lit(MEMBERS_MAX))
    return F.concat(F.lit(f"{word}: "), shown, F.when(F.size(names) > MEMBERS_MAX, more).otherwise(F.lit("")))


def _build_description() -> Callable[[str, list[Any] | None, list[Any] | None], str]:
    describe = explanation.describe_member_changes

    def describe_output(output_id: str, before: list[Any] | None, after: list[Any] | None) -> str:
        return describe(output_id, before or [], after or [])

    return pickle_once(describe_output, errors, value_text, explanation)
