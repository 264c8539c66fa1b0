"""The steps of a MergeRecord run: resume an unfinished plan, list, count, plan, write, publish, move, save.

Source: docs/semantics/merge_record.md, Steps of a run.
"""

from __future__ import annotations

from contextlib import closing, nullcontext
from dataclasses import dataclass, replace

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, Problem
from airflow_merge_provider.core.expectations.result import REJECTED_FILES, ExpectationResult
from airflow_merge_provider.core.file_options import find_option
from airflow_merge_provider.core.merge_record.bins import COUNTS
from airflow_merge_provider.core.merge_record.config import PLACES, FileFormat, MergeRecordConfig
from airflow_merge_provider.core.merge_record.journal import FOLDERS, RunFolders, StateFile
from airflow_merge_provider.core.merge_record.landing import Listing, list_unknown_names, sort_listing
from airflow_merge_provider.core.merge_record.plan import (
    Plan,
    PlanFile,
    estimate_sizes,
    learn_size,
    reduce_plan,
)
from airflow_merge_provider.core.merge_record.schema import find_unwritable_field, unite_schemas
from airflow_merge_provider.core.merge_record.state import (
    State,
    compute_fingerprint,
    dissolve_bins,
    remove_files,
)
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.report import Report, RowCounts
from airflow_merge_provider.core.run.previous_run import RESULT, TOKEN
from airflow_merge_provider.core.run.reporter import EXPECTATIONS, Progress, RunReporter, RunResult
from airflow_merge_provider.core.run.table_log import PinnedDataset
from airflow_merge_provider.core.run_mode import FULL_REFRESH, RunMode
from airflow_merge_provider.jobs.merge_record import routing
from airflow_merge_provider.jobs.merge_record.engine import Planner, SparkEngine
from airflow_merge_provider.jobs.merge_record.files.journal import Journal
from airflow_merge_provider.jobs.merge_record.files.listing import build_queue, check_source
from airflow_merge_provider.jobs.merge_record.files.storage import Open, open_storage
from airflow_merge_provider.jobs.merge_record.publishing import Publisher, PublishResult
from airflow_merge_provider.jobs.merge_record.readers.spark_types import parse_schema, spark_schema
from airflow_merge_provider.jobs.merge_record.report import (
    build_details,
    build_result,
    count_open,
    list_result_warnings,
    summarize_plan,
)
from airflow_merge_provider.jobs.merge_record.routing import Folders
from airflow_merge_provider.jobs.merge_record.withdrawal import finish_undo
from airflow_merge_provider.jobs.spark.storage import build_arguments

_NAMED = 3


def run(spark: SparkSession, request: JobRequest, progress: Progress) -> Report:
    """Merge the waiting files and return the report; the run mode is ``noop`` if there is nothing to do.

    :raises ConfigError: when the configuration is wrong.
    :raises DataError: when the state cannot be read, or a source of a plan that was left has changed.
    :raises ConflictError: when another run is at work; nothing of this one is written then.
    """
    config = _resolve_config(request)
    with closing(SparkEngine(spark, progress.log_line)) as engine:
        return run_with(engine, _build_opener(spark), config, request, progress)


def run_with(
    engine: SparkEngine, opened: Open, config: MergeRecordConfig, request: JobRequest, progress: Progress
) -> Report:
    """Execute one run with the given engine, and return the report.

    :param opened: opens the folder at a location.
    """
    works = _Run(engine, opened, config, request, progress)
    dry = request.until != "commit"
    with nullcontext() if dry else works.journal.lease.hold_lease(request.run):
        if dry:
            return works.preview_run()
        finish_undo(works.journal, opened, progress)
        return works.carry_out()


