"""Handle late snapshots: find the later loads of the same area, and until when the snapshot is valid.

Source: docs/semantics/merge_load.md, Late loads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyspark.sql import Column, DataFrame, functions as F

from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_load.requirements import PREFIX
from airflow_merge_provider.core.merge_load.timestamps import from_micros
from airflow_merge_provider.jobs.merge_load.changes import Remembers
from airflow_merge_provider.jobs.merge_load.columns import moment_column, refer_to_columns
from airflow_merge_provider.jobs.merge_load.scd2.history import History
from airflow_merge_provider.jobs.merge_load.scd2.intervals import (
    TIME,
    list_endings,
    list_loaded_events,
    list_pins,
)
from airflow_merge_provider.jobs.merge_load.snapshot_scope import AREA, EVERYWHERE, ScopedTimes, name_areas
from airflow_merge_provider.jobs.merge_load.staging import StagedLoad
from airflow_merge_provider.jobs.merge_load.writing import CountedChanges
from airflow_merge_provider.jobs.spark.sql import quote_column

_OWN, _OTHER, _NEXT, _ENDS = (f"{PREFIX}{suffix}" for suffix in ("own", "other", "next", "ends"))
_FAR = datetime(9999, 12, 31, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class LateArrivals:
    """The recorded load times of a history, relative to the boundary of a snapshot."""

    history: History

    @property
    def area(self) -> ScopedTimes:
        """The merge key or scope within which the snapshot deletes absent keys."""
        scope = self.history.config.scope
        return ScopedTimes(scope, None) if isinstance(scope, tuple) else ScopedTimes(None, scope)

    def find_later_times(self, rows: DataFrame) -> tuple[list[datetime], bool]:
        """Return the recorded load times of the snapshot's area at or after it, and whether loads follow it.

        Loads of any area count as following, because keys move between areas.

        :raises DataError: when there is one after it and the history takes no late snapshots.
        """
        later_times, is_followed = self._read_later_times(rows)
        newest = max(later_times, default=self.history.boundary)
        if newest > self.history.boundary and self.history.config.on_late == "error":
            raise _find_late(self.history.boundary, newest)
        return later_times, is_followed

    def until_next(
        self, keys: DataFrame, differing_load: StagedLoad, key_versions: DataFrame
    ) -> list[DataFrame]:
        """Return the events that limit how long the snapshot is valid for each key.

        It is valid until a stored version starts, or until a load of the stored state's area confirms that
        state while it is valid. If the late state's area was loaded before that, the key was no longer
        there. If a stored state ends because a load of its own area did not contain the key, a late state
        in another area is not affected.
        """
        naming = self.history.naming
        key_times = keys.select(*self._names)
        recorded_times = self.history.memory.read_rows()
        if recorded_times is None:
            return []
        for frame in self._next_times(differing_load, key_versions, recorded_times):
            key_times = key_times.join(frame, list(naming.keys), "left")
        far = moment_column(_FAR)
        own_next, ends = F.coalesce(quote_column(_OWN), far), F.coalesce(quote_column(_ENDS), far)
        was_there = quote_column(f"{_OTHER}_there").isNotNull()
        confirmed = F.when(quote_column(_OTHER) < ends, quote_column(_OTHER))
        until = F.least(F.coalesce(confirmed, far), F.coalesce(quote_column(_NEXT), far))
        pinned = key_times.select(
            *self._names, F.when(was_there, confirmed).otherwise(quote_column(_OWN)).alias(TIME)
        )
        ended = key_times.where(was_there & (own_next < until)).select(
            *self._names, quote_column(_OWN).alias(TIME)
        )
        lasting = key_times.where(was_there & (ends < F.least(own_next, until)))
        lasting = lasting.select(*self._names, quote_column(_ENDS).alias(TIME))
        resumed_rows = differing_load.live.drop(TIME).join(lasting, list(naming.keys))
        return [
            list_pins(pinned.where(quote_column(TIME).isNotNull()), naming),
            list_endings(ended, naming),
            list_loaded_events(resumed_rows, naming, F.lit(False)),
        ]

    def record_time(
        self, counted_changes: CountedChanges, rows: DataFrame, *, is_recorded: bool
    ) -> CountedChanges:
        """Return the changes with the snapshot's time to record, unless the history shows that time."""
        config = self.history.config
        remembers: Remembers = "always" if config.on_late == "repair" else "unchanged"
        if isinstance(config.scope, tuple):
            if config.on_late == "error":
                return counted_changes
            areas = name_areas(rows, self.history.staged_load.layout, self.area).select(AREA).distinct()
        elif is_recorded:
            return counted_changes
        else:
            areas = rows.sparkSession.range(1).select(F.lit(EVERYWHERE).alias(AREA))
        times = areas.select(AREA, self._now.alias(TIME))
        return replace(
            counted_changes, changes=replace(counted_changes.changes, times=times, remembers=remembers)
        )

    def _read_later_times(self, rows: DataFrame) -> tuple[list[datetime], bool]:
        history = self.history
        if isinstance(history.config.scope, tuple) and history.config.on_late == "error":
            return [], False
        recorded_times = history.memory.read_rows()
        if recorded_times is None:
            return [], False
        later_rows = recorded_times.where(quote_column(TIME) >= self._now)
        later_times = _list_moments(later_rows)
        is_followed = any(time > history.boundary for time in later_times)
        if not later_times or not isinstance(history.config.scope, tuple):
            return later_times, is_followed
        areas = name_areas(rows, history.staged_load.layout, self.area).select(AREA)
        return _list_moments(later_rows.join(areas, AREA, "left_semi")), is_followed

    def _next_times(
        self, differing_load: StagedLoad, key_versions: DataFrame, recorded_times: DataFrame
    ) -> list[DataFrame]:
        """Return for each key the times that may limit a late state and the stored state.

        These are the next load of the area of either state, the end of the stored state, and the next
        start.
        """
        history, naming, layout = self.history, self.history.naming, self.history.staged_load.layout
        recorded_times = (
            recorded_times.where(quote_column(TIME) > self._now).groupBy(AREA).agg(F.min(TIME).alias(_NEXT))
        )
        begins, ends = quote_column(naming.valid_from), quote_column(naming.valid_to)
        covers = (begins <= self._now) & (history.is_active() | (ends > self._now))
        if naming.mark is not None:
            covers &= ~quote_column(naming.mark)

        def next_of(rows: DataFrame, alias: str) -> DataFrame:
            areas = name_areas(rows, layout, self.area).select(*self._names, AREA)
            return areas.join(recorded_times, AREA, "left").select(
                *self._names, quote_column(_NEXT).alias(alias), F.lit(True).alias(f"{alias}_there")
            )

        times = key_versions.groupBy(*self._names).agg(
            F.min(F.when(begins > self._now, begins)).alias(_NEXT),
            F.max(F.when(covers & ~history.is_active(), ends)).alias(_ENDS),
        )
        return [next_of(differing_load.live, _OWN), next_of(key_versions.where(covers), _OTHER), times]

    @property
    def _now(self) -> Column:
        return moment_column(self.history.boundary)

    @property
    def _names(self) -> list[Column]:
        return refer_to_columns(self.history.naming.keys)


def _list_moments(times: DataFrame) -> list[datetime]:
    rows = times.select(F.unix_micros(TIME).alias("at")).distinct().collect()
    return [from_micros(row["at"]) for row in rows]


def _find_late(at: datetime, newest: datetime) -> DataError:
    """Return the error of a snapshot that is older than another one."""
    message = f"the load of {at.isoformat()} is older than the load of {newest.isoformat()}"
    hint = "load in chronological order, or rebuild the history with full_refresh=True and on_late='repair'"
    return DataError.from_problems([Problem("boundary_timestamp", "late", message, hint)])
