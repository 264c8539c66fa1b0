"""Compute the changes of a snapshot to a history, and refuse those that are late or close too much.

Rows and stored versions are joined by key and compared by hash alone, each read once. A snapshot newer than
all stored versions ends versions and starts others. Any other snapshot (of the same time again, or late) is
merged with the stored versions as events, for the keys that differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from pyspark.sql import Column, DataFrame, Observation, functions as F

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_load.config import AnyLoad
from airflow_merge_provider.core.merge_load.requirements import PREFIX
from airflow_merge_provider.core.merge_load.scd2 import DELETED_HASH, HASH_COLUMN, Scd2Config
from airflow_merge_provider.core.merge_load.timestamps import to_microseconds
from airflow_merge_provider.jobs.delta.writer import OLD
from airflow_merge_provider.jobs.merge_load.changes import (
    DELETE,
    INSERT,
    UPDATE,
    Changes,
    add_action,
    complete_rows,
    union_rows,
)
from airflow_merge_provider.jobs.merge_load.columns import content_hash, moment_column, refer_to_columns
from airflow_merge_provider.jobs.merge_load.scd2.history import LATE, History
from airflow_merge_provider.jobs.merge_load.scd2.intervals import list_absences, list_stored_events
from airflow_merge_provider.jobs.merge_load.scd2.late_arrivals import LateArrivals
from airflow_merge_provider.jobs.merge_load.snapshot_scope import INSIDE, mark_scope
from airflow_merge_provider.jobs.merge_load.staging import (
    FALSE_FLAG,
    FALSE_FLAGS,
    FLAGGED,
    SMALL_LOAD_MAX_ROWS,
    StagedLoad,
    keep_rows,
)
from airflow_merge_provider.jobs.merge_load.writing import CountedChanges, count_changes, insert_all
from airflow_merge_provider.jobs.spark.expressions import add_columns
from airflow_merge_provider.jobs.spark.sql import quote_column, quote_name

ENDED, VALID = "ended", "valid"
_CAME, _LIVE, _STORED, _LOADED = (f"{PREFIX}{suffix}" for suffix in ("came", "live", "stored", "loaded"))
_ACTIVE, _COVERS, _MISSING = (f"{PREFIX}{suffix}" for suffix in ("active", "covers", "missing"))


@dataclass(frozen=True, slots=True)
class ComparedSnapshot:
    """The keys for which snapshot and history differ, and the counts of the comparison."""

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
    false_flags: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot into a history. Source: docs/semantics/merge_load.md, Snapshots."""

    history: History

    def find_changes(self) -> CountedChanges:
        """Return the changes of the snapshot, with its time if that has to be recorded.

        :raises DataError: when keys or duplicates are not as they must be, or the snapshot is late.
        """
        history = self.history
        rows = history.add_times(history.staged_load.rows)
        versions = history.read_versions()
        if versions is None:
            return self._lateness.record_time(self._build_first_versions(), rows, is_recorded=False)
        later_times, is_followed = self._lateness.find_later_times(rows)
        compared = self._compare_keys(
            versions, rows, is_late=any(time > history.boundary for time in later_times)
        )
        history.staged_load.require_keys(compared.missing)
        differing_load = self._select_differing(rows, compared)
        if compared.empty:
            counted_changes = CountedChanges(Changes(rows.limit(0), (), history.names))
        elif is_followed or not compared.in_order or differing_load.duplicates or history.naming.overwritten:
            counted_changes = count_changes(
                self._chain_versions(versions, differing_load, compared, is_followed=is_followed),
                history.held,
            )
        else:
            counted_changes = self._in_order(versions, differing_load, compared)
        counts = {**counted_changes.counts, ENDED: compared.ended, VALID: compared.valid}
        duplicates = compared.duplicates
        if differing_load.duplicates:
            new_keys = compared.keys.where(quote_column(history.naming.valid_from).isNull()).select(
                *self._names
            )
            duplicates += new_keys.count() - new_keys.distinct().count()
        counted_changes = replace(
            counted_changes,
            counts=counts,
            loaded=compared.loaded,
            duplicates=duplicates,
            warnings=tuple(history.staged_load.list_flag_warnings(compared.false_flags)),
        )
        return self._lateness.record_time(counted_changes, rows, is_recorded=history.boundary in later_times)

    @property
    def _lateness(self) -> LateArrivals:
        return LateArrivals(self.history)

    @property
    def _now(self) -> Column:
        return moment_column(self.history.boundary)

    @property
    def _keys(self) -> list[str]:
        return list(self.history.naming.keys)

    def _build_first_versions(self) -> CountedChanges:
        """Return the versions of a first snapshot: its rows."""
        history = self.history
        load = history.staged_load.check_rows()
        return insert_all(
            load, self._open_versions(history.add_times(load.live)), history.names, "opened", history.held
        )

    def _compare_keys(self, versions: DataFrame, rows: DataFrame, *, is_late: bool) -> ComparedSnapshot:
        """Compare each key of the snapshot with the version that is stored for its time."""
        history, naming = self.history, self.history.naming
        version_metrics, pair_metrics = Observation(), Observation()
        content = quote_column(HASH_COLUMN)
        if naming.overwritten and not is_late:
            # Overwritten columns are compared in the newest state only.
            content = F.concat(content, content_hash(history.list_overwritten()))
        covering = self._find_covering_versions(versions, content, version_metrics)
        loaded = rows.select(
            *refer_to_columns(naming.keys),
            F.when(~quote_column(FLAGGED), content).alias(_LOADED),
            quote_column(FLAGGED).alias(_CAME),
            FALSE_FLAG,
            history.staged_load.has_null_key.alias(_MISSING),
        )
        pairs = covering.join(loaded, self._keys, "full_outer").observe(
            pair_metrics,
            F.count(_CAME).alias("loaded"),
            F.count(INSIDE).alias("stored"),
            F.count_if(_MISSING).alias("missing"),
            F.count(FALSE_FLAG).alias(FALSE_FLAGS),
        )
        begins, live = quote_column(naming.valid_from), quote_column(_LOADED).isNotNull()
        keys = pairs.where(~self._is_unchanged()).select(
            *refer_to_columns(naming.keys),
            begins,
            _ACTIVE,
            live.alias(_LIVE),
            quote_column(_CAME).isNotNull().alias(_CAME),
        )
        keys = keep_rows(keys, history.held)
        totals = keys.agg(
            F.count(F.lit(1)).alias("all"),
            F.count(begins).alias("stored"),
            F.count_if(~quote_column(_LIVE)).alias("ended"),
            F.count_if(_CAME).alias("came"),
            F.count_if(begins == self._now).alias("again"),
        ).collect()[0]
        return ComparedSnapshot(
            keys=keys,
            loaded=pair_metrics.get["loaded"],
            missing=pair_metrics.get["missing"],
            duplicates=pair_metrics.get["stored"] - version_metrics.get["covering"],
            valid=version_metrics.get["valid"],
            stored=totals["stored"],
            ended=totals["ended"],
            came=totals["came"],
            in_order=not version_metrics.get["others"] and not totals["again"],
            empty=not totals["all"],
            false_flags=pair_metrics.get[FALSE_FLAGS],
        )

    def _find_covering_versions(
        self, versions: DataFrame, content: Column, version_metrics: Observation
    ) -> DataFrame:
        """Return each key's stored version at the snapshot's time, and observe whether there are later ones.

        A version that is marked as deleted has no content hash.
        """
        history, naming = self.history, self.history.naming
        begins, ends, active = (
            quote_column(naming.valid_from),
            quote_column(naming.valid_to),
            history.is_active(),
        )
        near_versions = mark_scope(versions, history.staged_load.every, self._lateness.area).where(
            active | (ends >= self._now)
        )
        covers = (begins <= self._now) & (active | (ends > self._now))
        covering_versions = near_versions.select(
            *refer_to_columns(naming.keys),
            begins,
            active.alias(_ACTIVE),
            covers.alias(_COVERS),
            INSIDE,
            (content if naming.mark is None else F.when(~quote_column(naming.mark), content)).alias(_STORED),
        )
        covering_versions = covering_versions.observe(
            version_metrics,
            F.count_if(~(quote_column(_ACTIVE) & quote_column(_COVERS))).alias("others"),
            F.count_if(_ACTIVE).alias("valid"),
            F.count_if(_COVERS).alias("covering"),
        )
        return covering_versions.where(_COVERS)

    def _is_unchanged(self) -> Column:
        """Return the condition for pairs that the snapshot does not change."""
        flagged = F.coalesce(quote_column(_CAME), F.lit(False))
        ignores = F.lit(self.history.config.on_delete == "ignore")
        stays = quote_column(_STORED).isNull() | (~quote_column(INSIDE) & ~flagged) | ignores
        live = quote_column(_LOADED).isNotNull()
        same = F.when(live, quote_column(_STORED).eqNullSafe(quote_column(_LOADED))).otherwise(stays)
        return F.coalesce(same, F.lit(False))

    def _select_differing(self, rows: DataFrame, compared: ComparedSnapshot) -> StagedLoad:
        """Return the loaded rows of the keys that differ, one per key."""
        load = self.history.staged_load
        if not compared.came:
            return replace(load, rows=rows.limit(0))
        loaded_keys = compared.keys.where(_CAME).select(*self._names).distinct()
        differing_rows = keep_rows(rows.join(loaded_keys, self._keys, "left_semi"), self.history.held)
        return replace(load, rows=differing_rows).check_rows()

    def _in_order(
        self, versions: DataFrame, differing_load: StagedLoad, compared: ComparedSnapshot
    ) -> CountedChanges:
        """End the versions of keys that differ, and start those of the snapshot."""
        history, naming = self.history, self.history.naming
        purges = naming.purges and compared.ended > 0
        stored = compared.keys.where(quote_column(_ACTIVE))
        deleted_keys = stored.where(~quote_column(_LIVE)).select(*self._names)
        closed = (stored.where(_LIVE) if purges else stored).select(
            *self._names, naming.valid_from, self._now.alias(naming.valid_to)
        )
        added = [] if history.config.current_column is None else [history.config.current_column]
        closed = add_columns(closed, {column: F.lit(False) for column in added})
        if not purges:
            hinted_rows = F.broadcast(closed) if compared.stored < SMALL_LOAD_MAX_ROWS else closed
            closed = complete_rows(hinted_rows, versions, [*naming.keys, naming.valid_from]).select(
                *refer_to_columns(history.names)
            )
        parts = [
            add_action(self._open_versions(differing_load.live), INSERT, "opened"),
            add_action(closed, UPDATE, "closed"),
        ]
        if naming.mark is not None and compared.ended:
            last_versions = versions.where(history.is_active()).join(deleted_keys, self._keys, "left_semi")
            parts.append(add_action(self._mark_deleted(last_versions, naming.mark), INSERT, "opened"))
        if purges:
            deleted_versions = versions.select(*self._names, naming.valid_from).join(
                deleted_keys, self._keys, "left_semi"
            )
            parts.append(add_action(deleted_versions, DELETE, "removed"))
        target_condition = None if purges else self._active_text()
        rows = union_rows(parts)
        changes = Changes(rows, history.address, history.names, (naming.valid_to, *added), target_condition)
        if compared.ended and (naming.purges or naming.mark is not None):
            return count_changes(changes, history.held)
        counts = {"opened": differing_load.loaded - differing_load.flagged, "closed": compared.stored}
        return CountedChanges(changes, counts, inserts=counts["opened"], updates_and_deletes=counts["closed"])

    def _open_versions(self, rows: DataFrame) -> DataFrame:
        """Return loaded rows as valid versions that start at the snapshot's time."""
        history, config = self.history, self.history.config
        validity = {config.valid_from: self._now, config.valid_to: history.until}
        return history.complete_columns(rows.withColumns(validity)).select(*refer_to_columns(history.names))

    def _mark_deleted(self, last: DataFrame, mark: str) -> DataFrame:
        """Return the versions that mark keys as deleted, with the last values of the keys."""
        deleted = {mark: F.lit(True), HASH_COLUMN: F.lit(DELETED_HASH)}
        return self._open_versions(last.withColumns(deleted))

    def _active_text(self) -> str:
        """Return the SQL condition for currently valid versions of the target (OLD)."""
        end, at = quote_name(OLD, self.history.config.valid_to), self.history.config.active_record_timestamp
        marker_condition = "" if at is None else f" OR {end} = timestamp_micros({to_microseconds(at)})"
        return f"{end} IS NULL{marker_condition}"

    def _chain_versions(
        self,
        versions: DataFrame,
        differing_load: StagedLoad,
        compared: ComparedSnapshot,
        *,
        is_followed: bool,
    ) -> Changes:
        """Merge the snapshot's events with the stored versions of the keys that differ."""
        history, naming = self.history, self.history.naming
        keys = compared.keys.select(*self._names, _CAME).distinct()
        absent = keys.where(~quote_column(_CAME))
        stored = versions
        if not naming.purges and naming.mark is None:
            # Purges and deletion versions need all versions: a deletion has the last values, however old.
            stored = stored.where(history.is_active() | (quote_column(naming.valid_to) >= self._now))
        key_versions = keep_rows(stored.join(keys, self._keys, "left_semi"), history.held)
        events = [
            history.build_events(differing_load.rows),
            list_absences(absent, naming, self._now),
            list_stored_events(key_versions, naming, history.is_active()),
        ]
        if is_followed:
            events += self._lateness.until_next(keys, differing_load, key_versions)
        return history.compare_versions(events, key_versions)

    @property
    def _names(self) -> list[Column]:
        return refer_to_columns(self.history.naming.keys)


