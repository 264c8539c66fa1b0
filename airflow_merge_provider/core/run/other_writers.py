"""Find the commits of others between the version of a target that a run found and the run's own commit.

Source: docs/recovery.md, Two writers at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import Problem
from airflow_merge_provider.core.run.table_log import parse_metadata
from airflow_merge_provider.core.table_history import HistoryEntry


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