@dataclass
class _Run:
    """One run that uses one journal."""

    engine: SparkEngine
    opened: Open
    config: MergeRecordConfig
    request: JobRequest
    progress: Progress

    def __post_init__(self) -> None:
        self.journal = Journal(self.opened(str(self.config.state_path)))
        # From the request, for the names that the user has chosen: the configuration has resolved paths.
        merged, source = (
            resolve_dataset(self.request.config[name], self.request.warehouse)
            for name in ("merged", "source")
        )
        pinned = {source.id: PinnedDataset(source, None)}
        self.reporter = RunReporter(
            lambda _: None,
            self.request,
            self.progress,
            COUNTS,
            merged,
            pinned,
            None,
            rejection=REJECTED_FILES,
        )
        self.reporter.add_warnings(self.config.list_warnings())
        self.plans: list[Plan] = []
        self._resumed: str | None = None
        self.uris: dict[str, str] = {}

    def preview_run(self) -> Report:
        """Plan without writing anything, and return the report."""
        state, _ = self.journal.read_state()
        if self.journal.find_unfinished_plan(state):
            self.reporter.add_warnings(
                ["an earlier run left an unfinished plan: the next run executes it first"]
            )
        plan, new_file_count = self._plan_merges(state)
        self.plans.append(plan)
        result = self._build_result(state, new_file_count)
        self.reporter.add_warnings(list_result_warnings(result, self.config))
        return self.reporter.build_report(result, plan=summarize_plan(plan))

    def carry_out(self) -> Report:
        """Complete an unfinished plan, then plan and merge new files, and return the report."""
        state, commit = self.journal.read_state()
        result: RunResult | None = None
        self.journal.clear_old_files(state)
        unfinished = self.journal.find_unfinished_plan(state)
        is_done = False
        if isinstance(unfinished, PlanFile):
            self._resumed = unfinished.token.run_id
            self.progress.log_line(f"resuming the unfinished plan of run {self._resumed}")
            result = self._execute_plan(unfinished.plan, state, unfinished.config, is_resumed=True)
            state, _ = self.journal.read_state()
            # A retry of the task that wrote the plan is complete, unless merges of the plan were withdrawn.
            is_complete = len(self.plans[-1].merges) == len(unfinished.plan.merges)
            is_done = unfinished.token == self.request.run and is_complete
        if not is_done:
            plan, new_file_count = self._plan_merges(state)
            if not plan.is_idle or new_file_count or not plan.state.is_same(state):
                result = self._execute_plan(plan, state, self.config, new_file_count)
        is_retry = self.request.run.is_same_attempt(commit.state.get(TOKEN))
        if result is None and is_retry and RESULT in commit.state:
            # A retry reports the result of an earlier attempt that had completed everything.
            result = RunResult.from_state(commit.state)
            self.reporter.add_expectations(
                map(ExpectationResult.model_validate, commit.state.get(EXPECTATIONS) or ())
            )
        return self._build_report(result, state)

    def _plan_merges(self, state: State) -> tuple[Plan, int]:
        """List the source folder, inspect new files, and return the plan and the number of new files."""
        folders = self._open_folders(self.config)
        with self.progress.time_step("list"):
            self.reporter.add_warnings(check_source(folders.source, self.config))
            listing = self._list_files(folders, self.config)
            state, lost = self._compare_with_listing(state, listing)
            if listing.links:
                self.reporter.add_warnings(
                    [f"{len(listing.links)} symbolic links are not followed, such as {min(listing.links)}"]
                )
            queue = build_queue(folders.source, listing, listing.find_new_files(state).values(), self.config)
        with self.progress.time_step("count"):
            arrivals = self.engine.find_arrivals(folders.source, queue, self.config, self.request.started_at)
            arrivals = estimate_sizes(arrivals, state, self.config)
            self.reporter.add_warnings(list_unknown_names(arrivals, self.config))
        plan = Planner(self.engine, folders.source, self.config, self.reporter).build_plan(
            state, arrivals, lost
        )
        self.progress.log_line(
            f"planned {len(plan.merges)} merges and {len(plan.failures)} failed bins from {len(queue.files)} "
            f"new files; {listing.unsettled} files are not settled, {len(plan.state.bins)} bins stay open"
        )
        return plan, len(queue.files)

    def _list_files(self, folders: Folders, config: MergeRecordConfig) -> Listing:
        source = folders.source
        return sort_listing(source.list_files(), source.location, config, self.request.started_at)

    def _compare_with_listing(self, state: State, listing: Listing) -> tuple[State, list[str]]:
        """Remove changed and missing files from the bins, and dissolve bins if the grouping has changed.

        :return: the new state, and the URIs of the missing files.
        """
        changed_uris = listing.find_changed(state.waiting)
        lost = [uri for uri in changed_uris if uri not in listing.files]
        if changed_uris:
            self.reporter.add_warnings(
                [f"{len(changed_uris)} files of open bins have changed or no longer exist: removed from bins"]
            )
        state = remove_files(state, changed_uris)
        partial = {uri: ids for uri, ids in state.partial.items() if uri not in changed_uris}
        done = {uri: version for uri, version in state.done.items() if uri in listing.files}
        state = replace(state, partial=partial, done=done)
        regrouped = bool(state.bins) and state.fingerprint != compute_fingerprint(self.config)
        if regrouped:
            self.reporter.add_warnings(
                ["the configuration groups files differently than before: open bins are dissolved"]
            )
        return (dissolve_bins(state) if regrouped or self.request.full_refresh else state), lost

    def _execute_plan(
        self,
        plan: Plan,
        previous_state: State,
        config: MergeRecordConfig,
        new_file_count: int = 0,
        *,
        is_resumed: bool = False,
    ) -> RunResult:
        """Write the plan to the journal and execute it; every step is idempotent.

        :raises Exception: what kept merges from being written, once everything else is done and remembered.
        """
        if plan.is_idle:
            self.plans.append(plan)
            result = self._build_result(previous_state, new_file_count)
            self.journal.save_state(previous_state, self._build_state_file(plan.state, result, config))
            return result
        if not is_resumed:
            self.journal.write_plan(plan.state.generation, PlanFile(self.request.run, config, plan))
        folders = self._open_folders(config)
        published = self._publish_merges(plan, folders, config, is_resumed=is_resumed)
        # Spark Connect may look for the files of a frame to release it: they are moved afterwards.
        self.engine.close()
        if len(published.manifests) < len(plan.merges):
            plan = reduce_plan(plan, previous_state, published.manifests, config)
        self.plans.append(plan)
        manifests = published.manifests.values()
        self.uris |= {id_: str(manifest.uri) for id_, manifest in published.manifests.items()}
        with self.progress.time_step("move"):
            self.journal.lease.check_lease()
            moved = routing.route_sources(plan, folders, config)
            lines = routing.build_ledger(plan, self.uris, moved, config, self.request.run)
            ledger_uri = self.journal.write_ledger(plan.state.generation, lines)
        result = self._build_result(previous_state, new_file_count, ledger=ledger_uri)
        records = sum(manifest.records for manifest in manifests)
        size = sum(manifest.bytes or 0 for manifest in manifests)
        new_state = learn_size(plan.state, config, records, size)
        self.journal.save_state(previous_state, self._build_state_file(new_state, result, config))
        if published.error is not None:
            raise published.error
        return result

    def _build_state_file(self, state: State, result: RunResult, config: MergeRecordConfig) -> StateFile:
        """Return a state with what it tells of the run: its report for a retry, its folders for an undo."""
        folders = RunFolders(**{name: getattr(config, name) for name in PLACES})
        return StateFile(state, {**self.reporter.build_state(result), FOLDERS: folders.as_json()})

    def _publish_merges(
        self, plan: Plan, folders: Folders, config: MergeRecordConfig, *, is_resumed: bool
    ) -> PublishResult:
        """Publish the merges of a plan, and warn about files that have changed since it was made."""
        publisher = Publisher(
            self.engine,
            self.journal,
            folders,
            config,
            self.progress,
            self.opened,
            lambda: self._list_files(folders, config),
        )
        published = publisher.publish_plan(plan, is_resumed=is_resumed)
        if published.changed:
            number, named = len(published.changed), ", ".join(published.changed[:_NAMED])
            message = f"{number} files have changed or no longer exist since they were planned ({named})"
            self.reporter.add_warnings([f"{message}: they are planned again"])
        return published

    def _build_result(
        self, previous_state: State, new_file_count: int, ledger: str | None = None
    ) -> RunResult:
        """Build the result of the plans that were executed so far, or previewed."""
        mode: RunMode
        if self.request.full_refresh:
            mode, reason = "full", f"{FULL_REFRESH}: open bins are dissolved"
        elif self._resumed is not None:
            mode, reason = "incremental", f"the unfinished plan of run {self._resumed} was executed"
        elif not previous_state.generation:
            mode, reason = "initial", "first run with this state_path"
        else:
            mode, reason = "incremental", f"{new_file_count} new files"
        result = build_result(mode, reason, self.plans, self.uris, self.config)
        return replace(result, details={**result.details, "ledger": ledger})

    def _open_folders(self, config: MergeRecordConfig) -> Folders:
        return Folders(
            source=self.opened(str(config.source)),
            merged=self.opened(str(config.merged)),
            failure=self.opened(str(config.failure)),
            original=self.opened(config.original) if config.original else None,
        )

    def _build_report(self, result: RunResult | None, state: State | None = None) -> Report:
        if result is None:
            state = state or State()
            unchanged = RowCounts.for_noop()
            details = build_details(state, self.config)
            result = RunResult(
                "noop", "no new files, and no bin is due", unchanged, count_open(state), details
            )
        self.reporter.add_warnings(list_result_warnings(result, self.config))
        self._record_schemas()
        return self.reporter.build_report(result, changed=bool(result.counts.get("merged")))

    def _record_schemas(self) -> None:
        """Record the fields of the merged files, and those of the files that were merged."""
        merges = [merge for plan in self.plans for merge in plan.merges]
        if not merges:
            return
        sources = unite_schemas(schema for plan in self.plans for schema in plan.schemas.values())
        schemas = {
            self.reporter.target.uri: unite_schemas(merge.schema for merge in merges),
            next(iter(self.reporter.sources.values())).dataset.uri: sources,
        }
        for uri, schema in schemas.items():
            self.progress.record_schema(uri, spark_schema(schema).jsonValue()["fields"])


