"""Which records meet in a key, in which order, and what is wrong with each: the batch and what is stored.

A frame of records has the columns of the table and those named here.
Source: docs/semantics/merge_engine.md, Records; Order of records.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window, WindowSpec, functions as F

from airflow_merge_provider.core.merge_engine import refusals
from airflow_merge_provider.core.merge_engine.options import FIRST_ROW, PARTIAL
from airflow_merge_provider.core.merge_engine.plan import ColumnRule, Plan
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.expressions import all_of, any_of, cast_to

KIND = "#kind"  # what the row came with; a batch without it adds only
ARRIVAL = "#arrival"  # a struct that orders the rows of a batch
CLEARS = "#clears"  # the columns that a record empties, in small letters

ADDS = "#adds"  # +I and +U
DELETES = "#deletes"  # -D
STORED = "#stored"  # the row of the target, or a removal that was remembered
IGNORED = "#ignored"  # dropped by an option
LIVE = "#live"  # neither ignored nor before a removal
POSITION = "#position"  # grows from the oldest record of a key to the newest
LATE = "#late"  # older than what is stored
TIE = "#tie"  # as new as another record of the batch
LONE = "#lone"  # -U, which the next record of its key should replace
PROBLEM = "#problem"  # what is wrong with the record, in words


def build_records(
    plan: Plan, batch: DataFrame, stored: DataFrame | None, removed: DataFrame | None = None
) -> DataFrame:
    """Return the records of a batch with those rows of the target that share a key with them.

    ``batch`` has the table's columns, ``ARRIVAL``, ``KIND`` where rows have kinds and ``CLEARS`` where they
    empty columns; ``stored`` has the table's columns, ``removed`` those that a removed key keeps.
    """
    arrived = _read_batch(plan, batch)
    met = arrived
    for kept, adds in ((stored, True), (removed, False)):
        if kept is not None:
            met = met.unionByName(_read_stored(plan, kept, arrived, adds=adds))
    return _mark_counted(plan, _compare_with_stored(plan, _order_records(plan, met)))


def _read_batch(plan: Plan, batch: DataFrame) -> DataFrame:
    kind = _find_kind(plan, batch)
    flags = {ADDS: F.lit(True), DELETES: F.lit(False), LONE: F.lit(False), IGNORED: F.lit(False)}
    if kind is not None:
        flags = {ADDS: kind.isin("+I", "+U"), DELETES: kind == "-D", LONE: kind == "-U"}
        flags[IGNORED] = _is_ignored(plan, kind)
        flags = {name: F.coalesce(flag, F.lit(False)) for name, flag in flags.items()}
    flagged = batch.withColumns({**flags, STORED: F.lit(False)})
    beside = (ARRIVAL, ADDS, DELETES, LONE, STORED, IGNORED, *([CLEARS] if plan.clears else []))
    return flagged.select(
        *(_read_value(plan, name) for name in plan.names),
        *map(sql.quote_column, beside),
        _find_problem(plan, with_kinds=kind is not None).alias(PROBLEM),
    )


def _read_value(plan: Plan, name: str) -> Column:
    """Take a value, or nothing where the record says that there is none."""
    if name not in plan.clearable:
        return sql.quote_column(name)
    return F.when(~is_cleared(name), sql.quote_column(name)).alias(name)


def is_cleared(name: str) -> Column:
    """Return whether a record empties a column on purpose."""
    return F.coalesce(F.array_contains(sql.quote_column(CLEARS), name.casefold()), F.lit(False))


def _read_stored(plan: Plan, kept: DataFrame, arrived: DataFrame, *, adds: bool) -> DataFrame:
    """Take what is stored of the keys of a batch: an addition, or a removal, older than all its records."""
    keys = arrived.select(*map(sql.quote_column, plan.key))
    touched = kept.join(keys, all_of(_build_key_conditions(plan, kept, keys)), "left_semi")
    # A first row stays as it is: that there is one is all that counts.
    unread = set(plan.values) if plan.engine == FIRST_ROW else set(plan.names) - set(kept.columns)
    flags = {ADDS: adds, DELETES: not adds, STORED: True, IGNORED: False, LONE: False}
    values = {name: F.lit(value) for name, value in flags.items()}
    values |= {name: sql.quote_column(name) for name in plan.names if name not in unread}
    return touched.select(
        *(
            values.get(field.name, cast_to(F.lit(None), field.dataType)).alias(field.name)
            for field in arrived.schema.fields
        )
    )


def _build_key_conditions(plan: Plan, kept: DataFrame, keys: DataFrame) -> list[Column]:
    sides = [(kept[sql.quote_name(name)], keys[sql.quote_name(name)]) for name in plan.key]
    if plan.options.nullable_key:
        return [one.eqNullSafe(other) for one, other in sides]
    return [one == other for one, other in sides]


def _find_kind(plan: Plan, batch: DataFrame) -> Column | None:
    name = plan.options.row_kind_field or (KIND if KIND in batch.columns else None)
    return None if name is None else F.upper(sql.quote_column(name))


def _is_ignored(plan: Plan, kind: Column) -> Column:
    if plan.options.ignore_delete:
        return kind.isin("-U", "-D")
    if plan.options.ignore_update_before or (plan.engine == PARTIAL and plan.options.remove_on_delete):
        return kind == "-U"
    return F.lit(False)


def _find_problem(plan: Plan, *, with_kinds: bool) -> Column:
    """Return the first problem of a record, NULL if it has none."""
    found: list[Column] = []
    taken = ~sql.quote_column(IGNORED)
    if with_kinds:
        raw = sql.quote_column(plan.options.row_kind_field or KIND)
        known = F.upper(raw).isin(*refusals.KINDS)
        said = F.concat(F.lit(refusals.UNKNOWN_KIND), F.lit("'"), raw, F.lit("'"))
        found += [F.when(raw.isNull(), F.lit(refusals.NULL_KIND)), F.when(~known, said)]
    if not plan.options.nullable_key:
        found += [
            F.when(taken & sql.quote_column(name).isNull(), F.lit(refusals.null_key(name)))
            for name in plan.key
        ]
    found += [
        F.when(
            sql.quote_column(ADDS) & sql.quote_column(column.name).isNull(),
            F.lit(refusals.null_value(column.name)),
        )
        for column in plan.columns
        if column.not_null and column.name not in plan.key
    ]
    if plan.clears:
        clearable = F.array(*(F.lit(name.casefold()) for name in plan.clearable)).cast("array<string>")
        others = F.array_except(sql.quote_column(CLEARS), clearable)
        said = F.concat(F.lit(refusals.NOT_CLEARABLE), F.array_join(others, ", "))
        found.append(F.when(F.size(others) > 0, said))
    if "null-sequence" in plan.fail_on:
        found += [
            F.when(taken & sql.quote_column(name).isNull(), F.lit(refusals.null_sequence(name)))
            for name in plan.sequence
        ]
    if with_kinds and plan.needs_policy:
        found.append(F.when(taken & ~sql.quote_column(ADDS), F.lit(refusals.without_policy(plan))))
    elif with_kinds:
        found += [
            _find_refusal(plan, rule) for rule in plan.rules if rule.refuses_retracts and not rule.folded
        ]
    return F.coalesce(*found, F.lit(None).cast("string"))


def _find_refusal(plan: Plan, rule: ColumnRule) -> Column:
    taken = ~sql.quote_column(IGNORED) & ~sql.quote_column(ADDS)
    if plan.options.remove_on_delete:
        taken &= ~sql.quote_column(DELETES)
    if rule.group is not None:
        taken &= any_set(plan.groups[rule.group].order)
    return F.when(taken, F.lit(refusals.cannot_retract(rule)))


def any_set(names: Sequence[str]) -> Column:
    """Return whether at least one of some columns is not null."""
    return any_of(sql.quote_column(name).isNotNull() for name in names)


def _order_records(plan: Plan, arrived: DataFrame) -> DataFrame:
    """Return every record its place in the order of its key: a number where one is needed, else a struct."""
    for place, group in enumerate(plan.groups):
        if group.descending:
            oldest_first = [sql.quote_column(name).desc_nulls_first() for name in group.order]
            rank = F.dense_rank().over(_of_key(plan).orderBy(*oldest_first))
            arrived = arrived.withColumn(_rank_name(place), rank)
    if not plan.options.descending and not plan.folded:
        position = F.struct(*map(sql.quote_column, (*plan.sequence, ARRIVAL, ADDS)))
    else:
        position = F.row_number().over(_in_order(plan))
    return arrived.withColumn(POSITION, position)


def _of_key(plan: Plan) -> WindowSpec:
    return Window.partitionBy(*map(sql.quote_column, plan.key))


def _in_order(plan: Plan, *, newest_first: bool = False) -> WindowSpec:
    """Order the records of a key; null is the oldest in both directions."""
    up, down = Column.asc_nulls_first, Column.desc_nulls_first
    if newest_first:
        up, down = Column.desc_nulls_last, Column.asc_nulls_last
    by_sequence = down if plan.options.descending else up
    sequence = [by_sequence(sql.quote_column(name)) for name in plan.sequence]
    return _of_key(plan).orderBy(*sequence, *(up(sql.quote_column(name)) for name in (ARRIVAL, ADDS)))


def _compare_with_stored(plan: Plan, placed: DataFrame) -> DataFrame:
    """Return which records are older than the stored row, and which tie with another record of the batch."""
    fresh = ~sql.quote_column(STORED) & ~sql.quote_column(IGNORED)
    late = tie = F.lit(False)
    # One order for both: the records of a key are sorted once.
    newest_first = _in_order(plan, newest_first=True)
    if plan.groups:
        late = _late_in_groups(plan)
    elif plan.sequence:
        late = F.max(STORED).over(newest_first.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    if plan.sequence:
        sequence = F.struct(*map(sql.quote_column, plan.sequence))
        older = F.lead(F.struct(fresh.alias("fresh"), sequence.alias("sequence"))).over(newest_first)
        tie = older["fresh"] & (older["sequence"] == sequence)
    flags = {name: fresh & F.coalesce(flag, F.lit(False)) for name, flag in ((LATE, late), (TIE, tie))}
    return placed.withColumns(flags)


def _late_in_groups(plan: Plan) -> Column:
    """Return whether a record is older in every sequence group that it gives something to."""
    given = F.lit(False)
    newer = F.lit(False)
    for place, group in enumerate(plan.groups):
        tick = F.struct(*group_order(plan, place))
        given |= any_set(group.order)
        newer |= any_set(group.order) & F.coalesce(tick >= _at_stored(plan, tick), F.lit(True))
    return given & ~newer


def _at_stored(plan: Plan, value: Column) -> Column:
    """Return a value as it is for what is stored of the record's key."""
    return F.max(F.when(sql.quote_column(STORED), value)).over(_of_key(plan))


def group_order(plan: Plan, place: int) -> list[Column]:
    """Return the columns that grow from the oldest tuple of a sequence group to the newest."""
    group = plan.groups[place]
    return (
        [sql.quote_column(_rank_name(place))]
        if group.descending
        else list(map(sql.quote_column, group.order))
    )


def _rank_name(place: int) -> str:
    return f"#rank{place}"


def _mark_counted(plan: Plan, placed: DataFrame) -> DataFrame:
    """Mark what counts: nothing that an option drops, and nothing up to the last removal of the row."""
    live = ~sql.quote_column(IGNORED)
    if plan.options.remove_on_delete and (plan.retracts or plan.remembers):
        deleted = F.when(live & sql.quote_column(DELETES), sql.quote_column(POSITION))
        cut = F.max(deleted).over(_of_key(plan))
        live = live & (cut.isNull() | (sql.quote_column(POSITION) > cut))
    return placed.withColumn(LIVE, live)
