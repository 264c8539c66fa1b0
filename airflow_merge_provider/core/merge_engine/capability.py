"""The fold of change streams into a table per key: what all parts know of it."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_merge_provider.core.capability import Capability, Lineage
from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig, find_recorded_key
from airflow_merge_provider.core.merge_engine.decision import COUNTS, open_run
from airflow_merge_provider.core.merge_engine.lineage import trace_columns
from airflow_merge_provider.core.run_sentence import ReportText


def describe_run(text: ReportText) -> Iterable[str]:
    """Yield the parts of the sentence that says what a run did."""
    keys = "" if text.counts["keys"] is None else f" of {text.format_count('keys', 'key')}"
    verb = text.choose_tense(text.choose_verb("records", "was", "were"), "would be")
    records = f"{text.format_count('records', 'record')}{keys}"
    yield f"{records} {verb} merged into {text.target}: {text.describe_changes()}"
    if text.counts["late"]:
        yield f"{text.format_count('late', 'record')} {text.choose_verb('late', 'was', 'were')} late"
    yield text.describe_rejected()


CAPABILITY = Capability(
    "merge_engine",
    "airflow_merge_provider.jobs.merge_engine.job:run",
    MergeEngineConfig,
    COUNTS,
    find_recorded_key=find_recorded_key,
    open_run=open_run,
    describe_run=describe_run,
    lineage=Lineage(trace_columns),
    explanation="airflow_merge_provider.explain.merge_engine:explain_key",
)
