"""The undo of runs: what all parts know of it."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_merge_provider.core.capability import Capability, Lineage
from airflow_merge_provider.core.merge_load.capability import CAPABILITY as MERGE_LOAD
from airflow_merge_provider.core.run_sentence import ReportText
from airflow_merge_provider.core.undo.config import COUNTS, UndoConfig
from airflow_merge_provider.core.undo.decision import is_truncate, open_run


def describe_run(text: ReportText) -> Iterable[str]:
    """Yield the parts of the sentence that says what a run did."""
    # The report names only the first of many runs that are restored.
    restored = len(text.report.details.get("restored") or ())
    clauses = []
    if text.counts["runs"] or not restored:
        verb = text.choose_tense(text.choose_verb("runs", "was", "were"), "would be")
        clauses.append(f"{text.format_count('runs', 'run')} of {text.target} {verb} undone")
    if restored:
        runs, verb = ("1 run", "was") if restored == 1 else ("several runs", "were")
        clauses.append(f"{runs} of {text.target} {text.choose_tense(verb, 'would be')} restored")
    yield f"{'; '.join(clauses)}: {text.report.run_mode_reason}"


CAPABILITY = Capability(
    "undo",
    "airflow_merge_provider.jobs.undo.job:run",
    UndoConfig,
    COUNTS,
    # Only the undo of a load has a plan with rows.
    internal_columns=MERGE_LOAD.internal_columns,
    open_run=open_run,
    describe_run=describe_run,
    lineage=Lineage(is_truncate=is_truncate),
)
