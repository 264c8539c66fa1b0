"""The merge of entities into golden records: what all parts know of it."""

from __future__ import annotations

from airflow_merge_provider.core.capability import Capability, Lineage
from airflow_merge_provider.core.merge_source.columns import INTERNAL_COLUMNS
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig, from_pipe
from airflow_merge_provider.core.merge_source.decision import COUNTS, open_run
from airflow_merge_provider.core.merge_source.lineage import is_overwrite, trace_columns

CAPABILITY = Capability(
    "merge_source",
    "airflow_merge_provider.jobs.merge_source.job:run",
    MergeSourceConfig,
    COUNTS,
    output_keys=("_id", "$stable_id", "$ids", "$replaced_by"),
    internal_columns=INTERNAL_COLUMNS,
    find_recorded_key=lambda _: ("_id",),
    open_run=open_run,
    unpack=from_pipe,
    lineage=Lineage(trace_columns, is_overwrite=is_overwrite),
    explanation="airflow_merge_provider.explain.merge_source:explain_output_or_entity",
)
