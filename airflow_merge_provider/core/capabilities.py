"""Describe each kind of job for the command line, which selects jobs by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.joiner import config as joiner
from airflow_merge_provider.core.merge_engine import (
    checks as engine_checks,
    config as merge_engine,
    counts as engine_counts,
)
from airflow_merge_provider.core.merge_load import check as scd2_check, config as merge_load
from airflow_merge_provider.core.merge_record import config as merge_record, reasons as record_reasons
from airflow_merge_provider.core.merge_source import config as merge_source, decision as source_decision
from airflow_merge_provider.core.model import Config
from airflow_merge_provider.core.report import Measure
from airflow_merge_provider.core.undo import config as undo


@dataclass(frozen=True, slots=True)
class Capability:
    """One kind of job: its configuration class, how to extract it from pasted text, and its datasets.

    ``references`` returns every dataset by the path used in errors. ``warnings`` returns settings that are
    valid but probably not intended. ``counts`` are the counts in the job's reports, ``check_counts`` those
    in the reports of its checks. ``output_keys`` are key columns that the configuration does not name.
    """

    config: type[Config]
    counts: Sequence[Measure]
    unpack: Callable[[Mapping[str, Any]], dict[str, Any]]
    references: Callable[[Any], dict[str, Any]]
    warnings: Callable[[Any], list[str]]
    check_counts: Sequence[Measure] = ()
    output_keys: Sequence[str] = ()


def _merge_source_references(config: merge_source.MergeSourceConfig) -> dict[str, str]:
    inputs = {f"datasets[{index}]": ref for index, ref in enumerate(config.dataset_ids)}
    optional_references = {"target": config.target, "overrides": config.overrides, "metrics": config.metrics}
    return inputs | {path: ref for path, ref in optional_references.items() if ref is not None}


def _merge_record_references(config: merge_record.MergeRecordConfig) -> dict[str, str]:
    """Return the folders of a MergeRecord configuration; the merged files are the output."""
    locations = {name: getattr(config, name) for name in merge_record.PLACES}
    references = {"target" if name == "merged" else name: location for name, location in locations.items()}
    return {name: ref for name, ref in references.items() if ref is not None}


CAPABILITIES = {
    "joiner": Capability(
        joiner.JoinerConfig,
        joiner.COUNTS,
        joiner.from_stage,
        joiner.list_references,
        joiner.list_warnings,
    ),
    "merge_engine": Capability(
        merge_engine.MergeEngineConfig,
        engine_counts.COUNTS,
        dict,
        merge_engine.list_references,
        engine_checks.list_warnings,
    ),
    "merge_load": Capability(
        merge_load.MergeLoadConfig,
        merge_load.COUNTS,
        dict,
        merge_load.list_references,
        merge_load.list_warnings,
        scd2_check.CHECK_COUNTS,
    ),
    "merge_record": Capability(
        merge_record.MergeRecordConfig,
        record_reasons.COUNTS,
        dict,
        _merge_record_references,
        merge_record.list_warnings,
    ),
    "merge_source": Capability(
        merge_source.MergeSourceConfig,
        source_decision.COUNTS,
        merge_source.from_pipe,
        _merge_source_references,
        merge_source.list_warnings,
        output_keys=("_id", "$ids", "$replaced_by"),
    ),
}


def list_key_columns(job: str, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns whose values identify rows of a run; none if the configuration is not valid.

    An undo does not name them.
    """
    if job not in CAPABILITIES:
        return ()
    capability = CAPABILITIES[job]
    try:
        return (*capability.config.parse(config).list_key_columns(), *capability.output_keys)
    except ConfigError:
        return ()


def list_counts() -> Iterator[tuple[str, Sequence[Measure]]]:
    """Yield each kind of report as its job and its counts."""
    for job, capability in CAPABILITIES.items():
        yield job, capability.counts
        if capability.check_counts:
            yield job, capability.check_counts
    yield "undo", undo.COUNTS
