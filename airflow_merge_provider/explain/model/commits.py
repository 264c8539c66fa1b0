"""Commits in explanations: the version, the time, and the run that wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from airflow_merge_provider.core.run.previous_run import RENEWAL, TOKEN
from airflow_merge_provider.core.run.table_log import parse_metadata
from airflow_merge_provider.core.source_offset import RunState
from airflow_merge_provider.core.table_history import UNDO, HistoryEntry
from airflow_merge_provider.core.value_text import EPOCH, Row, escape_text, format_time

_COMMAND_LINE = "cli"


@dataclass(frozen=True, slots=True)
class CommitRef:
    """A commit of a table; ``state`` is empty if another writer made it."""

    version: int
    time: datetime
    operation: str
    state: RunState = field(default_factory=dict, repr=False)

    @classmethod
    def from_entry(cls, entry: HistoryEntry) -> CommitRef:
        """Build the reference from an entry of the table's history."""
        time = EPOCH + timedelta(milliseconds=entry.timestamp)
        return cls(entry.version, time, entry.operation, parse_metadata(entry))

    @property
    def token(self) -> Mapping[str, Any]:
        """The identity of the run; empty if the commit does not record it."""
        return self.state.get(TOKEN) or {}

    @property
    def kind(self) -> str:
        """The kind of the commit: ``run``, ``undo``, or ``state`` that is kept; empty for other writers."""
        if not self.state:
            return ""
        if RENEWAL in self.state:
            return "state"
        return "undo" if UNDO in self.state else "run"

    def format_text(self) -> str:
        """Return the commit as text: its version, time and run."""
        at = format_time(self.time.replace(microsecond=0))
        return f"version {self.version}, {at}, {escape_text(self._describe_writer())}"

    def as_object(self) -> dict[str, Any]:
        """Return the commit as a JSON object."""
        return {
            "version": self.version,
            "time": format_time(self.time),
            "operation": self.operation,
            "run_id": self.token.get("run_id"),
            "dag_id": self.token.get("dag_id"),
            "task_id": self.token.get("task_id"),
        }

    def _describe_writer(self) -> str:
        if not self.state:
            return f"{self.operation or 'a commit'} of another writer"
        run = self.token.get("run_id", self.state.get("number"))
        if self.token.get("dag_id") in {None, _COMMAND_LINE}:
            return f"run {run}"
        return f"run {run} of {self.token['dag_id']}.{self.token.get('task_id')}"


@dataclass(frozen=True, slots=True)
class KeyState:
    """The rows of a key after a commit of the table."""

    commit: CommitRef
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class KeyStates:
    """The rows of a key after each commit that may have changed rows, oldest commit first.

    ``missing`` states why older commits are not included; empty if all are.
    """

    states: tuple[KeyState, ...]
    missing: str = ""

    @property
    def newest(self) -> KeyState:
        """The rows of the key after the last commit."""
        return self.states[-1]
