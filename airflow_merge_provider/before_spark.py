"""End runs that need no Spark before it starts: nothing to do, committed already, or impossible.

The logs of the target and the sources answer this in a second. Reports and errors are those of a Spark job,
because both take them from the same decision (``core/*/decision.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_merge_provider.core.capabilities import JOBS
from airflow_merge_provider.core.change_plan.shown_rows import use_shown_rows
from airflow_merge_provider.core.dataset import Dataset, resolve_dataset
from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.expectations.config import (
    EXPECT,
    parse_expectations,
    require_columns,
    require_sources,
)
from airflow_merge_provider.core.failure_report import TargetState
from airflow_merge_provider.core.lineage import describe_datasets
from airflow_merge_provider.core.model import Config
from airflow_merge_provider.core.object_store.clients import has_credentials
from airflow_merge_provider.core.object_store.s3_settings import S3Settings
from airflow_merge_provider.core.protocol import JobRequest, JobResult
from airflow_merge_provider.core.report import LAUNCH, Details, Report, summarize_report
from airflow_merge_provider.core.run.decision import RequiresSparkError, RunDecision
from airflow_merge_provider.core.run.previous_run import TOKEN, PreviousRun, RunCommit
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.core.run.steps import RunSteps, run_with_population
from airflow_merge_provider.core.run.table_log import HISTORY_PAGE, TableLog, parse_metadata
from airflow_merge_provider.core.run_mode import RunMode
from airflow_merge_provider.core.table_history import trace_lineage
from airflow_merge_provider.core.undo.config import UndoConfig
from airflow_merge_provider.delta_rs import DeltaRsLog, is_table
from airflow_merge_provider.explain.merge_record import find_state_folders
from airflow_merge_provider.spark_process.jvm.spark_defaults import find_catalog_problems, has_local_paths

# delta-rs repeats requests for three minutes; the error of a failed run does not wait so long.
_SHORT_WAITS = {"connect_timeout": "3s", "timeout": "5s", "max_retries": "1", "retry_timeout": "5s"}


def _refuse_folder(log: TableLog, config: UndoConfig, request: JobRequest) -> None:
    """Leave the undo of a merge record to a job.

    :raises RequiresSparkError: if the target is a folder of a merge record, whose files a job moves.
    """
    target = resolve_dataset(config.target, request.warehouse, at="target")
    if target.path is not None and target.path.startswith("/"):
        has_files = not is_table(target.path) and bool(find_state_folders(target))
    else:
        has_files = target.path is not None and log.find_properties(target) is None
    if has_files:
        raise RequiresSparkError("an undo of a merge record moves files")


def find_result(
    request: JobRequest,
    *,
    conf: Mapping[str, str],
    is_local: bool,
    has_local_catalog: bool = False,
    storage_options: Mapping[str, str] | None = None,
    on_line: Callable[[str], object],
) -> JobResult | None:
    """Return the result of a run that needs no Spark; None if Spark has to run it.

    :param conf: the Spark settings of the run.
    :param is_local: whether Spark runs on this machine; if not, absolute paths are those of another one.
    :param has_local_catalog: whether the catalog of Spark is that of this machine, although it is reached by
        a connection.
    :param storage_options: the credentials of object stores, as delta-rs takes them.
    :raises ConfigError: if the configuration does not suit the tables.
    :raises DataError: if a source or the target does not exist or is something other than expected.
    :raises SetupError: if an object store cannot be reached, or has no such bucket.
    """
    job = JOBS[request.job]
    with use_shown_rows(request.shown_rows):
        try:
            config = job.config.parse(request.config)
        except ConfigError:
            if job.open_run is not None:
                raise
            # The job reports a configuration that is not valid, with all its problems.
            return None
        if is_local or has_local_catalog:
            _check_catalog_tables(config, request, conf)
        log = _open_log(conf, is_local=is_local, storage_options=storage_options)
        return _find_result(log, config, request, on_line)


def _find_result(
    log: TableLog, config: Config, request: JobRequest, on_line: Callable[[str], object]
) -> JobResult | None:
    # A run with work prints the same warnings in its job.
    lines: list[str] = []
    progress = Progress(lines.append)
    try:
        with progress.time_step("check logs"):
            report = _find_report(log, config, request, progress)
    except RequiresSparkError:
        return None
    datasets = describe_datasets(log, request, report, progress)
    progress.log_line(summarize_report(report))
    for line in lines:
        on_line(line)
    report = report.with_seconds({LAUNCH: 0.0, **progress.list_seconds()})
    return JobResult(report=report, datasets=datasets)


def _open_log(
    conf: Mapping[str, str], *, is_local: bool, storage_options: Mapping[str, str] | None
) -> DeltaRsLog:
    # Spark's settings win: a task may have set others than the connection.
    return DeltaRsLog(
        {**(storage_options or {}), **S3Settings.from_spark(conf.get).as_delta_rs()},
        local_files=is_local and has_local_paths(conf),
        object_stores=has_credentials(storage_options),
        is_local=is_local,
    )


def find_target_state(
    request: JobRequest,
    *,
    conf: Mapping[str, str],
    is_local: bool,
    has_begun: bool = True,
    storage_options: Mapping[str, str] | None = None,
) -> TargetState | None:
    """Return what the log of the target says after a failed run; None if the target is not a Delta table.

    An object store that does not answer is not waited for as in a run.

    :param has_begun: whether the job of the run was started.
    :raises RequiresSparkError: if only Spark can read the log.
    :raises DataError: if there is something other than a Delta table.
    """
    if JOBS[request.job].open_run is None or request.config.get("dispatch_by") is not None:
        return TargetState(None, has_parts=True) if has_begun else None
    config = JOBS[request.job].config.parse(request.config)
    target = resolve_dataset(getattr(config, config.output_field), request.warehouse, at=config.output_field)
    if target.format != "delta" or target.path is None:
        return None
    log = _open_log(conf, is_local=is_local, storage_options={**_SHORT_WAITS, **(storage_options or {})})
    return _find_target_state(log, target, request)


def _find_target_state(log: TableLog, target: Dataset, request: JobRequest) -> TargetState:
    newest = log.find_newest_version(target)
    if newest is None:
        return TargetState(None)
    # A run that was too late for another writer has reverted its commit.
    history = log.read_history(target, HISTORY_PAGE)
    in_force = trace_lineage(history, lambda _: None).entries
    states = ((entry.version, parse_metadata(entry)) for entry in in_force)
    own = (version for version, state in states if request.run.is_same_attempt(state.get(TOKEN)))
    is_changed = history[0].timestamp * 1000 > request.started_at
    return TargetState(newest.version, next(own, None), is_changed)


def _check_catalog_tables(config: Config, request: JobRequest, conf: Mapping[str, str]) -> None:
    """Check that no dataset of a run on this machine is a catalog table that ends with Spark.

    :raises ConfigError: with every such table.
    """
    references = _list_references(config, request.config)
    if problems := find_catalog_problems(references, request.warehouse, conf):
        raise ConfigError.from_problems(problems)


def list_references(job: str, config: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return every dataset that a configuration names, with the path that errors name."""
    return _list_references(JOBS[job].config.parse(config), config)


