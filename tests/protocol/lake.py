"""Delta tables as values: their commits, transactions and versions, and the logs that runs read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import ConflictError
from airflow_merge_provider.core.population import WRITER
from airflow_merge_provider.core.run.table_log import PinnedDataset, TableVersion, get_app_id
from airflow_merge_provider.core.table_history import HistoryEntry

Rows = tuple[str, ...]
# The time between two commits of a table, in milliseconds.
DAY = 86_400_000


@dataclass(frozen=True, slots=True)
class Table:
    """The commits of a table, oldest first, and its rows after each of them.

    ``writer`` owns the table, and ``number`` is the number of the writer's newest transaction. Commits before
    ``oldest`` have aged out of the log.
    """

    writer: str | None = None
    commits: tuple[tuple[HistoryEntry, Rows], ...] = ()
    number: int = 0
    oldest: int = 0

    @property
    def newest(self) -> int:
        """The newest version; -1 if there is no table."""
        return len(self.commits) - 1

    @property
    def rows(self) -> Rows:
        """The rows of the newest version."""
        return self.commits[-1][1] if self.commits else ()

    def read_rows(self, version: int | None) -> Rows:
        """Return the rows of a version; none before the first one."""
        return () if version is None or version < 0 else self.commits[version][1]

    def read_history(self) -> list[HistoryEntry]:
        """Return the commits that the log still has, newest first."""
        return [entry for entry, _ in self.commits[: self.oldest - 1 if self.oldest else None : -1]]

    def commit_rows(self, operation: str, rows: Rows, *, restored: int | None = None, days: int = 1) -> Table:
        """Return the table after a commit that is no run, some days after the last one."""
        parameters = {} if restored is None else {"version": str(restored)}
        at = self.time + days * DAY
        return self._add(HistoryEntry(self.newest + 1, operation, parameters, timestamp=at), rows)

    def find_change(self, since: int, before: int | None = None) -> HistoryEntry | None:
        """Return a commit after a version, and before another, that changed rows."""
        commits = self.commits[since + 1 : before]
        return next((entry for entry, _ in commits if entry.effect != "none"), None)

    def require_unchanged(self, since: int) -> None:
        """Check, before a write, that nobody has changed rows since a version.

        :raises ConflictError: if somebody has.
        """
        if self.find_change(since) is not None:
            raise ConflictError("another writer committed first")

    def commit_run(
        self, writer: str, number: int, operation: str, rows: Rows, metadata: Mapping[str, Any]
    ) -> Table:
        """Return the table after a commit with a transaction, on top of whatever others have committed.

        :raises ConflictError: if another commit has used the number; Delta skips or refuses it then.
        """
        if number <= self.number:
            raise ConflictError("another run committed first")
        restored = (metadata.get("undo") or {}).get("restored_version")
        text = json.dumps({**metadata, "capability": writer, "number": number}, sort_keys=True)
        parameters = {"version": str(restored)} if operation == "RESTORE" else {}
        entry = HistoryEntry(self.newest + 1, operation, parameters, text, timestamp=self.time + DAY)
        return replace(self._add(entry, rows), writer=writer, number=number)

    @property
    def time(self) -> int:
        """The time of the newest commit, in milliseconds."""
        return self.commits[-1][0].timestamp if self.commits else -DAY

    def _add(self, entry: HistoryEntry, rows: Rows) -> Table:
        return replace(self, commits=(*self.commits, (entry, rows)))


@dataclass(frozen=True, slots=True)
class Lake:
    """Tables by name."""

    tables: Mapping[str, Table] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Table:
        return self.tables.get(name, Table())

    def write_table(self, name: str, table: Table) -> Lake:
        """Return the lake with another state of a table."""
        return Lake({**self.tables, name: table})

    def describe(self) -> tuple[Any, ...]:
        """Return a value that is equal for lakes in which all future runs do the same."""
        return tuple(
            (name, table.oldest, table.number, tuple(repr(commit) for commit in table.commits))
            for name, table in sorted(self.tables.items())
        )


@dataclass(frozen=True, slots=True)
class LakeLog:
    """The logs of the tables of a lake, as ``TableLog`` reads them."""

    lake: Lake

    def find_newest_version(self, dataset: Dataset) -> TableVersion | None:
        table = self._find(dataset)
        return TableVersion(table.newest, dataset.id, dataset.id) if table.commits else None

    def read_history(self, dataset: Dataset, limit: int | None) -> Sequence[HistoryEntry]:
        return self._find(dataset).read_history()[:limit]

    def find_restored_version(self, dataset: Dataset, entry: HistoryEntry) -> int | None:
        return None

    def read_commit_id(self, location: str, version: int) -> str | None:
        return f"{location}@{version}" if version >= self.lake[location].oldest else None

    def read_properties(self, dataset: Dataset) -> Mapping[str, str]:
        return self.find_properties(dataset) or {}

    def find_properties(self, dataset: Dataset) -> Mapping[str, str] | None:
        table = self._find(dataset)
        if not table.commits:
            return None
        return {} if table.writer is None else {WRITER: table.writer}

    def read_transaction(self, dataset: Dataset, app_id: str) -> int | None:
        table = self._find(dataset)
        return table.number if app_id == get_app_id(table.writer or "") else None

    def count_rows(self, dataset: Dataset, version: int) -> int | None:
        return len(self._find(dataset).read_rows(version))

    def read_fields(self, pinned: PinnedDataset) -> Sequence[Mapping[str, Any]]:
        raise NotImplementedError

    def read_example(self, pinned: PinnedDataset, name: str) -> str | None:
        raise NotImplementedError

    def has_rows(self, dataset: Dataset) -> bool:
        return bool(self._find(dataset).rows)

    def find_files_version(self, dataset: Dataset) -> int | None:
        return None

    def _find(self, dataset: Dataset) -> Table:
        return self.lake[dataset.uri.rpartition("/")[2]]
