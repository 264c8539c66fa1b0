"""Which records meet in a key, in which order, and what is wrong with each: the batch and the stored rows.

A frame of records has the columns of the table and those named here. Source: merge_engine spec §1.2, §1.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Window, functions as F

from airflow_merge_provider.core.merge_engine import refusals
from airflow_merge_provider.core.merge_engine.options import FIRST_ROW, PARTIAL
from airflow_merge_provider.core.merge_engine.plan import Plan, Rule
from airflow_merge_provider.jobs import sql

KIND = "#kind"  # what the row came with; a batch without it adds only
ARRIVAL = "#arrival"  # a struct that orders the rows of a batch

ADDS = "#adds"  # +I and +U
DELETES = "#deletes"  # -D
STORED = "#stored"  # the row of the target
IGNORED = "#ignored"  # dropped by an option
LIVE = "#live"  # neither ignored nor before a removal
POSITION = "#position"  # grows from the oldest record of a key to the newest
PROBLEM = "#problem"  # what is wrong with the record, in words


def records(plan: Plan, batch: DataFrame, stored: DataFrame | None) -> DataFrame:
    """Give the records of a batch with those rows of the target that share a key with them.

    ``batch`` has the table's columns, ``ARRIVAL``, and ``KIND`` where rows have kinds; ``stored`` has the
    table's columns.
    """
    arrived = _arrived(plan, batch)
    if stored is not None:
        arrived = arrived.unionByName(_stored(plan, stored, batch))
    return _removed(plan, _placed(plan, arrived))


def _arrived(plan: Plan, batch: DataFrame) -> DataFrame:
    kind = _kind(plan, batch)
    flags = {ADDS: F.lit(True), DELETES: F.lit(False), IGNORED: F.lit(False)}
    if kind is not None:
        flags = {ADDS: kind.isin("+I", "+U"), DELETES: kind == "-D", IGNORED: _ignored(plan, kind)}
        flags = {name: F.coalesce(flag, F.lit(False)) for name, flag in flags.items()}
    flagged = batch.withColumns({**flags, STORED: F.lit(False)})
    return flagged.select(
        *map(sql.column, plan.names),
        *map(sql.column, (ARRIVAL, ADDS, DELETES, STORED, IGNORED)),
        _problem(plan, with_kinds=kind is not None).alias(PROBLEM),
    )


def _stored(plan: Plan, stored: DataFrame, batch: DataFrame) -> DataFrame:
    """Take the rows of the target whose keys are in the batch: each is an addition older than all others."""
    keys = batch.select(*map(sql.column, plan.key)).distinct()
    pairs = [stored[sql.name(name)].eqNullSafe(keys[sql.name(name)]) for name in plan.key]
    touched = stored.join(keys, reduce(Column.__and__, pairs), "left_semi")
    flags = {ADDS: True, DELETES: False, STORED: True, IGNORED: False}
    # A first row stays as it is: that there is one is all that counts.
    unread = plan.values if plan.engine == FIRST_ROW else ()
    return touched.select(
        *(
            F.lit(None).cast(stored.schema[name].dataType).alias(name) if name in unread else sql.column(name)
            for name in plan.names
        ),
        F.lit(None).cast(batch.schema[ARRIVAL].dataType).alias(ARRIVAL),
        *(F.lit(value).alias(name) for name, value in flags.items()),
        F.lit(None).cast("string").alias(PROBLEM),
    )


def _kind(plan: Plan, batch: DataFrame) -> Column | None:
    name = plan.options.row_kind_field or (KIND if KIND in batch.columns else None)
    return None if name is None else F.upper(sql.column(name))


def _ignored(plan: Plan, kind: Column) -> Column:
    if plan.options.ignore_delete:
        return kind.isin("-U", "-D")
    if plan.options.ignore_update_before or (plan.engine == PARTIAL and plan.options.remove_on_delete):
        return kind == "-U"
    return F.lit(False)


def _problem(plan: Plan, *, with_kinds: bool) -> Column:
    """Say the first thing that is wrong with a record, null when nothing is."""
    found: list[Column] = []
    taken = ~sql.column(IGNORED)
    if with_kinds:
        raw = sql.column(plan.options.row_kind_field or KIND)
        known = F.upper(raw).isin(*refusals.KINDS)
        said = F.concat(F.lit(refusals.UNKNOWN_KIND), F.lit("'"), raw, F.lit("'"))
        found += [F.when(raw.isNull(), F.lit(refusals.NULL_KIND)), F.when(~known, said)]
    if not plan.options.nullable_key:
        found += [
            F.when(taken & sql.column(name).isNull(), F.lit(refusals.null_key(name))) for name in plan.key
        ]
    found += [
        F.when(sql.column(ADDS) & sql.column(column.name).isNull(), F.lit(refusals.null_value(column.name)))
        for column in plan.columns
        if column.not_null and column.name not in plan.key
    ]
    if "null-sequence" in plan.fail_on:
        found += [
            F.when(taken & sql.column(name).isNull(), F.lit(refusals.null_sequence(name)))
            for name in plan.sequence
        ]
    if with_kinds and plan.needs_policy:
        found.append(F.when(taken & ~sql.column(ADDS), F.lit(refusals.without_policy(plan))))
    elif with_kinds:
        found += [_refusal(plan, rule) for rule in plan.rules if rule.refuses_retracts and not rule.folded]
    return F.coalesce(*found, F.lit(None).cast("string"))


def _refusal(plan: Plan, rule: Rule) -> Column:
    taken = ~sql.column(IGNORED) & ~sql.column(ADDS)
    if plan.options.remove_on_delete:
        taken &= ~sql.column(DELETES)
    if rule.group is not None:
        taken &= any_set(plan.groups[rule.group].order)
    return F.when(taken, F.lit(refusals.cannot_retract(rule)))


def any_set(names: Sequence[str]) -> Column:
    """Say whether at least one of some columns is not null."""
    return reduce(Column.__or__, [sql.column(name).isNotNull() for name in names])


def _placed(plan: Plan, arrived: DataFrame) -> DataFrame:
    """Give every record its place in the order of its key: a number where one is needed, else a struct."""
    sequence = [sql.column(name) for name in plan.sequence]
    then = [sql.column(ARRIVAL), sql.column(ADDS)]
    down = plan.options.descending
    if not down and not plan.folded:
        return arrived.withColumn(POSITION, F.struct(*sequence, *then))
    # Null is the oldest in both directions.
    ordered = [each.desc_nulls_first() if down else each.asc_nulls_first() for each in sequence]
    window = Window.partitionBy(*map(sql.column, plan.key))
    window = window.orderBy(*ordered, *(each.asc_nulls_first() for each in then))
    return arrived.withColumn(POSITION, F.row_number().over(window))


def _removed(plan: Plan, placed: DataFrame) -> DataFrame:
    """Mark what counts: nothing that an option drops, and nothing up to the last removal of the row."""
    live = ~sql.column(IGNORED)
    if plan.options.remove_on_delete and plan.retracts:
        deleted = F.when(live & sql.column(DELETES), sql.column(POSITION))
        cut = F.max(deleted).over(Window.partitionBy(*map(sql.column, plan.key)))
        live = live & (cut.isNull() | (sql.column(POSITION) > cut))
    return placed.withColumn(LIVE, live)