def _resolve_config(request: JobRequest) -> MergeRecordConfig:
    """Check the configuration, and resolve its locations and schemas.

    :raises ConfigError: with every problem.
    """
    config = MergeRecordConfig.parse(request.config)
    problems = [
        Problem(name, "missing", "is required", "set a folder")
        for name in PLACES
        if getattr(config, name) is None and name != "original"
    ]
    changes: dict[str, FileFormat] = {}
    for name, described in (("reader", config.reader), ("writer", config.writer)):
        if described is not None and described.schema is not None:
            try:
                changes[name] = replace(described, schema=parse_schema(described.schema))
            except (PySparkException, ValueError) as error:
                problems.append(Problem(f"{name}.schema", "schema", str(error).splitlines()[0]))
    config = config.model_copy(update=changes)
    if config.writer is not None and config.writer.fields is not None:
        wrong = find_unwritable_field(config.writer.fields, config.writer.format)
        problems += [] if wrong is None else [Problem("writer.schema", "schema", wrong)]
    encoding = find_option(config.output.options, "encoding")
    if config.output.format == "json-array" and encoding.upper().startswith(("UTF-16", "UTF-32")):
        message = f"json-array files cannot be written in {encoding}"
        problems.append(Problem("writer.options", "options", message, "use UTF-8, or the format json"))
    locations = {name: getattr(config, name) for name in PLACES if getattr(config, name) is not None}
    paths = {name: resolve_dataset(at, request.warehouse, at=name).path for name, at in locations.items()}
    if problems:
        raise ConfigError.from_problems(problems)
    return config.model_copy(update=paths)


def _build_opener(spark: SparkSession) -> Open:
    return lambda location: open_storage(location, build_arguments(spark, location))
