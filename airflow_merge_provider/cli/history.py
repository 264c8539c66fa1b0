"""Print the newest commits of a target: its runs, with the rows that they changed."""

from __future__ import annotations

import argparse
from itertools import islice
from typing import Any

from airflow_merge_provider.cli.arguments import add_json, add_limit, add_target
from airflow_merge_provider.cli.output import Column, StyledText, print_json, print_table
from airflow_merge_provider.cli.run_file import choose_warehouse, resolve_relative_path
from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.report import RowCounts
from airflow_merge_provider.core.run.previous_run import RENEWAL
from airflow_merge_provider.core.run.reporter import APPROVED_BY, RunResult
from airflow_merge_provider.core.source_offset import RunState
from airflow_merge_provider.core.table_history import UNDO
from airflow_merge_provider.delta_rs import is_table, parse_entry
from airflow_merge_provider.explain.merge_record import find_state_folders
from airflow_merge_provider.explain.model.commits import CommitRef
from airflow_merge_provider.explain.target import open_target

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
    commits = _list_commits(target, warehouse, options.limit)
    if options.json:
        print_json([_build_object(commit) for commit in commits])
    else:
        print_table(_COLUMNS, [_build_row(commit) for commit in commits])
    return 0


def _list_commits(target: str, warehouse: str | None, limit: int) -> list[CommitRef]:
    """Return the newest commits of a table, or the states of a merge record, newest first."""
    dataset = resolve_dataset(target, warehouse, at="target")
    lines: list[dict[str, Any]] = []
    if dataset.path is not None and not is_table(dataset.path):
        for folder in find_state_folders(dataset):
            lines += islice(folder.list_commits(), limit)
    if not lines:
        _, table = open_target(target, warehouse)
        lines = table.history(limit)
    return [CommitRef.from_entry(parse_entry(line)) for line in lines]


def _build_object(commit: CommitRef) -> dict[str, Any]:
    return {
        **commit.as_object(),
        "kind": _name_kind(commit) or None,
        "number": commit.state.get("number"),
        "rows": _find_counts(commit).model_dump(),
        "approved_by": commit.state.get(APPROVED_BY),
    }


def _build_row(commit: CommitRef) -> list[str | StyledText]:
    kind, counts = _name_kind(commit), _find_counts(commit)
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


def _name_kind(commit: CommitRef) -> str:
    """Return whether a commit is a run, an undo or a state that is kept; empty for other writers."""
    if not commit.state:
        return ""
    if RENEWAL in commit.state:
        return "state"
    return "undo" if UNDO in commit.state else "run"


def _find_counts(commit: CommitRef) -> RowCounts:
    state: RunState = {} if RENEWAL in commit.state else commit.state
    return RunResult.from_state(state).rows
