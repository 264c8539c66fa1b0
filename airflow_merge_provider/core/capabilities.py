"""The registry of all jobs: the capabilities by name, and the undo of their runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_merge_provider.core.capability import Capability, Lineage
from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.joiner import (
    config as joiner,
    decision as joiner_decision,
    lineage as joiner_lineage,
)
from airflow_merge_provider.core.merge_engine import (
    config as merge_engine,
    decision as engine_decision,
    lineage as engine_lineage,
)
from airflow_merge_provider.core.merge_load import (
    check as scd2_check,
    config as merge_load,
    decision as load_decision,
    lineage as load_lineage,
)
from airflow_merge_provider.core.merge_record import (
    config as merge_record,
    lineage as record_lineage,
    reasons as record_reasons,
)
from airflow_merge_provider.core.merge_source import (
    config as merge_source,
    decision as source_decision,
    lineage as source_lineage,
)
from airflow_merge_provider.core.protocol import Job
from airflow_merge_provider.core.report import Measure
from airflow_merge_provider.core.undo import (
    config as undo,
    decision as undo_decision,
    lineage as undo_lineage,
)

_JOINER = Capability(
    "joiner",
    joiner.JoinerConfig,
    joiner.COUNTS,
    find_recorded_key=lambda state: state["join"]["key_columns"] if "join" in state else (),
    open_run=joiner_decision.open_run,
    unpack=joiner.from_stage,
    lineage=Lineage(
        joiner_lineage.trace_columns,
        count_written=joiner_lineage.count_written,
        is_overwrite=joiner_lineage.is_overwrite,
    ),
    explanation="joiner:explain_joined_row",
)
_MERGE_ENGINE = Capability(
    "merge_engine",
    merge_engine.MergeEngineConfig,
    engine_decision.COUNTS,
    find_recorded_key=merge_engine.find_recorded_key,
    open_run=engine_decision.open_run,
    lineage=Lineage(engine_lineage.trace_columns),
    explanation="merge_engine:explain_key",
)
_MERGE_LOAD = Capability(
    "merge_load",
    merge_load.MergeLoadConfig,
    merge_load.COUNTS,
    scd2_check.CHECK_COUNTS,
    find_recorded_key=merge_load.find_recorded_key,
    open_run=load_decision.open_run,
    lineage=Lineage(load_lineage.trace_columns, load_lineage.count_read),
    explanation="merge_load:explain_row",
)
_MERGE_RECORD = Capability(
    "merge_record",
    merge_record.MergeRecordConfig,
    record_reasons.COUNTS,
    lineage=Lineage(
        record_lineage.trace_columns,
        record_lineage.count_read,
        record_lineage.count_written,
        find_format=record_lineage.find_format,
    ),
)
_MERGE_SOURCE = Capability(
    "merge_source",
    merge_source.MergeSourceConfig,
    source_decision.COUNTS,
    output_keys=("_id", "$ids", "$replaced_by"),
    find_recorded_key=lambda _: ("_id",),
    open_run=source_decision.open_run,
    unpack=merge_source.from_pipe,
    lineage=Lineage(source_lineage.trace_columns, is_overwrite=source_lineage.is_overwrite),
    explanation="merge_source:explain_output_or_entity",
)
_UNDO = Capability(
    "undo",
    undo.UndoConfig,
    undo.COUNTS,
    open_run=undo_decision.open_run,
    lineage=Lineage(is_truncate=undo_lineage.is_truncate),
)
CAPABILITIES: Mapping[str, Capability] = {
    capability.name: capability
    for capability in (_JOINER, _MERGE_ENGINE, _MERGE_LOAD, _MERGE_RECORD, _MERGE_SOURCE)
}
JOBS: Mapping[str, Capability] = {**CAPABILITIES, _UNDO.name: _UNDO}


def list_key_columns(job: Job, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns whose values identify rows of a run; none if the configuration is not valid.

    An undo does not name them.
    """
    capability = JOBS[job]
    try:
        return (*capability.config.parse(config).list_key_columns(), *capability.output_keys)
    except ConfigError:
        return ()


def list_counts() -> Iterator[tuple[Job, Sequence[Measure]]]:
    """Yield each kind of report as its job and its counts."""
    for job in JOBS.values():
        yield job.name, job.counts
        if job.check_counts:
            yield job.name, job.check_counts
