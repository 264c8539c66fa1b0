"""The join of several inputs: what all parts know of it."""

from __future__ import annotations

from airflow_merge_provider.core.capability import Capability, Lineage
from airflow_merge_provider.core.joiner.config import COUNTS, JoinerConfig, from_stage
from airflow_merge_provider.core.joiner.decision import open_run
from airflow_merge_provider.core.joiner.lineage import count_written, is_overwrite, trace_columns

CAPABILITY = Capability(
    "joiner",
    "airflow_merge_provider.jobs.joiner.job:run",
    JoinerConfig,
    COUNTS,
    find_recorded_key=lambda state: state["join"]["key_columns"] if "join" in state else None,
    open_run=open_run,
    unpack=from_stage,
    lineage=Lineage(trace_columns, count_written=count_written, is_overwrite=is_overwrite),
    explanation="airflow_merge_provider.explain.joiner:explain_joined_row",
)
