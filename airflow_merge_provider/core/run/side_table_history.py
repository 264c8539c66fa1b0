"""Decide which version of a side table belongs to the rows of its target, from the history of the table.

Source: docs/recovery.md, Side tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_merge_provider.core.run.table_log import parse_metadata
from airflow_merge_provider.core.table_history import NO_VERSION, HistoryEntry, Lineage

# The key of the number of the run that made a commit.
RUN = "run"
# The operation by which a run removes rows after the target's commit; all other writes come before it.
_REMOVAL = "MERGE"


@dataclass(frozen=True, slots=True)
class SideTableHistory:
    """The history of a side table, newest first, and the version that the target's newest commit names.

    ``run_number`` is the number of the run whose rows the target has.
    """

    owner: str
    version: int | None
    run_number: int
    entries: Sequence[HistoryEntry]
    lineage: Lineage

    def find_restored_version(self) -> int | None:
        """Return the version to restore because of runs that did not commit or were undone; None if none is.

        What others have deleted before such a write stays deleted.
        """
        version = self.version
        if version is None:
            return None
        # If the history does not reach back to the version (its commit has aged out), the version is valid.
        is_old = bool(self.entries) and self.entries[-1].version > version
        is_named = is_old or any(entry.version == version for entry in self.lineage.entries)
        if not is_named:
            return self._find_last_write(version)
        later = [entry for entry in self.lineage.entries if entry.version > version]
        uncommitted = [entry.version for entry in later if self._is_uncommitted(entry)]
        return min(uncommitted) - 1 if uncommitted else None

    def find_committed_version(self) -> int | None:
        """Return the newest version before any write of a later run than the one whose rows the target has.

        It belongs to the rows if no commit names a version any more. None if there is none.
        """
        later = [
            entry.version
            for entry in self.lineage.entries
            if parse_metadata(entry).get(RUN, 0) > self.run_number
        ]
        newest = self.entries[0].version if self.entries else None
        version = min(later) - 1 if later else newest
        return None if version == NO_VERSION else version

    def find_version_before(self, mark: str) -> int | None:
        """Return the newest version before any write after ``version`` that has a mark in its metadata.

        Without such a write, that is the newest version.
        """
        newest = self.entries[0].version if self.entries else None
        if self.version is None:
            return newest
        marked = [
            entry.version
            for entry in self.lineage.entries
            if entry.version > self.version and mark in parse_metadata(entry)
        ]
        return min(marked) - 1 if marked else newest

    def _find_last_write(self, version: int) -> int:
        """Return the last of the writes from a version on that belong to the run whose rows the target has.

        A run names a version before it removes outdated rows.
        """
        by_version = {entry.version: entry for entry in self.entries}
        while version + 1 in by_version and self._is_removal(by_version[version + 1]):
            version += 1
        return version

    def _is_removal(self, entry: HistoryEntry) -> bool:
        metadata = parse_metadata(entry)
        is_own = metadata.get("capability") == self.owner and metadata.get(RUN) == self.run_number
        return is_own and entry.operation == _REMOVAL

    def _is_uncommitted(self, entry: HistoryEntry) -> bool:
        """Return whether an entry is a write of another run than the one whose rows the target has.

        Two attempts may have the same number. Deletions and masking by users are kept.
        """
        metadata = parse_metadata(entry)
        if metadata.get("capability") != self.owner:
            return entry.operation == "WRITE"
        return RUN in metadata and (metadata[RUN] > self.run_number or not self._is_removal(entry))
