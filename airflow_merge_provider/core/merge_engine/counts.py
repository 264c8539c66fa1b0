"""The counts of a merge engine's report. Source: docs/operators/merge_engine.md."""

from __future__ import annotations

from airflow_merge_provider.core.report import Measure

COUNTS = (
    Measure("records", "records", "Records of the batch."),
    Measure("keys", "keys", "Keys of the batch."),
    Measure("unchanged_keys", "keys", "Keys of the batch whose row stays as it was."),
    Measure(
        "late",
        "records",
        "Records older than the stored row, by `sequence.field` or by every sequence group that they set.",
    ),
    Measure("filled_holes", "keys", "Keys with late records only whose row changed all the same."),
    Measure(
        "missed_deletes",
        "records",
        "Deletes that removed nothing because they are late or have no sequence, while the row stays.",
    ),
    Measure("ties", "records", "Records with the same `sequence.field` as another record of their key."),
    Measure("null_sequence", "records", "Records without a `sequence.field`: the oldest of all."),
    Measure("lone_updates", "keys", "Keys whose newest record is a `-U` without the `+U` that follows it."),
    Measure("orphan_retracts", "keys", "Keys with retractions only that have no row."),
    Measure("ignored_retracts", "records", "Records dropped by `ignore-delete` or `ignore-update-before`."),
    Measure("tombstones", "keys", "Removed keys that `tombstone_retention` records."),
)
