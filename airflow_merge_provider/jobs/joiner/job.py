"""The joiner's run: pin, check against the schemas, join, commit once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import Dataset, resolve
from airflow_merge_provider.core.errors import ConfigError, DataError, Problem
from airflow_merge_provider.core.joiner.asked import Spelling
from airflow_merge_provider.core.joiner.config import JoinerConfig, warnings
from airflow_merge_provider.core.joiner.fingerprint import signature
from airflow_merge_provider.core.joiner.plan import JoinPlan, output_schema, plan
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.risk import Risk
from airflow_merge_provider.core.source_offset import normalize_uri, write_offsets
from airflow_merge_provider.jobs.delta.side_table import SideTable
from airflow_merge_provider.jobs.delta.table import (
    PinnedDataset,
    find_non_null_columns,
    pin_dataset,
    read_dataset,
)
from airflow_merge_provider.jobs.joiner.counting import check_unique, records_in
from airflow_merge_provider.jobs.joiner.file_target import FileTarget
from airflow_merge_provider.jobs.joiner.report import report
from airflow_merge_provider.jobs.joiner.schemas import schema_of
from airflow_merge_provider.jobs.joiner.table_target import TableTarget
from airflow_merge_provider.jobs.joiner.target import Target
from airflow_merge_provider.jobs.joiner.transform import Frames, joined
from airflow_merge_provider.jobs.joiner.unmatched import UNMATCHED, unmatched
from airflow_merge_provider.jobs.run.change_limit import check_change_limit
from airflow_merge_provider.jobs.run.previous_run import SIDE_TABLE_VERSIONS
from airflow_merge_provider.jobs.run.progress import Progress
from airflow_merge_provider.jobs.spark.errors import first_line
from airflow_merge_provider.jobs.spark.session import override_settings

CAPABILITY = "joiner"
_INFERRED = ("csv", "json", "xml")


@dataclass(frozen=True)
class Join:
    """A join that was checked against the schemas of its inputs; nothing has been read of their rows."""

    plan: JoinPlan
    frames: Frames
    rows: DataFrame


def run(spark: SparkSession, request: JobRequest, progress: Progress) -> dict[str, Any]:
    """Join the inputs into the target, or say that nothing has changed since the last run.

    :raises ConfigError: when the configuration is wrong, by itself or for these inputs.
    :raises DataError: when an input or the target is; nothing is written then.
    :raises ConflictError: when another run committed first; nothing is written then.
    """
    config = JoinerConfig.parse(request.config)
    with override_settings(spark, _settings(config)):
        return _run(spark, config, request, progress)


def prepared(spark: SparkSession, raw: Mapping[str, Any], pinned: Mapping[str, PinnedDataset]) -> Join:
    """Check a configuration against its inputs and build the join, without reading a row.

    :raises ConfigError: with every problem of the schemas, or with the fault of the expression.
    :raises DataError: when an input does not exist.
    """
    frames = {stage: read_dataset(spark, each) for stage, each in pinned.items()}
    schemas = {stage: schema_of(frame) for stage, frame in frames.items()}
    planned = plan(JoinerConfig.parse(raw, schemas), schemas)
    nullable = [stage for stage, may in planned.null_keys.items() if any(may)]
    planned = planned.knowing({stage: find_non_null_columns(spark, pinned[stage]) for stage in nullable})
    try:
        rows = joined(frames, planned)
        rows.schema  # noqa: B018 - makes a Connect server analyse the expression
    except AnalysisException as error:
        if planned.expression is None:
            raise
        message = f"{planned.expression!r} cannot decide which rows match: {first_line(error)}"
        known = ", ".join(
            f"{planned.aliases[stage]}.{field.name}" for stage, schema in schemas.items() for field in schema
        )
        at = Spelling(raw, JoinerConfig.model_fields)("condition_expression")
        wrong = Problem(at, "invalid_condition", message, f"there are: {known}")
        raise ConfigError.of([wrong]) from None
    return Join(planned, frames, rows)


def _run(
    spark: SparkSession, config: JoinerConfig, request: JobRequest, progress: Progress
) -> dict[str, Any]:
    with progress.step("look"):
        target, beside, pinned = _looked(spark, config, request)
    said = [*warnings(config), *_inferred(pinned)]
    offsets = [each.offset for each in pinned.values()]
    state = {
        "token": request.run.model_dump(),
        "fingerprint": signature(config),
        **write_offsets(offsets),
    }
    if target.is_changed:
        said.append("another writer has changed rows of the target since the previous run")

    def told(**found: Any) -> dict[str, Any]:
        return report(request, target.dataset, pinned, progress.seconds, said, **found)

    result = target.find_result(state["fingerprint"], offsets, full_refresh=request.full_refresh)
    if result is not None:
        return told(**result)
    with progress.step("plan"):
        join = prepared(spark, request.config, pinned)
        target.check(spark, output_schema(join.plan))
    if request.until == "plan":
        return told(plan=join.plan)
    with progress.step("count inputs"):
        check_unique(join.frames, join.plan)
        state["records_in"] = records_in(spark, join.frames, pinned)
    if request.until == "transform":
        done = _tried(join, beside, progress)
        said += check_change_limit(
            request, target.dataset, lambda: _risk(spark, target, done["outputs"]), done
        )
    else:
        _require_little_change(spark, request, join, target, progress)
        done = _written(spark, join, target, beside, state, progress)
    return told(changed=True, plan=join.plan, records_in=state["records_in"], **done)


def _require_little_change(
    spark: SparkSession, request: JobRequest, join: Join, target: Target, progress: Progress
) -> None:
    """Join once more than otherwise where there is a limit: nobody knows before how many rows come out.

    :raises RiskError: when they are too many, or too few.
    """
    if request.max_change_ratio is None:
        return
    with progress.step("count outputs"):
        counts = {"outputs": join.rows.count()}
        risk = _risk(spark, target, counts["outputs"])
    check_change_limit(request, target.dataset, lambda: risk, {"counts": counts})


def _risk(spark: SparkSession, target: Target, outputs: int) -> Risk:
    before = target.standing(spark)
    return Risk(outputs, before) if target.append else Risk.anew(outputs, before)


def _tried(join: Join, beside: SideTable | None, progress: Progress) -> dict[str, Any]:
    """Join for nothing but the numbers of rows."""
    with progress.step("join"):
        left_out = None if beside is None else unmatched(join.frames, join.plan).count()
        return {"outputs": join.rows.count(), "left_out": left_out}


def _written(
    spark: SparkSession,
    join: Join,
    target: Target,
    beside: SideTable | None,
    state: dict[str, Any],
    progress: Progress,
) -> dict[str, Any]:
    """Write what came out nowhere, then the target, whose commit makes the run."""
    if beside is not None:
        with progress.step("unmatched rows"):
            state["left_out"] = beside.replace_rows(unmatched(join.frames, join.plan)).rows
        state[SIDE_TABLE_VERSIONS] = {UNMATCHED: beside.version}
    with progress.step("join and write"):
        written = target.write(spark, join.rows, state)
    return {"outputs": written.outputs, "left_out": state.get("left_out"), "version": written.version}


def _settings(config: JoinerConfig) -> dict[str, str]:
    """Tell names by case, as a Joiner does, and take the wish for a number of partitions."""
    conf = {"spark.sql.caseSensitive": "true"}
    if config.num_partitions is not None:
        conf["spark.sql.shuffle.partitions"] = str(config.num_partitions)
    return conf


def _looked(
    spark: SparkSession, config: JoinerConfig, request: JobRequest
) -> tuple[Target, SideTable | None, dict[str, PinnedDataset]]:
    """Look at all datasets side by side: each takes some small jobs that mostly wait."""
    inputs = {
        stage: resolve(ref, request.warehouse, at=f"inputs.{stage}") for stage, ref in config.inputs.items()
    }
    _require_apart(config, request, inputs)
    with ThreadPoolExecutor() as pool:
        target = pool.submit(_target, spark, config, request)
        beside = pool.submit(_beside, spark, config, request)
        pinned = _pinned(spark, inputs, pool)
        return target.result(), beside.result(), pinned


def _require_apart(config: JoinerConfig, request: JobRequest, inputs: Mapping[str, Dataset]) -> None:
    """Refuse to write to a place that is read, whatever names it has.

    :raises ConfigError: with every argument that does.
    """
    read = {normalize_uri(dataset.uri) for dataset in inputs.values()}
    written = {"target": config.target, "unmatched": config.unmatched}
    problems = [
        Problem(name, "config", f"{ref!r} is one of the inputs", "write to another")
        for name, ref in written.items()
        if ref is not None and normalize_uri(resolve(ref, request.warehouse, at=name).uri) in read
    ]
    if problems:
        raise ConfigError.of(problems)


def _target(spark: SparkSession, config: JoinerConfig, request: JobRequest) -> Target:
    dataset = resolve(config.target or "", request.warehouse, at="target")
    if config.target_format == "delta":
        return TableTarget.find(spark, dataset, config, request)
    return FileTarget.find(spark, dataset, config, request)


def _beside(spark: SparkSession, config: JoinerConfig, request: JobRequest) -> SideTable | None:
    if config.unmatched is None:
        return None
    return SideTable(spark, resolve(config.unmatched, request.warehouse, at="unmatched"), UNMATCHED, None)


def _pinned(spark: SparkSession, inputs: Mapping[str, Dataset], pool: Executor) -> dict[str, PinnedDataset]:
    """Find the version of every input.

    :raises DataError: with every input that does not exist.
    """
    once: list[Dataset] = []
    for dataset in inputs.values():
        # An input that is joined to itself is read at one version.
        if dataset not in once:
            once.append(dataset)
    versions = list(pool.map(lambda dataset: pin_dataset(spark, dataset), once))
    pinned = {stage: versions[once.index(dataset)] for stage, dataset in inputs.items()}
    absent = {stage: each.dataset for stage, each in pinned.items() if not each.exists}
    if absent:
        raise DataError.of([_absent(stage, dataset) for stage, dataset in absent.items()])
    return pinned


def _absent(stage: str, dataset: Dataset) -> Problem:
    message = f"dataset {dataset.id!r} does not exist at {dataset.uri}"
    hint = "check the name and the warehouse, or run what makes it first"
    return Problem(f"inputs.{stage}", "missing", message, hint)


def _inferred(pinned: Mapping[str, PinnedDataset]) -> Sequence[str]:
    """Say which schemas are guessed from the rows."""
    return [
        f"inputs.{stage}: the schema of {each.dataset.format} files is inferred"
        for stage, each in pinned.items()
        if each.dataset.format in _INFERRED
    ]
