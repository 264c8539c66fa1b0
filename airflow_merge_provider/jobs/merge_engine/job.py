"""The merge engine's run: pin, read what the source gained, fold it with the rows it touches, commit once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions as F

from airflow_merge_provider.core.dataset import resolve
from airflow_merge_provider.core.errors import ConfigError, DataError, Problem
from airflow_merge_provider.core.merge_engine import compaction, continuity
from airflow_merge_provider.core.merge_engine.checks import warnings
from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.core.merge_engine.plan import Plan, explain
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.risk import Risk
from airflow_merge_provider.jobs.delta.table import (
    CommitResult,
    PinnedDataset,
    PreviousRun,
    commit_once,
    load_previous_run,
    override_settings,
    pin_dataset,
    purge_table,
    read_dataset,
    source_offsets,
)
from airflow_merge_provider.jobs.delta.writer import (
    NEW,
    OLD,
    append_rows,
    can_replace_rows,
    create_table,
    merge_rows,
    overwrite_table,
    replace_rows,
)
from airflow_merge_provider.jobs.merge_engine import counting, intake, outcome, side_tables
from airflow_merge_provider.jobs.merge_engine.report import forms, report
from airflow_merge_provider.jobs.merge_engine.side_tables import SideTable
from airflow_merge_provider.jobs.merge_engine.source import Gained, gained, still_there
from airflow_merge_provider.jobs.run.change_limit import check_change_limit
from airflow_merge_provider.jobs.run.progress import Progress
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.errors import first_line
from airflow_merge_provider.jobs.spark.session import adaptive_execution_disabled

CAPABILITY = "merge_engine"
_REMEMBERED_BATCHES = 100
_MOST_BROADCAST = 64 << 20
# Fewer jobs for a batch that is small beside its table, and a source that is kept already.
_MERGE_CONF = {
    "spark.databricks.delta.merge.materializeSource": "none",
    "spark.databricks.delta.insertReplaceOnOrUsing.materializeSource": "none",
}


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


class _Run:
    """One run, step by step."""

    def __init__(
        self, spark: SparkSession, request: JobRequest, config: MergeEngineConfig, progress: Progress
    ) -> None:
        self._spark, self._request, self._config, self._progress = spark, request, config, progress
        self._target = resolve(_needed("target", config.target), request.warehouse, at="target")
        self._said = warnings(config)
        self._is_small = False

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
        self._check_continuity(seen)
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
        self._is_small = size is not None and size <= _MOST_BROADCAST
        return self._written(seen, plan, found, told)

    def _look(self) -> _Seen:
        request, config = self._request, self._config
        last = load_previous_run(self._spark, self._target, CAPABILITY)
        source = resolve(_needed("source", config.source), request.warehouse, at="source")
        state = last.state if last else {}
        log = removals = None
        if config.changelog is not None:
            place = resolve(config.changelog, request.warehouse, at="changelog")
            log = side_tables.look(self._spark, place, side_tables.CHANGELOG, state)
        if config.tombstone_retention is not None:
            place = side_tables.removals_of(self._target)
            removals = side_tables.look(self._spark, place, side_tables.REMOVALS, state)
        return _Seen(last, pin_dataset(self._spark, source), log, removals)

    def _repeated(self, seen: _Seen) -> dict[str, Any] | None:
        """Report a commit that was made before: by this run's first try, or with the same batch."""
        state = seen.state
        if state.get("token") == self._request.run.model_dump() and seen.last is not None:
            return self._told(seen, changed=True, version=seen.last.run_version, found=state.get("found"))
        batch = self._batch
        if batch not in state.get("batches", ()) or self._request.full_refresh:
            return None
        self._said.append(f"batch {batch!r} has been folded before: nothing was done")
        return self._told(seen, version=seen.last.run_version if seen.last else None)

    def _check_continuity(self, seen: _Seen) -> None:
        """Refuse to go on where the last run's configuration or offsets do not allow it."""
        if seen.last is None:
            return
        others = [uri for uri in seen.state.get("sources", {}) if uri != seen.source.dataset.uri]
        if self._request.full_refresh:
            if others:
                message = f"{self._target.uri} holds rows of other sources, too: {', '.join(others)}"
                raise _refused("full_refresh", message, "drop the target and fold every source anew")
            return
        if seen.last.number and seen.last.run_version is None and self._config.incremental:
            message = f"{self._target.uri} has forgotten how far its source was folded"
            raise _refused("source", message, "run once with full_refresh=True")
        known = seen.state.get("tables", {}).get(seen.source.dataset.uri)
        if known not in (None, seen.source.table_id) and self._config.incremental:
            uri = seen.source.dataset.uri
            message = f"what {uri} has gained cannot be told: it was made anew since it was folded"
            raise _refused("source", message, "run once with full_refresh=True, or with incremental=False")
        problems = list(continuity.breaks(seen.state.get("fixed", {}), continuity.fixed(self._config)))
        if problems:
            raise ConfigError.of(problems)

    @property
    def _remembered_since(self) -> int:
        """Give the time, in microseconds, before which removals are forgotten."""
        kept = self._config.tombstone_retention or timedelta()
        return self._request.started_at - kept // timedelta(microseconds=1)

    def _since(self, seen: _Seen) -> int | None:
        if self._request.full_refresh:
            return None
        since: int | None = seen.state.get("sources", {}).get(seen.source.dataset.uri)
        return since

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
            removed = side_tables.removed(self._spark, seen.removals, plan, self._remembered_since)
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
        state["beside"] |= self._written_beside(seen, plan, found, counts)
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
        before = read_dataset(self._spark, PinnedDataset(self._target, seen.last.version)).count()
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
            return purge_table(self._spark, self._target, CAPABILITY, committed, carried), compact
        except PySparkException as error:
            self._said.append(f"compact_ratio: not compacted this time ({first_line(error)})")
            return committed.version, told

    def _written_beside(
        self, seen: _Seen, plan: Plan, found: DataFrame, counts: Mapping[str, int]
    ) -> dict[str, int]:
        """Write the tables beside the target, and give the versions that its commit names."""
        number = seen.last.number + 1 if seen.last else 1
        named = {}
        if seen.log is not None:
            with self._progress.step("log"):
                version = side_tables.log(self._spark, seen.log, plan, found, number)
            named[seen.log.dataset.uri] = version
        if seen.removals is not None and counts["remembered"]:
            with self._progress.step("remember"):
                version = side_tables.remember(
                    self._spark, seen.removals, plan, found, number,
                    at=self._request.started_at, since=self._remembered_since,
                )  # fmt: skip
            named[seen.removals.dataset.uri] = version
        return named

    def _state(self, seen: _Seen, told: Mapping[str, Any]) -> dict[str, Any]:
        """Give what the next run finds: whose run it was, how far it read, and what it may not change."""
        before = {} if self._request.full_refresh else seen.state
        batches = [*before.get("batches", []), *([self._batch] if self._batch else [])]
        return {
            "token": self._request.run.model_dump(),
            "fixed": continuity.fixed(self._config),
            **{
                what: {**before.get(what, {}), **found}
                for what, found in source_offsets([seen.source]).items()
            },
            "configs": {**before.get("configs", {}), seen.source.dataset.uri: self._request.config},
            "batches": batches[-_REMEMBERED_BATCHES:],
            "beside": dict(before.get("beside", {})),
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
            elif not counts["updated"] and not counts["removed"]:
                # New rows alone, or none and removals of unknown keys: what is there is not looked at again.
                append_rows(self._target, rows.drop(counting.CHANGE))
            else:
                # Delta joins the target with these rows more than once: without a shuffle of it each time.
                small = F.broadcast(rows) if self._is_small else rows
                with override_settings(
                    self._spark, {**_MERGE_CONF, **adaptive_execution_disabled(self._spark)}
                ):
                    self._meet(small, plan, counts)

        return commit_once(self._spark, self._target, CAPABILITY, seen.last, state, write)

    def _meet(self, rows: DataFrame, plan: Plan, counts: Mapping[str, int]) -> None:
        """Let changed rows meet those of the target."""
        if not counts["removed"] and can_replace_rows(self._spark, self._target):
            replace_rows(self._target, rows.drop(counting.CHANGE), _condition(plan))
        else:
            clauses = list(_clauses(plan, counts))
            merge_rows(self._spark, self._target, rows, _condition(plan), clauses)

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


def _condition(plan: Plan) -> str:
    equal = "<=>" if plan.options.nullable_key else "="
    return " AND ".join(f"{sql.name(OLD, name)} {equal} {sql.name(NEW, name)}" for name in plan.key)


def _clauses(plan: Plan, counts: Mapping[str, int]) -> Iterator[str]:
    """Yield the clauses that are needed."""
    change = sql.name(NEW, counting.CHANGE)
    if counts["removed"]:
        yield f"WHEN MATCHED AND {change} = '-D' THEN DELETE"
    if counts["updated"]:
        sets = ", ".join(f"{sql.name(OLD, name)} = {sql.name(NEW, name)}" for name in plan.values)
        yield f"WHEN MATCHED AND {change} = '+U' THEN UPDATE SET {sets}"
    if counts["inserted"]:
        values = ", ".join(sql.name(NEW, name) for name in plan.names)
        yield f"WHEN NOT MATCHED AND {change} = '+I' THEN INSERT ({sql.names(plan.names)}) VALUES ({values})"


def _needed(path: str, ref: str | None) -> str:
    if ref is None:
        raise ConfigError.of([Problem(path, "missing", "is required", "name a dataset")])
    return ref


def _refused(path: str, message: str, hint: str) -> DataError:
    return DataError.of([Problem(path, "refused", message, hint)])
