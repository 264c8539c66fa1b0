"""The fold of change streams into a table per key: what all parts know of it."""

from __future__ import annotations

from airflow_merge_provider.core.capability import Capability, Lineage
from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig, find_recorded_key
from airflow_merge_provider.core.merge_engine.decision import COUNTS, open_run
from airflow_merge_provider.core.merge_engine.lineage import trace_columns

CAPABILITY = Capability(
    "merge_engine",
    "airflow_merge_provider.jobs.merge_engine.job:run",
    MergeEngineConfig,
    COUNTS,
    find_recorded_key=find_recorded_key,
    open_run=open_run,
    lineage=Lineage(trace_columns),
    explanation="airflow_merge_provider.explain.merge_engine:explain_key",
)
