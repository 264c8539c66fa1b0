"""Run, plan and check a file, and undo a run."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from airflow_merge_provider.before_spark import find_result
from airflow_merge_provider.cli.arguments import (
    add_all_columns,
    add_file,
    add_json,
    add_remote,
    add_spark,
    add_target,
    parse_settings,
)
from airflow_merge_provider.cli.output import print_changes, print_report, show_progress
from airflow_merge_provider.cli.run_file import (
    STDIN,
    RunFile,
    choose_warehouse,
    read_run_file,
    resolve_relative_path,
)
from airflow_merge_provider.core.change_plan.saved_plan import PlanChoice
from airflow_merge_provider.core.change_plan.summary import format_changes
from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.object_store.clients import add_spark_settings, read_environment
from airflow_merge_provider.core.protocol import JobFailure, JobRequest, JobResult, RunToken
from airflow_merge_provider.core.report import Report
from airflow_merge_provider.spark_process.shared.client import run_job

_SINGLE_WRITER = "write a table even if two writers could overwrite each other's commits"

_WHOLE_REPORT = "print the whole report as JSON, also on a terminal"

_NO_VECTORS = "create tables without deletion vectors, which some readers do not support"


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``run``."""
    add_file(parser)
    add_json(parser, _WHOLE_REPORT)
    parser.set_defaults(until=None)
    parser.add_argument("--dry-run", action="store_true", help="compute all changes without committing them")
    parser.add_argument("--full-refresh", action="store_true", help="process all input, not only the changes")
    id_help = "the ID of the run; a run with the same ID is a retry"
    parser.add_argument("--run-id", metavar="ID", help=id_help)
    apply_help = "commit exactly the newest saved plan of the target, or nothing if it is outdated"
    parser.add_argument("--apply-plan", action="store_true", help=apply_help)
    parser.add_argument("--allow-single-writer", action="store_true", help=_SINGLE_WRITER)
    parser.add_argument("--no-deletion-vectors", action="store_true", help=_NO_VECTORS)
    add_remote(parser)
    add_spark(parser)


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``plan``."""
    add_file(parser)
    parser.add_argument("--save", action="store_true", help="save the changed rows as <target>__plan")
    add_all_columns(parser)
    add_json(parser, _WHOLE_REPORT)
    no_rows_help = "show the steps and the output columns of a full run, without reading any rows"
    parser.add_argument("--no-rows", action="store_true", help=no_rows_help)
    parser.add_argument("--full-refresh", action="store_true", help="process all input, not only the changes")
    parser.add_argument("--allow-single-writer", action="store_true", help=_SINGLE_WRITER)
    parser.set_defaults(dry_run=True, until=None, run_id=None, no_deletion_vectors=False)
    add_remote(parser)
    add_spark(parser)


def add_undo_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``undo``."""
    add_target(parser)
    choice = parser.add_mutually_exclusive_group()
    run_help = "undo this run, by its ID or number (see history), and all later ones; or undo this undo"
    choice.add_argument("--run", metavar="RUN", help=run_help)
    version_help = "restore version N of the target, with the changes of other programs"
    choice.add_argument("--to-version", type=int, metavar="N", help=version_help)
    only_help = "undo the run of --run alone and keep all later ones (SCD2 histories with natural_key)"
    parser.add_argument("--only", action="store_true", help=only_help)
    parser.add_argument("--dry-run", action="store_true", help="show what would be undone, and write nothing")
    parser.add_argument("--allow-single-writer", action="store_true", help=_SINGLE_WRITER)
    add_json(parser, _WHOLE_REPORT)
    add_remote(parser)
    add_spark(parser)


def run_file(options: argparse.Namespace) -> int:
    """Run a file and print its report."""
    file = read_run_file(options.file, options.warehouse)
    file.check_config(needs_target=True)
    request = _build_request(options, file)
    if options.apply_plan:
        request = request.model_copy(update={"apply_plan": PlanChoice()})
    return _run_request(request, options)


