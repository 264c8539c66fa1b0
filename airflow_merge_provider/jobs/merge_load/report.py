"""Build the counts and details of a load's report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.report import Details
from airflow_merge_provider.core.run.reporter import RunResult
from airflow_merge_provider.jobs.merge_load.writing import CountedChanges

# The row counts of the report, and the kinds that strategies count for each.
_KINDS_OF_COUNTS = {
    "inserted": ("inserted", "opened"),
    "updated": ("updated", "closed", "reopened", "changed"),
    "deleted": ("deleted", "removed"),
}
VERSION_KINDS = ("opened", "closed", "reopened", "changed", "removed")


def build_counts(counted_changes: CountedChanges) -> dict[str, int]:
    """Return the counts of a load of one table."""
    versions = {kind: counted_changes.counts.get(kind, 0) for kind in VERSION_KINDS}
    return {
        "loaded": counted_changes.loaded,
        "duplicates": counted_changes.duplicates,
        "tables": 1,
        **versions,
    }


def count_rows(counted_changes: CountedChanges) -> dict[str, int]:
    """Return how many rows a load inserts, updates and deletes."""
    return {
        kind: sum(counted_changes.counts.get(counted_kind, 0) for counted_kind in kinds)
        for kind, kinds in _KINDS_OF_COUNTS.items()
    }


def build_details(
    nested: Mapping[str, Mapping[str, int]] | None = None, tables: Mapping[str, int | None] | None = None
) -> Details:
    """Return the details of a load.

    ``nested`` counts the rows that were inserted into and deleted from the tables of nested lists, by table
    name. ``tables`` are the versions of the tables that changed, if the rows were dispatched.
    """
    return {"nested": dict(nested or {}), "tables": dict(tables or {})}


def add_elements(
    result: RunResult, target: Dataset, added: Mapping[str, int], cleared: Mapping[str, int]
) -> RunResult:
    """Return the result of a load with the inserted and deleted elements of nested lists, by table."""
    nested = {
        f"{target.id}{tail}": {"inserted": added.get(tail, 0), "deleted": cleared.get(tail, 0)}
        for tail in sorted({*added, *cleared})
    }
    counts = {
        **result.counts,
        "elements_inserted": sum(added.values()),
        "elements_deleted": sum(cleared.values()),
    }
    return replace(result, counts=counts, details=build_details(nested))
