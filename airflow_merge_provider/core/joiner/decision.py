"""Decide whether a join has anything to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from airflow_merge_provider.core.dataset import Dataset, resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, DataError, Problem
from airflow_merge_provider.core.joiner.config import COUNTS, JoinerConfig, compute_signature
from airflow_merge_provider.core.joiner.plan import JoinPlan, plan_join
from airflow_merge_provider.core.joiner.schema import parse_table_fields
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.report import Details, Report
from airflow_merge_provider.core.run.columns import ReadFields
from airflow_merge_provider.core.run.decision import RunDecision
from airflow_merge_provider.core.run.previous_run import RESULT, PreviousRun, RunCommit, load_previous_run
from airflow_merge_provider.core.run.reporter import Progress, RunReporter, RunResult
from airflow_merge_provider.core.run.table_log import PinnedDataset, TableLog, count_pinned, pin_source
from airflow_merge_provider.core.run_mode import (
    CONFIG_CHANGED,
    FULL_REFRESH,
    NO_TARGET,
    NOTHING_CHANGED,
    TARGET_CHANGED,
    RunMode,
    describe_changed_sources,
)
from airflow_merge_provider.core.source_offset import is_same_reads, normalize_uri

JOB = "joiner"
NO_PLAN: Details = {"columns": [], "keys": [], "plan": []}
_INFERRED_FORMATS = ("csv", "json", "xml")

Stated = TypeVar("Stated", PreviousRun, RunCommit)


@dataclass(frozen=True)
class JoinDecision(RunDecision):
    """The decision about one join."""

    config: JoinerConfig
    sources: Mapping[str, PinnedDataset]
    reporter: RunReporter
    refresh_effect: ClassVar[str] = "append them all once more"

    @property
    def is_append(self) -> bool:
        """Whether the joined rows are appended to those of earlier runs."""
        return self.config.write_mode == "append"

    @property
    def is_target_changed(self) -> bool:
        """Whether another writer has changed rows of the target since the previous run."""
        return self.last is not None and self.last.changed_by is not None

    @property
    def is_repeatable(self) -> bool:
        """Whether the same rows may be written again, which is not the case in append mode."""
        return not self.is_append

    def choose_run_mode(self) -> tuple[RunMode, str]:
        """Return the run mode and its reason: all rows are joined, or none if the target is up to date.

        :raises DataError: if nobody knows which versions of the inputs were appended.
        """
        self._require_known_offsets()
        fingerprint = compute_signature(self.config)
        if not self.state:
            return "initial", NO_TARGET if self.last is None else self.last.missing_state_reason
        if self.request.full_refresh:
            return "full", FULL_REFRESH
        offsets = {stage: source.offset for stage, source in self.sources.items()}
        is_same_config = self.state.get("fingerprint") == fingerprint
        has_same_inputs = is_same_reads(self.state, offsets.values())
        # If another writer has changed rows, an overwrite restores them; an append would duplicate them.
        is_target_kept = self.is_append or not self.is_target_changed
        if is_same_config and has_same_inputs and is_target_kept:
            return "noop", NOTHING_CHANGED
        if not is_same_config:
            return "full", CONFIG_CHANGED
        if not has_same_inputs:
            return "full", describe_changed_sources(self.state, offsets)
        return "full", TARGET_CHANGED

    def _require_known_offsets(self) -> None:
        """Raise an error if the joined rows may be in the target, and would be appended again.

        :raises DataError: if the commit of the previous append is no longer in the history.
        """
        if not self.is_append or self.request.full_refresh or self.last is None or not self.last.is_expired:
            return
        message = (
            f"the commit of the previous run is no longer in the history of {self.reporter.target.uri}: "
            "nobody can tell which inputs were appended"
        )
        hint = (
            "run once with full_refresh=True to append the rows, or with write_mode='overwrite' to replace "
            "all rows"
        )
        raise DataError.from_problems([Problem("target", "repeated", message, hint)])

    def check_inputs(self, read_fields: ReadFields) -> None:
        schemas = {stage: parse_table_fields(read_fields(source)) for stage, source in self.sources.items()}
        plan_join(JoinerConfig.parse(self.request.config, schemas), schemas)

    def report_retry(self, commit: RunCommit) -> Report:
        """Return the report of a run that an earlier attempt has committed; the join is not planned again."""
        return self.reporter.build_retry(complete_state(commit), NO_PLAN)


def decide_join(
    config: JoinerConfig,
    sources: Mapping[str, PinnedDataset],
    reporter: RunReporter,
) -> JoinDecision:
    """Return the decision about a join whose inputs and target were found, with its warnings.

    :param sources: the inputs by their names.
    :param reporter: its previous run is that of ``complete_state``.
    :raises DataError: with every input that does not exist.
    """
    if missing := {stage: source.dataset for stage, source in sources.items() if not source.exists}:
        raise DataError.from_problems(
            [_refuse_absent_dataset(stage, dataset) for stage, dataset in missing.items()]
        )
    decision = JoinDecision(config, sources, reporter)
    of_target = decision.last.warnings if decision.last else []
    reporter.add_warnings([*config.list_warnings(), *_list_inferred(sources), *of_target])
    return decision


def open_run(log: TableLog, config: JoinerConfig, request: JobRequest, progress: Progress) -> JoinDecision:
    """Find the inputs and the target of a join, and return the decision about it.

    :raises ConfigError: if a dataset is not valid, or if the join would write one of its inputs.
    :raises DataError: if an input or the target is something other than expected.
    :raises RequiresSparkError: if only Spark can read one of them.
    """
    inputs = resolve_inputs(config, request)
    target = resolve_dataset(config.target or "", request.warehouse, at="target")
    datasets: list[Dataset] = []
    for dataset in inputs.values():
        # A dataset that is joined to itself is read at one version.
        if dataset not in datasets:
            datasets.append(dataset)
    # First, so that a run that joins newer versions of the inputs meanwhile is a conflict.
    last = load_previous_run(log, target, JOB, request)
    # Each table takes a few small requests that mostly wait for I/O.
    with ThreadPoolExecutor() as pool:
        versions = list(pool.map(lambda dataset: pin_source(log, dataset, request), datasets))
    sources = {stage: versions[datasets.index(dataset)] for stage, dataset in inputs.items()}
    previous = None if last is None else complete_state(last)
    reporter = RunReporter(count_pinned(log), request, progress, COUNTS, target, sources, previous)
    return decide_join(config, sources, reporter)


def resolve_inputs(config: JoinerConfig, request: JobRequest) -> dict[str, Dataset]:
    """Return the inputs of a join by their names.

    :raises ConfigError: if one is not valid, or if an argument writes to the location of an input, even
        under another spelling of its URI.
    """
    inputs = {
        stage: resolve_dataset(ref, request.warehouse, at=f"inputs.{stage}")
        for stage, ref in config.inputs.items()
    }
    input_uris = {normalize_uri(dataset.uri) for dataset in inputs.values()}
    outputs = {"target": config.target, "unmatched": config.unmatched}
    problems = [
        Problem(name, "config", f"{ref!r} is one of the inputs", "choose another dataset")
        for name, ref in outputs.items()
        if ref is not None
        and normalize_uri(resolve_dataset(ref, request.warehouse, at=name).uri) in input_uris
    ]
    if problems:
        raise ConfigError.from_problems(problems)
    return inputs


def complete_state(run: Stated) -> Stated:
    """Return a run whose result includes the number of joined rows.

    Only the metrics of the commit contain this number: the state is written before the rows are counted.
    """
    result = RunResult.from_state(run.state)
    counts = {**result.counts, "outputs": run.rows}
    rows = result.rows.model_copy(update={"inserted": run.rows})
    stored = replace(result, counts=counts, rows=rows).to_state()
    return replace(run, state={**run.state, RESULT: stored})


def describe_join(
    config: JoinerConfig, plan: JoinPlan, sources: Mapping[str, PinnedDataset]
) -> dict[str, Any]:
    """Return what explains the rows of a join; its commit records this under ``join``.

    A join by keys is explained by its keys, so only the columns with keys are included.
    """
    keys = {stage: set(fields) for stage, fields in plan.keys.items()}
    outputs = {
        output.field.name: [output.stage, output.source]
        for output in plan.outputs
        if not keys or output.source in keys[output.stage]
    }
    return {
        "inputs": {stage: sources[stage].dataset.uri for stage in plan.schemas},
        "required": sorted(plan.required),
        "keys": {stage: list(fields) for stage, fields in plan.keys.items()},
        "nulls_match": plan.nulls_match,
        "expression": plan.expression,
        "aliases": dict(plan.aliases),
        "key_columns": [field.name for field in plan.key_columns],
        "outputs": outputs,
        "append": config.write_mode == "append",
    }


def _refuse_absent_dataset(stage: str, dataset: Dataset) -> Problem:
    message = f"dataset {dataset.id!r} does not exist at {dataset.uri}"
    hint = "check the name and the warehouse, or first run the task that writes it"
    return Problem(f"inputs.{stage}", "missing", message, hint)


def _list_inferred(sources: Mapping[str, PinnedDataset]) -> Sequence[str]:
    """Return a warning for each input whose schema Spark infers from the rows."""
    return [
        f"inputs.{stage}: the schema of {source.dataset.format} files is inferred"
        for stage, source in sources.items()
        if source.dataset.format in _INFERRED_FORMATS
    ]
