"""End runs that need no Spark before it starts: nothing to do, committed already, or impossible.

The logs of the target and the sources answer this in a second. Reports and errors are those of a Spark job,
because both take them from the same decision (``core/*/decision.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from airflow_merge_provider.core.capabilities import JOBS
from airflow_merge_provider.core.change_plan.shown_rows import use_shown_rows
from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.expectations.columns import require_columns, require_sources
from airflow_merge_provider.core.expectations.config import EXPECT, parse_expectations
from airflow_merge_provider.core.failure_report import TargetState
from airflow_merge_provider.core.lineage import describe_datasets
from airflow_merge_provider.core.object_store.clients import has_credentials
from airflow_merge_provider.core.object_store.s3_settings import S3Settings
from airflow_merge_provider.core.protocol import JobRequest, JobResult
from airflow_merge_provider.core.report import add_launch_seconds, summarize_report
from airflow_merge_provider.core.run.decision import RequiresSparkError, RunDecision
from airflow_merge_provider.core.run.population_check import PopulationCheck, check_population
from airflow_merge_provider.core.run.previous_run import TOKEN
from airflow_merge_provider.core.run.progress import Progress
from airflow_merge_provider.core.run.table_log import HISTORY_PAGE, TableLog, parse_metadata
from airflow_merge_provider.core.undo.config import UndoConfig
from airflow_merge_provider.delta_rs import DeltaRsLog, is_table
from airflow_merge_provider.explain.merge_record import find_state_folders
from airflow_merge_provider.spark_process.jvm.default_file_system import has_local_paths
from airflow_merge_provider.spark_process.jvm.metastore import find_catalog_problems


def _refuse_folder(log: TableLog, request: JobRequest) -> None:
    """Leave the undo of a merge record to a job.

    :raises RequiresSparkError: if the target is a folder of a merge record, whose files a job moves.
    """
    target = resolve_dataset(UndoConfig.parse(request.config).target, request.warehouse, at="target")
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
    storage_options: Mapping[str, str] | None = None,
    on_line: Callable[[str], object],
) -> JobResult | None:
    """Return the result of a run that needs no Spark; None if Spark has to run it.

    :param conf: the Spark settings of the run.
    :param is_local: whether Spark runs on this machine; if not, absolute paths are those of another one.
    :param storage_options: the credentials of object stores, as delta-rs takes them.
    :raises ConfigError: if the configuration does not suit the tables.
    :raises DataError: if a source or the target does not exist or is something other than expected.
    :raises SetupError: if an object store cannot be reached, or has no such bucket.
    """
    with use_shown_rows(request.shown_rows):
        return _find_result(
            request, conf=conf, is_local=is_local, storage_options=storage_options, on_line=on_line
        )


def _find_result(
    request: JobRequest,
    *,
    conf: Mapping[str, str],
    is_local: bool,
    storage_options: Mapping[str, str] | None,
    on_line: Callable[[str], object],
) -> JobResult | None:
    if is_local:
        check_catalog_tables(request, conf)
    log = _open_log(conf, is_local=is_local, storage_options=storage_options)
    # A run with work prints the same warnings in its job.
    lines: list[str] = []
    progress = Progress(lines.append)
    try:
        with progress.time_step("check logs"):
            report = _find_report(log, request, progress)
    except RequiresSparkError:
        return None
    if report is None:
        return None
    datasets = describe_datasets(log, request, report, progress)
    progress.log_line(summarize_report(report))
    for line in lines:
        on_line(line)
    seconds = progress.list_seconds()
    report = add_launch_seconds({**report, "seconds": seconds}, sum(seconds.values()))
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
    storage_options: Mapping[str, str] | None = None,
) -> TargetState | None:
    """Return what the log of the target says after a failed run; None if the target is not a Delta table.

    :raises RequiresSparkError: if only Spark can read the log.
    :raises DataError: if there is something other than a Delta table.
    """
    if JOBS[request.job].open_run is None:
        return None
    config = JOBS[request.job].config.parse(request.config)
    target = resolve_dataset(getattr(config, config.output_field), request.warehouse, at=config.output_field)
    if target.format != "delta" or target.path is None:
        return None
    log = _open_log(conf, is_local=is_local, storage_options=storage_options)
    newest = log.find_newest_version(target)
    if newest is None:
        return TargetState(None)
    states = ((entry.version, parse_metadata(entry)) for entry in log.read_history(target, HISTORY_PAGE))
    own = (version for version, state in states if request.run.is_same_attempt(state.get(TOKEN)))
    return TargetState(newest.version, next(own, None))


def check_catalog_tables(request: JobRequest, conf: Mapping[str, str]) -> None:
    """Check that no dataset of a run on this machine is a catalog table that ends with Spark.

    :raises ConfigError: with every such table.
    """
    try:
        references = list_references(request.job, request.config)
    except ConfigError:
        # The job reports a configuration that is not valid, with all its problems.
        return
    if problems := find_catalog_problems(references, request.warehouse, conf):
        raise ConfigError.from_problems(problems)


def list_references(job: str, config: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return every dataset that a configuration names, with the path that errors name."""
    return [*JOBS[job].config.parse(config).list_datasets().items(), *_list_referenced_keys(config)]


def _list_referenced_keys(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the datasets with the keys that expectations reference."""
    for item in parse_expectations(config.get(EXPECT)):
        if item.dataset is not None:
            yield f"{item.path}.{item.kind}.dataset", item.dataset


def _find_report(log: TableLog, request: JobRequest, progress: Progress) -> dict[str, Any] | None:
    open_run = JOBS[request.job].open_run
    if open_run is None:
        raise RequiresSparkError(f"a {request.job} run lists files")
    if request.job == "undo":
        _refuse_folder(log, request)
    check = None
    if request.population is not None and request.until == "commit":
        check = check_population(log, request.population, request.warehouse)
    decision = open_run(log, request, progress)
    report = decision.find_report()
    if report is None:
        decision.check_inputs(log.read_fields)
        _check_expectations(log, decision)
        return None
    return report if check is None else {**report, "populated": _require_same_flag(check)}


def _check_expectations(log: TableLog, decision: RunDecision) -> None:
    """Check the sources and their columns that expectations name.

    :raises DataError: with every source or column that does not exist.
    """
    expectations = parse_expectations(decision.request.config.get(EXPECT))
    sources = decision.reporter.sources
    require_sources(list(sources), expectations)
    for name, source in sources.items():
        if applicable := [item for item in expectations if item.applies_to(name)]:
            columns = [str(field["name"]) for field in log.read_fields(source)]
            require_columns(columns, applicable, f"the source {name!r}")


def _require_same_flag(check: PopulationCheck) -> bool:
    """Return the populated flag of the target, which the run does not change.

    :raises RequiresSparkError: if it does.
    """
    if check.is_set_after != check.is_set:
        raise RequiresSparkError("the populated flag of the target changes")
    return check.is_set
