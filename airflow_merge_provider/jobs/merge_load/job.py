"""Run a merge load: pin and read the source once, compare it with the stored rows, and commit once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_load.columns import check_target_form
from airflow_merge_provider.core.merge_load.config import (
    COUNTS,
    AnyLoad,
    Scd2CheckConfig,
    compute_signature,
    describe_load,
    load_config,
)
from airflow_merge_provider.core.merge_load.decision import LoadDecision, open_load, open_run, resolve_load
from airflow_merge_provider.core.merge_load.scd2 import Scd2Config
from airflow_merge_provider.core.merge_load.timestamps import from_micros
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.report import Details, Report
from airflow_merge_provider.core.run.previous_run import SIDE_TABLE_VERSIONS, RunCommit
from airflow_merge_provider.core.run.reporter import Progress, RunReporter, RunResult
from airflow_merge_provider.core.run.steps import run_part
from airflow_merge_provider.core.run.table_log import PinnedDataset, count_pinned
from airflow_merge_provider.core.run_mode import RunMode
from airflow_merge_provider.jobs.delta.table import SparkLog, read_dataset
from airflow_merge_provider.jobs.merge_load import dispatch
from airflow_merge_provider.jobs.merge_load.changes import list_changed_rows
from airflow_merge_provider.jobs.merge_load.nested import ListTables, NestedLists, list_null_warnings
from airflow_merge_provider.jobs.merge_load.report import (
    add_elements,
    build_counts,
    build_details,
    count_rows,
)
from airflow_merge_provider.jobs.merge_load.scd2 import invariants
from airflow_merge_provider.jobs.merge_load.scd2.history import TIMES
from airflow_merge_provider.jobs.merge_load.scd2.snapshot import require_few_endings, require_in_time
from airflow_merge_provider.jobs.merge_load.sequences import SEQUENCES, TOMBSTONE_DAYS
from airflow_merge_provider.jobs.merge_load.staging import (
    SMALL_LOAD_MAX_ROWS,
    StagedLoad,
    filter_source,
    require_unique_keys,
    stage_load,
)
from airflow_merge_provider.jobs.merge_load.strategies import Strategy, choose_strategy
from airflow_merge_provider.jobs.merge_load.target import DeltaTarget, Target
from airflow_merge_provider.jobs.merge_load.writing import CountedChanges, select_inserts
from airflow_merge_provider.jobs.run.change_set import ChangeSet, ReplacedTable, insert_rows, replace_all_rows
from airflow_merge_provider.jobs.run.job_run import JobRun
from airflow_merge_provider.jobs.run.population import change_flags
from airflow_merge_provider.jobs.spark.session import adaptive_execution_disabled, override_settings
from airflow_merge_provider.jobs.spark.sql import quote_column

_NO_ROWS = "the source has no rows to load"
# The setting for excluded adaptive rules, and the rule that removes joins with an empty side.
_LEFT_OUT = "spark.sql.adaptive.optimizer.excludedRules"
_EMPTY_SIDES = "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"


def run(spark: SparkSession, request: JobRequest, progress: Progress) -> Report:
    """Load the source into the target, or report that the source has no changes.

    :raises ConfigError: when the configuration is wrong.
    :raises DataError: when the source or the target is; nothing is written then.
    :raises ConflictError: when another run committed first; nothing is written then.
    """
    config, log = load_config(request.config), SparkLog(spark)
    if isinstance(config, Scd2CheckConfig):
        return invariants.run_check(spark, request, config, progress)
    if config.dispatch_by is not None:
        return _load_parts(log, config, request, progress)
    with progress.time_step("resolve inputs"):
        decision = open_run(log, config, request, progress)
    return LoadRun(spark, decision, DeltaTarget(spark, decision)).run_to_end()


def _load_parts(log: SparkLog, config: AnyLoad, request: JobRequest, progress: Progress) -> Report:
    """Run one load for each table that the rows name, ordered by table name."""
    with progress.time_step("resolve inputs"):
        target, source = resolve_load(log, config, request)
    with progress.time_step("dispatch"):
        parts = dispatch.find_parts(log.spark, source, config, target)
    sources = {source.dataset.id: source}
    reporter = RunReporter(count_pinned(log), request, progress, COUNTS, target, sources, None)
    if not parts and request.until != "plan" and _is_skipped_when_empty(config, source.dataset):
        return reporter.build_noop(_NO_ROWS)
    dispatch.check_expectations(log.spark, source, config, reporter)

    def load_part(name: str, checked: JobRequest) -> Report:
        with progress.time_step("resolve inputs"):
            decision = open_load(log, config, checked, progress, parts[name], lambda: source)
        return LoadRun(log.spark, decision, DeltaTarget(log.spark, decision), part=name).run_to_end()

    change = partial(change_flags, log)
    reports = {
        name: run_part(log, request, dataset, partial(load_part, name), change)
        for name, dataset in parts.items()
    }
    return dispatch.merge_reports(reports, reporter)


@dataclass(frozen=True)
class LoadRun(JobRun):
    """One run: its configuration, and the state that it found before reading rows.

    ``part`` is the dispatch value of the rows that go to this target.
    """

    spark: SparkSession
    decision: LoadDecision
    target: Target
    part: str | None = None

    @property
    def config(self) -> AnyLoad:
        """The configuration of the load."""
        return self.decision.config

    @property
    def pinned(self) -> PinnedDataset:
        """The source at the version that the run reads."""
        return self.decision.source

    @property
    def boundary(self) -> datetime:
        """The time from which rows without a time of their own are valid."""
        configured_time = self.config.time_given if isinstance(self.config, Scd2Config) else None
        return configured_time or from_micros(self.request.started_at)

    def report_retry(self, commit: RunCommit) -> Report:
        """Report the commit of an earlier attempt, and delete list elements that it left without a row."""
        if self.decision.has_repairs:
            self._list_tables().clear_elements(int(commit.state["number"]))
        return super().report_retry(commit)

    def report_noop(self, reason: str) -> Report:
        """Report that nothing changed, and restore the list tables to the versions of the target's commit."""
        if self.request.until == "commit":
            self._list_tables().restore_tables()
        return super().report_noop(reason)

    def describe_plan(self) -> Details:
        """Return the details of a load that reads no rows."""
        return build_details()

    def execute(self, run_mode: RunMode, reason: str) -> Report:
        """Read the source, compare it with the stored rows, and write the changes."""
        config = self.config
        strategy = choose_strategy(config, self.boundary, self.target.times, self.target.sequences)
        stored = self._read_stored()
        schema = None if stored is None else stored.schema
        with ExitStack() as held:
            with self.reporter.progress.time_step("read"):
                source = filter_source(read_dataset(self.spark, self.pinned), config.source_filter)
                fields = source.schema.jsonValue()["fields"]
                self.reporter.progress.record_schema(self.pinned.dataset.uri, fields)
                if self.part is not None:
                    source = source.where(quote_column(str(config.dispatch_by)).cast("string") == self.part)
                name = self.pinned.dataset.id
                source = self.expectations.check_sources({name: source})[name]
                lists = self._find_lists(source)
                rows = source if lists is None else lists.rows
                load = stage_load(
                    rows, name, config, strategy.requirements, stored=schema, added=strategy.added, held=held,
                    hold_rows=self.hold_rows,
                )  # fmt: skip
            self._require_adoptable(stored)
            self.reporter.add_warnings(load.warnings)
            if not strategy.requirements.lazy and not load.loaded and self._is_skipped():
                return self.reporter.build_noop(_NO_ROWS)
            with self.reporter.progress.time_step("compare"), self._plan_small_joins(load):
                counted_changes = strategy.find_changes(load, stored, held)
            self.reporter.add_warnings(counted_changes.warnings)
            if not counted_changes.loaded and self._is_skipped():
                return self.reporter.build_noop(_NO_ROWS)
            require_in_time(counted_changes, config, self.boundary, self.target.dataset)
            require_few_endings(counted_changes, config)
            kinds = {"inserted": counted_changes.inserts} if self.is_full else count_rows(counted_changes)
            result = RunResult(
                run_mode, reason, self.count_rows(**kinds), build_counts(counted_changes), build_details(),
                # Other loads read their source in every run.
                records=counted_changes.loaded if config.is_idempotent else 0,
                changed=not counted_changes.empty or self.is_full,
            )  # fmt: skip
            return self.commit_result(
                result,
                partial(self._write_changes, counted_changes, result, strategy, lists),
                partial(self._list_changes, counted_changes, stored),
                is_needed=True,
            )

    def count_live_rows(self) -> int:
        """Return how many rows the run found in the target."""
        return self.target.count_live_rows()

    def _is_skipped(self) -> bool:
        """Return whether to skip a load without rows; it is applied if the target has no rows to end.

        :raises DataError: if it is an error.
        """
        if self.config.source_filter is not None:
            self.reporter.add_warnings(
                [f"no row of the source {self.pinned.dataset.id!r} matches source_filter"]
            )
        if self.has_rejected_rows() or (self.config.on_empty is None and self.rows_before == 0):
            return False
        return _is_skipped_when_empty(self.config, self.pinned.dataset)

    @contextmanager
    def _plan_small_joins(self, load: StagedLoad) -> Iterator[None]:
        """Disable adaptive execution for small or lazy loads, and always keep empty join sides.

        A lazy strategy may have many rows, which it counts during the join. Adaptive execution may drop an
        empty join side together with the metrics observed there, and Spark would then wait for these metrics.
        """
        is_planned_once = load.requirements.lazy or load.loaded < SMALL_LOAD_MAX_ROWS
        conf = adaptive_execution_disabled(self.spark) if is_planned_once and self.last is not None else {}
        excluded_rules = self.spark.conf.get(_LEFT_OUT, None)
        conf[_LEFT_OUT] = f"{excluded_rules},{_EMPTY_SIDES}" if excluded_rules else _EMPTY_SIDES
        with override_settings(self.spark, conf):
            yield

    def _find_lists(self, source: DataFrame) -> NestedLists | None:
        """Return the lists that become tables of their own; None if they stay in their columns."""
        if self.config.nested != "tables":
            return None
        lists = NestedLists.from_source(source, self.config)
        self.reporter.add_warnings(list_null_warnings(source, lists.lists))
        if not self.is_full:
            self._list_tables().require_lists(lists, self.config.evolution)
        return lists

    def _read_stored(self) -> DataFrame | None:
        """Return the stored rows as the run found them; None if there are none to compare with."""
        if self.is_full:
            return None
        stored = self.target.read_rows()
        check_target_form(self.config, stored.schema.jsonValue()["fields"], self.target.dataset.id)
        return stored

    def _require_adoptable(self, stored: DataFrame | None) -> None:
        """Raise an error if rows of a target that the run takes over have no key of their own."""
        if stored is not None and self.last is not None and self.last.is_adopted:
            require_unique_keys(stored, self.config, self.target.dataset.id)

    def _list_changes(self, counted_changes: CountedChanges, stored: DataFrame | None) -> ChangeSet:
        """Return the rows of the target that the commit changes."""
        changes = counted_changes.changes
        if stored is None:
            rows_before = None if self.last is None else self.target.read_rows()
            listed = replace_all_rows(
                rows_before, select_inserts(changes, None), self.config.identity_columns
            )
        elif counted_changes.empty:
            listed = insert_rows(stored.limit(0))
        else:
            listed = list_changed_rows(changes, stored)
        replaced: dict[str, ReplacedTable] = {}
        if self.is_full and changes.times is not None:
            replaced[TIMES] = self.target.times
        if changes.sequences is None:
            return replace(listed, replaced=replaced)
        if self.is_full:
            replaced[SEQUENCES] = self.target.sequences
        return replace(listed, recorded={SEQUENCES: changes.sequences}, replaced=replaced)

    def _write_changes(
        self,
        counted_changes: CountedChanges,
        result: RunResult,
        strategy: Strategy,
        lists: NestedLists | None,
    ) -> Report:
        """Write the side tables first, then make the run's one commit if there is anything to write."""
        times, remembers = counted_changes.changes.times, counted_changes.changes.remembers
        needed = remembers == "always" or (remembers == "unchanged" and not result.changed)
        if times is not None:
            self.target.times.save_times(times, full=self.is_full, needed=needed)
        has_sequences = self._save_sequences(counted_changes.changes.sequences)
        tables = self._list_tables()
        added: dict[str, int] = {}
        cleared: dict[str, int] = {}
        version = None
        # Recorded sequences and adoptions need a commit of the target, even without rows.
        adopts = self.last is not None and self.last.is_adopted
        commits = self.needs_commit(result) or has_sequences or adopts
        if commits:
            with self.reporter.progress.time_step("write"):
                if lists is not None:
                    added = tables.add_elements(
                        lists, counted_changes.changes.written_rows, self.config.evolution
                    )
                result = add_elements(result, self.target.dataset, added, {})
                versions = self._side_table_versions(tables, has_times=times is not None)
                state = {
                    **self.reporter.build_state(result),
                    "fingerprint": compute_signature(self.config),
                    "config": describe_load(self.config, self.boundary),
                    SIDE_TABLE_VERSIONS: versions,
                }
                if tables.tails:
                    state["nested"] = tables.tails
                version = self.target.commit_changes(
                    counted_changes, state, full=self.is_full, shape=strategy.shape
                ).version
        elif lists is not None:
            tables.restore_tables()
        if lists is not None:
            cleared = tables.clear_elements(self._find_committed_number(changed=commits))
        result = add_elements(result, self.target.dataset, added, cleared)
        return self.reporter.build_report(result, version=version, changed=result.changed)

    def _save_sequences(self, rows: DataFrame | None) -> bool:
        """Record the sequences of rows before the target's commit; return whether there are new ones."""
        replaces = self.is_full and self.target.sequences.has_rows(self.request.started_at)
        if rows is None or (not replaces and rows.isEmpty()):
            return False
        days = None if isinstance(self.config, Scd2Config) else TOMBSTONE_DAYS
        since = None if days is None else from_micros(self.request.started_at) - timedelta(days=days)
        self.target.sequences.save_rows(rows, full=self.is_full, since=since)
        return True

    def _find_committed_number(self, *, changed: bool) -> int:
        """Return the number of the run whose rows the target holds after this run."""
        if self.last is None:
            return 1
        return self.last.number + 1 if changed else self.last.run_number

    def _list_tables(self) -> ListTables:
        return ListTables(self.spark, self.target.dataset, self.last, self.write_options)

    def _side_table_versions(self, tables: ListTables, *, has_times: bool) -> dict[str, int]:
        """Return the versions of side tables that the run's commit records."""
        versions = dict(self.last.side_table_versions) if self.last else {}
        versions |= tables.versions
        versions |= self.save_rejected_rows()
        if has_times and self.target.times.version is not None:
            versions[TIMES] = self.target.times.version
        if self.target.sequences.version is not None:
            versions[SEQUENCES] = self.target.sequences.version
        return versions


def _is_skipped_when_empty(config: AnyLoad, source: Dataset) -> bool:
    """Return whether a load without rows is skipped rather than applied.

    :raises DataError: when it is an error.
    """
    if config.empty_load == "error":
        message = f"the source {source.id} has no rows to load, and an empty load would delete or close rows"
        hint = "check the source, or set on_empty to 'skip' (keep the rows) or 'apply' (delete or close them)"
        raise DataError.from_problems([Problem("source", "empty", message, hint)])
    return config.empty_load == "skip"
