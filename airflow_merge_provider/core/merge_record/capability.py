"""The merge of many small files: what all parts know of it."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_merge_provider.core.capability import Capability, Lineage
from airflow_merge_provider.core.merge_record.bins import COUNTS
from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.lineage import (
    count_read,
    count_written,
    find_format,
    trace_columns,
)
from airflow_merge_provider.core.run_sentence import ReportText


def describe_run(text: ReportText) -> Iterable[str]:
    """Yield the parts of the sentence that says what a run did."""
    if text.counts["merged"] or not text.counts["open_files"]:
        verb = text.choose_tense("became", "would become")
        files, merged = text.format_count("files", "file"), text.format_count("merged", "merged file")
        has_records = text.counts["outputs"] is not None
        records = f" with {text.format_count('outputs', 'record')}" if has_records else ""
        yield f"{files} {verb} {merged}{records}"
    if text.counts["open_files"]:
        files, bins = text.format_count("open_files", "file"), text.format_count("open_bins", "open bin")
        yield f"{files} {text.choose_verb('open_files', 'waits', 'wait')} in {bins}"
    failed = text.format_count("failed_files", "file") if text.counts["failed_files"] else "no file"
    yield f"{failed} {text.choose_tense('failed', 'would fail')}"


CAPABILITY = Capability(
    "merge_record",
    "airflow_merge_provider.jobs.merge_record.job:run",
    MergeRecordConfig,
    COUNTS,
    describe_run=describe_run,
    lineage=Lineage(trace_columns, count_read, count_written, find_format=find_format),
)
