"""The counts of a merge engine's report. Source: docs/operators/merge_engine.md."""

from __future__ import annotations

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
