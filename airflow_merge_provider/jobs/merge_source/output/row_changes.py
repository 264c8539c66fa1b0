"""The rows of the target that a merge changes: compare, number, write, and say which members came or went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession, functions as F
from pyspark.sql.types import DataType, StringType, StructType

from airflow_merge_provider.core import errors, value_text
from airflow_merge_provider.core.change_plan.shown_rows import MASK, mask_row, mask_text, mask_value
from airflow_merge_provider.core.change_plan.summary import ChangeExample
from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.merge_source import explanation
from airflow_merge_provider.core.merge_source.columns import ENTITY, REPLACED_COLUMN
from airflow_merge_provider.core.merge_source.explanation import MEMBERS_MAX, describe_member_changes
from airflow_merge_provider.core.value_text import Row
from airflow_merge_provider.jobs.delta.writer import NEW, OLD, Upsert, upsert_rows
from airflow_merge_provider.jobs.merge_source.diff import comparison as of
from airflow_merge_provider.jobs.merge_source.diff.id_lineage import BY
from airflow_merge_provider.jobs.merge_source.model import Difference, FullScanRequired
from airflow_merge_provider.jobs.merge_source.output.render import REPLACED_BY, content_hash
from airflow_merge_provider.jobs.merge_source.scan.previous_state import MEMBERS, STABLE_ID
from airflow_merge_provider.jobs.run.change_set import (
    DELETED,
    INSERTED,
    KEPT,
    UPDATED,
    ChangeSet,
    build_change,
    pack_row,
)
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.exact_text import exact_text
from airflow_merge_provider.jobs.spark.expressions import cast_to
from airflow_merge_provider.jobs.spark.pickling import pickle_once
from airflow_merge_provider.jobs.spark.sql import quote_name, quote_text
from airflow_merge_provider.jobs.spark.staging import stage_table

ID, UPDATED_IN, ENTITY_HASH = "_id", "_updated", "_hash"
STORED_HASH = "__merge_before"
# Up to this many IDs are broadcast to the target's rows instead of being shuffled with them.
_BROADCAST_MAX_ROWS = 200_000
# The minimum number of rows per file: few files to read later, yet enough to write several in parallel.
_ENTITY_FILE_MIN_ROWS = 25_000
_NUMBER, _INHABITED, _SAME = "__merge_number", "__merge_inhabited", "__merge_same"
_EARLIER, _WRITTEN = "__merge_earlier", "__merge_written"
_WAS_LIVE, _IS_LIVE = "__merge_was_live", "__merge_is_live"


@dataclass(frozen=True)
class RowChanges:
    """The whole ``rows`` of the target that a run writes; ``silent`` counts those not reported as changes.

    ``replaced`` and ``removed`` count IDs that end. ``inserted``, ``updated`` and ``deleted`` count rows that
    become live, rows that stay live with other values, and rows that are no longer live.
    """

    rows: DataFrame
    emitted: int
    silent: int
    replaced: int
    removed: int
    inserted: int
    updated: int
    deleted: int

    @property
    def any(self) -> bool:
        """Return whether there is anything to write."""
        return self.count > 0

    @property
    def count(self) -> int:
        """The number of rows to write."""
        return self.emitted + self.silent + self.replaced + self.removed

    @property
    def are_few(self) -> bool:
        """Return whether the rows are broadcast to those of the target instead of being shuffled."""
        return self.count < _BROADCAST_MAX_ROWS


@contextmanager
def compare_rows(
    spark: SparkSession,
    rendered: DataFrame,
    target: DataFrame,
    difference: Difference,
    *,
    start: int,
    at: int,
) -> Iterator[RowChanges]:
    """Compare rendered outputs with the target's rows and number the differences, from ``start``.

    IDs that have ended come first, in their order, then the outputs in theirs. An output whose content is
    unchanged keeps its number; only the stored state of its members is written.
    Source: docs/semantics/merge_source.md, Emitted rows.

    :raises FullScanRequired: if a member is no longer in its source, or an ID is that of another output.
    """
    with ExitStack() as stack:
        ids = stack.enter_context(stage_table(spark, pa.table({ID: difference.ids})))
        stored = _select_stored(target).join(F.broadcast(ids), ID, "left_semi")
        compared = rendered.drop("_previous").join(F.broadcast(stored), ID, "left").persist()
        stack.callback(compared.unpersist)
        is_same, members = F.col(STORED_HASH).eqNullSafe(F.col(ENTITY_HASH)), F.size(MEMBERS).alias("members")
        is_live = ~F.coalesce(F.col("_deleted"), F.lit(False))
        columns = (UPDATED_IN, members, "_previous", _INHABITED, _WAS_LIVE)
        comparison = compared.select(*columns, is_same.alias(_SAME), is_live.alias(_IS_LIVE)).toArrow()
        _check_members(comparison, difference)
        _check_ids(comparison, difference)
        differs = pc.invert(comparison.column(_SAME))
        emitted = np.sort(comparison.column(UPDATED_IN).filter(differs).to_numpy())
        first = start + difference.retired.num_rows
        numbers = pa.table({UPDATED_IN: emitted, _NUMBER: np.arange(first, first + len(emitted))})
        numbered = stack.enter_context(stage_table(spark, numbers))
        retired = stack.enter_context(stage_table(spark, _number_retired(difference, start)))
        # The rows have as many partitions as the shuffle, and each would become a file.
        coalesced = compared.coalesce(comparison.num_rows // _ENTITY_FILE_MIN_ROWS + 1)
        kinds = {field.name: field.dataType for frame in (rendered, target) for field in frame.schema}
        rows = [
            _add_missing_columns(_add_numbers(coalesced.where(~is_same), numbered), kinds),
            _add_missing_columns(_build_tombstones(retired, at), kinds),
        ]
        same = comparison.num_rows - len(emitted)
        if same:
            rows.append(_add_missing_columns(_keep_position(coalesced.where(is_same)), kinds))
        if len(difference.emptied):
            emptied = stack.enter_context(stage_table(spark, pa.table({ID: difference.emptied})))
            rows.append(_add_missing_columns(target.drop(MEMBERS).join(F.broadcast(emptied), ID), kinds))
        replaced = int(pc.sum(difference.retired.column(of.REPLACED)).as_py() or 0)
        inserted, updated, deleted = _count_rows(comparison)
        yield RowChanges(
            reduce(DataFrame.unionByName, rows),
            emitted=len(emitted),
            silent=same + len(difference.emptied),
            replaced=replaced,
            removed=difference.retired.num_rows - replaced,
            inserted=inserted,
            updated=updated,
            deleted=deleted + difference.retired.num_rows,
        )


def write_changes(spark: SparkSession, target: Dataset, changes: RowChanges, *, new_columns: bool) -> None:
    """Replace the target's rows of the changed outputs; the changes may add new columns."""
    condition = f"{OLD}.{sql.quote_name(ID)} = {NEW}.{sql.quote_name(ID)}"
    columns = [sql.quote_name(column) for column in changes.rows.columns]
    # Without the alias in front: only then may a column be one that the target does not have yet.
    assigned = ", ".join(f"{column} = {NEW}.{column}" for column in columns)
    new_values = ", ".join(f"{NEW}.{column}" for column in columns)
    clauses = [
        f"WHEN MATCHED THEN UPDATE SET {assigned}",
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(columns)}) VALUES ({new_values})",
    ]
    replacing = F.broadcast(changes.rows) if changes.are_few else changes.rows
    upsert = Upsert(
        changes.rows,
        condition,
        clauses,
        inserted=None if changes.any else changes.rows.limit(0),
        replacing=replacing,
        matching=condition,
        new_columns=new_columns,
    )
    upsert_rows(spark, target, upsert)