def require_in_time(
    counted_changes: CountedChanges, config: AnyLoad, boundary: datetime, target: Dataset
) -> None:
    """Raise an error if the load is older than versions that it would change.

    :raises DataError: when it is.
    """
    late = counted_changes.counts.get(LATE, 0)
    if late:
        hint = "load in chronological order"
        if isinstance(config, Scd2Config) and config.natural_key is None:
            hint += "; with natural_key, on_late='repair' inserts late loads into the history"
        message = f"the load of {boundary.isoformat()} is older than {late} versions in {target.id}"
        raise DataError.from_problems([Problem("boundary_timestamp", "late", message, hint)])


def require_few_endings(counted_changes: CountedChanges, config: AnyLoad) -> None:
    """Raise an error if a snapshot would end a larger share of versions than allowed.

    :raises DataError: when it would.
    """
    max_ratio = getattr(config, "max_close_ratio", None)
    ended, valid = counted_changes.counts.get(ENDED, 0), counted_changes.counts.get(VALID, 0)
    if max_ratio is not None and ended > max_ratio * valid:
        message = (
            f"the load would close {ended} of {valid} valid versions, more than a share of {max_ratio:g}"
        )
        hint = "check whether the source is complete; if it is, increase max_close_ratio for this run"
        raise DataError.from_problems([Problem("max_close_ratio", "change-limit", message, hint)])
