"""Print tables, changes, JSON, errors and progress: with colours on a terminal, otherwise as plain text."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from airflow_merge_provider.core.value_text import escape_text

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_merge_provider.core.report import Report


# Styles by the first character of a line of changes.
_SIGN_STYLES = {"+": "green", "-": "red", "~": "yellow", "=": "dim", "!": "bold red"}
_GAP = "  "


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; numbers are aligned on the right."""

    title: str
    is_number: bool = False


class StyledText(NamedTuple):
    """The text of a cell and its style on a terminal, such as ``bold red``."""

    text: str
    style: str


Cell = str | StyledText


def find_console(stream: TextIO) -> Console | None:
    """Return the terminal that a stream writes to; None if it is none, or plain text is wanted.

    Text is plain if the variable ``NO_COLOR`` is set.
    """
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty():
        return None
    from rich.console import Console  # noqa: PLC0415 - slow to import

    return Console(file=stream, highlight=False)


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_report(report: Report, *, as_json: bool) -> None:
    """Print a report as JSON, or on a terminal in a few lines."""
    if as_json or not sys.stdout.isatty():
        print_json(report.as_json())
        return
    version = "" if report.target.version is None else f", version {report.target.version}"
    print(f"target  {report.target.uri}{version}")
    counts = ", ".join(f"{count} {kind}" for kind, count in report.rows if count is not None)
    print(f"rows    {counts}{' (nothing was written)' if report.dry_run else ''}")
    for run in report.details.get("undone", ()):
        print(f"undone  run {run['number']}: {run['run_id']}")
    print("--json prints the whole report")


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    """Print rows below a header; columns that have no text in any row are left out."""
    positions = range(len(columns))
    shown = [number for number in positions if not rows or any(_get_text(row[number]) for row in rows)]
    columns = [columns[number] for number in shown]
    rows = [[row[number] for number in shown] for row in rows]
    console = find_console(sys.stdout)
    if console is None:
        _print_plain_table(columns, rows)
    else:
        _print_rich_table(console, columns, rows)


def print_changes(lines: Iterable[str]) -> None:
    """Print lines of changes; each begins with the sign of its kind."""
    console = find_console(sys.stdout)
    for line in lines:
        if console is None:
            print(line)
        else:
            # Whole lines: a row that is cut into pieces cannot be copied.
            style = _SIGN_STYLES.get(line[:1], "")
            console.print(line, style=style, markup=False, soft_wrap=True)


def print_error(message: str) -> None:
    """Print an error to standard error."""
    _print_message("error:", "bold red", message)


def print_warning(message: str) -> None:
    """Print a warning to standard error."""
    _print_message("warning:", "bold yellow", message)


def _print_message(title: str, style: str, message: str) -> None:
    console = find_console(sys.stderr)
    if console is None:
        print(title, message, file=sys.stderr, flush=True)
        return
    console.print(title, style=style, end=" ")
    console.print(message, markup=False, soft_wrap=True)


def _print_plain_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    lines = [[column.title.upper() for column in columns]]
    lines += [[escape_text(_get_text(cell)) for cell in row] for row in rows]
    widths = [max(len(line[number]) for line in lines) for number in range(len(columns))]
    for line in lines:
        cells = [
            text.rjust(width) if column.is_number else text.ljust(width)
            for text, width, column in zip(line, widths, columns, strict=True)
        ]
        print(_GAP.join(cells).rstrip())


def _print_rich_table(console: Console, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - slow to import
    from rich.table import Table  # noqa: PLC0415 - slow to import
    from rich.text import Text  # noqa: PLC0415 - slow to import

    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column.title,
            justify="right" if column.is_number else "left",
            overflow="fold",
            no_wrap=column.is_number,
        )
    for row in rows:
        cells = [
            Text(escape_text(_get_text(cell)), cell.style if isinstance(cell, StyledText) else "")
            for cell in row
        ]
        table.add_row(*cells)
    console.print(table)


def _get_text(cell: Cell) -> str:
    return cell.text if isinstance(cell, StyledText) else cell


# A step that has ended, as a run prints it: "[merge +  1.2s] scan match keys: 0.4s".
_STEP = re.compile(r"\[merge \+ *[\d.]+s\] (.+): ([\d.]+s)")
_STARTING = "starting"


@contextmanager
def show_progress() -> Iterator[Callable[[str], object]]:
    """Yield the function to which each output line of a run is passed.

    On a terminal, the last step that has ended and the time since the start are one line, which is removed at
    the end. Warnings, the result and what Spark prints remain above it.
    """
    console = find_console(sys.stderr)
    if console is None:
        yield _print_line
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - slow

    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as progress:
        task = progress.add_task(_STARTING, total=None)

        def show_line(line: str) -> None:
            step = _STEP.fullmatch(line)
            if step is not None:
                progress.update(task, description=f"finished {step[1]} in {step[2]}")
            else:
                progress.console.print(line, markup=False, soft_wrap=True)

        yield show_line


def _print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
