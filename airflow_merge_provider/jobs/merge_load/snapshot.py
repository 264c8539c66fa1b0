"""What a snapshot changes in a history: keys are compared first, and only what differs is looked at again.

Rows and stored versions meet by key and hash alone, each read once. A snapshot newer than everything that is
stored ends versions and begins others; one that is not (again the same time, or a late one) goes through the
chain, for the keys that differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyspark.sql import Column, DataFrame, Observation, functions as F

from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_load.moments import from_micros, micros
from airflow_merge_provider.core.merge_load.scd2 import DELETED_HASH, HASH_COLUMN
from airflow_merge_provider.jobs.merge_load.area import AREA, EVERYWHERE, INSIDE, marked, named
from airflow_merge_provider.jobs.merge_load.chain import (
    TIME,
    absences,
    endings,
    loaded_events,
    pins,
    stored_events,
)
from airflow_merge_provider.jobs.merge_load.changes import (
    DELETE,
    INSERT,
    PREFIX,
    UPDATE,
    Changes,
    Remembers,
    acting,
    completed,
    union,
)
from airflow_merge_provider.jobs.merge_load.columns import content_hash, moment_column, refer
from airflow_merge_provider.jobs.merge_load.history import History
from airflow_merge_provider.jobs.merge_load.intake import FLAGGED, SMALL, Intake, keep
from airflow_merge_provider.jobs.merge_load.writing import Weighed, all_new, weighed
from airflow_merge_provider.jobs.sql import column, name
from airflow_merge_provider.jobs.statements import OLD

ENDED, VALID = "ended", "valid"
_CAME, _LIVE, _STORED, _LOADED = (f"{PREFIX}{each}" for each in ("came", "live", "stored", "loaded"))
_ACTIVE, _COVERS, _MISSING = (f"{PREFIX}{each}" for each in ("active", "covers", "missing"))
_OWN, _OTHER, _NEXT, _ENDS = (f"{PREFIX}{each}" for each in ("own", "other", "next", "ends"))
_FAR = datetime(9999, 12, 31, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Area:
    """Where a snapshot deletes absent keys."""

    merge_key: tuple[str, ...] | None
    destination_scope: str | None


@dataclass(frozen=True, slots=True)
class Compared:
    """The keys for which snapshot and history differ, and what was counted on the way."""

    keys: DataFrame
    loaded: int
    missing: int
    duplicates: int
    valid: int
    stored: int
    ended: int
    came: int
    in_order: bool
    empty: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot into a history. Source: merge_load spec §9.3."""

    history: History

    def found(self) -> Weighed:
        """Give what the snapshot changes, and its time, if that has to be remembered.

        :raises DataError: when keys or duplicates are not as they must be, or the snapshot is late.
        """
        history = self.history
        rows = history.timed(history.taken.rows)
        if history.stored is None:
            return self._remembering(self._first(), rows, known=False)
        later, is_followed = self._later(rows)
        newest = max(later, default=None)
        is_late = newest is not None and newest > history.boundary
        if newest is not None and is_late and history.config.on_late == "error":
            raise _late(history.boundary, newest)
        compared = self._compared(rows, is_late=is_late)
        history.taken.require_keys(compared.missing)
        there = self._there(rows, compared)
        if compared.empty:
            found = Weighed(Changes(rows.limit(0), (), history.names))
        elif is_followed or not compared.in_order or there.duplicates or history.naming.overwritten:
            found = weighed(self._chained(there, compared, is_followed=is_followed), history.held)
        else:
            found = self._in_order(there, compared)
        counts = {**found.counts, ENDED: compared.ended, VALID: compared.valid}
        duplicates = compared.duplicates
        if there.duplicates:
            new = compared.keys.where(column(history.naming.valid_from).isNull()).select(*self._names)
            duplicates += new.count() - new.distinct().count()
        found = replace(found, counts=counts, loaded=compared.loaded, duplicates=duplicates)
        return self._remembering(found, rows, known=history.boundary in later)

    @property
    def _area(self) -> Area:
        scope = self.history.config.scope
        return Area(scope, None) if isinstance(scope, tuple) else Area(None, scope)

    @property
    def _now(self) -> Column:
        return moment_column(self.history.boundary)

    @property
    def _keys(self) -> list[str]:
        return list(self.history.naming.keys)

    def _first(self) -> Weighed:
        """Give the versions of a first snapshot: its rows."""
        history = self.history
        taken = history.taken.checked()
        return all_new(taken, self._opened(history.timed(taken.live)), history.names, "opened", history.held)

    def _later(self, rows: DataFrame) -> tuple[list[datetime], bool]:
        """Give the remembered times, from this snapshot's on, at which its area was seen.

        And say whether any area was seen after it: keys move between areas.
        """
        history = self.history
        if isinstance(history.config.scope, tuple) and history.config.on_late == "error":
            return [], False
        remembered = history.memory.recall()
        if remembered is None:
            return [], False
        seen = remembered.where(column(TIME) >= self._now)
        found = _moments(seen)
        is_followed = any(each > history.boundary for each in found)
        if not found or not isinstance(history.config.scope, tuple):
            return found, is_followed
        areas = named(rows, history.taken.layout, self._area).select(AREA)
        return _moments(seen.join(areas, AREA, "left_semi")), is_followed

    def _compared(self, rows: DataFrame, *, is_late: bool) -> Compared:
        """Let each key of the snapshot meet the version that is stored for its time."""
        history, naming = self.history, self.history.naming
        near, met = Observation(), Observation()
        content = column(HASH_COLUMN)
        if naming.overwritten and not is_late:
            # What is overwritten counts in the newest state only.
            content = F.concat(content, content_hash(history.overwritten()))
        covering = self._covering(content, near)
        loaded = rows.select(
            *refer(naming.keys),
            F.when(~column(FLAGGED), content).alias(_LOADED),
            column(FLAGGED).alias(_CAME),
            history.taken.missing.alias(_MISSING),
        )
        pairs = covering.join(loaded, self._keys, "full_outer").observe(
            met,
            F.count(_CAME).alias("loaded"),
            F.count(INSIDE).alias("stored"),
            F.count_if(_MISSING).alias("missing"),
        )
        begins, live = column(naming.valid_from), column(_LOADED).isNotNull()
        keys = pairs.where(~self._alike()).select(
            *refer(naming.keys), begins, _ACTIVE, live.alias(_LIVE), column(_CAME).isNotNull().alias(_CAME)
        )
        keys = keep(keys, history.held)
        told = keys.agg(
            F.count(F.lit(1)).alias("all"),
            F.count(begins).alias("stored"),
            F.count_if(~column(_LIVE)).alias("ended"),
            F.count_if(_CAME).alias("came"),
            F.count_if(begins == self._now).alias("again"),
        ).collect()[0]
        return Compared(
            keys=keys,
            loaded=met.get["loaded"],
            missing=met.get["missing"],
            duplicates=met.get["stored"] - near.get["covering"],
            valid=near.get["valid"],
            stored=told["stored"],
            ended=told["ended"],
            came=told["came"],
            in_order=not near.get["others"] and not told["again"],
            empty=not told["all"],
        )

    def _covering(self, content: Column, near: Observation) -> DataFrame:
        """Give the stored version of each key for the snapshot's time, and see whether there are later ones.

        A version that is marked as deleted has no content.
        """
        history, naming = self.history, self.history.naming
        begins, ends, active = column(naming.valid_from), column(naming.valid_to), history.active()
        around = marked(history.versions(), history.taken.every, self._area).where(
            active | (ends >= self._now)
        )
        covers = (begins <= self._now) & (active | (ends > self._now))
        thin = around.select(
            *refer(naming.keys),
            begins,
            active.alias(_ACTIVE),
            covers.alias(_COVERS),
            INSIDE,
            (content if naming.mark is None else F.when(~column(naming.mark), content)).alias(_STORED),
        )
        thin = thin.observe(
            near,
            F.count_if(~(column(_ACTIVE) & column(_COVERS))).alias("others"),
            F.count_if(_ACTIVE).alias("valid"),
            F.count_if(_COVERS).alias("covering"),
        )
        return thin.where(_COVERS)

    def _alike(self) -> Column:
        """Tell for which pairs snapshot and history say the same, or the snapshot may not say otherwise."""
        flagged = F.coalesce(column(_CAME), F.lit(False))
        ignores = F.lit(self.history.config.on_delete == "ignore")
        stays = column(_STORED).isNull() | (~column(INSIDE) & ~flagged) | ignores
        live = column(_LOADED).isNotNull()
        same = F.when(live, column(_STORED).eqNullSafe(column(_LOADED))).otherwise(stays)
        return F.coalesce(same, F.lit(False))

    def _there(self, rows: DataFrame, compared: Compared) -> Intake:
        """Give the loaded rows of the keys that differ, one of each."""
        taken = self.history.taken
        if not compared.came:
            return replace(taken, rows=rows.limit(0))
        came = compared.keys.where(_CAME).select(*self._names).distinct()
        there = keep(rows.join(came, self._keys, "left_semi"), self.history.held)
        return replace(taken, rows=there).checked()

    def _in_order(self, there: Intake, compared: Compared) -> Weighed:
        """End the versions of keys that differ, and begin those of the snapshot."""
        history, naming = self.history, self.history.naming
        purges, marks = naming.purges and compared.ended > 0, naming.mark is not None and compared.ended > 0
        stored = compared.keys.where(column(_ACTIVE))
        gone = stored.where(~column(_LIVE)).select(*self._names)
        closed = (stored.where(_LIVE) if purges else stored).select(
            *self._names, naming.valid_from, self._now.alias(naming.valid_to)
        )
        added = [] if history.config.current_column is None else [history.config.current_column]
        closed = closed.withColumns({each: F.lit(False) for each in added})
        versions = history.versions()
        if not purges:
            few = F.broadcast(closed) if compared.stored < SMALL else closed
            closed = completed(few, versions, [*naming.keys, naming.valid_from]).select(*refer(history.names))
        parts = [
            acting(self._opened(there.live), INSERT, "opened"),
            acting(closed, UPDATE, "closed"),
        ]
        if marks:
            last = versions.where(history.active()).join(gone, self._keys, "left_semi")
            parts.append(acting(self._marked(last), INSERT, "opened"))
        if purges:
            every = versions.select(*self._names, naming.valid_from).join(gone, self._keys, "left_semi")
            parts.append(acting(every, DELETE, "removed"))
        only = None if purges else self._active_text()
        rows = union(parts)
        changes = Changes(rows, history.address, history.names, (naming.valid_to, *added), only)
        if purges or marks:
            return weighed(changes, history.held)
        counts = {"opened": there.loaded - there.flagged, "closed": compared.stored}
        return Weighed(changes, counts, inserts=counts["opened"], others=counts["closed"])

    def _opened(self, rows: DataFrame) -> DataFrame:
        """Give loaded rows as versions that begin now and are valid."""
        history, config = self.history, self.history.config
        validity = {config.valid_from: self._now, config.valid_to: history.until}
        return history.completed(rows.withColumns(validity)).select(*refer(history.names))

    def _marked(self, last: DataFrame) -> DataFrame:
        """Give the versions that say that keys are deleted, with the values that they had last."""
        mark = self.history.naming.mark
        assert mark is not None  # noqa: S101 - only called where deletions are marked
        deleted = {mark: F.lit(True), HASH_COLUMN: F.lit(DELETED_HASH)}
        return self._opened(last.withColumns(deleted))

    def _active_text(self) -> str:
        """Write in SQL that a version of the target (OLD) is valid now."""
        end, at = name(OLD, self.history.config.valid_to), self.history.config.active_record_timestamp
        marked_so = "" if at is None else f" OR {end} = timestamp_micros({micros(at)})"
        return f"{end} IS NULL{marked_so}"

    def _chained(self, there: Intake, compared: Compared, *, is_followed: bool) -> Changes:
        """Chain what the snapshot says with the stored versions of the keys that differ."""
        history, naming = self.history, self.history.naming
        keys = compared.keys.select(*self._names, _CAME).distinct()
        absent = keys.where(~column(_CAME))
        stored = history.versions()
        if not naming.purges and naming.mark is None:
            # A deletion that is marked shows what there was before it, however long ago.
            stored = stored.where(history.active() | (column(naming.valid_to) >= self._now))
        met = keep(stored.join(keys, self._keys, "left_semi"), history.held)
        events = [
            history.events(there.rows),
            absences(absent, naming, self._now),
            stored_events(met, naming, history.active()),
        ]
        if is_followed:
            events += self._until_next(keys, there, met)
        return history.difference(events, met)

    def _until_next(self, keys: DataFrame, there: Intake, met: DataFrame) -> list[DataFrame]:
        """Say until when a late snapshot holds for each key.

        It holds until a stored version begins, or until the area of the stored state was seen while that
        state was there, for then it was confirmed. Where the area of the late state was seen before, the key
        was not there any more. An end of the stored state because its own area was seen without it says
        nothing about the late state in another one. Source: merge_load spec §9.3.
        """
        naming = self.history.naming
        each = keys.select(*self._names)
        for frame in self._next_times(there, met):
            each = each.join(frame, self._keys, "left")
        far = moment_column(_FAR)
        own, ends = F.coalesce(column(_OWN), far), F.coalesce(column(_ENDS), far)
        was_there = column(f"{_OTHER}_there").isNotNull()
        confirmed = F.when(column(_OTHER) < ends, column(_OTHER))
        until = F.least(F.coalesce(confirmed, far), F.coalesce(column(_NEXT), far))
        pinned = each.select(*self._names, F.when(was_there, confirmed).otherwise(column(_OWN)).alias(TIME))
        ended = each.where(was_there & (own < until)).select(*self._names, column(_OWN).alias(TIME))
        lasting = each.where(was_there & (ends < F.least(own, until)))
        lasting = lasting.select(*self._names, column(_ENDS).alias(TIME))
        again = there.live.drop(TIME).join(lasting, self._keys)
        return [
            pins(pinned.where(column(TIME).isNotNull()), naming),
            endings(ended, naming),
            loaded_events(again, naming, F.lit(False)),
        ]

    def _next_times(self, there: Intake, met: DataFrame) -> list[DataFrame]:
        """Give for each key when a late and a stored state could have been missed, and when they give way.

        That is: when the area of either was seen next, when the stored state ends, and when the next begins.
        """
        history, naming, layout = self.history, self.history.naming, self.history.taken.layout
        seen = history.memory.recall()
        assert seen is not None  # noqa: S101 - a remembered time has made the snapshot a late one
        seen = seen.where(column(TIME) > self._now).groupBy(AREA).agg(F.min(TIME).alias(_NEXT))
        begins, ends = column(naming.valid_from), column(naming.valid_to)
        covers = (begins <= self._now) & (history.active() | (ends > self._now))
        if naming.mark is not None:
            covers &= ~column(naming.mark)

        def next_of(rows: DataFrame, alias: str) -> DataFrame:
            lying = named(rows, layout, self._area).select(*self._names, AREA)
            return lying.join(seen, AREA, "left").select(
                *self._names, column(_NEXT).alias(alias), F.lit(True).alias(f"{alias}_there")
            )

        times = met.groupBy(*self._names).agg(
            F.min(F.when(begins > self._now, begins)).alias(_NEXT),
            F.max(F.when(covers & ~history.active(), ends)).alias(_ENDS),
        )
        return [next_of(there.live, _OWN), next_of(met.where(covers), _OTHER), times]

    def _remembering(self, found: Weighed, rows: DataFrame, *, known: bool) -> Weighed:
        """Say what there is to remember of a snapshot: its time, unless it shows in the history anyway."""
        config = self.history.config
        remembers: Remembers = "always" if config.on_late == "repair" else "unchanged"
        if isinstance(config.scope, tuple):
            if config.on_late == "error":
                return found
            areas = named(rows, self.history.taken.layout, self._area).select(AREA).distinct()
        elif known:
            return found
        else:
            areas = rows.sparkSession.range(1).select(F.lit(EVERYWHERE).alias(AREA))
        times = areas.select(AREA, self._now.alias(TIME))
        return replace(found, changes=replace(found.changes, times=times, remembers=remembers))

    @property
    def _names(self) -> list[Column]:
        return refer(self.history.naming.keys)


def _moments(times: DataFrame) -> list[datetime]:
    rows = times.select(F.unix_micros(TIME).alias("at")).distinct().collect()
    return [from_micros(row["at"]) for row in rows]


def _late(at: datetime, newest: datetime) -> DataError:
    """Give the error of a load that is older than another one."""
    message = f"the load of {at.isoformat()} is older than the one of {newest.isoformat()}"
    hint = "load in the order of time, or write the history anew with on_late='repair'"
    return DataError.of([Problem("boundary_timestamp", "late", message, hint)])
