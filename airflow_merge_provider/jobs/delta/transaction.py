"""Commit to a Delta table exactly once.

A commit carries a transaction ``(app_id, number)``, which Delta accepts once, and metadata with the ID of
the attempt. If two writers start from the same number, one succeeds and the other gets a ``ConflictError``,
whether Delta raises an error or skips the write silently.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import ConflictError
from airflow_merge_provider.core.run.table_log import HISTORY_PAGE, get_app_id, parse_metadata
from airflow_merge_provider.core.table_history import HistoryEntry
from airflow_merge_provider.jobs.delta.log import read_history
from airflow_merge_provider.jobs.spark.errors import convert_error
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

    :param writer: the capability or side table that counts its commits.
    :param number: the number of the transaction; one more than the last one that the caller has seen.
    :param metadata: the user metadata of the commit, as JSON.
    :param write: executes exactly one statement that commits to the table.
    :param since: the newest version that the caller has seen, -1 if there was no table.
    :raises ConflictError: if another writer has used the number; nothing is written then.
    """
    attempt = uuid.uuid4().hex
    settings = {
        "spark.databricks.delta.write.txnAppId": get_app_id(writer),
        "spark.databricks.delta.write.txnVersion": str(number),
        _USER_METADATA: json.dumps({**metadata, _ATTEMPT: attempt}, ensure_ascii=False),
    }
    try:
        with override_settings(spark, settings):
            write()
    except Exception as error:
        # An error after the commit (a checkpoint, a lost connection) does not undo the commit.
        entry = _find_attempt(spark, target, since, attempt)
        if entry is not None:
            return CommitResult(entry.version, number, entry.rows)
        merge_error = convert_error(error, target.uri)
        if merge_error is None or merge_error is error:
            raise
        raise merge_error from error
    entry = _find_attempt(spark, target, since, attempt)
    if entry is None:
        raise ConflictError(
            f"Another run committed to {target.uri} first: Delta skipped the write of run {number}; "
            "run it again"
        )
    return CommitResult(entry.version, number, entry.rows)


def set_user_metadata(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the session setting that sets the user metadata of a commit."""
    return {_USER_METADATA: json.dumps(metadata, ensure_ascii=False)}


def _find_attempt(spark: SparkSession, target: Dataset, since: int, attempt: str) -> HistoryEntry | None:
    """Return the commit of one attempt; others may have committed before and after it."""
    for limit in (HISTORY_PAGE, None):
        history = read_history(spark, target, limit)
        for entry in history:
            if parse_metadata(entry).get(_ATTEMPT) == attempt:
                return entry
        if not history or history[-1].version <= since + 1:
            return None
    return None
