"""Print the open bins of a merge record, and the bins that ended last."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta

from airflow_merge_provider.cli.arguments import add_json, add_limit, add_target
from airflow_merge_provider.cli.output import Cell, Column, StyledText, print_json, print_table
from airflow_merge_provider.cli.run_file import choose_warehouse, resolve_relative_path
from airflow_merge_provider.core.merge_record.bins import Bin
from airflow_merge_provider.explain.merge_record import BinReport, FileEvent, list_bins, read_instant

_OPEN_COLUMNS = (
    Column("bin"),
    Column("group"),
    Column("open since (UTC)"),
    Column("age"),
    Column("files", is_number=True),
    Column("records", is_number=True),
    Column("bytes", is_number=True),
)
_ENDED_COLUMNS = (
    Column("time (UTC)"),
    Column("outcome"),
    Column("bin"),
    Column("reason"),
    Column("files", is_number=True),
    Column("records", is_number=True),
    Column("bytes", is_number=True),
    Column("output"),
)
_OUTCOME_STYLES = {"merged": "green", "failed": "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``bins``."""
    add_target(parser, "the state_path of a merge record, or its merged folder next to it")
    add_limit(parser, "merges")
    add_json(parser)


def print_bins(options: argparse.Namespace) -> int:
    """Print the open bins and the last merges of each state_path."""
    target, warehouse = resolve_relative_path(options.target), choose_warehouse(options.warehouse)
    reports = list_bins(target, warehouse=warehouse, limit=options.limit)
    if options.json:
        print_json([report.as_object() for report in reports])
        return 0
    for report in reports:
        _print_report(report)
    return 0


def _print_report(report: BinReport) -> None:
    now = datetime.now(tz=UTC)
    print(f"{report.location}: {len(report.open_bins)} open")
    if report.open_bins:
        print_table(_OPEN_COLUMNS, [_build_open_row(bin_, now) for bin_ in report.open_bins])
    if report.returned:
        print(f"waiting for the next run, as their merges were withdrawn: {report.returned}")
    print()
    print("ended last:" if report.ended else "no bin has ended")
    if report.ended:
        print_table(_ENDED_COLUMNS, [_build_ended_row(event) for event in report.ended])


def _build_open_row(bin_: Bin, now: datetime) -> list[Cell]:
    since = read_instant(bin_.created_at)
    files = str(len(bin_.sources))
    return [
        bin_.id,
        bin_.group[-1],
        f"{since:%Y-%m-%d %H:%M:%S}",
        str(timedelta(seconds=max(int((now - since).total_seconds()), 0))),
        files if bin_.expected is None else f"{files} of {bin_.expected}",
        str(bin_.records),
        str(bin_.bytes),
    ]


def _build_ended_row(event: FileEvent) -> list[Cell]:
    line = event.line
    reason = f"{line.reason} ({line.code})" if line.reason else ""
    numbers = (len(line.sources), line.records, line.bytes)
    return [
        f"{read_instant(line.at):%Y-%m-%d %H:%M:%S}",
        StyledText(line.outcome, _OUTCOME_STYLES.get(line.outcome, "yellow")),
        line.bin or "",
        reason,
        *("" if number is None else str(number) for number in numbers),
        line.uri or "",
    ]
