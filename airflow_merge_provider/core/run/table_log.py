"""What a run finds out from the logs of its tables: versions, history, properties, and the side tables.

A run asks these questions before it reads rows, in the task with delta-rs alone or in a job with Spark. The
answers and the errors that follow from them are the same. After its commit, a run asks for the commits of
others since the version that it found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from airflow_merge_provider.core.change_plan.saved_plan import SavedPlan
from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import ConfigError, DataError, Problem
from airflow_merge_provider.core.population import FLAG, WRITER
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.source_offset import RunState, SourceOffset, find_offset, read_offsets
from airflow_merge_provider.core.table_history import NO_VERSION, HistoryEntry, Lineage

# The columns of a dataset in Spark's JSON form.
Fields = Sequence[Mapping[str, Any]]

HISTORY_PAGE = 20
# The table property that enables deletion vectors.
DELETION_VECTORS = "delta.enableDeletionVectors"
# The table property of the time that the log keeps commits, and Delta's default in milliseconds.
LOG_RETENTION = "delta.logRetentionDuration"
_LOG_RETENTION_DEFAULT = 30 * 86_400_000
_UNIT_MILLIS = {"week": 604_800_000, "day": 86_400_000, "hour": 3_600_000, "minute": 60_000, "second": 1000}


class TableVersion(NamedTuple):
    """The newest version of a table, the ID that the table got when it was created, and its location."""

    version: int
    table_id: str
    location: str


class TableLog(Protocol):
    """The logs of Delta tables."""

    def find_newest_version(self, dataset: Dataset) -> TableVersion | None:
        """Return the newest version of a table; None if there is no table.

        :raises DataError: if the path or name holds something other than a Delta table.
        """

    def read_history(self, dataset: Dataset, limit: int | None) -> Sequence[HistoryEntry]:
        """Return the commits, newest first; an empty history if there is no table.

        :raises DataError: if the path or name holds something other than a Delta table.
        """

    def find_restored_version(self, dataset: Dataset, entry: HistoryEntry) -> int | None:
        """Return the version that a RESTORE to a timestamp went back to; None if it cannot be determined."""

    def read_commit_id(self, location: str, version: int) -> str | None:
        """Return a digest of the commit that made a version; None if the log does not hold it any more."""

    def read_properties(self, dataset: Dataset) -> Mapping[str, str]:
        """Return the properties of a table that exists."""

    def read_transaction(self, dataset: Dataset, app_id: str) -> int | None:
        """Return the number of a writer's newest transaction; None if it cannot be read."""

    def count_rows(self, dataset: Dataset, version: int) -> int | None:
        """Return how many rows a version has, without deleted ones; None if only a scan can determine it."""

    def find_properties(self, dataset: Dataset) -> Mapping[str, str] | None:
        """Return the properties of a table; None if there is no Delta table."""

    def read_fields(self, pinned: PinnedDataset) -> Fields:
        """Return the columns of a table at its version, in Spark's JSON form."""

    def read_example(self, pinned: PinnedDataset, name: str) -> str | None:
        """Return a value of a column of a table as text; None if it has none but NULL."""

    def has_rows(self, dataset: Dataset) -> bool:
        """Return whether a table that exists has rows."""

    def find_files_version(self, dataset: Dataset) -> int | None:
        """Return a number that changes with the plain files of a dataset; None if there are none."""


@dataclass(frozen=True, slots=True)
class PinnedDataset:
    """A dataset at one version; ``version`` is None if the dataset does not exist.

    ``table_id`` is the ID of a Delta table, ``location`` its folder, and ``commit_id`` the digest of the
    commit that made the version.
    """

    dataset: Dataset
    version: int | None
    table_id: str | None = None
    location: str | None = field(default=None, compare=False)
    commit_id: str | None = field(default=None, compare=False)

    @property
    def exists(self) -> bool:
        """Whether the dataset exists and can be read."""
        return self.version is not None

    @property
    def offset(self) -> SourceOffset:
        """The position from which the next run continues."""
        return SourceOffset(self.dataset.uri, self.version, self.table_id, self.commit_id)


CountRows = Callable[[PinnedDataset], int | None]