def _list_references(config: Config, raw: Mapping[str, Any]) -> list[tuple[str, Any]]:
    expectations = [item for item in parse_expectations(raw.get(EXPECT)) if item.dataset is not None]
    keys = [(f"{item.path}.{item.kind}.dataset", item.dataset) for item in expectations]
    return [*config.list_datasets().items(), *keys]


def _find_report(log: TableLog, config: Config, request: JobRequest, progress: Progress) -> Report:
    if isinstance(config, UndoConfig):
        _refuse_folder(log, config, request)

    def run(checked: JobRequest) -> Report:
        return TaskRun(_open_run(log, config, checked, progress), log).run_to_end()

    return run_with_population(log, request, progress, run, _refuse_flag_change)


def _open_run(log: TableLog, config: Config, request: JobRequest, progress: Progress) -> RunDecision:
    open_run = JOBS[request.job].open_run
    if open_run is None:
        raise RequiresSparkError(f"a {request.job} run lists files")
    return open_run(log, config, request, progress)


@dataclass(frozen=True)
class TaskRun(RunSteps):
    """The steps of a run in a task, which stops where it would read rows or write."""

    decision: RunDecision
    log: TableLog

    def report_retry(self, commit: RunCommit) -> Report:
        self._require_no_repairs()
        return super().report_retry(commit)

    def report_noop(self, reason: str) -> Report:
        self._require_no_repairs()
        return super().report_noop(reason)

    def check_inputs(self) -> None:
        _check_inputs(self.log, self.decision)

    def describe_plan(self) -> Details:
        raise RequiresSparkError("a plan reads the columns of files")

    def execute(self, run_mode: RunMode, reason: str) -> Report:
        raise RequiresSparkError(f"the run has work: {reason}")

    def renew_state(self, last: PreviousRun) -> None:
        raise RequiresSparkError("the log may soon lose the state of the previous run")

    def _require_no_repairs(self) -> None:
        if self.decision.has_repairs:
            raise RequiresSparkError("the tables of nested lists have to be checked")


def check_columns(log: TableLog, request: JobRequest, progress: Progress) -> list[str]:
    """Check the sources of a request and their columns, as a run with work does, and return the warnings.

    :raises ConfigError: if the configuration does not suit the columns.
    :raises DataError: if a source or a column does not exist.
    :raises RequiresSparkError: if only a job can determine this.
    """
    config = JOBS[request.job].config.parse(request.config)
    decision = _open_run(log, config, request, progress)
    _check_inputs(log, decision)
    return list(decision.reporter.warnings)


def _check_inputs(log: TableLog, decision: RunDecision) -> None:
    """Check the sources and their columns that the configuration and its expectations name.

    :raises DataError: with every source or column that does not exist.
    """
    decision.check_inputs(log.read_fields)
    expectations = parse_expectations(decision.request.config.get(EXPECT))
    sources = decision.reporter.sources
    require_sources(list(sources), expectations)
    for name, source in sources.items():
        if applicable := [item for item in expectations if item.applies_to(name)]:
            columns = [str(field["name"]) for field in log.read_fields(source)]
            require_columns(columns, applicable, f"the source {name!r}")


def _refuse_flag_change(target: Dataset, *, is_set: bool) -> None:
    raise RequiresSparkError(f"the populated flag of {target.uri} becomes {is_set}")
