"""Explain the rows of a target and trace their states, without Spark, and print schemas."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter

from airflow_merge_provider.cli.arguments import add_all_columns, add_json, add_target
from airflow_merge_provider.cli.output import print_changes, print_json
from airflow_merge_provider.cli.run_file import choose_warehouse, resolve_relative_path
from airflow_merge_provider.core.capabilities import CAPABILITIES, list_counts
from airflow_merge_provider.core.merge_load.config import STRATEGIES
from airflow_merge_provider.core.merge_source.explanation import format_key, format_links
from airflow_merge_provider.core.pipe.config import LOADS, SOURCE_JOBS
from airflow_merge_provider.core.protocol import JobFailure, JobRequest, JobResult
from airflow_merge_provider.core.report import build_report_schema
from airflow_merge_provider.explain.dispatch import explain_target, trace_key
from airflow_merge_provider.explain.merge_source import explain_between
from airflow_merge_provider.explain.model.rows import RowExplanation


def add_schema_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``schema``."""
    names = list(dict.fromkeys([*SOURCE_JOBS.values(), *CAPABILITIES, "request", "result", "report"]))
    parser.add_argument("of", choices=names, metavar="NAME", help=", ".join(names))


def add_explain_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``explain``."""
    add_target(parser, "a dataset: a bare id or a location; for files of a merge record, its state_path")
    key_help = (
        "the key of a row, as a JSON object if it has several columns; of a merge source the _id or "
        "$stable_id of an output, or the id of an entity; the name of a source file or an output of a merge "
        "record"
    )
    parser.add_argument("key", metavar="KEY", help=key_help)
    between_help = "show only the shortest chain of links between two members (merge source only)"
    parser.add_argument("--between", nargs=2, metavar="DATASET/ID", help=between_help)
    add_all_columns(parser)
    add_json(parser)
    parser.add_argument(
        "--version", type=int, metavar="N", help="explain version N of the target; by default the newest"
    )


def build_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a job's configuration, a request, a result or a report."""
    if name in LOADS:
        schema = STRATEGIES[LOADS[name]].model_json_schema()
    elif name in CAPABILITIES:
        schema = CAPABILITIES[name].config.model_json_schema()
    elif name == "request":
        schema = JobRequest.model_json_schema()
    elif name == "report":
        schema = build_report_schema(list_counts())
    else:
        schema = TypeAdapter(JobResult | JobFailure).json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def print_schema(options: argparse.Namespace) -> int:
    """Print a schema."""
    print_json(build_schema(options.of))
    return 0


def print_explanation(options: argparse.Namespace) -> int:
    """Print the explanation of a key, as text or as JSON."""
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
        if options.all_columns and isinstance(explanation, RowExplanation):
            explanation = replace(explanation, internal_columns=())
        content, lines = explanation.as_object(), list(explanation.format_lines())
    if options.json:
        print_json(content)
    else:
        print("\n".join(lines))
    return 0


def add_timeline_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``timeline``."""
    add_target(parser)
    key_help = (
        "the key of a row; a JSON object for several columns, or for any columns of a row; of a merge source "
        "the _id or $stable_id of an output, or the id of an entity"
    )
    parser.add_argument("key", metavar="KEY", help=key_help)
    version_help = "end at version N of the target; by default at the newest"
    parser.add_argument("--version", type=int, metavar="N", help=version_help)
    add_all_columns(parser)
    add_json(parser)


def print_timeline(options: argparse.Namespace) -> int:
    """Print the timeline of a key, oldest state first."""
    timeline = trace_key(
        resolve_relative_path(options.target),
        options.key,
        warehouse=choose_warehouse(options.warehouse),
        version=options.version,
    )
    if options.json:
        print_json(timeline.as_object())
    else:
        if options.all_columns:
            timeline = replace(timeline, internal_columns=())
        print_changes(timeline.format_lines())
    return 0
