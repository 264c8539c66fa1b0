"""The join of several inputs: what all parts know of it."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_merge_provider.core.capability import Capability, Lineage
from airflow_merge_provider.core.joiner.config import COUNTS, JoinerConfig, from_stage
from airflow_merge_provider.core.joiner.decision import open_run
from airflow_merge_provider.core.joiner.lineage import count_written, is_overwrite, trace_columns
from airflow_merge_provider.core.run_sentence import ReportText


def describe_run(text: ReportText) -> Iterable[str]:
    """Yield the parts of the sentence that says what a run did."""
    verb = text.choose_tense("became", "would become")
    rows_in, rows = text.format_count("records_in", "row"), text.format_count("outputs", "joined row")
    yield f"{rows_in} of {text.format_sources('input')} {verb} {rows} in {text.target}"
    if text.counts["unmatched"]:
        verb = text.choose_verb("unmatched", "has", "have")
        yield f"{text.format_count('unmatched', 'row')} {verb} no match"
    yield text.describe_rejected()


CAPABILITY = Capability(
    "joiner",
    "airflow_merge_provider.jobs.joiner.job:run",
    JoinerConfig,
    COUNTS,
    find_recorded_key=lambda state: state["join"]["key_columns"] if "join" in state else None,
    open_run=open_run,
    unpack=from_stage,
    describe_run=describe_run,
    lineage=Lineage(trace_columns, count_written=count_written, is_overwrite=is_overwrite),
    explanation="airflow_merge_provider.explain.joiner:explain_joined_row",
)
