"""Print the progress of a run, measure the duration of its steps, and collect the schemas that it reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from airflow_merge_provider.core.report import OTHER


class Progress:
    """Printer of one line per step, which collects what the result of a run contains besides its report.

    ``seconds`` are the durations of the steps. ``schemas`` are the columns in Spark's JSON form of datasets
    that the run has read or written, by their URIs; other schemas are read from the logs if they are needed.
    """

    def __init__(self, out: Callable[[str], object] | None = None) -> None:
        self._out = out or _print_line
        self._start = time.monotonic()
        self.seconds: dict[str, float] = {}
        # The seconds of the steps inside each step that is not over.
        self._nested_seconds: list[float] = []
        self.schemas: dict[str, Sequence[Mapping[str, Any]]] = {}

    def log_line(self, text: str) -> None:
        """Print a line, prefixed with the seconds since the start."""
        self._out(f"[merge +{time.monotonic() - self._start:5.1f}s] {text}")

    @contextmanager
    def time_step(self, name: str) -> Iterator[None]:
        """Measure the block and print its duration at the end; durations under the same name are added up.

        The steps inside the block are not part of its duration.
        """
        start = time.monotonic()
        self._nested_seconds.append(0.0)
        try:
            yield
        finally:
            elapsed = time.monotonic() - start
            duration = elapsed - self._nested_seconds.pop()
            if self._nested_seconds:
                self._nested_seconds[-1] += elapsed
        self.seconds[name] = round(self.seconds.get(name, 0.0) + duration, 3)
        self.log_line(f"{name}: {duration:.1f}s")

    def record_schema(self, uri: str, fields: Sequence[Mapping[str, Any]]) -> None:
        """Record the columns of a dataset, so that its log is not read for them again."""
        self.schemas[uri] = fields

    def list_seconds(self) -> dict[str, float]:
        """Return the seconds of every step, and as ``other`` the rest of the duration until now."""
        total = time.monotonic() - self._start
        return {**self.seconds, OTHER: round(max(total - sum(self.seconds.values()), 0.0), 3)}


def _print_line(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - the task log is the process's output
