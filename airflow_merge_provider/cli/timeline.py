"""Print every state of a key over the versions of a table."""

from __future__ import annotations

import argparse

from airflow_merge_provider.cli.arguments import add_json, add_target
from airflow_merge_provider.cli.output import print_changes, print_json
from airflow_merge_provider.cli.run_file import choose_warehouse, resolve_relative_path
from airflow_merge_provider.explain.dispatch import trace_key


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``timeline``."""
    add_target(parser)
    key_help = "the key of a row; a JSON object for several columns, or for any columns of a row"
    parser.add_argument("key", metavar="KEY", help=key_help)
    version_help = "end at version N of the target; by default at the newest"
    parser.add_argument("--version", type=int, metavar="N", help=version_help)
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
        print_changes(timeline.format_lines())
    return 0
