"""Provide the command line: run, check and explain merges without Airflow."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from airflow_merge_provider import __version__
from airflow_merge_provider.before_spark import find_result
from airflow_merge_provider.capabilities import CAPABILITIES, list_counts
from airflow_merge_provider.connect_server import run_connect_server
from airflow_merge_provider.connect_token import CONNECT_PORT, TOKEN_VARIABLE
from airflow_merge_provider.core.errors import (
    ConfigError,
    ConflictError,
    DataError,
    MergeError,
    RiskError,
    SetupError,
)
from airflow_merge_provider.core.merge_source.explanation import format_key, format_links
from airflow_merge_provider.core.protocol import JobFailure, JobRequest, JobResult, RunToken
from airflow_merge_provider.core.report import truncate_report
from airflow_merge_provider.core.report_schema import build_report_schema
from airflow_merge_provider.core.spark_conf import find_misplaced
from airflow_merge_provider.explain.dispatch import explain_target
from airflow_merge_provider.explain.merge_source import explain_between
from airflow_merge_provider.explain.target import open_target
from airflow_merge_provider.launch import LOCAL, make_archive
from airflow_merge_provider.local_spark.administration import list_servers, stop_servers
from airflow_merge_provider.local_spark.client import run_job
from airflow_merge_provider.run_file import (
    STDIN,
    WAREHOUSE,
    RunFile,
    choose_warehouse,
    read_run_file,
    resolve_relative_path,
)

_EXIT = {
    error.code: code
    for error, code in ((ConfigError, 2), (DataError, 3), (RiskError, 3), (SetupError, 4), (ConflictError, 5))
}
_WHERE = f"the folder or URI that contains the datasets with bare ids (default: ${WAREHOUSE})"
_EXITS = """exit codes:
  0  the command succeeded
  1  the Spark process or the command failed unexpectedly; a retry may succeed
  2  the file or the command line is not valid; nothing was written
  3  the data cannot be merged as configured; nothing was written
  4  a prerequisite is missing: Java, a jar, a warehouse, a service
  5  another run committed first; nothing was written; run the command again"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = _build_parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except MergeError as error:
        print(f"error: {error}", file=sys.stderr)
        return _EXIT.get(error.code, 1)
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of the output closed the pipe. Without this, Python reports it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if options.verbose:
            raise
        print(f"error: {type(error).__name__}: {error} (--verbose prints the traceback)", file=sys.stderr)
        return 1


def _run_file(options: argparse.Namespace) -> int:
    file = read_run_file(options.file, options.warehouse)
    file.check_config(needs_target=True)
    request = _build_request(options, file)
    conf = _parse_settings(options.conf)
    is_local = options.remote is None and options.master.startswith("local")
    result: JobResult | JobFailure | None = find_result(
        request, conf=conf, is_local=is_local, on_line=_print_progress
    )
    if result is None:
        result = run_job(
            request, master=options.master, remote=options.remote, conf=conf, on_line=_print_progress
        )
    if isinstance(result, JobFailure):
        if result.trace and options.verbose:
            print(result.trace, file=sys.stderr)
        raise result.to_error()
    print(json.dumps(_truncate_report(result.report, request), indent=2, ensure_ascii=False))
    return 0


def _print_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _truncate_report(report: dict[str, Any], request: JobRequest) -> dict[str, Any]:
    """Return the report as Airflow would store it; a report of a plan is not truncated."""
    if request.until == "plan":
        return report
    short_report = truncate_report(report)
    if short_report.get("truncated"):
        print(f"the report is too long for an XCom; full report: {json.dumps(report)}", file=sys.stderr)
    return short_report


def _check_file(options: argparse.Namespace) -> int:
    file = read_run_file(options.file, options.warehouse)
    for warning in file.check_config(needs_target=False):
        print(f"warning: {warning}", file=sys.stderr)
    print(f"{options.file}: valid {file.job} configuration")
    return 0


