"""The merge of entities into golden records: what all parts know of it."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_merge_provider.core.capability import Capability, Lineage
from airflow_merge_provider.core.merge_source.columns import INTERNAL_COLUMNS
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig, from_pipe
from airflow_merge_provider.core.merge_source.decision import COUNTS, open_run
from airflow_merge_provider.core.merge_source.lineage import is_overwrite, trace_columns
from airflow_merge_provider.core.run_sentence import ReportText, format_amount


def describe_run(text: ReportText) -> Iterable[str]:
    """Yield the parts of the sentence that says what a run did."""
    entities, golden = text.counts["entities"], text.format_count("live_rows", "golden record")
    if entities is not None:
        entities -= text.counts["deleted_entities"] or 0
    if entities is None or text.counts["live_rows"] is None:
        yield f"{text.describe_changes()} in {text.target}"
    elif text.report.run_mode == "incremental":
        changed = text.format_count("entities_changed", "changed entity")
        yield f"{changed}: {text.describe_changes()} in {text.target}"
        yield f"it {text.choose_tense('has', 'would have')} {golden} of {format_amount(entities, 'entity')}"
    else:
        members = f"{format_amount(entities, 'entity')} of {text.format_sources('source')}"
        yield f"{members} {text.choose_tense('became', 'would become')} {golden} in {text.target}"
    if merged := text.counts["merged_rows"]:
        yield f"{merged:,} {text.choose_verb('merged_rows', 'has', 'have')} several sources"
    yield text.describe_rejected()


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
    describe_run=describe_run,
    lineage=Lineage(trace_columns, is_overwrite=is_overwrite),
    explanation="airflow_merge_provider.explain.merge_source:explain_output_or_entity",
)
