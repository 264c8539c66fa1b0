"""Run the merge engine: pin and read the source, fold its changes into the target, and commit once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions as F

from airflow_merge_provider.core.merge_engine import refusals
from airflow_merge_provider.core.merge_engine.checks import list_text_orders
from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.core.merge_engine.decision import (
    IMMUTABLE_OPTIONS,
    FoldDecision,
    count_storage,
    is_compaction_due,
    open_run,
)
from airflow_merge_provider.core.merge_engine.plan import Plan
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.report import Details, Report
from airflow_merge_provider.core.run.previous_run import SIDE_TABLE_LOCATIONS, SIDE_TABLE_VERSIONS
from airflow_merge_provider.core.run.reporter import Progress, RunResult
from airflow_merge_provider.core.run_mode import NOTHING_CHANGED, RunMode
from airflow_merge_provider.core.source_offset import read_offsets, write_offsets
from airflow_merge_provider.jobs.delta.side_table import SideTable
from airflow_merge_provider.jobs.delta.table import SparkLog
from airflow_merge_provider.jobs.merge_engine import row_changes, side_tables, source_columns
from airflow_merge_provider.jobs.merge_engine.counting import CHANGE, CountedChanges, count_changes
from airflow_merge_provider.jobs.merge_engine.python_fold import describe_winners
from airflow_merge_provider.jobs.merge_engine.records import CLEARS, RECORD_ARRIVAL, RECORD_KIND
from airflow_merge_provider.jobs.merge_engine.report import build_details
from airflow_merge_provider.jobs.merge_engine.source import (
    DatasetSource,
    IncrementalRead,
    Source,
    still_there,
)
from airflow_merge_provider.jobs.merge_engine.target import DeltaTarget, Target
from airflow_merge_provider.jobs.run.change_set import ChangeSet, replace_all_rows
from airflow_merge_provider.jobs.run.job_run import JobRun
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.errors import describe_unknown_error


def run(spark: SparkSession, request: JobRequest, progress: Progress) -> Report:
    """Fold the changes of the source into the target, or report that there are none.

    :raises ConfigError: when the configuration is wrong, or does not suit the columns.
    :raises DataError: when the source, the target or a record is; nothing is written then.
    :raises ConflictError: when another run committed first; nothing is written then.
    """
    config = MergeEngineConfig.parse(request.config)
    with progress.time_step("resolve inputs"):
        decision = open_run(SparkLog(spark), config, request, progress)
        target = DeltaTarget(spark, decision)
    source = DatasetSource(spark, config, decision.source)
    return FoldRun(spark, decision, target, source).run_to_end()


@dataclass(frozen=True)
class FoldRun(JobRun):
    """One run over a source and a target, both at the versions that the run found."""

    spark: SparkSession
    decision: FoldDecision
    target: Target
    source: Source

    @property
    def config(self) -> MergeEngineConfig:
        """The configuration of the fold."""
        return self.decision.config

    @property
    def since(self) -> int | None:
        """The version after which the source is read; None if all of it is."""
        return self.decision.since

    @property
    def removals_since(self) -> int:
        """The time before which removals expire, in microseconds since the epoch."""
        retention = self.config.tombstone_retention or timedelta()
        return self.request.started_at - retention // timedelta(microseconds=1)

    def describe_plan(self) -> Details:
        """Return the details of the report with the rule of each column."""
        read = self._read_changes()
        return build_details(None if read is None else self._plan_fold(read)[0])

    def execute(self, run_mode: RunMode, reason: str) -> Report:
        """Fold the changes of the source, if there are any."""
        read = self._read_changes()
        if read is None:
            return self.report_noop(NOTHING_CHANGED)
        read = replace(read, rows=self._check_records(read.rows))
        plan, stored = self._plan_fold(read)
        with self.reporter.progress.time_step("aggregate"), still_there(self.source.pinned, self.since):
            batch = source_columns.fit_rows(self.config, read.rows, plan.columns)
            rows = self._fold_changes(plan, batch, stored)
            counted = count_changes(plan, rows)
        storage = count_storage(self._find_storage(), counted.rows, full=self.is_full)
        details = build_details(plan, read=read.how, storage=storage)
        result = RunResult(
            run_mode, reason, self.count_rows(**counted.rows), counted.counts, details,
            records=counted.counts["records"], changed=counted.is_needed or self.is_full,
        )  # fmt: skip
        return self.commit_result(
            result,
            lambda: self._write_changes(plan, rows, counted, result),
            lambda: self._list_changes(plan, batch, stored, rows, counted),
        )

    def _check_records(self, rows: DataFrame) -> DataFrame:
        """Check the records that add or update rows, and return all records that are not left out.

        The conditions see the columns of the source by their names, the column of row kinds included.
        """
        name = self.source.pinned.dataset.id
        if not self.expectations.list_for(name):
            return rows
        hidden = (RECORD_ARRIVAL, RECORD_KIND, CLEARS)
        if RECORD_KIND not in rows.columns:
            return self.expectations.check_sources({name: rows}, hidden)[name]
        kind = self.config.row_kind_column or RECORD_KIND
        named = rows.withColumnRenamed(RECORD_KIND, kind)
        adds = F.coalesce(sql.quote_column(kind), F.lit("+I")).isin("+I", "+U")
        added = self.expectations.check_sources({name: named.where(adds)}, hidden)[name]
        return added.unionByName(named.where(~adds)).withColumnRenamed(kind, RECORD_KIND)

    def _list_changes(
        self,
        plan: Plan,
        batch: DataFrame,
        stored: DataFrame | None,
        rows: DataFrame,
        counted: CountedChanges,
    ) -> ChangeSet:
        """Return the rows of the target that the commit changes."""
        describe = partial(describe_winners, plan, batch, stored, self._read_removals(plan))
        if self.last is None or not self.is_full:
            changes = ChangeSet(row_changes.list_changed_rows(plan, rows), describe)
        else:
            results = row_changes.select_results(plan, rows).drop(CHANGE)
            changes = replace_all_rows(self.target.read_rows(), results, plan.key)
        changelog, removals = self.target.changelog, self.target.removals
        recorded: dict[str, DataFrame] = {}
        replaced: dict[str, SideTable] = {}
        if changelog is not None and changelog.version is None:
            replaced[changelog.dataset.id] = changelog
        if self._records_removals(counted):
            recorded[side_tables.REMOVALS] = self._list_removals(plan, rows)
        # Removals that the target does not name, or with other columns, are replaced by those of the run.
        if removals is not None and (self.is_full or (recorded and self._read_removals(plan) is None)):
            replaced[side_tables.REMOVALS] = removals
        return replace(changes, recorded=recorded, replaced=replaced)

    def _records_removals(self, counted: CountedChanges) -> bool:
        """Return whether the run has to record removed keys."""
        return self.target.removals is not None and counted.counts["tombstones"] > 0

    def _list_removals(self, plan: Plan, rows: DataFrame) -> DataFrame:
        """Return the removals of the run."""
        return side_tables.list_removals(plan, rows, self.next_number, self.request.started_at)

    def _read_changes(self) -> IncrementalRead | None:
        with self.reporter.progress.time_step("read"):
            return self.source.read_gained(self.since)

    def _plan_fold(self, read: IncrementalRead) -> tuple[Plan, DataFrame | None]:
        """Plan for the columns of the target, or for those of the source if all rows are written."""
        stored = None if self.is_full else self.target.read_rows()
        schema = read.rows.schema if stored is None else stored.schema
        plan = source_columns.plan_for_table(self.config, read, schema)
        self.reporter.add_warnings(list_text_orders(self.config, plan))
        return plan, stored

    def _fold_changes(self, plan: Plan, batch: DataFrame, stored: DataFrame | None) -> DataFrame:
        """Fold once; a lazy checkpoint keeps the result for counting, change log and merge."""
        folded = row_changes.fold_batch(plan, batch, stored, self._read_removals(plan))
        return folded.localCheckpoint(eager=False)

    def _read_removals(self, plan: Plan) -> DataFrame | None:
        """Return the recorded removals that are taken into account; None if there are none."""
        if self.request.full_refresh:
            return None
        return side_tables.read_removals(self.target.removals, plan, self.removals_since)

    def count_live_rows(self) -> int:
        """Return how many rows the run found in the target."""
        return self.target.count_live_rows()

    def _write_changes(
        self, plan: Plan, rows: DataFrame, counted: CountedChanges, result: RunResult
    ) -> Report:
        state = self._build_state(result)
        state[SIDE_TABLE_VERSIONS] |= self._write_side_tables(plan, rows, counted) | self.save_rejected_rows()
        with self.reporter.progress.time_step("merge"):
            committed = self.target.commit_rows(
                plan, row_changes.select_results(plan, rows), counted, state, full=self.is_full
            )
        version = committed.version
        if is_compaction_due(self.config, result.details["storage"]):
            with self.reporter.progress.time_step("compact"):
                version, result = self._compact_target(version, result)
        return self.reporter.build_report(result, version=version, changed=result.changed)

    def _compact_target(self, version: int, result: RunResult) -> tuple[int, RunResult]:
        """Compact the target; if that fails, the commit stays valid and the next run tries again."""
        storage = {**result.details["storage"], "outdated": 0}
        try:
            version = self.target.purge_deleted_rows()
        except PySparkException as error:
            reason = describe_unknown_error(error)
            self.reporter.add_warnings(
                [f"compact_ratio: target not compacted; the next run tries again ({reason})"]
            )
            return version, result
        return version, replace(result, details={**result.details, "storage": storage})

    def _write_side_tables(self, plan: Plan, rows: DataFrame, counted: CountedChanges) -> dict[str, int]:
        """Write the side tables, and return the versions that the target's commit records."""
        number = self.next_number
        written: dict[str, SideTable] = {}
        changelog, removals = self.target.changelog, self.target.removals
        if changelog is not None:
            with self.reporter.progress.time_step("write change log"):
                side_tables.append_changes(changelog, plan, rows, number)
            written[side_tables.CHANGELOG_OWNER] = changelog
        if removals is not None and (
            self._records_removals(counted) or (self.is_full and removals.has_rows(self.request.started_at))
        ):
            with self.reporter.progress.time_step("record tombstones"):
                since = None if self.is_full else self.removals_since
                side_tables.record_removals(removals, plan, self._list_removals(plan, rows), since)
            written[side_tables.REMOVALS] = removals
        return {name: table.version for name, table in written.items() if table.version is not None}

    def _list_side_table_versions(self) -> dict[str, int]:
        """Return the side table versions that match the target's rows."""
        if self.last is None or self.request.full_refresh:
            return {}
        return dict(self.last.side_table_versions)

    def _build_state(self, result: RunResult) -> dict[str, Any]:
        """Return the state for the next run: run metadata, source offsets and immutable settings."""
        previous_state = {} if self.request.full_refresh else self.decision.state
        changelog, name = self.target.changelog, self.target.dataset.name_neighbour
        locations = {} if changelog is None else {changelog.owner: name(changelog.dataset)}
        other_offsets = [offset for offset in read_offsets(previous_state) if offset != self.decision.offset]
        other_uris = {offset.uri for offset in other_offsets}
        configs = {
            uri: config for uri, config in previous_state.get("configs", {}).items() if uri in other_uris
        }
        return {
            **self.reporter.build_state(result),
            IMMUTABLE_OPTIONS: refusals.build_fixed_settings(self.config),
            **write_offsets([*other_offsets, self.source.pinned.offset]),
            "configs": {**configs, self.source.pinned.dataset.uri: self.request.config},
            **self.decision.build_batches(),
            SIDE_TABLE_VERSIONS: self._list_side_table_versions(),
            SIDE_TABLE_LOCATIONS: locations,
        }

    def _find_storage(self) -> Mapping[str, int] | None:
        """Return the storage counts of the previous run, without the rows that a compaction has removed."""
        stored: Mapping[str, int] | None = RunResult.from_state(self.decision.state).details.get("storage")
        is_purged = self.last is not None and self.last.is_purged
        return {**stored, "outdated": 0} if stored and is_purged else stored