def plan_file(options: argparse.Namespace) -> int:
    """Print the changes of a run as a diff, or the report as JSON."""
    file = read_run_file(options.file, options.warehouse)
    file.check_config(needs_target=True)
    request = _build_request(options, file)
    if options.no_rows:
        request = request.model_copy(update={"until": "plan", "full_refresh": True})
        return _run_request(request, options)
    report = _find_report(request.model_copy(update={"save_plan": options.save}), options)
    plan = report.plan
    if options.json or plan is None:
        print_report(report, as_json=options.json)
        return 0
    if options.all_columns:
        plan = plan.model_copy(update={"internal_columns": ()})
    print_changes(format_changes(plan))
    if file.job == "merge_record":
        print_changes(_describe_moves(file.config, report.counts))
    return 0


def _describe_moves(config: Mapping[str, Any], counts: Mapping[str, int | None]) -> Iterator[str]:
    """Yield a line for each folder to which a run of a merge record would move source files."""
    action = MergeRecordConfig.parse(config).original_action
    results = {
        "move": f"moved to {config.get('original')}",
        "delete": "deleted",
        "keep": "left where they are",
    }
    for count, result in (
        (counts["files"], results[action]),
        (counts["failed_files"], f"moved to {config.get('failure')}"),
    ):
        if count:
            yield f"{count} {'file' if count == 1 else 'files'} would be {result}"


def undo_run(options: argparse.Namespace) -> int:
    """Undo a run and print the report of the undo."""
    now = time.time_ns() // 1000
    choice = {"run": options.run, "to_version": options.to_version, "only": options.only or None}
    config = {name: value for name, value in choice.items() if value is not None}
    request = JobRequest(
        job="undo",
        config={"target": resolve_relative_path(options.target), **config},
        run=RunToken(dag_id="cli", run_id=f"undo-{now}", task_id="undo"),
        warehouse=choose_warehouse(options.warehouse),
        started_at=now,
        until="transform" if options.dry_run else "commit",
        allow_single_writer=options.allow_single_writer,
    )
    return _run_request(request, options)


def _run_request(request: JobRequest, options: argparse.Namespace) -> int:
    """Run a request and print its report."""
    print_report(_find_report(request, options), as_json=options.json or request.until == "plan")
    return 0


def _find_report(request: JobRequest, options: argparse.Namespace) -> Report:
    """Run a request, before Spark starts if that suffices, and return its report."""
    with show_progress() as on_line:
        result = _find_result(request, options, on_line)
    if isinstance(result, JobFailure):
        if result.trace and options.verbose:
            print(result.trace, file=sys.stderr)
        raise result.to_error()
    return result.report


def _find_result(
    request: JobRequest, options: argparse.Namespace, on_line: Callable[[str], object]
) -> JobResult | JobFailure:
    conf = parse_settings(options.conf)
    settings = read_environment(request.warehouse)
    if options.remote is None:
        conf = add_spark_settings(conf, [request.warehouse, request.config], settings)
    is_local = options.remote is None and options.master.startswith("local")
    result = find_result(
        request, conf=conf, is_local=is_local, storage_options=settings.as_delta_rs(), on_line=on_line
    )
    if result is not None:
        return result
    return run_job(request, master=options.master, remote=options.remote, conf=conf, on_line=on_line)


def _build_request(options: argparse.Namespace, file: RunFile) -> JobRequest:
    """Build the request of a run file; command-line options override the file."""
    request_fields = file.request
    name = "stdin" if options.file == STDIN else Path(options.file).stem
    now = time.time_ns() // 1000
    token = RunToken(dag_id="cli", run_id=options.run_id or f"{name}-{now}", task_id=name)
    return JobRequest.model_validate(
        {
            "job": file.job,
            "config": file.config,
            "run": request_fields.get("run") or token,
            "warehouse": file.warehouse,
            "started_at": request_fields.get("started_at", now),
            "until": options.until
            or ("transform" if options.dry_run else request_fields.get("until", "commit")),
            "full_refresh": options.full_refresh or bool(request_fields.get("full_refresh")),
            "population": file.find_population(),
            "allow_single_writer": options.allow_single_writer
            or bool(request_fields.get("allow_single_writer")),
            "max_change_ratio": request_fields.get("max_change_ratio"),
            "deletion_vectors": not options.no_deletion_vectors
            and request_fields.get("deletion_vectors", True) is not False,
        }
    )