def _select_stored(target: DataFrame) -> DataFrame:
    """Return the required columns of the target's rows; of members only one field, to count them."""
    return target.select(
        ID,
        F.col(ENTITY_HASH).alias(STORED_HASH),
        F.col(UPDATED_IN).alias("_previous"),
        F.col("_previous").alias(_EARLIER),
        F.col("_ts").alias(_WRITTEN),
        (F.size(F.col(MEMBERS)["dataset"]) > 0).alias(_INHABITED),
        (~F.coalesce(F.col("_deleted"), F.lit(False))).alias(_WAS_LIVE),
    )


def _keep_position(same: DataFrame) -> DataFrame:
    """Keep the number and time of outputs whose content is unchanged: only their members are new."""
    columns = {UPDATED_IN: F.col("_previous"), "_previous": F.col(_EARLIER), "_ts": F.col(_WRITTEN)}
    return same.withColumns(columns)


def _count_rows(comparison: pa.Table) -> tuple[int, int, int]:
    """Count the rows that become live, that stay live with other values, and that are no longer live."""
    differs = pc.invert(comparison.column(_SAME))
    was_live = pc.fill_null(comparison.column(_WAS_LIVE), fill_value=False)
    is_live = comparison.column(_IS_LIVE)
    kinds = (
        pc.and_not(is_live, was_live),
        pc.and_(is_live, was_live),
        pc.and_not(was_live, is_live),
    )
    inserted, updated, deleted = (pc.sum(pc.and_(differs, kind)).as_py() or 0 for kind in kinds)
    return inserted, updated, deleted


