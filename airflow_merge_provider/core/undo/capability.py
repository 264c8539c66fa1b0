"""The undo of runs: what all parts know of it."""

from __future__ import annotations

from airflow_merge_provider.core.capability import Capability, Lineage
from airflow_merge_provider.core.merge_load.capability import CAPABILITY as MERGE_LOAD
from airflow_merge_provider.core.undo.config import COUNTS, UndoConfig
from airflow_merge_provider.core.undo.decision import is_truncate, open_run

CAPABILITY = Capability(
    "undo",
    "airflow_merge_provider.jobs.undo.job:run",
    UndoConfig,
    COUNTS,
    # Only the undo of a load has a plan with rows.
    internal_columns=MERGE_LOAD.internal_columns,
    open_run=open_run,
    lineage=Lineage(is_truncate=is_truncate),
)
