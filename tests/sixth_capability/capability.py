"""The copy of a table: what all parts know of it."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_merge_provider.core.capability import Capability, Lineage
from airflow_merge_provider.core.run.lineage_model import (
    TARGET,
    ColumnLineage,
    RunSchemas,
    list_direct,
    list_names,
)
from airflow_merge_provider.core.run_sentence import ReportText
from tests.sixth_capability.config import COUNTS, CopyConfig
from tests.sixth_capability.decision import JOB, open_run


def trace_columns(config: CopyConfig, schemas: RunSchemas) -> dict[str, ColumnLineage]:
    names = list_names(schemas.inputs.get("source", ()))
    return {TARGET: ColumnLineage({name: list_direct("source", [name], "IDENTITY") for name in names})}


def describe_run(text: ReportText) -> Iterable[str]:
    verb = text.choose_tense(text.choose_verb("copied", "was", "were"), "would be")
    yield f"{text.format_count('copied', 'row')} {verb} copied to {text.target}"


CAPABILITY = Capability(
    JOB,
    "tests.sixth_capability.job:run",
    CopyConfig,
    COUNTS,
    find_recorded_key=lambda state: state.get("key"),
    open_run=open_run,
    describe_run=describe_run,
    lineage=Lineage(trace_columns, is_overwrite=lambda _config, *, full_refresh: True),
    explanation="tests.sixth_capability.explanation:explain_copied_row",
)
