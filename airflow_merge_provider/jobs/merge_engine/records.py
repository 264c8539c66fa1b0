"""Build the records of each key from the batch and the stored rows: their order, flags and problems.

A DataFrame of records has the columns of the table and the columns defined here.
Source: docs/semantics/merge_engine.md, Records; Order of records.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window, WindowSpec, functions as F

from airflow_merge_provider.core.merge_engine import refusals
from airflow_merge_provider.core.merge_engine.options import FIRST_ROW, PARTIAL
from airflow_merge_provider.core.merge_engine.plan import ColumnRule, Plan
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.expressions import cast_to, combine_with_and, combine_with_or

RECORD_KIND = "#kind"  # the row kind from the source; without it, all rows of a batch are additions
RECORD_ARRIVAL = "#arrival"  # a struct that orders the rows of a batch
CLEARS = "#clears"  # the names of the columns that a record clears, in lower case

ADDS = "#adds"  # +I and +U
DELETES = "#deletes"  # -D
STORED = "#stored"  # the row of the target, or a recorded removal
IGNORED = "#ignored"  # dropped by an option
LIVE = "#live"  # neither ignored nor before a removal
RECORD_POSITION = "#position"  # increases from the oldest record of a key to the newest
RECORD_LATE = "#late"  # older than what is stored
TIE = "#tie"  # as new as another record of the batch
LONE = "#lone"  # -U, which another record of its key should follow
RECORD_PROBLEM = "#problem"  # the error text of the record


def build_records(
    plan: Plan, batch: DataFrame, stored: DataFrame | None, removed: DataFrame | None = None
) -> DataFrame:
    """Return the records of a batch together with the target rows that share a key with them.

    ``batch`` has the table's columns, ``ARRIVAL``, ``KIND`` if rows have kinds, and ``CLEARS`` if rows
    clear columns; ``stored`` has the table's columns, ``removed`` those that are kept of a removed key.
    """
    batch_records = _read_batch(plan, batch)
    records = batch_records
    for stored_rows, adds in ((stored, True), (removed, False)):
        if stored_rows is not None:
            records = records.unionByName(_read_stored(plan, stored_rows, batch_records, adds=adds))
    return _mark_counted(plan, _compare_with_stored(plan, _order_records(plan, records)))


def _read_batch(plan: Plan, batch: DataFrame) -> DataFrame:
    kind = _find_kind(plan, batch)
    flags = {ADDS: F.lit(True), DELETES: F.lit(False), LONE: F.lit(False), IGNORED: F.lit(False)}
    if kind is not None:
        flags = {ADDS: kind.isin("+I", "+U"), DELETES: kind == "-D", LONE: kind == "-U"}
        flags[IGNORED] = _is_ignored(plan, kind)
        flags = {name: F.coalesce(flag, F.lit(False)) for name, flag in flags.items()}
    flagged = batch.withColumns({**flags, STORED: F.lit(False)})
    extra_columns = (RECORD_ARRIVAL, ADDS, DELETES, LONE, STORED, IGNORED, *([CLEARS] if plan.clears else []))
    return flagged.select(
        *(_read_value(plan, name) for name in plan.names),
        *map(sql.quote_column, extra_columns),
        _find_problem(plan, with_kinds=kind is not None).alias(RECORD_PROBLEM),
    )


def _read_value(plan: Plan, name: str) -> Column:
    """Return the value of a column; NULL if the record clears it."""
    if name not in plan.clearable:
        return sql.quote_column(name)
    return F.when(~is_cleared(name), sql.quote_column(name)).alias(name)


def is_cleared(name: str) -> Column:
    """Return whether a record explicitly clears a column."""
    return F.coalesce(F.array_contains(sql.quote_column(CLEARS), name.casefold()), F.lit(False))


def _read_stored(plan: Plan, stored_rows: DataFrame, batch_records: DataFrame, *, adds: bool) -> DataFrame:
    """Return what is stored of the batch's keys as additions or removals, older than all its records."""
    keys = batch_records.select(*map(sql.quote_column, plan.key))
    touched = stored_rows.join(
        keys, combine_with_and(_build_key_conditions(plan, stored_rows, keys)), "left_semi"
    )
    # A stored first row never changes, so only its existence is needed and its values are not read.
    unread = set(plan.values) if plan.engine == FIRST_ROW else set(plan.names) - set(stored_rows.columns)
    flags = {ADDS: adds, DELETES: not adds, STORED: True, IGNORED: False, LONE: False}
    values = {name: F.lit(value) for name, value in flags.items()}
    values |= {name: sql.quote_column(name) for name in plan.names if name not in unread}
    return touched.select(
        *(
            values.get(field.name, cast_to(F.lit(None), field.dataType)).alias(field.name)
            for field in batch_records.schema.fields
        )
    )