def _check_members(comparison: pa.Table, difference: Difference) -> None:
    counted = dict(
        zip(comparison.column(UPDATED_IN).to_pylist(), comparison.column("members").to_pylist(), strict=True)
    )
    if counted != difference.sizes:
        raise FullScanRequired("an entity no longer exists in its dataset")


def _check_ids(comparison: pa.Table, difference: Difference) -> None:
    stored_numbers = comparison.filter(pc.fill_null(comparison.column(_INHABITED), fill_value=False)).column(
        "_previous"
    )
    if not pc.all(pc.is_in(stored_numbers, value_set=pa.array(difference.evaluated)), min_count=0).as_py():
        raise FullScanRequired("the ID of a changed row belongs to a row that was not evaluated")


def _number_retired(difference: Difference, start: int) -> pa.Table:
    numbers = np.arange(start, start + difference.retired.num_rows)
    return difference.retired.append_column(_NUMBER, pa.array(numbers))


def _add_numbers(rows: DataFrame, numbers: DataFrame) -> DataFrame:
    return rows.join(F.broadcast(numbers), UPDATED_IN).withColumn(UPDATED_IN, F.col(_NUMBER))


def _build_tombstones(retired: DataFrame, at: int) -> DataFrame:
    """Return rows that mark IDs as deleted, and as replaced if another output replaced them."""
    successors = [F.col(BY)] if BY in retired.columns else []
    return retired.select(
        ID,
        *(F.from_json(by, "array<string>").alias(REPLACED_BY) for by in successors),
        F.col(_NUMBER).alias(UPDATED_IN),
        F.lit(True).alias("_deleted"),
        F.col(of.REPLACED).alias(REPLACED_COLUMN),
        F.col(of.NUMBER).alias("_previous"),
        F.lit(at).cast("bigint").alias("_ts"),
        *successors,
    ).withColumn(ENTITY_HASH, content_hash(*successors))


def _add_missing_columns(rows: DataFrame, kinds: Mapping[str, DataType]) -> DataFrame:
    """Return rows with all columns of the target; missing columns are NULL, members are empty."""

    def build_column(name: str) -> Column:
        if name in rows.columns:
            return sql.quote_column(name)
        return cast_to(F.array() if name == MEMBERS else F.lit(None), kinds[name]).alias(name)

    return rows.select(*map(build_column, kinds))


