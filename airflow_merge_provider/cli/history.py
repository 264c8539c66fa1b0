"""Print the newest commits of a target: its runs, with the rows that they changed."""

from __future__ import annotations

import argparse
from typing import Any

from airflow_merge_provider.cli.arguments import add_json, add_limit, add_target
from airflow_merge_provider.cli.output import Column, StyledText, print_json, print_table
from airflow_merge_provider.cli.run_file import choose_warehouse, resolve_relative_path
from airflow_merge_provider.core.report import RowCounts
from airflow_merge_provider.core.run.previous_run import RENEWAL
from airflow_merge_provider.core.run.reporter import APPROVED_BY, RunResult
from airflow_merge_provider.core.source_offset import RunState
from airflow_merge_provider.explain.dispatch import list_history
from airflow_merge_provider.explain.model.commits import CommitRef

_COLUMNS = (
    Column("version", is_number=True),
    Column("time (UTC)"),
    Column("operation"),
    Column("run"),
    Column("inserted", is_number=True),
    Column("updated", is_number=True),
    Column("deleted", is_number=True),
    Column("DAG, task and run ID"),
    Column("approved by"),
)
_TOKEN_NAMES = ("dag_id", "task_id", "run_id")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``history``."""
    add_target(parser)
    add_limit(parser, "commits")
    add_json(parser)


def print_history(options: argparse.Namespace) -> int:
    """Print the newest commits of a target, newest first."""
    target, warehouse = resolve_relative_path(options.target), choose_warehouse(options.warehouse)
    commits = [CommitRef.from_entry(entry) for entry in list_history(target, warehouse, options.limit)]
    if options.json:
        print_json([_build_object(commit) for commit in commits])
    else:
        print_table(_COLUMNS, [_build_row(commit) for commit in commits])
    return 0


def _build_object(commit: CommitRef) -> dict[str, Any]:
    return {
        **commit.as_object(),
        "kind": commit.kind or None,
        "number": commit.state.get("number"),
        "rows": _find_counts(commit).model_dump(),
        "approved_by": commit.state.get(APPROVED_BY),
    }


def _build_row(commit: CommitRef) -> list[str | StyledText]:
    kind, counts = commit.kind, _find_counts(commit)
    run = StyledText(f"{kind} {commit.state.get('number')}", "yellow" if kind == "undo" else "green")
    return [
        str(commit.version),
        f"{commit.time:%Y-%m-%d %H:%M:%S}",
        commit.operation,
        run if kind else "",
        *("" if count is None else str(count) for count in (counts.inserted, counts.updated, counts.deleted)),
        " ".join(str(commit.token[name]) for name in _TOKEN_NAMES if name in commit.token),
        str(commit.state.get(APPROVED_BY) or ""),
    ]


def _find_counts(commit: CommitRef) -> RowCounts:
    state: RunState = {} if RENEWAL in commit.state else commit.state
    return RunResult.from_state(state).rows