def _build_key_conditions(plan: Plan, stored_rows: DataFrame, keys: DataFrame) -> list[Column]:
    column_pairs = [(stored_rows[sql.quote_name(name)], keys[sql.quote_name(name)]) for name in plan.key]
    if plan.options.nullable_key:
        return [stored_column.eqNullSafe(key_column) for stored_column, key_column in column_pairs]
    return [stored_column == key_column for stored_column, key_column in column_pairs]


def _find_kind(plan: Plan, batch: DataFrame) -> Column | None:
    name = plan.options.row_kind_field or (RECORD_KIND if RECORD_KIND in batch.columns else None)
    return None if name is None else F.upper(sql.quote_column(name))


def _is_ignored(plan: Plan, kind: Column) -> Column:
    if plan.options.ignore_delete:
        return kind.isin("-U", "-D")
    if plan.options.ignore_update_before or (plan.engine == PARTIAL and plan.options.remove_on_delete):
        return kind == "-U"
    return F.lit(False)


def _find_problem(plan: Plan, *, with_kinds: bool) -> Column:
    """Return the first problem of a record, NULL if it has none."""
    problems: list[Column] = []
    is_counted = ~sql.quote_column(IGNORED)
    if with_kinds:
        raw = sql.quote_column(plan.options.row_kind_field or RECORD_KIND)
        is_valid_kind = F.upper(raw).isin(*refusals.ROW_KINDS)
        message = F.concat(F.lit(refusals.UNKNOWN_KIND), F.lit("'"), raw, F.lit("'"))
        problems += [F.when(raw.isNull(), F.lit(refusals.NULL_KIND)), F.when(~is_valid_kind, message)]
    if not plan.options.nullable_key:
        problems += [
            F.when(is_counted & sql.quote_column(name).isNull(), F.lit(refusals.null_key(name)))
            for name in plan.key
        ]
    problems += [
        F.when(
            sql.quote_column(ADDS) & sql.quote_column(column.name).isNull(),
            F.lit(refusals.null_value(column.name)),
        )
        for column in plan.columns
        if column.not_null and column.name not in plan.key
    ]
    if plan.clears:
        clearable = F.array(*(F.lit(name.casefold()) for name in plan.clearable)).cast("array<string>")
        invalid_names = F.array_except(sql.quote_column(CLEARS), clearable)
        message = F.concat(F.lit(refusals.NOT_CLEARABLE), F.array_join(invalid_names, ", "))
        problems.append(F.when(F.size(invalid_names) > 0, message))
    if "null-sequence" in plan.fail_on:
        problems += [
            F.when(is_counted & sql.quote_column(name).isNull(), F.lit(refusals.null_sequence(name)))
            for name in plan.sequence
        ]
    if with_kinds and plan.needs_policy:
        problems.append(F.when(is_counted & ~sql.quote_column(ADDS), F.lit(refusals.without_policy(plan))))
    elif with_kinds:
        problems += [
            _find_refusal(plan, rule) for rule in plan.rules if rule.refuses_retracts and not rule.folded
        ]
    return F.coalesce(*problems, F.lit(None).cast("string"))


def _find_refusal(plan: Plan, rule: ColumnRule) -> Column:
    is_retract = ~sql.quote_column(IGNORED) & ~sql.quote_column(ADDS)
    if plan.options.remove_on_delete:
        is_retract &= ~sql.quote_column(DELETES)
    if rule.group is not None:
        is_retract &= any_set(plan.groups[rule.group].order)
    return F.when(is_retract, F.lit(refusals.cannot_retract(rule)))


def any_set(names: Sequence[str]) -> Column:
    """Return whether at least one of some columns is not null."""
    return combine_with_or(sql.quote_column(name).isNotNull() for name in names)


