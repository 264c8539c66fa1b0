"""Read a target without Spark: its history, and why its rows are as they are."""

from __future__ import annotations

import argparse
import json
import time
from contextlib import suppress
from itertools import islice
from typing import Any

from pydantic import TypeAdapter

from airflow_merge_provider.capabilities import CAPABILITIES, list_counts
from airflow_merge_provider.commands.arguments import AddCommand, add_target
from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.explanation.values import escape_text
from airflow_merge_provider.core.merge_source.explanation import format_key, format_links
from airflow_merge_provider.core.protocol import JobFailure, JobRequest, JobResult
from airflow_merge_provider.core.report_schema import build_report_schema
from airflow_merge_provider.core.run.reporter import APPROVED_BY
from airflow_merge_provider.core.table_history import UNDO
from airflow_merge_provider.delta_rs import is_table
from airflow_merge_provider.explain.dispatch import explain_target
from airflow_merge_provider.explain.merge_record import find_state_folders
from airflow_merge_provider.explain.merge_source import explain_between
from airflow_merge_provider.explain.target import open_target
from airflow_merge_provider.run_file import (
    choose_warehouse,
    resolve_relative_path,
)


def add_commands(add_command: AddCommand) -> None:
    """Add the commands that read a target without Spark, and those that print schemas."""
    schema = add_command(
        "schema", _print_schema, "print the JSON Schema of a configuration, a request or a result"
    )
    schema.add_argument("of", choices=[*CAPABILITIES, "request", "result", "report"], help="schema to print")
    _add_history(
        add_command("history", _print_history, "print the newest commits of a target and their runs")
    )
    _add_explain(add_command("explain", _print_explanation, "show which runs and inputs made a row"))


def _add_history(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("--limit", type=int, default=20, help="the number of commits (default: %(default)s)")


def _add_explain(parser: argparse.ArgumentParser) -> None:
    add_target(parser, "a dataset: a bare id or a location; for files of a merge record, its state_path")
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


def _print_history(options: argparse.Namespace) -> int:
    target, warehouse = resolve_relative_path(options.target), choose_warehouse(options.warehouse)
    for commit in _list_commits(target, warehouse, options.limit):
        metadata: dict[str, Any] = {}
        with suppress(ValueError):
            metadata = json.loads(commit.get("userMetadata") or "{}")
        timestamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(commit["timestamp"] / 1000))
        token = metadata.get("token") or {}
        run_name = " ".join(str(token[key]) for key in ("dag_id", "task_id", "run_id") if key in token)
        kind = "undo" if UNDO in metadata else "run"
        number = f"{kind} {metadata['number']}" if "number" in metadata else ""
        approver = f"  approved by {metadata[APPROVED_BY]}" if metadata.get(APPROVED_BY) else ""
        run_text = escape_text(f"{number:<8} {run_name}{approver}")
        print(f"{commit['version']:>6}  {timestamp}  {commit['operation']:<32} {run_text}".rstrip())
    return 0


def _list_commits(target: str, warehouse: str | None, limit: int) -> list[dict[str, Any]]:
    """Return the newest commits of a table, or the states of a merge record, newest first."""
    dataset = resolve_dataset(target, warehouse, at="target")
    if dataset.path is not None and not is_table(dataset.path) and (folders := find_state_folders(dataset)):
        return [commit for folder in folders for commit in islice(folder.list_commits(), limit)]
    _, table = open_target(target, warehouse)
    return list(table.history(limit))


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
