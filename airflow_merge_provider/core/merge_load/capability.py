"""The load with history, replacement or upsert: what all parts know of it."""

from __future__ import annotations

from collections.abc import Iterable

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
from airflow_merge_provider.core.run_sentence import ReportText


def describe_run(text: ReportText) -> Iterable[str]:
    """Yield the parts of the sentence that says what a run did."""
    if "overlapping" in text.counts:
        versions, keys = text.format_count("versions", "version"), text.format_count("keys", "key")
        yield f"{text.target} is a valid history: {versions} of {keys}"
        return
    verb, changes = text.choose_verb("loaded", "was", "were"), text.describe_changes()
    if text.counts["opened"] or text.counts["closed"]:
        changes = f"{text.format_count('opened', 'version')} opened, {text.counts['closed'] or 0:,} closed"
    into = text.format_count("tables", "table") if (text.counts["tables"] or 0) > 1 else text.target
    verb = text.choose_tense(verb, "would be")
    yield f"{text.format_count('loaded', 'row')} {verb} loaded into {into}: {changes}"
    if text.counts["duplicates"]:
        yield f"{text.format_count('duplicates', 'duplicate')} left out"
    yield text.describe_rejected()


CAPABILITY = Capability(
    "merge_load",
    "airflow_merge_provider.jobs.merge_load.job:run",
    MergeLoadConfig,
    COUNTS,
    CHECK_COUNTS,
    internal_columns=(HASH_COLUMN, ROW_ID),
    find_recorded_key=find_recorded_key,
    open_run=open_run,
    describe_run=describe_run,
    lineage=Lineage(trace_columns, count_read),
    explanation="airflow_merge_provider.explain.merge_load:explain_row",
)
