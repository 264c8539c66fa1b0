"""The counts of a MergeRecord report."""

from __future__ import annotations

from airflow_merge_provider.core.report import Measure

COUNTS = (
    Measure("merged", "files", "Merged files that the run wrote."),
    Measure("outputs", "records", "Records in the merged files."),
    Measure("files", "files", "Source files that were merged."),
    Measure("failed", "bins", "Bins that failed."),
    Measure("failed_files", "files", "Source files of failed bins."),
    Measure("lost_files", "files", "Files of open bins that no longer exist."),
    Measure("open_bins", "bins", "Open bins after the run.", "target"),
    Measure("open_files", "files", "Source files in open bins.", "target"),
)