def count_pinned(log: TableLog) -> CountRows:
    """Return the function that counts the rows of a Delta table at its version from the log."""

    def count_rows(pinned: PinnedDataset) -> int | None:
        if pinned.version is None or pinned.dataset.format != "delta":
            return None
        return log.count_rows(pinned.dataset, pinned.version)

    return count_rows


def pin_source(log: TableLog, dataset: Dataset, request: JobRequest) -> PinnedDataset:
    """Return a source at the version that the run reads: the newest one, or that of the plan it applies.

    :raises DataError: if the dataset does not have the format that it was declared with.
    """
    return pin_planned(pin_dataset(log, dataset), request.saved_plan)


def pin_dataset(log: TableLog, dataset: Dataset) -> PinnedDataset:
    """Find the newest version of a dataset, whose rows a whole run reads.

    Plain files have no versions: a number computed from their names, times and sizes is used instead.

    :raises DataError: if the dataset does not have the format that it was declared with.
    """
    if dataset.format != "delta":
        return PinnedDataset(dataset, log.find_files_version(dataset))
    table_version = log.find_newest_version(dataset)
    if table_version is None:
        return PinnedDataset(dataset, None)
    version, table_id, location = table_version
    return PinnedDataset(dataset, version, table_id, location, log.read_commit_id(location, version))


def pin_planned(pinned: PinnedDataset, plan: SavedPlan | None) -> PinnedDataset:
    """Return a source at the version that a saved plan read.

    Plain files have no versions, and a table may have been replaced: then the source is returned as it is
    now, and the digest of the changes tells whether that makes a difference.
    """
    if plan is None or pinned.table_id is None or pinned.version is None:
        return pinned
    offset = find_offset(read_offsets(plan.offsets), pinned.offset)
    if offset is None or offset.version is None or offset.table_id != pinned.table_id:
        return pinned
    if offset.version > pinned.version:
        return pinned
    return replace(pinned, version=offset.version, commit_id=offset.commit_id)


def is_continued(log: TableLog, pinned: PinnedDataset, offset: SourceOffset) -> bool:
    """Return whether a source continues from an offset: the same table with the same commit at that version.

    If the log does not reach back to the offset any more, the offset is accepted.
    """
    if pinned.table_id != offset.table_id or pinned.version is None or offset.version is None:
        return False
    if pinned.version < offset.version:
        return False
    if offset.commit_id is None or pinned.location is None:
        return True
    return log.read_commit_id(pinned.location, offset.version) in (None, offset.commit_id)


def get_app_id(writer: str) -> str:
    """Return the name under which Delta counts the transactions of a capability or of a side table."""
    return f"airflow-merge/{writer}"


def find_last_number(log: TableLog, target: Dataset, writer: str, history: Sequence[HistoryEntry]) -> int:
    """Return the number of the newest transaction of a writer; 0 if it has not committed yet.

    :param history: commits of the table, newest first; not empty.
    """
    for entry in history:
        metadata = parse_metadata(entry)
        if metadata.get("capability") == writer:
            return int(metadata["number"])
    number = log.read_transaction(target, get_app_id(writer))
    # Every run makes a commit, and the first one makes version 0. So a transaction number exceeds the
    # version by at most one, and Delta has not seen the number after this upper bound.
    return history[0].version + 1 if number is None else number


def find_log_retention(properties: Mapping[str, str]) -> int:
    """Return how long the log of a table keeps its commits, in milliseconds.

    >>> find_log_retention({"delta.logRetentionDuration": "interval 1 week 2 days"}) // 86_400_000
    9
    """
    text = properties.get(LOG_RETENTION, "").casefold()
    parts = re.findall(rf"(\d+)\s*({'|'.join(_UNIT_MILLIS)})", text)
    if not parts:
        return _LOG_RETENTION_DEFAULT
    return sum(int(count) * _UNIT_MILLIS[unit] for count, unit in parts)


def has_owner(log: TableLog, target: Dataset) -> bool:
    """Return whether the properties of a table name a capability of this package as its creator."""
    return WRITER in log.read_properties(target)