def build_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a job's configuration, a request, a result or a report."""
    if name in CAPABILITIES:
        schema = CAPABILITIES[name].config.model_json_schema()
    elif name == "request":
        schema = JobRequest.model_json_schema()
    elif name == "report":
        schema = build_report_schema(list_counts())
    else:
        schema = TypeAdapter(JobResult | JobFailure).json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _print_schema(options: argparse.Namespace) -> int:
    print(json.dumps(build_schema(options.of), indent=2, ensure_ascii=False))
    return 0


def _connect_server(options: argparse.Namespace) -> int:
    def print_address(url: str, token_file: Path) -> None:
        print(f"Spark Connect server: {url} (stop it with Ctrl-C)", flush=True)
        print(
            f"clients of other users or machines need {TOKEN_VARIABLE}=$(cat {shlex.quote(str(token_file))})",
            flush=True,
        )

    return run_connect_server(
        host=options.host,
        port=options.port,
        master=options.master,
        conf=_parse_settings(options.conf),
        token_file=options.token_file,
        on_ready=print_address,
        on_line=lambda line: print(line, file=sys.stderr, flush=True),
    )


def _prepare_archive(_: argparse.Namespace) -> int:
    archive = make_archive(on_line=lambda line: print(line, file=sys.stderr, flush=True))
    print(
        f"class archive: {archive}"
        if archive
        else "this Java installation cannot create a class archive: runs start more slowly"
    )
    return 0


def _manage_servers(options: argparse.Namespace) -> int:
    servers = list_servers() if options.action == "status" else stop_servers()
    for server in servers:
        print(
            server.format_line() if options.action == "status" else f"stopped pid {server.state.server_pid}"
        )
    if not servers:
        print("no shared Spark server is running")
    return 0


def _print_history(options: argparse.Namespace) -> int:
    _, table = open_target(resolve_relative_path(options.target), choose_warehouse(options.warehouse))
    for commit in table.history(options.limit):
        metadata: dict[str, Any] = {}
        with suppress(ValueError):
            metadata = json.loads(commit.get("userMetadata") or "{}")
        timestamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(commit["timestamp"] / 1000))
        token = metadata.get("token") or {}
        run_name = " ".join(str(token[key]) for key in ("dag_id", "task_id", "run_id") if key in token)
        number = f"run {metadata['number']}" if "number" in metadata else ""
        print(
            f"{commit['version']:>6}  {timestamp}  {commit['operation']:<32} {number:<8} {run_name}".rstrip()
        )
    return 0


def _print_explanation(options: argparse.Namespace) -> int:
    read_options = {"warehouse": choose_warehouse(options.warehouse), "version": options.version}
    target = resolve_relative_path(options.target)
    if options.between:
        links = explain_between(target, options.key, *options.between, **read_options)
        content: Any = [
            {"rule": link.rule, "key": format_key(link.value), "reached": link.reached} for link in links
        ]
        lines = list(format_links(links))
    else:
        explanation = explain_target(target, options.key, **read_options)
        content, lines = explanation.as_object(), list(explanation.format_lines())
    print(json.dumps(content, indent=2, ensure_ascii=False) if options.json else "\n".join(lines))
    return 0


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
            "max_change_ratio": request_fields.get("max_change_ratio"),
        }
    )


