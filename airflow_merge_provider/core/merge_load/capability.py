"""The load with history, replacement or upsert: what all parts know of it."""

from __future__ import annotations

from airflow_merge_provider.core.capability import Capability, Lineage
from airflow_merge_provider.core.merge_load.config import (
    CHECK_COUNTS,
    COUNTS,
    MergeLoadConfig,
    find_recorded_key,
)
from airflow_merge_provider.core.merge_load.decision import open_run
from airflow_merge_provider.core.merge_load.lineage import count_read, trace_columns
from airflow_merge_provider.core.merge_load.load import ROW_ID
from airflow_merge_provider.core.merge_load.scd2 import HASH_COLUMN

CAPABILITY = Capability(
    "merge_load",
    "airflow_merge_provider.jobs.merge_load.job:run",
    MergeLoadConfig,
    COUNTS,
    CHECK_COUNTS,
    internal_columns=(HASH_COLUMN, ROW_ID),
    find_recorded_key=find_recorded_key,
    open_run=open_run,
    lineage=Lineage(trace_columns, count_read),
    explanation="airflow_merge_provider.explain.merge_load:explain_row",
)
