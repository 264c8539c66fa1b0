"""The steps of a joiner run: pin the inputs, check the schemas, join, and write the target in one commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, Problem
from airflow_merge_provider.core.joiner.config import JoinerConfig, compute_signature
from airflow_merge_provider.core.joiner.decision import JoinDecision, describe_join, open_run
from airflow_merge_provider.core.joiner.parsed_options import Spelling
from airflow_merge_provider.core.joiner.plan import JoinPlan, output_schema, plan_join
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.report import Details, Report
from airflow_merge_provider.core.run.previous_run import SIDE_TABLE_LOCATIONS, SIDE_TABLE_VERSIONS
from airflow_merge_provider.core.run.reporter import Progress, RunResult
from airflow_merge_provider.core.run.table_log import PinnedDataset
from airflow_merge_provider.core.run_mode import RunMode
from airflow_merge_provider.jobs.delta.side_table import SideTable
from airflow_merge_provider.jobs.delta.stored_values import require_storable
from airflow_merge_provider.jobs.delta.table import SparkLog, find_non_null_columns, read_dataset
from airflow_merge_provider.jobs.delta.writer import WriteOptions
from airflow_merge_provider.jobs.joiner.changed_rows import list_changed_rows
from airflow_merge_provider.jobs.joiner.counting import check_unique, count_input_records
from airflow_merge_provider.jobs.joiner.report import build_details
from airflow_merge_provider.jobs.joiner.target import TableTarget, Target, read_schema
from airflow_merge_provider.jobs.joiner.transform import UNMATCHED_OWNER, Frames, find_unmatched, join_frames
from airflow_merge_provider.jobs.run.change_set import ChangeSet, insert_rows
from airflow_merge_provider.jobs.run.job_run import JobRun
from airflow_merge_provider.jobs.spark.errors import first_line
from airflow_merge_provider.jobs.spark.session import override_settings


@dataclass(frozen=True)
class Join:
    """A join that was checked against the schemas of its inputs; no rows have been read yet."""

    plan: JoinPlan
    frames: Frames
    rows: DataFrame


def run(spark: SparkSession, request: JobRequest, progress: Progress) -> Report:
    """Join the inputs into the target, unless nothing has changed since the last run; return the report.

    :raises ConfigError: when the configuration is wrong, by itself or for these inputs.
    :raises DataError: when an input or the target is; nothing is written then.
    :raises ConflictError: when another run committed first; nothing is written then.
    """
    config = JoinerConfig.parse(request.config)
    with override_settings(spark, _build_session_settings(config)):
        with progress.time_step("resolve inputs"):
            decision = open_run(SparkLog(spark), config, request, progress)
            unmatched_table = _open_unmatched(spark, config, request)
        target = TableTarget.from_decision(decision)
        return JoinRun(spark, decision, target, unmatched_table).run_to_end()


def prepare_join(spark: SparkSession, raw: Mapping[str, Any], pinned: Mapping[str, PinnedDataset]) -> Join:
    """Check a configuration against its inputs and build the join, without reading any rows.

    :raises ConfigError: with every problem of the schemas, or with the fault of the expression.
    :raises DataError: when an input does not exist.
    """
    frames = {stage: read_dataset(spark, pinned_dataset) for stage, pinned_dataset in pinned.items()}
    schemas = {stage: read_schema(frame) for stage, frame in frames.items()}
    plan = plan_join(JoinerConfig.parse(raw, schemas), schemas)
    nullable = [stage for stage, is_nullable in plan.null_keys.items() if any(is_nullable)]
    plan = plan.with_non_null({stage: find_non_null_columns(spark, pinned[stage]) for stage in nullable})
    try:
        rows = join_frames(frames, plan)
        rows.schema  # noqa: B018 - Spark Connect analyses the expression only when the schema is read
    except AnalysisException as error:
        if plan.expression is None:
            raise
        message = f"{plan.expression!r} is not a valid join condition: {first_line(error)}"
        available_fields = ", ".join(
            f"{plan.aliases[stage]}.{field.name}" for stage, schema in schemas.items() for field in schema
        )
        option_name = Spelling(raw, JoinerConfig.model_fields)("condition_expression")
        problem = Problem(option_name, "invalid_condition", message, f"available fields: {available_fields}")
        raise ConfigError.from_problems([problem]) from None
    require_storable(rows.schema.fields, str(raw.get("target") or "target"))
    return Join(plan, frames, rows)


@dataclass(frozen=True)
class JoinRun(JobRun):
    """One run that joins its pinned inputs into its target."""

    spark: SparkSession
    decision: JoinDecision
    target: Target
    unmatched_table: SideTable | None = None

    @property
    def config(self) -> JoinerConfig:
        """The configuration of the join."""
        return self.decision.config

    @property
    def pinned(self) -> Mapping[str, PinnedDataset]:
        """The inputs at the versions that the run reads, by their names."""
        return self.decision.sources

    @cached_property
    def join(self) -> Join:
        """The join, checked against the schemas of its inputs and the columns of the target."""
        with self.reporter.progress.time_step("plan"):
            join = prepare_join(self.spark, self.request.config, self.pinned)
            self.target.check_columns(self.spark, output_schema(join.plan))
            self._record_schemas(join)
            return join

    @cached_property
    def kept_join(self) -> Join:
        """The join of the rows that the run does not leave out; the inputs have been checked."""
        join = self.join
        frames = self.expectations.check_sources(join.frames)
        is_same = all(frames[stage] is join.frames[stage] for stage in frames)
        rows = join.rows if is_same else join_frames(frames, join.plan)
        return replace(join, frames=frames, rows=self.hold_rows(rows))

    @cached_property
    def unmatched_rows(self) -> DataFrame:
        """The rows of inputs without a match."""
        return self.hold_rows(find_unmatched(self.kept_join.frames, self.kept_join.plan))

    @property
    def is_overwrite(self) -> bool:
        """Whether the run's commit replaces all rows of the target."""
        return not self.target.append

    def count_live_rows(self) -> int:
        """Return the number of rows in the target before the run."""
        return self.target.count_rows(self.spark)

    def describe_plan(self) -> Details:
        """Return the columns, the keys and the plan of the join."""
        return build_details(self.join.plan)

    def execute(self, run_mode: RunMode, reason: str) -> Report:
        """Check the keys, count the inputs, count or write the joined rows, and return the report."""
        join, reporter = self.kept_join, self.reporter
        with reporter.progress.time_step("count inputs"):
            check_unique(join.frames, join.plan)
            reporter.source_rows = count_input_records(self.spark, join.frames, self.pinned)
        result = RunResult(run_mode, reason, counts={"records_in": sum(reporter.source_rows.values())})
        if self.needs_changes or self.request.max_change_ratio is not None:
            # The number of joined rows is unknown before the join: with a change limit alone, the inputs are
            # joined twice, first to count the rows and then to write them.
            outputs, unmatched_rows = self._count_rows()
            counted = self._build_result(result, outputs, unmatched_rows, self.describe_plan())
            return self.commit_result(counted, partial(self._write_rows, result), self._list_changes)
        return self._write_rows(result)

    def _list_changes(self) -> ChangeSet:
        """Return the rows that the target gains and loses."""
        join = self.kept_join
        if self.target.append or self.target.last is None:
            changes = insert_rows(join.rows)
        else:
            changes = list_changed_rows(self.target.read_rows(self.spark), join.rows, join.frames, join.plan)
        if self.unmatched_table is None:
            return changes
        table, name = self.unmatched_table, self.unmatched_table.dataset.id
        table.next_number = self.next_number
        return replace(changes, recorded={name: self.unmatched_rows}, replaced={name: table})

    def _write_rows(self, result: RunResult) -> Report:
        state: dict[str, Any] = {
            "fingerprint": compute_signature(self.config),
            "join": describe_join(self.config, self.join.plan, self.pinned),
        }
        unmatched_rows = self._write_unmatched(state)
        if rejected := self.save_rejected_rows():
            state[SIDE_TABLE_VERSIONS] = {**state.get(SIDE_TABLE_VERSIONS, {}), **rejected}
        # The details follow from the configuration, so the commit does not store them.
        stored = self._build_result(result, None, unmatched_rows, {})
        with self.reporter.progress.time_step("join and write"):
            written = self.target.commit_rows(
                self.spark, self.kept_join.rows, {**state, **self.reporter.build_state(stored)}
            )
        final_result = self._build_result(result, written.outputs, unmatched_rows, self.describe_plan())
        return self.reporter.build_report(final_result, version=written.version, changed=True)

    def _record_schemas(self, join: Join) -> None:
        """Record the schemas of the inputs; the columns of the target after the run are in its log."""
        for stage, frame in join.frames.items():
            uri = self.pinned[stage].dataset.uri
            self.reporter.progress.record_schema(uri, frame.schema.jsonValue()["fields"])

    def _build_result(
        self, result: RunResult, outputs: int | None, unmatched_rows: int | None, details: Details
    ) -> RunResult:
        counts = {**result.counts, "outputs": outputs, "unmatched": unmatched_rows}
        return replace(result, rows=self.count_rows(outputs), counts=counts, details=details)

    def _count_rows(self) -> tuple[int, int | None]:
        """Return the number of joined rows, and of unmatched rows; None if the run need not know it yet."""
        with self.reporter.progress.time_step("count outputs"):
            outputs = self.kept_join.rows.count()
            if self.unmatched_table is None:
                return outputs, 0
            return outputs, self.unmatched_rows.count() if self.needs_changes else None

    def _write_unmatched(self, state: dict[str, Any]) -> int:
        """Write the unmatched rows to the side table, and return their number.

        They are written before the target, whose commit stores the version of the side table.
        """
        table = self.unmatched_table
        if table is None:
            return 0
        table.next_number = self.next_number
        with self.reporter.progress.time_step("write unmatched rows"):
            written = table.replace_rows(self.unmatched_rows)
        state[SIDE_TABLE_VERSIONS] = {UNMATCHED_OWNER: table.version}
        state[SIDE_TABLE_LOCATIONS] = {UNMATCHED_OWNER: self.target.dataset.name_neighbour(table.dataset)}
        return written.rows or 0


def _build_session_settings(config: JoinerConfig) -> dict[str, str]:
    """Return the Spark settings of a join: case-sensitive names, and the number of shuffle partitions."""
    conf = {"spark.sql.caseSensitive": "true"}
    if config.num_partitions is not None:
        conf["spark.sql.shuffle.partitions"] = str(config.num_partitions)
    return conf


def _open_unmatched(spark: SparkSession, config: JoinerConfig, request: JobRequest) -> SideTable | None:
    if config.unmatched is None:
        return None
    dataset = resolve_dataset(config.unmatched, request.warehouse, at="unmatched")
    return SideTable(spark, dataset, UNMATCHED_OWNER, None, options=WriteOptions.from_request(request))
