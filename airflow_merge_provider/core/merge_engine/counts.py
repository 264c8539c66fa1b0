"""The counts of a report and of the rows in files of the target. Source: docs/operators/merge_engine.md."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.core.report import Measure

COUNTS = (
    Measure("records", "records", "Records of the batch."),
    Measure("keys", "keys", "Keys of the batch."),
    Measure("unchanged_keys", "keys", "Keys of the batch whose row did not change."),
    Measure(
        "late",
        "records",
        "Records older than the stored row, by `sequence.field` or by every sequence group that they set.",
    ),
    Measure("filled_holes", "keys", "Keys that have only late records and whose row changed."),
    Measure(
        "missed_deletes",
        "records",
        "Deletes that did not remove the row because they are late or have no sequence.",
    ),
    Measure("ties", "records", "Records with the same `sequence.field` as another record of their key."),
    Measure("null_sequence", "records", "Records with NULL in `sequence.field`, which is the oldest value."),
    Measure("lone_updates", "keys", "Keys whose newest record is a `-U`, without a `+U` that follows it."),
    Measure(
        "orphan_retracts", "keys", "Keys with retractions that have a row neither before nor after the run."
    ),
    Measure("ignored_retracts", "records", "Records dropped by `ignore-delete` or `ignore-update-before`."),
    Measure("tombstones", "keys", "Removed keys that the run recorded for `tombstone_retention`."),
)


def count_storage(
    previous_storage: Mapping[str, int] | None, rows: Mapping[str, int], *, full: bool
) -> dict[str, int]:
    """Return the rows of the target and their outdated versions after a run, given those before it.

    :param previous_storage: the result of the previous run; the result is empty if that did not count.
    :param rows: the rows that the run inserts, updates and deletes; if ``full``, they are all rows.
    """
    if full:
        return {"rows": rows["inserted"], "outdated": 0}
    if not previous_storage:
        return {}
    outdated = previous_storage["outdated"] + rows["updated"] + rows["deleted"]
    return {"rows": previous_storage["rows"] + rows["inserted"] - rows["deleted"], "outdated": outdated}


def is_compaction_due(config: MergeEngineConfig, storage: Mapping[str, int]) -> bool:
    """Return whether the share of outdated rows in the files of the target exceeds the limit.

    A changed row leaves its old version in its file, marked by a deletion vector that every reader has to
    process.
    """
    if config.compact_ratio is None or not storage:
        return False
    return storage["outdated"] > config.compact_ratio * (storage["rows"] + storage["outdated"])
