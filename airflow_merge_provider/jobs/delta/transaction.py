"""Commit to a Delta table exactly once.

A commit carries a transaction ``(app_id, number)``, which Delta accepts once, and metadata with the ID of
the attempt. If two writers start from the same number, one succeeds and the other gets a ``ConflictError``,
whether Delta raises an error or skips the write silently.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import ConflictError, MergeError, UnrevertedError
from airflow_merge_provider.core.run.table_log import (
    describe_change,
    describe_unreverted,
    find_change,
    find_conflict,
    get_app_id,
    parse_metadata,
)
from airflow_merge_provider.core.table_history import HistoryEntry
from airflow_merge_provider.jobs.delta.log import read_history
from airflow_merge_provider.jobs.delta.writer import restore_table
from airflow_merge_provider.jobs.spark.errors import convert_error, has_condition
from airflow_merge_provider.jobs.spark.known_errors import COMMIT_REFUSED
from airflow_merge_provider.jobs.spark.session import override_settings

_ATTEMPT = "attempt"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


@dataclass(frozen=True, slots=True)
class CommitResult:
    """A commit of this process: its version, its number, and the rows written, None if not reported."""

    version: int
    number: int
    rows: int | None = field(default=None, compare=False)


def commit_once(
    spark: SparkSession,
    target: Dataset,
    writer: str,
    number: int,
    metadata: Mapping[str, Any],
    write: Callable[[], object],
    *,
    since: int,
) -> CommitResult:
    """Run ``write`` as one commit with a transaction, and verify that the commit is in the table.

    Between ``since`` and the commit, no other writer has changed rows: a statement of Delta reads the newest
    version, so that Delta itself only detects commits that are made while it executes.

    :param writer: the capability or side table that counts its commits.
    :param number: the number of the transaction; one more than the last one that the caller has seen.
    :param metadata: the user metadata of the commit, as JSON.
    :param write: executes exactly one statement that commits to the table.
    :param since: the newest version that the caller has seen, -1 if there was no table.
    :raises ConflictError: if another writer has committed since then; nothing of this commit is left then.
    :raises UnrevertedError: if that was found out after the commit, which could not be reverted.
    """
    attempt = uuid.uuid4().hex
    settings = {
        "spark.databricks.delta.write.txnAppId": get_app_id(writer),
        "spark.databricks.delta.write.txnVersion": str(number),
        _USER_METADATA: json.dumps({**metadata, _ATTEMPT: attempt}, ensure_ascii=False),
    }
    list_entries = partial(_list_later_entries, spark, target, since)
    _refuse_other_commit(target, since, list_entries())
    try:
        with override_settings(spark, settings):
            write()
    except Exception as error:
        # An error after the commit (a checkpoint, a lost connection) does not undo the commit.
        entries = list_entries()
        if _find_attempt(entries, attempt) is None:
            if has_condition(error, [COMMIT_REFUSED]) and not find_change(entries, since):
                # Only maintenance was committed meanwhile.
                return commit_once(spark, target, writer, number, metadata, write, since=since)
            merge_error = convert_error(error, target.uri)
            if isinstance(merge_error, ConflictError):
                _refuse_other_commit(target, since, entries, is_conflict=True)
            if merge_error is None or merge_error is error:
                raise
            raise merge_error from error
    else:
        entries = list_entries()
    entry = _find_attempt(entries, attempt)
    if entry is None:
        _refuse_other_commit(target, since, entries, is_conflict=True)
        raise ConflictError(
            f"Another run committed to {target.uri} first: Delta skipped the write of run {number}; "
            "run it again"
        )
    other = find_change(entries, since, before=entry.version)
    if other is not None:
        raise _revert_commit(spark, target, since, entry, other)
    return CommitResult(entry.version, number, entry.rows)


def set_user_metadata(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the session setting that sets the user metadata of a commit."""
    return {_USER_METADATA: json.dumps(metadata, ensure_ascii=False)}


def _list_later_entries(spark: SparkSession, target: Dataset, since: int) -> Sequence[HistoryEntry]:
    """Return the commits after a version, newest first; all commits if the table was created again.

    Each commit is a file of its own: none is read without need.
    """
    history = read_history(spark, target, 1)
    newest = history[0].version if history else since
    if newest > since + 1:
        history = read_history(spark, target, newest - since)
    if newest < since or (history and history[-1].version > since + 1):
        history = read_history(spark, target, None)
    return [entry for entry in history if newest < since or entry.version > since]


def _find_attempt(entries: Sequence[HistoryEntry], attempt: str) -> HistoryEntry | None:
    """Return the commit of one attempt; others may have committed before and after it."""
    return next((entry for entry in entries if parse_metadata(entry).get(_ATTEMPT) == attempt), None)


def _refuse_other_commit(
    target: Dataset, since: int, entries: Sequence[HistoryEntry], *, is_conflict: bool = False
) -> None:
    """Raise an error if another writer has committed since the version that the run found.

    :param is_conflict: whether Delta has refused or skipped the write, so that maintenance counts too.
    :raises ConflictError: if there is such a commit; nothing was written then.
    """
    other = find_change(entries, since) or (find_conflict(entries) if is_conflict else None)
    if other is not None:
        raise ConflictError.from_problems([describe_change(target, since, other, "nothing was written")])


def _revert_commit(
    spark: SparkSession, target: Dataset, since: int, own: HistoryEntry, other: HistoryEntry
) -> MergeError:
    """Restore the version before a commit that was made without knowledge of another one.

    Delta cannot be told which version a statement has to read: a commit that is made just before the
    statement starts is noticed after it.

    :returns: the error of the run; it can be retried if the commit was reverted.
    """
    note = f"version {own.version} is reverted: it was made without knowledge of version {other.version}"
    is_reverted = False
    if not _list_later_entries(spark, target, own.version):
        with suppress(Exception), override_settings(spark, {_USER_METADATA: note}):
            restore_table(spark, target, own.version - 1)
        # Nobody has committed before the RESTORE.
        first = _list_later_entries(spark, target, own.version)[-1:]
        is_reverted = bool(first) and first[0].user_metadata == note
    if is_reverted:
        state = f"version {own.version} of this run was reverted"
        return ConflictError.from_problems([describe_change(target, since, other, state)])
    state = describe_unreverted(own.version)
    return UnrevertedError.from_problems([describe_change(target, since, other, state)])
