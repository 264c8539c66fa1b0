"""Run the merge source: pin, scan, cluster, compare, render, commit once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.merge_source import refusals
from airflow_merge_provider.core.merge_source.columns import COLUMNS_STATE, check_lost_columns
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.decision import (
    JOB,
    OVERRIDES_HASH,
    MergeDecision,
    compute_signature,
    describe_scan,
    has_same_rules,
    open_run,
)
from airflow_merge_provider.core.merge_source.overrides import Overrides
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.report import Details, Report
from airflow_merge_provider.core.run.previous_run import SIDE_TABLE_VERSIONS, PreviousRun
from airflow_merge_provider.core.run.reporter import Progress, RunResult
from airflow_merge_provider.core.run.table_log import PinnedDataset, pin_source
from airflow_merge_provider.core.run_mode import RunMode
from airflow_merge_provider.core.source_offset import RunState, normalize_uri, read_offsets
from airflow_merge_provider.jobs.delta.side_table import SideTable, append_once
from airflow_merge_provider.jobs.delta.table import SparkLog
from airflow_merge_provider.jobs.merge_source.cluster.clustering import ClusteringResult
from airflow_merge_provider.jobs.merge_source.cluster.quarantine import QUARANTINE
from airflow_merge_provider.jobs.merge_source.diff.comparison import (
    TOTALS,
    ComparedClusters,
    Totals,
    continue_totals,
    count_totals,
    find_totals,
)
from airflow_merge_provider.jobs.merge_source.diff.id_lineage import LINEAGE, LineageEvent
from airflow_merge_provider.jobs.merge_source.model import FullScanRequired
from airflow_merge_provider.jobs.merge_source.output import render
from airflow_merge_provider.jobs.merge_source.output.metrics import (
    ALL,
    EVALUATED,
    MetricsRun,
    build_metrics_row,
)
from airflow_merge_provider.jobs.merge_source.output.row_changes import (
    ID,
    ExampleNames,
    RowChanges,
    compare_rows,
    list_changed_rows,
)
from airflow_merge_provider.jobs.merge_source.output.side_tables import RecordedRows, list_recorded_rows
from airflow_merge_provider.jobs.merge_source.output.target import DeltaTarget, Target
from airflow_merge_provider.jobs.merge_source.output.typed_columns import list_new_columns
from airflow_merge_provider.jobs.merge_source.report import build_counts, build_details
from airflow_merge_provider.jobs.merge_source.resolution import NO_OVERRIDES, Resolution, resolve_entities
from airflow_merge_provider.jobs.merge_source.scan.incremental_scan import PreviousScan
from airflow_merge_provider.jobs.merge_source.scan.overrides import read_overrides
from airflow_merge_provider.jobs.merge_source.scan.previous_state import MEMBERS
from airflow_merge_provider.jobs.merge_source.scan.sources import list_property_columns
from airflow_merge_provider.jobs.run.change_set import ChangeSet, replace_all_rows
from airflow_merge_provider.jobs.run.job_run import JobRun
from airflow_merge_provider.jobs.spark.session import adaptive_execution_disabled, override_settings
from airflow_merge_provider.jobs.spark.staging import create_dataframe, stage_table

# Up to this many entities are planned once: Delta lists a table's files in every plan that reads it.
SINGLE_PLAN_MAX_ENTITIES = 500_000


def run(spark: SparkSession, request: JobRequest, progress: Progress) -> Report:
    """Merge the datasets into the target, or report that nothing has changed since the last run.

    :raises ConfigError: if the configuration is wrong.
    :raises DataError: if an input, the target or the result is wrong; nothing is written then.
    :raises ConflictError: if another run committed first; nothing is written then.
    """
    config = MergeSourceConfig.parse(request.config)
    overrides = SourceOverrides(spark, config, request)
    with progress.time_step("resolve inputs"):
        decision = open_run(SparkLog(spark), config, request, progress, overrides.compute_hash)
    return MergeRun(spark, decision, DeltaTarget(spark, decision), overrides).run_to_end()


@dataclass(frozen=True)
class SourceOverrides:
    """The dataset of overrides, which is read once and only if the run may depend on it."""

    spark: SparkSession
    config: MergeSourceConfig
    request: JobRequest

    @cached_property
    def valid(self) -> Overrides:
        """The overrides that are valid now; none if the configuration names no dataset of overrides."""
        if self.config.overrides is None or self.request.until == "plan":
            return NO_OVERRIDES
        dataset = resolve_dataset(self.config.overrides, self.request.warehouse, at="overrides")
        pinned = pin_source(SparkLog(self.spark), dataset, self.request)
        return read_overrides(self.spark, pinned, self.config.dataset_ids, self.request.started_at)

    def compute_hash(self) -> str:
        """Return a hash of the overrides that are valid now."""
        return self.valid.mark


@dataclass(frozen=True)
class MergeRun(JobRun):
    """One run, from reading its inputs to its commit."""

    spark: SparkSession
    decision: MergeDecision
    target: Target
    overrides: SourceOverrides

    @property
    def config(self) -> MergeSourceConfig:
        """The configuration of the merge."""
        return self.decision.config

    @property
    def pinned(self) -> Sequence[PinnedDataset]:
        """The datasets at the versions that the run reads."""
        return self.decision.sources

    def check_inputs(self) -> None:
        """Check the columns of the datasets.

        :raises DataError: if a dataset has lost a column.
        """
        check_lost_columns(self.config, self.decision.state, self.columns)

    @cached_property
    def columns(self) -> dict[str, list[str]]:
        """The columns of every dataset that are merged."""
        return list_property_columns(self.spark, self.pinned)

    @property
    def names(self) -> ExampleNames:
        """How plans name golden records, and the order of their columns."""
        columns = dict.fromkeys(name for names in self.columns.values() for name in names)
        return ExampleNames(self.config.label_column, tuple(columns))

    def describe_plan(self) -> Details:
        """Return the details of a run that reads no rows."""
        return build_details(None)

    def execute(self, run_mode: RunMode, reason: str) -> Report:
        """Write all rows, or those that differ; use full mode if the changes do not determine the result."""
        if self.last is None or self.is_overwrite:
            return self.overwrite(run_mode, reason)
        try:
            return self.update(self.last, run_mode, reason)
        except FullScanRequired as required:
            return self.update(self.last, "full", required.reason)

    def overwrite(self, run_mode: RunMode, reason: str) -> Report:
        """Write all rows of the target."""
        resolution = resolve_entities(
            *self._inputs, None, self.overrides.valid, expectations=self.expectations
        )
        self._check_sources(resolution, everything=True)
        totals = count_totals(resolution.assignment)
        everything = {"entities_changed": totals["entities"], "rows_written": totals["outputs"]}
        counts = build_counts(resolution, totals, everything)
        rows = self.count_rows(totals["live_rows"])
        result = RunResult(run_mode, reason, rows, counts, build_details(resolution))
        with (
            self.reporter.progress.time_step("merge and write"),
            render.render_outputs(self.spark, resolution, written_at=self.request.started_at) as rendered,
        ):
            rows_to_write = self.hold_rows(rendered)
            outputs = resolution.assignment.outputs
            stable_id = {"next_stable": outputs} if self.config.stable_id else {}
            state = self._build_state(resolution, totals, outputs) | {SIDE_TABLE_VERSIONS: {}, **stable_id}
            write = partial(self.target.overwrite_rows, rows_to_write)
            recorded = self._list_recorded_rows(resolution.clustering)
            return self.commit_result(
                result,
                lambda: self._commit_run(resolution, result, state, write, recorded, scope=ALL),
                lambda: replace(
                    self._list_all_changes(rows_to_write),
                    recorded=recorded.rows,
                    replaced=recorded.replaced,
                ),
            )

    def _list_all_changes(self, rendered: DataFrame) -> ChangeSet:
        """Return all rows of a first run; of a reset, those that differ from the rows that they replace."""
        if self.last is None:
            return list_changed_rows(rendered, None, names=self.names)
        changes = replace_all_rows(self.target.read_rows(), rendered, [ID], hidden=[MEMBERS])
        return replace(
            changes,
            describe=lambda examples: list(map(self.names.name_example, examples)),
            name_columns=self.names.list_columns(rendered),
        )

    def update(self, last: PreviousRun, run_mode: RunMode, reason: str) -> Report:
        """Write the rows that differ from the target's rows; write nothing if no row differs."""
        previous = self._build_before(last, everything=run_mode == "full")
        resolution = resolve_entities(
            *self._inputs, previous, self.overrides.valid, expectations=self.expectations
        )
        self._check_sources(resolution, everything=previous.everything)
        difference = resolution.clustering.difference
        at = self.request.started_at
        with (
            self.reporter.progress.time_step("merge and write"),
            override_settings(self.spark, self._plan_settings(resolution.labels.num_rows)),
            self._stage_stable_ids(resolution) as stable,
            render.render_outputs(self.spark, resolution, written_at=at, stable=stable) as rows,
        ):
            new = list_new_columns(rows.schema, previous.rows.schema)
            # The numbers of runs that a RESTORE has undone are not used again.
            start = last.newest_state.get("next", last.state.get("next", difference.next_number))
            with compare_rows(self.spark, rows, previous.rows, difference, start=start, at=at) as changes:
                return self._write_changes(
                    last, resolution, changes, start, (run_mode, reason), new_columns=bool(new)
                )

    def _build_before(self, last: PreviousRun, *, everything: bool) -> PreviousScan:
        """Return the previous state that the run compares its outputs with."""
        state = last.state
        # Rows that another writer changed may not match their members, so all rows are rendered.
        same_rules = last.changed_by is None and has_same_rules(self.config, state)
        return PreviousScan(
            self.target.read_rows(),
            self.target.count_rows(),
            state.get("positions", {}),
            read_offsets(state),
            state.get("evaluated", ()),
            everything=everything,
            same_rules=same_rules,
            next_stable=last.newest_state.get("next_stable") or state.get("next_stable") or 0,
            entities=(find_totals(state) or {}).get("entities"),
        )

    def _plan_settings(self, entities: int) -> dict[str, str]:
        """Return the settings for planning the comparison of some entities' outputs."""
        return adaptive_execution_disabled(self.spark) if entities <= SINGLE_PLAN_MAX_ENTITIES else {}

    def _write_changes(
        self,
        last: PreviousRun,
        resolution: Resolution[ComparedClusters],
        changes: RowChanges,
        start: int,
        why: tuple[RunMode, str],
        *,
        new_columns: bool,
    ) -> Report:
        """Write changed rows into the target, unless they exceed the change limit or there are none."""
        former = find_totals(last.state)
        totals = continue_totals(former, resolution.clustering.replaced, count_totals(resolution.assignment))
        counts = build_counts(resolution, totals, {
            "entities_changed": resolution.clustering.difference.changed,
            "rows_written": changes.emitted,
            "ids_replaced": changes.replaced,
            "ids_removed": changes.removed,
        })  # fmt: skip
        rows = self.count_rows(changes.inserted, changes.updated, changes.deleted)
        emitted = changes.emitted + changes.replaced + changes.removed
        result = RunResult(
            *why, rows, counts, build_details(resolution), records=resolution.records,
            changed=bool(emitted) or (last.changed_by is not None and changes.any),
        )  # fmt: skip
        clustering = resolution.clustering
        state = self._build_state(resolution, totals, start + emitted)
        state["next_stable"] = clustering.next_stable
        write = partial(self.target.apply_changes, changes, new_columns=new_columns)
        scope = ALL if clustering.replaced is None else EVALUATED
        recorded = self._list_recorded_rows(clustering, clustering.events)
        return self.commit_result(
            result,
            lambda: self._commit_run(resolution, result, state, write, recorded, scope=scope),
            lambda: replace(
                list_changed_rows(
                    changes.rows,
                    self.target.read_rows(),
                    are_few=changes.are_few,
                    names=self.names,
                ),
                recorded=recorded.rows,
                replaced=recorded.replaced,
            ),
            is_needed=changes.any,
        )

    @property
    def is_overwrite(self) -> bool:
        """Whether the run's commit replaces all rows of the target."""
        return self.last is None or self.config.reset

    @property
    def rows_before(self) -> int | None:
        """The number of live rows that the previous run left; None if it has not counted them."""
        totals = find_totals(self.decision.state)
        return totals["live_rows"] if totals else (0 if self.last is None else None)

    def count_live_rows(self) -> int:
        """Return how many live rows the run found; they are read only if no run has counted them."""
        if self.rows_before is not None:
            return self.rows_before
        return self.target.read_rows().where("NOT coalesce(_deleted, false)").count()

    def _stage_stable_ids(
        self, resolution: Resolution[ComparedClusters]
    ) -> AbstractContextManager[DataFrame | None]:
        """Return the stable IDs of the rendered outputs, if there are any."""
        stable = resolution.clustering.stable
        return nullcontext() if stable is None else stage_table(self.spark, stable)

    @property
    def _inputs(self) -> tuple[SparkSession, list[PinnedDataset], MergeSourceConfig, Progress]:
        """The inputs that are resolved into clusters."""
        existing = [source for source in self.pinned if source.exists]
        return self.spark, existing, self.config, self.reporter.progress

    def _check_sources(self, resolution: Resolution[ClusteringResult], *, everything: bool) -> None:
        """Report the warnings of the scanned sources.

        :raises DataError: if there are no entities at all and the configuration refuses that.
        """
        self.reporter.add_warnings(resolution.warnings)
        is_empty = everything and not len(resolution.assignment.graph.hashes)
        if is_empty and self.config.if_source_empty == "fail":
            raise refusals.refuse_empty_source()

    def _build_state(
        self, resolution: Resolution[ClusteringResult], totals: Totals | None, number: int
    ) -> dict[str, Any]:
        """Return the state that the next run compares its outputs with."""
        suppressed = resolution.assignment.graph.count - resolution.assignment.outputs
        return {
            "fingerprint": compute_signature(self.config),
            "datasets": list(self.config.dataset_ids),
            COLUMNS_STATE: self.columns,
            OVERRIDES_HASH: self.overrides.valid.mark,
            "positions": dict(resolution.positions),
            "evaluated": list(resolution.evaluated),
            **describe_scan(self.config),
            "suppressed": suppressed,
            "quarantined": len(resolution.clustering.quarantined),
            "cut": len(resolution.clustering.cut),
            "next_stable": None,
            SIDE_TABLE_VERSIONS: dict(self.last.side_table_versions) if self.last else {},
            "next": number,
            TOTALS: totals,
        }

    def _commit_run(
        self,
        resolution: Resolution[ClusteringResult],
        result: RunResult,
        state: RunState,
        write: Callable[[], None],
        recorded: RecordedRows,
        *,
        scope: str,
    ) -> Report:
        """Write the side tables, then make the run's one commit, which names their versions."""
        named = state[SIDE_TABLE_VERSIONS]
        written = recorded.write_rows()
        if self.config.metrics is not None and result.changed:
            dataset = resolve_dataset(self.config.metrics, self.request.warehouse, at="metrics")
            metrics = create_dataframe(self.spark, self._build_metrics(resolution, state[TOTALS], scope))
            writer, options = normalize_uri(self.target.dataset.uri), self.write_options
            append_once(self.spark, dataset, JOB, writer, self.next_number, metrics, options=options)
        versions = {**named, **written, **self.save_rejected_rows()}
        state = {**state, **self.reporter.build_state(result), SIDE_TABLE_VERSIONS: versions}
        commit = self.target.commit_state(state, write)
        return self.reporter.build_report(result, version=commit.version, changed=result.changed)

    def _list_recorded_rows(
        self, clustering: ClusteringResult, events: Sequence[LineageEvent] = ()
    ) -> RecordedRows:
        """Return the rows that the run writes to its side tables."""
        writes = {QUARANTINE: bool(clustering.quarantined), LINEAGE: bool(events)}
        names = [name for name, has_rows in writes.items() if has_rows or self._may_replace(name)]
        return list_recorded_rows(
            self.spark, clustering, self.next_number, events,
            {name: self._open_side_table(name) for name in names},
            is_overwrite=self.is_overwrite, started_at=self.request.started_at,
        )  # fmt: skip

    def _may_replace(self, name: str) -> bool:
        """Return whether the target names a side table whose rows the run replaces."""
        is_named = self.last is not None and self.last.find_side_table_version(name) is not None
        return is_named and (name == QUARANTINE or self.is_overwrite)

    def _open_side_table(self, name: str) -> SideTable:
        dataset = self.target.dataset.with_suffix(f"__{name}")
        return SideTable.open(self.spark, dataset, JOB, name, self.last, options=self.write_options)

    def _build_metrics(
        self, resolution: Resolution[ClusteringResult], totals: Totals | None, scope: str
    ) -> pa.Table:
        of = MetricsRun(self.target.dataset.uri, self.next_number, self.request.started_at, scope)
        return build_metrics_row(of, totals or {}, resolution.clustering, self.config.identity)
