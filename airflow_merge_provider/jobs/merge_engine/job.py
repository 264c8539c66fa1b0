"""The merge engine's run: pin, read what the source gained, fold it with the rows it touches, commit once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import resolve
from airflow_merge_provider.core.errors import ConfigError, Problem
from airflow_merge_provider.core.merge_engine import compaction, continuity
from airflow_merge_provider.core.merge_engine.checks import warnings
from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.core.merge_engine.plan import Plan, explain
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.risk import Risk
from airflow_merge_provider.core.source_offset import (
    SourceOffset,
    find_offset,
    read_offsets,
    write_offsets,
)
from airflow_merge_provider.jobs.delta.side_table import SideTable
from airflow_merge_provider.jobs.delta.table import (
    PinnedDataset,
    count_live_rows,
    pin_dataset,
    read_dataset,
)
from airflow_merge_provider.jobs.delta.transaction import CommitResult
from airflow_merge_provider.jobs.delta.writer import (
    create_table,
    overwrite_table,
)
from airflow_merge_provider.jobs.merge_engine import counting, intake, outcome, side_tables
from airflow_merge_provider.jobs.merge_engine.report import forms, report
from airflow_merge_provider.jobs.merge_engine.resumption import require_continuity
from airflow_merge_provider.jobs.merge_engine.source import Gained, gained, still_there
from airflow_merge_provider.jobs.merge_engine.writing import write_changes
from airflow_merge_provider.jobs.run.change_limit import check_change_limit
from airflow_merge_provider.jobs.run.previous_run import (
    SIDE_TABLE_VERSIONS,
    PreviousRun,
    RunCommit,
    load_previous_run,
)
from airflow_merge_provider.jobs.run.progress import Progress
from airflow_merge_provider.jobs.run.retry import commit_run, purge_target
from airflow_merge_provider.jobs.spark.errors import first_line

CAPABILITY = "merge_engine"
_REMEMBERED_BATCHES = 100


def run(spark: SparkSession, request: JobRequest, progress: Progress) -> dict[str, Any]:
    """Fold what the source gained into the target, or say that there is nothing to fold.

    :raises ConfigError: when the configuration is wrong, or does not suit the columns.
    :raises DataError: when the source, the target or a record is; nothing is written then.
    :raises ConflictError: when another run committed first; nothing is written then.
    """
    config = MergeEngineConfig.parse(request.config)
    return _Run(spark, request, config, progress).report()


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a run has found before it reads rows."""

    last: PreviousRun | None
    source: PinnedDataset
    log: SideTable | None
    removals: SideTable | None

    @property
    def state(self) -> Mapping[str, Any]:
        return self.last.state if self.last else {}

    @property
    def offsets(self) -> list[SourceOffset]:
        """How far the previous run has read its sources."""
        return read_offsets(self.state)

    @property
    def side_table_versions(self) -> dict[str, int]:
        """The versions of side tables that belong to the target's rows, by the names that are written now."""
        if self.last is None:
            return {}
        names = {table.dataset.uri: table.owner for table in (self.log, self.removals) if table is not None}
        return {names.get(key, key): version for key, version in self.last.side_table_versions.items()}


