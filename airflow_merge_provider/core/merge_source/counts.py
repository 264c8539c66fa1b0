"""The counts of a merge source's report."""

from __future__ import annotations

from airflow_merge_provider.core.report import Measure

COUNTS = (
    Measure("entities", "entities", "Entities of all datasets, including deleted ones.", "target"),
    Measure(
        "deleted_entities", "entities", "Entities that are marked as deleted in their dataset.", "target"
    ),
    Measure("live_rows", "rows", "Rows of the target that are not deleted.", "target"),
    Measure("merged_rows", "rows", "Rows of the target that contain several entities.", "target"),
    Measure("outputs", "rows", "Rows of the target that contain entities, live or deleted.", "target"),
    Measure("entities_changed", "entities", "Entities that have changed since the previous run."),
    Measure("rows_evaluated", "entities", "Entities whose clusters were evaluated."),
    Measure("rows_written", "rows", "Rows written with a new `_updated`, except tombstones of IDs."),
    Measure("ids_replaced", "rows", "IDs that no longer exist because another row contains their entities."),
    Measure("ids_removed", "rows", "IDs that no longer exist because none of their entities exists."),
)
