"""Build the versions of keys from their events: sorted by time, without events that change nothing.

A history is a step function of time. All known times of a key are used: the starts and ends of its stored
versions, the times of loaded rows, and the times of earlier loads that left no trace (pins). At a time of
the load, the state is the loaded one; at every other time, it is the state that was stored there. So a late
state is valid until the next known time, and no longer.
Source: docs/semantics/merge_load.md, Changes; Late loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window, functions as F

from airflow_merge_provider.core.merge_load.requirements import PREFIX
from airflow_merge_provider.core.merge_load.scd2 import DELETED_HASH
from airflow_merge_provider.jobs.merge_load.changes import union_rows
from airflow_merge_provider.jobs.merge_load.columns import refer_to_columns
from airflow_merge_provider.jobs.spark.sql import quote_column

TIME = f"{PREFIX}time"
STATE = f"{PREFIX}state"
_SAYS = f"{PREFIX}says"
_IS_STORED, _IS_LOADED, _ENDED = f"{PREFIX}stored", f"{PREFIX}loaded", f"{PREFIX}ended"
_CARRIED, _LATEST, _LAST_STORED = f"{PREFIX}carried", f"{PREFIX}latest", f"{PREFIX}last_stored"
_BEGINS, _FIRST, _INTERVAL_END = f"{PREFIX}begins", f"{PREFIX}first", f"{PREFIX}end"
_HASHED, _GONE, _PURGED = f"{PREFIX}hashed", f"{PREFIX}gone", f"{PREFIX}purged"
_LATEST_LIVE = f"{PREFIX}latest_live"
IS_LATE = f"{PREFIX}is_late"


@dataclass(frozen=True, slots=True)
class IntervalColumns:
    """The column names of a history: key, validity of stored versions, hash and columns of the state.

    ``mark`` is the column that is true for deletion versions; without it, a deletion does not create a
    version. If ``purges``, a deletion also removes the versions before it.
    """

    keys: Sequence[str]
    valid_from: str
    valid_to: str
    hashed: str
    columns: Sequence[str]
    overwritten: Sequence[str] = ()
    mark: str | None = None
    purges: bool = False

    @property
    def state(self) -> Column:
        """All columns of a version except its key and validity."""
        return F.struct(*refer_to_columns((*self.columns, self.hashed)))


def list_stored_events(versions: DataFrame, naming: IntervalColumns, active: Column) -> DataFrame:
    """Split versions into events: a state at each start, and no state at each end."""
    keys = refer_to_columns(naming.keys)
    state = naming.state if naming.mark is None else F.when(~quote_column(naming.mark), naming.state)
    begins = versions.select(*keys, quote_column(naming.valid_from).alias(TIME), state.alias(STATE))
    ends = versions.where(~active).select(*keys, quote_column(naming.valid_to).alias(TIME))
    return union_rows([begins, ends]).withColumn(_SAYS, F.lit(_IS_STORED))


def list_loaded_events(rows: DataFrame, naming: IntervalColumns, flagged: Column) -> DataFrame:
    """Return the events of loaded rows; a flagged row is a deletion from its time on."""
    state = F.when(~flagged, naming.state)
    return rows.select(
        *refer_to_columns(naming.keys), TIME, state.alias(STATE), F.lit(_IS_LOADED).alias(_SAYS)
    )


def list_absences(keys: DataFrame, naming: IntervalColumns, at: Column) -> DataFrame:
    """Return the deletion events of keys that the load no longer has."""
    return keys.select(*refer_to_columns(naming.keys), at.alias(TIME), F.lit(_IS_LOADED).alias(_SAYS))


def list_pins(times: DataFrame, naming: IntervalColumns) -> DataFrame:
    """Return the times of states that left no trace as events; the stored state there does not change."""
    return times.select(*refer_to_columns(naming.keys), TIME, F.lit(None).cast("string").alias(_SAYS))


def list_endings(times: DataFrame, naming: IntervalColumns) -> DataFrame:
    """Return the times at which a load did not contain a key as events that end the preceding state."""
    return times.select(*refer_to_columns(naming.keys), TIME, F.lit(_ENDED).alias(_SAYS))


def build_intervals(events: Sequence[DataFrame], naming: IntervalColumns, until: Column) -> DataFrame:
    """Build versions from events: one row per state that lasts, with its columns and its validity.

    ``until`` is the end of a version that is currently valid. ``IS_LATE`` is true on all rows of a key for
    which the load changes something before a stored time. Such a key has at least one row, if necessary one
    without a state, whose hash is NULL.
    """
    states = _add_states(_add_times(union_rows(events), naming), naming)
    keys = refer_to_columns(naming.keys)
    by_key = Window.partitionBy(*keys)
    in_order = by_key.orderBy(TIME)
    states = states.withColumn(IS_LATE, F.max(IS_LATE).over(by_key))
    if naming.purges:
        deleted = F.when(quote_column(_IS_LOADED) & quote_column(STATE).isNull(), quote_column(TIME))
        states = states.withColumn(_PURGED, F.max(deleted).over(by_key))
        states = states.where(
            quote_column(_PURGED).isNull()
            | (quote_column(TIME) > quote_column(_PURGED))
            | quote_column(IS_LATE)
        )
    states = _mark_latest(states, naming)
    hashed = quote_column(_HASHED)
    states = states.withColumn(_BEGINS, ~hashed.eqNullSafe(F.lag(hashed).over(in_order)))
    # A first row that does not start a version has no state, and its time does not end a version.
    states = states.withColumn(_FIRST, F.row_number().over(in_order) == 1)
    lasting = states.where(quote_column(_BEGINS) | (quote_column(IS_LATE) & quote_column(_FIRST)))
    lasting = lasting.withColumn(_INTERVAL_END, F.lead(TIME).over(in_order))
    versions = lasting.where(
        quote_column(_HASHED).isNotNull() | (quote_column(IS_LATE) & quote_column(_FIRST))
    )
    return versions.select(
        *[_get_current(name, naming).alias(name) for name in naming.columns],
        quote_column(_HASHED).alias(naming.hashed),
        quote_column(TIME).alias(naming.valid_from),
        F.coalesce(quote_column(_INTERVAL_END), until).alias(naming.valid_to),
        *([] if naming.mark is None else [quote_column(_GONE).alias(naming.mark)]),
        IS_LATE,
    )


def _mark_latest(states: DataFrame, naming: IntervalColumns) -> DataFrame:
    """Add the hash of the state at each time; if deletions are marked, they have a hash of their own."""
    if naming.mark is None:
        return states.withColumn(_HASHED, quote_column(STATE)[naming.hashed])
    last_state = F.last(STATE, ignorenulls=True).over(
        Window.partitionBy(*refer_to_columns(naming.keys)).orderBy(TIME)
    )
    is_deleted = quote_column(STATE).isNull() & last_state.isNotNull()
    states = states.withColumns({_GONE: is_deleted, _LATEST_LIVE: last_state})
    hashed = F.when(quote_column(_GONE), F.lit(DELETED_HASH)).otherwise(quote_column(STATE)[naming.hashed])
    return states.withColumns(
        {_HASHED: hashed, STATE: F.coalesce(quote_column(STATE), quote_column(_LATEST_LIVE))}
    )


def _add_times(events: DataFrame, naming: IntervalColumns) -> DataFrame:
    """Return each known time of a key once, with the stored and the loaded state there."""
    aggregates = []
    for side in (_IS_STORED, _IS_LOADED):
        has_event = F.coalesce(quote_column(_SAYS) == side, F.lit(False))
        aggregates.append(F.max(has_event).alias(side))
        aggregates.append(
            F.first(F.when(has_event, quote_column(STATE)), ignorenulls=True).alias(f"{side}_state")
        )
    aggregates.append(F.max(F.coalesce(quote_column(_SAYS) == _ENDED, F.lit(False))).alias(_ENDED))
    return events.groupBy(*refer_to_columns(naming.keys), TIME).agg(*aggregates)


def _add_states(times: DataFrame, naming: IntervalColumns) -> DataFrame:
    """Add for each time the state valid from then on, whether it is late, and the key's newest state."""
    by_key = Window.partitionBy(*refer_to_columns(naming.keys))
    in_order = by_key.orderBy(TIME)
    stored = F.when(quote_column(_IS_STORED), F.struct(quote_column(f"{_IS_STORED}_state").alias("state")))
    last_stored = F.max(F.when(quote_column(_IS_STORED), quote_column(TIME))).over(by_key)
    states = times.withColumns(
        {_CARRIED: F.last(stored, ignorenulls=True).over(in_order)["state"], _LAST_STORED: last_stored}
    )
    carried, loaded = quote_column(_CARRIED), quote_column(f"{_IS_LOADED}_state")
    equal = loaded[naming.hashed].eqNullSafe(carried[naming.hashed])
    # An equal state that is stored at the same time is kept, with its untracked columns.
    state = F.when(quote_column(_IS_LOADED) & ~(quote_column(_IS_STORED) & equal), loaded).when(
        ~quote_column(_ENDED), carried
    )
    late = (
        quote_column(_IS_LOADED)
        & ~equal
        & F.coalesce(quote_column(TIME) < quote_column(_LAST_STORED), F.lit(False))
    )
    newest = F.when(quote_column(_IS_LOADED) & loaded.isNotNull(), loaded).otherwise(carried)
    full_window = in_order.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    return states.withColumns({STATE: state, IS_LATE: late, _LATEST: F.last(newest).over(full_window)})


def _get_current(name: str, naming: IntervalColumns) -> Column:
    """Return a column of a version; overwritten columns have their newest value in the valid version."""
    value = quote_column(STATE)[name]
    if name not in naming.overwritten:
        return value
    valid = quote_column(_INTERVAL_END).isNull()
    return F.when(
        valid if naming.mark is None else valid & ~quote_column(_GONE), quote_column(_LATEST)[name]
    ).otherwise(value)
