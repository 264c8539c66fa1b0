"""The lineage of a table: the commits that its rows are based on, determined from its history alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Effect = Literal["none", "restore", "rows"]

RESTORE, PURGE = "RESTORE", "REORG"
# The key of an undo in the metadata of its commit, and of the version that it restores; -1 means no rows.
UNDO, RESTORED_VERSION = "undo", "restored_version"
# The key of the version of the only run that an undo has undone; later runs stay in force.
UNDONE_VERSION = "undone_version"
# The key in the metadata of the commit by which an undo of all runs removes the populated flag of a target.
REMOVES_FLAG = "removes_flag"
NO_VERSION = -1
# Operations of Delta and delta-rs that change the columns, properties or constraints of a table, and no rows.
# RESTORE reverts them too.
DEFINITION_OPERATIONS = frozenset({
    "ADD COLUMN",
    "ADD COLUMNS",
    "ADD CONSTRAINT",
    "CHANGE COLUMN",
    "CHANGE COLUMNS",
    "CLUSTER BY",
    "DROP CONSTRAINT",
    "SET TBLPROPERTIES",
    "UNSET TBLPROPERTIES",
    "UPDATE FIELD METADATA",
    "UPDATE TABLE METADATA",
})  # fmt: skip
# All operations that change no rows. Any other operation may change rows.
MAINTENANCE_OPERATIONS = DEFINITION_OPERATIONS | frozenset({
    "ADD FEATURE",
    "COMPUTE STATS",
    "DOMAIN METADATA CLEANUP",
    "DROP FEATURE",
    "Deletion Vector Tombstones",
    "Empty Commit",
    "OPTIMIZE",
    "OPTIMIZE CHECKPOINT",
    PURGE,
    "REORG TABLE UPGRADE UNIFORM",
    "ROW TRACKING BACKFILL",
    "ROW TRACKING UNBACKFILL",
    "UPGRADE PROTOCOL",
    "VACUUM END",
    "VACUUM START",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """A commit as the table's history describes it.

    ``timestamp`` is in milliseconds since 1970 UTC; ``rows`` is the number of rows written, None if the
    history does not record it. ``author`` is the user who committed, or the program if no user is recorded.
    """

    version: int
    operation: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    user_metadata: str | None = None
    rows: int | None = None
    timestamp: int = 0
    author: str = ""

    @property
    def effect(self) -> Effect:
        """The effect of the commit on the rows of the table."""
        if self.operation == RESTORE or self.is_reset:
            return "restore"
        return "none" if self.operation in MAINTENANCE_OPERATIONS else "rows"

    @property
    def is_reset(self) -> bool:
        """Whether the commit has undone all runs: it deleted all rows."""
        text = self.user_metadata
        if not text or UNDO not in text:
            return False
        try:
            metadata = json.loads(text)
        except ValueError:
            return False
        undo = metadata.get(UNDO) if isinstance(metadata, dict) else None
        return isinstance(undo, dict) and undo.get(RESTORED_VERSION) == NO_VERSION

    @property
    def restored_version(self) -> int | None:
        """The version that a RESTORE names; None if it names a timestamp, -1 if no rows are left."""
        if self.is_reset:
            return NO_VERSION
        version = self.parameters.get("version")
        return int(version) if version is not None and str(version).isdigit() else None


@dataclass(frozen=True, slots=True)
class Lineage:
    """The commits that the newest version is based on, newest first, without those that a RESTORE undid.

    ``is_complete`` is False if the history ends before the lineage does.
    """

    entries: tuple[HistoryEntry, ...]
    is_complete: bool

    @property
    def rows_version(self) -> int | None:
        """The version whose commit was the last to change the rows; -1 if none did, None if unknown."""
        version = next((entry.version for entry in self.entries if entry.effect == "rows"), None)
        return NO_VERSION if version is None and self.is_complete else version


def trace_lineage(
    history: Sequence[HistoryEntry], resolve_restore: Callable[[HistoryEntry], int | None]
) -> Lineage:
    """Return the commits that the newest version of a table is based on.

    :param history: the newest commits of the table, or all; those without a description may be missing.
    :param resolve_restore: returns the version that a RESTORE to a timestamp went back to, None if unknown.

    >>> entries = [
    ...     HistoryEntry(2, "RESTORE", {"version": "0"}),
    ...     HistoryEntry(1, "WRITE"),
    ...     HistoryEntry(0, "WRITE"),
    ... ]
    >>> [entry.version for entry in trace_lineage(entries, lambda entry: None).entries]
    [2, 0]
    """
    by_version = {entry.version: entry for entry in history}
    entries: list[HistoryEntry] = []
    version: int | None = max(by_version, default=None)
    while version is not None and version >= min(by_version):
        # A commit without a description may have changed rows.
        entry = by_version.get(version, HistoryEntry(version))
        entries.append(entry)
        if entry.effect != "restore":
            version = entry.version - 1
            continue
        version = entry.restored_version
        if version is None:
            version = resolve_restore(entry)
        if version is not None and version >= entry.version:
            # A damaged history: a RESTORE goes back to an earlier version.
            break
    return Lineage(tuple(entries), is_complete=version == -1)
