"""The counts in the reports of an undo."""

from __future__ import annotations

from airflow_merge_provider.core.report import Measure

COUNTS = (
    Measure("runs", "runs", "Runs that were undone."),
    Measure("side_tables", "tables", "Side tables that were restored."),
    Measure("outputs", "files", "Merged files that were withdrawn."),
    Measure("files", "files", "Source files that wait again."),
)