def _parse_settings(pairs: Sequence[str]) -> dict[str, str]:
    invalid_pairs = [pair for pair in pairs if "=" not in pair]
    if invalid_pairs:
        raise ConfigError(f"--conf {invalid_pairs[0]}: must have the form NAME=VALUE")
    settings = dict(pair.split("=", 1) for pair in pairs)
    if problems := find_misplaced(settings, "--conf"):
        raise ConfigError.from_problems(problems)
    return settings


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="airflow_merge_provider",
        description="Merge data over Delta tables with Spark, without Airflow.",
        epilog=_EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--verbose", action="store_true", help="print the traceback of an error")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add_command(
        name: str, call: Callable[[argparse.Namespace], int], help_text: str
    ) -> argparse.ArgumentParser:
        subparser = commands.add_parser(
            name,
            help=help_text,
            description=f"{help_text[0].upper()}{help_text[1:]}.",
            epilog=_EXITS,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        subparser.set_defaults(command=call)
        return subparser

    run = add_command("run", _run_file, "run a pipe, a configuration or a request, and print its report")
    _add_file(run)
    run.set_defaults(until=None)
    run.add_argument("--dry-run", action="store_true", help="compute all changes without committing them")
    run.add_argument("--full-refresh", action="store_true", help="process all input, not only the changes")
    run.add_argument("--run-id", metavar="ID", help="the ID of the run; a run with the same ID is a retry")
    _add_remote(run)
    _add_spark(run)
    plan_help = "show the steps and the output columns of a run without reading any rows"
    plan = add_command("plan", _run_file, plan_help)
    _add_file(plan)
    _add_remote(plan)
    plan.set_defaults(dry_run=False, full_refresh=True, run_id=None, until="plan")
    _add_spark(plan)
    check_help = "check a pipe, a configuration or a request, and print all problems"
    _add_file(add_command("check", _check_file, check_help))
    schema = add_command(
        "schema", _print_schema, "print the JSON Schema of a configuration, a request or a result"
    )
    schema.add_argument("of", choices=[*CAPABILITIES, "request", "result", "report"], help="schema to print")
    _add_server(
        add_command("connect-server", _connect_server, "start a Spark Connect server on this machine")
    )
    add_command(
        "prepare", _prepare_archive, "download the Delta jars, and create a class archive for faster starts"
    )
    servers_help = "list or stop the shared Spark servers of this user on this machine"
    _add_servers(add_command("local-spark", _manage_servers, servers_help))
    _add_history(
        add_command("history", _print_history, "print the newest commits of a target and their runs")
    )
    _add_explain(add_command("explain", _print_explanation, "show which runs and inputs made a row"))
    return parser


def _add_remote(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--remote", metavar="URL", help="a Spark Connect server, such as sc://localhost:15002"
    )


def _add_servers(parser: argparse.ArgumentParser) -> None:
    action_help = "status lists the servers; stop ends them, and runs that use them fail and can be retried"
    parser.add_argument("action", choices=["status", "stop"], help=action_help)


def _add_history(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help="a dataset: a bare id or a location")
    parser.add_argument("--warehouse", metavar="LOCATION", help=_WHERE)
    parser.add_argument("--limit", type=int, default=20, help="the number of commits (default: %(default)s)")


def _add_server(parser: argparse.ArgumentParser) -> None:
    file_help = (
        "the file with the token that clients need (mode 0600); by default a file that the server removes "
        "when it ends"
    )
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=int, default=CONNECT_PORT, help="the port to listen on (default: %(default)s)"
    )
    parser.add_argument("--token-file", metavar="FILE", type=Path, help=file_help)
    _add_spark(parser)


def _add_explain(parser: argparse.ArgumentParser) -> None:
    target_help = "a dataset: a bare id or a location; for files of a merge record, its state_path"
    parser.add_argument("target", metavar="TARGET", help=target_help)
    key_help = (
        "the key of a row, as a JSON object if it has several columns; the _id of an output of a merge "
        "source or the id of an entity; the name of a source file or an output of a merge record"
    )
    parser.add_argument("key", metavar="KEY", help=key_help)
    between_help = "show only the shortest chain of links between two members (merge source only)"
    parser.add_argument("--between", nargs=2, metavar="DATASET/ID", help=between_help)
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument(
        "--version", type=int, metavar="N", help="explain version N of the target; by default the newest"
    )
    parser.add_argument("--warehouse", metavar="LOCATION", help=_WHERE)


def _add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a JSON or YAML file; - for standard input")
    parser.add_argument("--warehouse", metavar="LOCATION", help=_WHERE)


def _add_spark(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--master", default=LOCAL, help="the Spark master (default: %(default)s)")
    parser.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="a Spark setting; can be repeated"
    )