_OLD, _NEW = "__merge_old", "__merge_new"
_IS_JOINED, _LEFT = "__merge_joined", "__merge_left"
# The reasons of changed members, by whether members joined and left.
_REASONS = {
    (True, True): "regrouped",
    (True, False): "joined",
    (False, True): "split",
    (False, False): "moved",
}
Member = Row
Members = tuple[Sequence[Member], Sequence[Member]]
# Columns that follow from the others, or that say when a row was written.
_STATE_COLUMNS = (ENTITY_HASH, UPDATED_IN, "_previous", "_ts", MEMBERS)


@dataclass(frozen=True)
class ExampleNames:
    """How people see golden records: by the property ``label``, with the order of the ``source_columns``."""

    label: str | None = None
    source_columns: Sequence[str] = ()

    def list_columns(self, rows: DataFrame) -> tuple[str, ...]:
        """Return the columns that names stand for; empty if golden records have no names."""
        names = [name for name in (self.label, STABLE_ID) if name in rows.columns]
        return (ID, *names) if names or self.label else ()

    def name_example(self, example: ChangeExample) -> ChangeExample:
        """Return an example with its label and its stable ID, or one of them, as its name.

        A label that is masked, or that the golden record lacks, is left out.
        """
        ranks = {name: rank for rank, name in enumerate((ID, *self.source_columns))}
        images = {
            name: row and dict(sorted(row.items(), key=lambda item: ranks.get(item[0], len(ranks))))
            for name, row in (("before", example.before), ("after", example.after))
        }
        row = mask_row((example.before if example.kind == DELETED else example.after) or {})
        text, number = _find_label(row, self.label or ""), row.get(STABLE_ID)
        id_ = row.get(ID) if number is None else f"#{number}"
        shown = [str(value) for value in (text, id_) if value not in (None, MASK, f"#{MASK}")]
        has_name = self.label is not None or number is not None
        name = " ".join([*shown[:1], *(f"({value})" for value in shown[1:])]) if has_name else ""
        return example.model_copy(update={**images, "name": name})


def list_changed_rows(
    changes: DataFrame,
    stored: DataFrame | None,
    *,
    are_few: bool = False,
    names: ExampleNames | None = None,
) -> ChangeSet:
    """Return whole rows that a run writes with the stored rows that they replace.

    The members of an output are internal: the detail names those that joined or left, with the rules and keys
    that linked them.

    :param changes: the rows, with all columns of the target.
    :param stored: the rows of the target; None if the rows are the whole target.
    :param are_few: whether the rows fit into memory, so that the rows of the target are not shuffled.
    :param names: how examples are named; by default by their stable IDs.
    """
    names = names or ExampleNames()
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
        ),
        describe=lambda examples: [
            names.name_example(example)
            for example in group_examples(examples, partial(_collect_members, rows, members))
        ],
        name_columns=names.list_columns(changes),
    )


def _find_label(row: Row, label: str) -> Any:
    """Return the label of a row: of several values, the first one."""
    properties = row if label in row else row.get(ENTITY)
    value = properties.get(label) if isinstance(properties, Mapping) else None
    return next(iter(value), None) if isinstance(value, list) else value