def require_owner(log: TableLog, target: Dataset, owner: str, *, can_adopt: bool = False) -> None:
    """Raise an error if another writer created the table.

    :param can_adopt: whether ``owner`` has an option that takes over tables of other programs.
    :raises DataError: if the properties of the table do not name ``owner`` as its creator.
    """
    creator = log.read_properties(target).get(WRITER)
    if creator == owner:
        return
    by = f"by {creator}" if creator else "by another writer"
    hint = (
        f"choose another target, drop the table, or set its property {WRITER} = {owner} "
        "so that the run replaces all its rows"
    )
    if can_adopt and creator is None:
        hint = "choose another target, or set adopt=True to take over the table with its rows"
    message = f"{target.uri} was written {by}, not by {owner}"
    raise DataError.from_problems([Problem(target.id, "foreign-target", message, hint)])


def require_no_deletion_vectors(log: TableLog, target: Dataset) -> None:
    """Raise an error if changed rows of a table are marked as deleted in files that stay as they are.

    :raises ConfigError: if the table has deletion vectors.
    """
    if log.read_properties(target).get(DELETION_VECTORS) != "true":
        return
    hint = (
        "remove them with ALTER TABLE … DROP FEATURE deletionVectors, leave out deletion_vectors, or choose "
        "another target"
    )
    message = f"is False, but the table {target.uri} has deletion vectors"
    raise ConfigError.from_problems([Problem("deletion_vectors", "immutable-option", message, hint)])


def refuse_missing_dataset(dataset: Dataset) -> DataError:
    """Return the error of a run whose only source does not exist."""
    hint = "check the dataset's name and the warehouse"
    return DataError.from_problems([Problem(dataset.id, "missing", f"{dataset.uri} does not exist", hint)])


def parse_metadata(entry: HistoryEntry) -> RunState:
    """Return the metadata that this package wrote on a commit; an empty dict for commits of other writers."""
    text = entry.user_metadata
    if not text or not text.startswith("{"):
        return {}
    try:
        metadata = json.loads(text)
    except ValueError:
        return {}
    has_number = isinstance(metadata, dict) and isinstance(metadata.get("number"), int)
    return metadata if has_number else {}


def find_change(
    entries: Sequence[HistoryEntry], since: int, *, before: int | None = None
) -> HistoryEntry | None:
    """Return the newest commit after a version, and before another, that may have changed rows."""
    by_version = {entry.version: entry for entry in entries}
    end = max(by_version, default=since) + 1 if before is None else before
    # Only the versions of a table that was created again are lower.
    start = since if end > since else -1
    # A commit without a description may have changed rows.
    commits = (by_version.get(version, HistoryEntry(version)) for version in range(end - 1, start, -1))
    return next((commit for commit in commits if commit.effect != "none"), None)


def list_properties(entry: HistoryEntry) -> set[str]:
    """Return the names of the table properties that a commit sets or removes; an empty set if unknown."""
    if not entry.operation.endswith("SET TBLPROPERTIES"):
        return set()
    try:
        return set(json.loads(entry.parameters.get("properties") or "{}"))
    except (TypeError, ValueError):
        # Another program describes its commit in a form of its own.
        return set()


def find_conflict(entries: Sequence[HistoryEntry]) -> HistoryEntry | None:
    """Return the newest commit that Delta may have preferred to that of a run, which has set own properties.

    :param entries: the commits since the version that the run found, newest first.
    """
    return next((entry for entry in entries if list_properties(entry) not in ({FLAG}, {WRITER})), None)


def describe_change(target: Dataset, since: int, other: HistoryEntry, state: str) -> Problem:
    """Return the problem that names the commit of another writer.

    :param since: the version that the run found; -1 if there was no table.
    :param state: what has become of the commit of this run.
    """
    run = parse_metadata(other)
    author = f"run {run['number']} of {run['capability']}" if "capability" in run else other.author
    commit = " by ".join(filter(None, (other.operation or "an unknown operation", author)))
    version = f"version {other.version} of {target.uri} ({commit})"
    before = "found no table" if since < 0 else f"read version {since}"
    message = f"another writer committed {version} after this run had {before}"
    hint = f"{state}; run it again, so that it reads the target as it is now"
    return Problem(target.id, "other-writer", message, hint)


def describe_unreverted(own_version: int) -> str:
    """Return what has become of a commit that nobody can revert any more."""
    return (
        f"version {own_version} of this run does not include that change, and could not be reverted: compare "
        f"both versions, and repair the rows or RESTORE version {own_version - 1}"
    )


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
