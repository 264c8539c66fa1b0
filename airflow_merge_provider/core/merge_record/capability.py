"""The merge of many small files: what all parts know of it."""

from __future__ import annotations

from airflow_merge_provider.core.capability import Capability, Lineage
from airflow_merge_provider.core.merge_record.bins import COUNTS
from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.lineage import (
    count_read,
    count_written,
    find_format,
    trace_columns,
)

CAPABILITY = Capability(
    "merge_record",
    "airflow_merge_provider.jobs.merge_record.job:run",
    MergeRecordConfig,
    COUNTS,
    lineage=Lineage(trace_columns, count_read, count_written, find_format=find_format),
)
