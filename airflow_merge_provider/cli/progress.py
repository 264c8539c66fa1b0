"""Show the progress of a run: on a terminal in one line that changes, elsewhere as lines."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from airflow_merge_provider.cli.output import find_console

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