def _order_records(plan: Plan, records: DataFrame) -> DataFrame:
    """Add the position of each record within its key: a number if the plan needs one, else a struct."""
    for group_index, group in enumerate(plan.groups):
        if group.descending:
            oldest_first = [sql.quote_column(name).desc_nulls_first() for name in group.order]
            rank = F.dense_rank().over(_of_key(plan).orderBy(*oldest_first))
            records = records.withColumn(_rank_name(group_index), rank)
    if not plan.options.descending and not plan.folded_rules:
        position = F.struct(*map(sql.quote_column, (*plan.sequence, RECORD_ARRIVAL, ADDS)))
    else:
        position = F.row_number().over(build_window(plan))
    return records.withColumn(RECORD_POSITION, position)


def _of_key(plan: Plan) -> WindowSpec:
    return Window.partitionBy(*map(sql.quote_column, plan.key))


def build_window(plan: Plan, *, newest_first: bool = False) -> WindowSpec:
    """Return a window that orders the records of a key; null is the oldest value in both directions."""
    up, down = Column.asc_nulls_first, Column.desc_nulls_first
    if newest_first:
        up, down = Column.desc_nulls_last, Column.asc_nulls_last
    by_sequence = down if plan.options.descending else up
    sequence = [by_sequence(sql.quote_column(name)) for name in plan.sequence]
    return _of_key(plan).orderBy(*sequence, *(up(sql.quote_column(name)) for name in (RECORD_ARRIVAL, ADDS)))


def _compare_with_stored(plan: Plan, records: DataFrame) -> DataFrame:
    """Flag the records that are older than the stored row, and those that tie within the batch."""
    is_new = ~sql.quote_column(STORED) & ~sql.quote_column(IGNORED)
    late = tie = F.lit(False)
    # Both checks use the same order, so that Spark sorts the records of a key once.
    newest_first = build_window(plan, newest_first=True)
    if plan.groups:
        late = _late_in_groups(plan)
    elif plan.sequence:
        late = F.max(STORED).over(newest_first.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    if plan.sequence:
        sequence = F.struct(*map(sql.quote_column, plan.sequence))
        older = F.lead(F.struct(is_new.alias("fresh"), sequence.alias("sequence"))).over(newest_first)
        tie = older["fresh"] & (older["sequence"] == sequence)
    flags = {
        name: is_new & F.coalesce(flag, F.lit(False)) for name, flag in ((RECORD_LATE, late), (TIE, tie))
    }
    return records.withColumns(flags)


def _late_in_groups(plan: Plan) -> Column:
    """Return whether a record is older than the stored row in each sequence group that it sets."""
    has_sequence = F.lit(False)
    is_newer = F.lit(False)
    for group_index, group in enumerate(plan.groups):
        sequence = F.struct(*group_order(plan, group_index))
        has_sequence |= any_set(group.order)
        is_newer |= any_set(group.order) & F.coalesce(sequence >= _at_stored(plan, sequence), F.lit(True))
    return has_sequence & ~is_newer


def _at_stored(plan: Plan, value: Column) -> Column:
    """Return the value that the stored record of the same key has."""
    return F.max(F.when(sql.quote_column(STORED), value)).over(_of_key(plan))


def group_order(plan: Plan, group_index: int) -> list[Column]:
    """Return the columns that sort the records of a sequence group from oldest to newest."""
    group = plan.groups[group_index]
    return (
        [sql.quote_column(_rank_name(group_index))]
        if group.descending
        else list(map(sql.quote_column, group.order))
    )


def _rank_name(group_index: int) -> str:
    return f"#rank{group_index}"


def _mark_counted(plan: Plan, records: DataFrame) -> DataFrame:
    """Flag the records that count: not ignored by an option, and newer than the row's last removal."""
    live = ~sql.quote_column(IGNORED)
    if plan.options.remove_on_delete and (plan.retracts or plan.remembers):
        deleted = F.when(live & sql.quote_column(DELETES), sql.quote_column(RECORD_POSITION))
        last_removal = F.max(deleted).over(_of_key(plan))
        live = live & (last_removal.isNull() | (sql.quote_column(RECORD_POSITION) > last_removal))
    return records.withColumn(LIVE, live)
