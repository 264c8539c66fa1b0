"""The counts of a merge source's report."""

from __future__ import annotations

from airflow_merge_provider.core.report import Measure

COUNTS = (
    Measure("entities", "entities", "Entities of all datasets, deleted ones included.", "target"),
    Measure("deleted_entities", "entities", "Entities that their dataset marks as deleted.", "target"),
    Measure("live_rows", "rows", "Rows of the target that are not deleted.", "target"),
    Measure("merged_rows", "rows", "Rows of the target that stand for several entities.", "target"),
    Measure("outputs", "rows", "Rows of the target for entities, live or deleted.", "target"),
    Measure("entities_changed", "entities", "Entities that have changed since the previous run."),
    Measure("rows_evaluated", "entities", "Entities whose clusters were evaluated."),
    Measure("rows_written", "rows", "Changed rows with a new `_updated` that are no tombstones of an ID."),
    Measure("ids_replaced", "rows", "IDs that ended because another row has their entities."),
    Measure("ids_removed", "rows", "IDs that ended because none of their entities is left."),
)