class _Run:
    """One run, step by step."""

    def __init__(
        self, spark: SparkSession, request: JobRequest, config: MergeEngineConfig, progress: Progress
    ) -> None:
        self._spark, self._request, self._config, self._progress = spark, request, config, progress
        self._target = resolve(_needed("target", config.target), request.warehouse, at="target")
        self._said = warnings(config)
        self._size: int | None = None

    @property
    def _batch(self) -> str | None:
        """The name of the batch: the given one, else the run where no offset says what was folded before."""
        if self._config.batch_id is not None or self._config.incremental:
            return self._config.batch_id
        run = self._request.run
        return f"{run.dag_id}/{run.task_id}/{run.map_index}/{run.run_id}"

    def report(self) -> dict[str, Any]:
        with self._progress.step("look"):
            seen = self._look()
        if (repeated := self._repeated(seen)) is not None:
            return repeated
        require_continuity(
            self._spark, self._config, self._target, seen.source, seen.last,
            full_refresh=self._request.full_refresh,
        )  # fmt: skip
        self._said += seen.last.warnings if seen.last else []
        with self._progress.step("read"):
            taken = gained(self._spark, self._config, seen.source, self._since(seen))
        if taken is None:
            return self._told(seen, version=seen.last.run_version if seen.last else None)
        plan, stored = self._plan(seen, taken)
        if self._request.until == "plan":
            return self._told(seen, found={"counts": {}, "columns": dict(explain(plan))})
        with self._progress.step("fold"), still_there(seen.source, self._since(seen)):
            found = self._folded(seen, plan, taken, stored)
            counts, size = counting.counted(plan, found)
        told = {
            "counts": counts,
            "read": taken.how,
            "forms": forms(plan),
            "storage": self._storage(seen, counts),
        }
        self._size = size
        return self._written(seen, plan, found, told)

    def _look(self) -> _Seen:
        request, config = self._request, self._config
        last = load_previous_run(self._spark, self._target, CAPABILITY, request)
        source = resolve(_needed("source", config.source), request.warehouse, at="source")
        log = removals = None
        if config.changelog is not None:
            place = resolve(config.changelog, request.warehouse, at="changelog")
            log = side_tables.open_side_table(self._spark, place, side_tables.CHANGELOG, last)
        if config.tombstone_retention is not None:
            place = self._target.with_suffix(side_tables.REMOVALS_SUFFIX)
            removals = side_tables.open_side_table(self._spark, place, side_tables.REMOVALS, last)
        return _Seen(last, pin_dataset(self._spark, source), log, removals)

    def _repeated(self, seen: _Seen) -> dict[str, Any] | None:
        """Report a commit that was made before: by this run's first try, or with the same batch."""
        own = self._find_own_commit(seen)
        if own is not None:
            return self._told(seen, changed=True, version=own.version, found=own.state.get("found"))
        state, batch = seen.state, self._batch
        if batch not in state.get("batches", ()) or self._request.full_refresh:
            return None
        self._said.append(f"batch {batch!r} has been folded before: nothing was done")
        return self._told(seen, version=seen.last.run_version if seen.last else None)

    def _find_own_commit(self, seen: _Seen) -> RunCommit | None:
        """Return the commit of an earlier attempt of this run.

        A snapshot without offsets is not folded again, also after the run was cleared.
        """
        if seen.last is None:
            return None
        return seen.last.own_commit or (None if self._config.incremental else seen.last.cleared_commit)

    @property
    def _remembered_since(self) -> int:
        """Give the time, in microseconds, before which removals are forgotten."""
        kept = self._config.tombstone_retention or timedelta()
        return self._request.started_at - kept // timedelta(microseconds=1)

    def _find_offset(self, seen: _Seen) -> SourceOffset | None:
        """Return how far the source was folded, wherever it was then."""
        return find_offset(seen.offsets, seen.source.offset)

    def _since(self, seen: _Seen) -> int | None:
        offset = None if self._request.full_refresh else self._find_offset(seen)
        return None if offset is None else offset.version

    def _plan(self, seen: _Seen, taken: Gained) -> tuple[Plan, DataFrame | None]:
        """Plan for the target's columns, or for the source's where there is no target yet."""
        stored = None
        if seen.last is not None and not self._request.full_refresh:
            stored = read_dataset(self._spark, PinnedDataset(self._target, seen.last.version))
        schema = taken.rows.schema if stored is None else stored.schema
        return intake.planned_for(self._config, taken, schema), stored

    def _folded(self, seen: _Seen, plan: Plan, taken: Gained, stored: DataFrame | None) -> DataFrame:
        """Fold once: what is counted, logged and merged is kept by the first that reads it."""
        batch = intake.fitted(self._config, taken.rows, plan.columns)
        removed = None
        if not self._request.full_refresh:
            removed = side_tables.read_removals(seen.removals, plan, self._remembered_since)
        return outcome.outcome(plan, batch, stored, removed).localCheckpoint(eager=False)

    def _written(self, seen: _Seen, plan: Plan, found: DataFrame, told: dict[str, Any]) -> dict[str, Any]:
        counts = told["counts"]
        # An empty first run makes the table all the same: it says how far the source was folded.
        needed = counting.has_changes(counts) or seen.last is None or self._request.full_refresh
        self._said += check_change_limit(self._request, self._target, lambda: self._risk(seen, counts), told)
        if not needed or self._request.until == "transform":
            version = seen.last.run_version if seen.last else None
            return self._told(seen, changed=needed, version=version, found=told)
        state = self._state(seen, told)
        state[SIDE_TABLE_VERSIONS] |= self._written_beside(seen, plan, found, counts)
        with self._progress.step("merge"):
            committed = self._commit(seen, plan, found, state, counts)
        version = committed.version
        if compaction.is_due(self._config, told["storage"]):
            with self._progress.step("compact"):
                version, told = self._compacted(committed, state, told)
        return self._told(seen, changed=True, version=version, found=told)

    def _risk(self, seen: _Seen, counts: Mapping[str, int]) -> Risk:
        """Weigh the run against the rows that stand in the target."""
        if seen.last is None:
            return Risk(0, 0)
        before = count_live_rows(self._spark, PinnedDataset(self._target, seen.last.version))
        if self._request.full_refresh:
            return Risk.anew(counts["inserted"], before)
        return Risk(sum(counts[kind] for kind in ("inserted", "updated", "removed")), before)

    def _storage(self, seen: _Seen, counts: Mapping[str, int]) -> dict[str, int]:
        anew = seen.last is None or self._request.full_refresh
        return compaction.storage(seen.state.get("found", {}).get("storage"), counts, anew=anew)

    def _compacted(
        self, committed: CommitResult, state: Mapping[str, Any], told: dict[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        """Compact the target; what goes wrong there takes nothing back, and the next run tries again."""
        compact = {**told, "storage": {**told["storage"], "outdated": 0}}
        carried = {**state, "found": compact}
        try:
            return purge_target(self._spark, self._target, CAPABILITY, committed.number, carried), compact
        except PySparkException as error:
            self._said.append(f"compact_ratio: not compacted this time ({first_line(error)})")
            return committed.version, told

    def _written_beside(
        self, seen: _Seen, plan: Plan, found: DataFrame, counts: Mapping[str, int]
    ) -> dict[str, int]:
        """Write the tables beside the target, and give the versions that its commit names."""
        number = seen.last.number + 1 if seen.last else 1
        written: dict[str, SideTable] = {}
        if seen.log is not None:
            with self._progress.step("write change log"):
                side_tables.append_changes(seen.log, plan, found, number)
            written[side_tables.CHANGELOG] = seen.log
        if seen.removals is not None and counts["remembered"]:
            with self._progress.step("record removed keys"):
                side_tables.record_removals(
                    seen.removals, plan, found, number,
                    at=self._request.started_at, since=self._remembered_since,
                )  # fmt: skip
            written[side_tables.REMOVALS] = seen.removals
        return {name: table.version for name, table in written.items() if table.version is not None}

    def _state(self, seen: _Seen, told: Mapping[str, Any]) -> dict[str, Any]:
        """Give what the next run finds: whose run it was, how far it read, and what it may not change."""
        before = {} if self._request.full_refresh else seen.state
        folded = self._find_offset(seen)
        others = [each for each in read_offsets(before) if each != folded]
        kept = {each.uri for each in others}
        configs = {uri: config for uri, config in before.get("configs", {}).items() if uri in kept}
        batches = [*before.get("batches", []), *([self._batch] if self._batch else [])]
        return {
            "token": self._request.run.model_dump(),
            "fixed": continuity.fixed(self._config),
            **write_offsets([*others, seen.source.offset]),
            "configs": {**configs, seen.source.dataset.uri: self._request.config},
            "batches": batches[-_REMEMBERED_BATCHES:],
            SIDE_TABLE_VERSIONS: {} if self._request.full_refresh else seen.side_table_versions,
            "found": told,
        }

    def _commit(
        self, seen: _Seen, plan: Plan, found: DataFrame, state: Mapping[str, Any], counts: Mapping[str, int]
    ) -> CommitResult:
        rows = outcome.results(plan, found)

        def write() -> None:
            if seen.last is None:
                whole = rows.drop(counting.CHANGE)
                create_table(self._target, whole, CAPABILITY, partition_by=self._config.partition_by)
            elif self._request.full_refresh:
                overwrite_table(self._target, rows.drop(counting.CHANGE))
            else:
                write_changes(self._spark, self._target, rows, plan, counts, size=self._size)

        return commit_run(self._spark, self._target, CAPABILITY, seen.last, state, write)

    def _told(
        self,
        seen: _Seen,
        *,
        changed: bool = False,
        version: int | None = None,
        found: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        return report(
            self._request, self._target, seen.source, self._progress.seconds, self._said,
            changed=changed, version=version, found=found,
        )  # fmt: skip


def _needed(path: str, ref: str | None) -> str:
    if ref is None:
        raise ConfigError.of([Problem(path, "missing", "is required", "name a dataset")])
    return ref