def group_examples(
    examples: Sequence[ChangeExample], collect_members: Callable[[Collection[str]], Mapping[str, Members]]
) -> list[ChangeExample]:
    """Return the examples by golden record, each with the members that it gains and loses.

    A golden record that gets another ID is a row that ends and a new one: both are one example. An ID that
    ends goes on in the new row with most of its members.

    :param collect_members: returns the members of rows before and after, by the IDs of the rows.
    """
    ended = {_get_id(example): example for example in examples if example.reason == "replaced"}
    reasons = {*_REASONS.values(), *(("new", "replaced") if ended else ())}
    ids = [_get_id(example) for example in examples if example.reason in reasons]
    members = collect_members(ids) if ids else {}
    successors = _find_successors({id_: members[id_][0] for id_ in ended if id_ in members}, {
        _get_id(example): members[_get_id(example)][1]
        for example in examples
        if example.reason == "new" and _get_id(example) in members
    })  # fmt: skip
    former_ids = {new: former for former, new in successors.items()}
    grouped = []
    for example in examples:
        id_ = _get_id(example)
        if id_ in successors:
            continue
        before, after = members.get(id_, ([], []))
        if (former_id := former_ids.get(id_)) is not None:
            before = members[former_id][0]
            changes = {
                "kind": UPDATED,
                "before": ended[former_id].before,
                "replaces": mask_value(former_id, [ID]),
            }
            example = example.model_copy(update={**changes, "reason": _name_reason(before, after)})  # noqa: PLW2901
        if before and after:
            text = mask_value(describe_member_changes(id_, before, after, mask_text), [ID])
            example = example.model_copy(update={"members": text, "detail": ""})  # noqa: PLW2901
        grouped.append(example)
    return grouped


def _get_id(example: ChangeExample) -> str:
    return str((example.after or example.before or {})[ID])


def _name_reason(before: Sequence[Member], after: Sequence[Member]) -> str:
    names = [{(member["dataset"], member["id"]) for member in side} for side in (before, after)]
    return _REASONS[bool(names[1] - names[0]), bool(names[0] - names[1])]


def _find_successors(
    ended: Mapping[str, Sequence[Member]], new: Mapping[str, Sequence[Member]]
) -> dict[str, str]:
    """Return for IDs that end the new one that has most of their members; each new ID has one predecessor."""
    holders = {(member["dataset"], member["id"]): id_ for id_, side in ended.items() for member in side}
    shared = Counter(
        (holders[name], id_)
        for id_, side in new.items()
        for member in side
        if (name := (member["dataset"], member["id"])) in holders
    )
    successors: dict[str, str] = {}
    for (former_id, id_), _ in shared.most_common():
        if former_id not in successors and id_ not in successors.values():
            successors[former_id] = id_
    return successors


def _collect_members(rows: DataFrame, members: dict[str, Column], ids: Collection[str]) -> dict[str, Members]:
    """Return the members of rows before and after, by the IDs of the rows."""
    sides = (members[alias].alias(alias) for alias in (_OLD, _NEW))
    chosen = rows.where(_refer_to(_NEW, ID).isin(*ids)).select(_refer_to(_NEW, ID).alias(ID), *sides)
    return {row[ID]: (row[_OLD] or [], row[_NEW] or []) for row in chosen.toArrow().to_pylist()}


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
        .when(joined & left, F.lit(_REASONS[True, True]))
        .when(joined, F.lit(_REASONS[True, False]))
        .when(left, F.lit(_REASONS[False, True]))
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
        .when(~is_empty[_NEW], _list_members("+", members[_NEW]))
        .when(~is_empty[_OLD], _list_members("-", members[_OLD]))
    )


def _list_members(sign: str, members: Column) -> Column:
    """Return the text of ``describe_member_changes`` for an output whose members are all new or all gone."""
    names = F.array_sort(
        F.transform(members, lambda member: F.concat_ws("/", member["dataset"], member["id"]))
    )
    shown = F.array_join(F.slice(names, 1, MEMBERS_MAX), ", ")
    more = F.format_string(", and %d more", F.size(names) - F.lit(MEMBERS_MAX))
    return F.concat(F.lit(f"{sign} "), shown, F.when(F.size(names) > MEMBERS_MAX, more).otherwise(F.lit("")))


def _build_description() -> Callable[[str, list[Any] | None, list[Any] | None], str]:
    describe = explanation.describe_member_changes

    def describe_output(output_id: str, before: list[Any] | None, after: list[Any] | None) -> str:
        return describe(output_id, before or [], after or [])

    return pickle_once(describe_output, errors, value_text, explanation)
