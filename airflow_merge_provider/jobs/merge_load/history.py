"""What an SCD2 load with natural key changes: the states of each key are one history, repaired if need be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pyspark.sql import Column, DataFrame, functions as F
from pyspark.sql.types import DateType, StructField, TimestampNTZType, TimestampType

from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_load.load import columns_of
from airflow_merge_provider.core.merge_load.moments import from_micros
from airflow_merge_provider.core.merge_load.scd2 import HASH_COLUMN, Scd2Config
from airflow_merge_provider.jobs.merge_load.area import INSIDE, marked
from airflow_merge_provider.jobs.merge_load.chain import (
    IS_LATE,
    TIME,
    Naming,
    absences,
    chained,
    loaded_events,
    pins,
    stored_events,
)
from airflow_merge_provider.jobs.merge_load.changes import (
    DELETE,
    INSERT,
    NOTHING,
    PREFIX,
    UPDATE,
    Changes,
    Remembers,
    acting,
    counting,
    differing,
    mapped,
    same,
    union,
)
from airflow_merge_provider.jobs.merge_load.columns import content_hash, moment_column, refer
from airflow_merge_provider.jobs.merge_load.intake import FLAGGED, TRACKED, Intake, Wanted
from airflow_merge_provider.jobs.merge_load.memory import Memory
from airflow_merge_provider.jobs.merge_load.versions import LATE
from airflow_merge_provider.jobs.sql import column

REMEMBERED = "time"
ENDED, VALID = "ended", "valid"
_LOADED, _STORED, _COVERS = f"{PREFIX}loaded", f"{PREFIX}stored", f"{PREFIX}covers"
_SAME, _SAID = f"{PREFIX}same", f"{PREFIX}said"
_ACTIONS = {
    "opened": INSERT,
    "closed": UPDATE,
    "reopened": UPDATE,
    "changed": UPDATE,
    "removed": DELETE,
    LATE: NOTHING,
}
KINDS = tuple(kind for kind in _ACTIONS if kind != LATE)


def wanted(config: Scd2Config) -> Wanted:
    """Say what the load needs of its rows: one state per key and time."""
    keys = columns_of(config.natural_key, config.effective_from)
    groups = config.scope if isinstance(config.scope, tuple) else None
    named = columns_of(config.track, config.overwrite, config.row_version_column_name)
    return Wanted(
        required=columns_of(keys, groups, named),
        keys=columns_of(keys, groups),
        unique=keys,
        ranked=config.dedup_sort is not None,
        tracked=lambda names: tracked(names, config),
    )


def tracked(names: Sequence[str], config: Scd2Config) -> tuple[str, ...]:
    """Give the columns whose change begins a version."""
    chosen = columns_of(config.row_version_column_name or config.track)
    if chosen:
        return chosen
    others = (config.natural_key, config.effective_from, config.hard_delete, config.overwrite)
    left_out = columns_of(*others, config.track_except)
    return tuple(name for name in names if name not in left_out)


@dataclass(frozen=True, slots=True)
class History:
    """One load into the history of natural keys; ``boundary`` is when rows without a time of theirs hold."""

    taken: Intake
    stored: DataFrame | None
    config: Scd2Config
    boundary: datetime
    memory: Memory

    def changes(self) -> Changes:
        """Give what the load changes, and the times to remember. Source: merge_load spec §9.3, §9.4."""
        config, rows = self.config, self._rows()
        remembers = config.on_late == "repair" if config.mode == "changes" else config.scope is None
        remembered = self.memory.recall() if remembers and self.stored is not None else None
        if config.mode == "changes":
            return self._changed(rows, remembered)
        known = _moments(remembered)
        if config.on_late == "error" and any(at > self.boundary for at in known):
            raise _late(self.boundary, max(known))
        return self._snapshot(rows, known)

    @property
    def naming(self) -> Naming:
        """Name the columns for the chain."""
        config = self.config
        return Naming(
            keys=config.natural_key or (),
            valid_from=config.valid_from,
            valid_to=config.valid_to,
            hashed=HASH_COLUMN,
            columns=self.taken.layout.names,
            overwritten=config.overwrite or (),
        )

    def _rows(self) -> DataFrame:
        """Give the loaded rows with their time and the hash of what is tracked."""
        own = self.config.effective_from
        at = moment_column(self.boundary) if own is None else column(own).cast("timestamp")
        if own is not None:
            _require_time(self.taken.rows.schema[own])
        return self.taken.rows.select("*", at.alias(TIME), column(TRACKED).alias(HASH_COLUMN))

    def _active(self) -> Column:
        """Tell which versions are valid now; NULL counts beside the mark."""
        end = column(self.config.valid_to)
        at = self.config.active_record_timestamp
        return end.isNull() if at is None else end.isNull() | (end == moment_column(at))

    def _changed(self, rows: DataFrame, remembered: DataFrame | None) -> Changes:
        """Chain the loaded events with the stored versions of their keys."""
        naming = self.naming
        events = [loaded_events(rows, naming, column(FLAGGED) & F.lit(self.config.on_delete == "close"))]
        if self.config.on_delete == "ignore":
            events = [loaded_events(rows.where(~column(FLAGGED)), naming, F.lit(False))]
        times = rows.select(*refer(naming.keys), TIME)
        met = None
        if self.stored is not None:
            keys = times.select(*refer(naming.keys)).distinct()
            met = self._stored().join(keys, list(naming.keys), "left_semi").persist()
            events.append(stored_events(met, naming, self._active()))
        held = () if met is None else (met,)
        if self.config.on_late == "error":
            return replace(self._difference(events, met), held=held)
        if remembered is not None:
            remembered = remembered.withColumnRenamed(REMEMBERED, TIME)
            events.append(pins(remembered.join(times, list(naming.keys), "left_semi"), naming))
            times = times.join(remembered, [*naming.keys, TIME], "left_anti")
        times = times.withColumnRenamed(TIME, REMEMBERED)
        return replace(self._difference(events, met), held=held, times=times, remembers="always")

    def _snapshot(self, rows: DataFrame, known: Sequence[datetime]) -> Changes:
        """Chain what differs from the snapshot between its time and the next one that was seen."""
        naming, now = self.naming, moment_column(self.boundary)
        following = min((at for at in known if at > self.boundary), default=None)
        live = rows.where(~column(FLAGGED))
        times, remembers = self._seen(rows, known)
        if self.stored is None:
            return replace(self._first(live), times=times, remembers=remembers)
        thin = self._compared(live, following).persist()
        affected = thin.where(~column(_SAME)).select(*refer(naming.keys), _LOADED).distinct()
        gone = affected.where(~column(_LOADED))
        affected = affected.select(*refer(naming.keys))
        there = live.join(affected, list(naming.keys), "left_semi")
        near = (self._active() | (column(naming.valid_to) >= now)) & self._begins_by(following)
        met = self._stored().where(near).join(affected, list(naming.keys), "left_semi").persist()
        events = [
            loaded_events(there, naming, F.lit(False)),
            absences(gone, naming, now),
            stored_events(met, naming, self._active()),
        ]
        if following is not None:
            events.append(pins(affected.withColumn(TIME, moment_column(following)), naming))
        found = self._difference(events, met)
        if self.config.max_close_ratio is not None:
            valid = self.stored.where(self._active())
            found = replace(found, rows=union([found.rows, counting(gone, ENDED), counting(valid, VALID)]))
        return replace(found, held=(thin, met), times=times, remembers=remembers)

    def _first(self, live: DataFrame) -> Changes:
        """Give the versions of a first snapshot: its rows."""
        config = self.config
        rows = live.withColumns(
            {
                config.valid_from: column(TIME),
                config.valid_to: moment_column(config.active_record_timestamp),
            }
        )
        names = (*self.taken.layout.names, *config.added_columns)
        return Changes(acting(self._completed(rows).select(*refer(names)), INSERT, "opened"), (), names)

    def _seen(self, rows: DataFrame, known: Sequence[datetime]) -> tuple[DataFrame | None, Remembers]:
        """Say what there is to remember of a snapshot: its time, unless it shows in the history anyway."""
        if self.config.scope is not None or self.boundary in known:
            return None, "never"
        spark = rows.sparkSession
        times = spark.range(1).select(moment_column(self.boundary).alias(REMEMBERED))
        return times, "always" if self.config.on_late == "repair" else "unchanged"

    def _compared(self, live: DataFrame, following: datetime | None) -> DataFrame:
        """Say of each key, stored near the snapshot or in it, whether both are the same."""
        naming, now, active = self.naming, moment_column(self.boundary), self._active()
        overlaps = active | (column(naming.valid_to) > now)
        if following is not None:
            overlaps &= column(naming.valid_from) < moment_column(following)
        # What is overwritten counts in the newest state only.
        newest = naming.overwritten and following is None
        content = F.concat(HASH_COLUMN, content_hash(self._overwritten())) if newest else column(HASH_COLUMN)
        area = marked(self._stored(), self.taken.every, self._area())
        ends = column(naming.valid_to)
        covers = active if following is None else active | (ends >= moment_column(following))
        stored = area.where(overlaps).select(
            *refer(naming.keys),
            (covers & (column(naming.valid_from) <= now)).alias(_COVERS),
            INSIDE,
            content.alias(_STORED),
        )
        loaded = live.select(*refer(naming.keys), content.alias(_LOADED))
        pairs = stored.join(loaded, list(naming.keys), "full_outer")
        keeps_absent = column(_LOADED).isNull() & (~column(INSIDE) | F.lit(self.config.on_delete == "ignore"))
        unchanged = column(_COVERS) & column(_STORED).eqNullSafe(column(_LOADED))
        return pairs.select(
            *refer(naming.keys),
            column(_LOADED).isNotNull().alias(_LOADED),
            F.coalesce(keeps_absent | unchanged, F.lit(False)).alias(_SAME),
        )

    def _difference(self, events: Sequence[DataFrame], met: DataFrame | None) -> Changes:
        """Compare the versions that there should be with those that are stored."""
        config, naming, layout = self.config, self.naming, self.taken.layout
        new = chained(events, naming, moment_column(config.active_record_timestamp))
        names = (*layout.names, *config.added_columns)
        address = [*layout.of(naming.keys), StructField(naming.valid_from, TimestampType())]
        if met is None:
            return Changes(
                acting(self._completed(new).select(*refer(names)), INSERT, "opened"), address, names
            )
        by = [*naming.keys, naming.valid_from]
        old = met.select(*refer(columns_of(by, naming.valid_to, naming.hashed, naming.overwritten)))
        pairs = new.alias("n").join(old.alias("o"), same(by, "n", "o"), "full_outer")
        said = pairs.withColumn(_SAID, self._said(naming)).where(column(_SAID).isNotNull())
        kept = [F.coalesce(*(refer([name], side)[0] for side in ("n", "o"))).alias(name) for name in by]
        rest = [name for name in (*layout.names, naming.valid_to, naming.hashed) if name not in by]
        rows = acting(
            self._completed(said.select(*kept, *refer(rest, "n"), _SAID)),
            mapped(_ACTIONS, column(_SAID)),
            column(_SAID),
        )
        return Changes(rows.drop(_SAID), address, names)

    def _said(self, naming: Naming) -> Column:
        """Say what becomes of a version."""
        at = moment_column(self.config.active_record_timestamp)
        (end, was), (new, old) = (
            [refer([name], side)[0] for side in ("n", "o")] for name in (naming.valid_to, naming.hashed)
        )
        differs = ~new.eqNullSafe(old) | ~end.eqNullSafe(was)
        if naming.overwritten:
            differs = differs | differing(self._overwritten(), "n", "o")
        is_late = F.coalesce(F.col(f"n.{IS_LATE}"), F.lit(False)) & F.lit(self.config.on_late == "error")
        return (
            F.when(is_late, LATE)
            .when(old.isNull() & new.isNotNull(), "opened")
            .when(new.isNull() & old.isNotNull(), "removed")
            .when(differs & was.eqNullSafe(at) & ~end.eqNullSafe(at), "closed")
            .when(differs & ~was.eqNullSafe(at) & end.eqNullSafe(at), "reopened")
            .when(differs & new.isNotNull(), "changed")
        )

    def _completed(self, rows: DataFrame) -> DataFrame:
        """Add the columns that follow from the others."""
        config, added = self.config, {}
        at = moment_column(config.active_record_timestamp)
        if config.current_column is not None:
            added[config.current_column] = column(config.valid_to).eqNullSafe(at)
        if config.surrogate_key_column is not None:
            begins = StructField(config.valid_from, TimestampType())
            added[config.surrogate_key_column] = content_hash(
                [*self.taken.layout.of(self.naming.keys), begins]
            )
        return rows.withColumns(added) if added else rows

    def _stored(self) -> DataFrame:
        """Give the stored versions with the columns that the load brings anew."""
        assert self.stored is not None  # noqa: S101 - callers have looked
        schema = self.taken.rows.schema
        new = {name: F.lit(None).cast(schema[name].dataType) for name in self.taken.layout.new}
        return self.stored.withColumns(new) if new else self.stored

    def _overwritten(self) -> list[StructField]:
        return self.taken.layout.of(self.naming.overwritten)

    def _begins_by(self, following: datetime | None) -> Column:
        if following is None:
            return F.lit(True)
        return column(self.config.valid_from) <= moment_column(following)

    def _area(self) -> Area:
        scope = self.config.scope
        return Area(scope, None) if isinstance(scope, tuple) else Area(None, scope)


@dataclass(frozen=True, slots=True)
class Area:
    """Where a snapshot deletes absent keys."""

    merge_key: tuple[str, ...] | None
    destination_scope: str | None


def _late(at: datetime, newest: datetime) -> DataError:
    """Give the error of a load that is older than another one."""
    message = f"the load of {at.isoformat()} is older than the one of {newest.isoformat()}"
    hint = "load in the order of time, or write the history anew with on_late='repair'"
    return DataError.of([Problem("boundary_timestamp", "late", message, hint)])


def _moments(remembered: DataFrame | None) -> list[datetime]:
    if remembered is None:
        return []
    rows = remembered.select(F.unix_micros(column(REMEMBERED)).alias("at")).distinct().collect()
    return [from_micros(row["at"]) for row in rows]


def _require_time(field: StructField) -> None:
    if not isinstance(field.dataType, DateType | TimestampType | TimestampNTZType):
        message = f"column {field.name!r} is {field.dataType.simpleString()}, not a date or a timestamp"
        raise DataError.of([Problem("effective_from", "type", message, "cast it upstream")])
