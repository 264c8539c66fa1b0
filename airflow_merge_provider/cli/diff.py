"""Print the rows that differ between two versions of a table."""

from __future__ import annotations

import argparse
from dataclasses import replace

from airflow_merge_provider.cli.arguments import add_all_columns, add_json, add_limit, add_target
from airflow_merge_provider.cli.output import print_changes, print_json
from airflow_merge_provider.cli.run_file import choose_warehouse, resolve_relative_path
from airflow_merge_provider.explain.diff import compare_versions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``diff``."""
    add_target(parser)
    parser.add_argument("first", metavar="V1", type=int, help="the version before (see history)")
    parser.add_argument("last", metavar="V2", type=int, help="the version after")
    key_help = "the columns that identify a row; by default those that the target records"
    parser.add_argument("--key", nargs="+", default=[], metavar="COLUMN", help=key_help)
    add_limit(parser, "example rows")
    add_all_columns(parser)
    add_json(parser)


def print_diff(options: argparse.Namespace) -> int:
    """Print the counts of the rows that differ, and examples."""
    diff = compare_versions(
        resolve_relative_path(options.target),
        options.first,
        options.last,
        warehouse=choose_warehouse(options.warehouse),
        key=options.key,
        limit=options.limit,
    )
    if options.json:
        print_json(diff.as_object())
    else:
        if options.all_columns:
            diff = replace(diff, internal_columns=())
        print_changes(diff.format_lines())
    return 0
