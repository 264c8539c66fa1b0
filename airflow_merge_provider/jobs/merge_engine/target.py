"""Write the changes of a fold to the target in one commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession, functions as F

from airflow_merge_provider.core.dataset import Dataset, resolve_dataset
from airflow_merge_provider.core.merge_engine.decision import JOB, FoldDecision
from airflow_merge_provider.core.merge_engine.plan import Plan
from airflow_merge_provider.core.run.previous_run import PreviousRun
from airflow_merge_provider.core.source_offset import RunState
from airflow_merge_provider.jobs.delta.side_table import SideTable
from airflow_merge_provider.jobs.delta.transaction import CommitResult
from airflow_merge_provider.jobs.delta.writer import (
    NEW,
    OLD,
    Upsert,
    create_table,
    overwrite_table,
    upsert_rows,
)
from airflow_merge_provider.jobs.merge_engine.counting import CHANGE, CountedChanges
from airflow_merge_provider.jobs.merge_engine.side_tables import CHANGELOG_OWNER, REMOVALS, REMOVALS_SUFFIX
from airflow_merge_provider.jobs.run.retry import purge_target
from airflow_merge_provider.jobs.run.target import TargetTable
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.session import adaptive_execution_disabled, override_settings

BROADCAST_MAX_BYTES = 64 << 20
# The source is checkpointed already; not materializing it again saves Spark jobs for small batches.
_MERGE_CONF = {
    "spark.databricks.delta.merge.materializeSource": "none",
    "spark.databricks.delta.insertReplaceOnOrUsing.materializeSource": "none",
}


class Target(Protocol):
    """The interface of a fold's target: a Delta table, or rows in memory if no table is needed.

    ``changelog`` and ``removals`` are its side tables, None if they are not configured.
    """

    dataset: Dataset
    last: PreviousRun | None
    changelog: SideTable | None
    removals: SideTable | None

    def read_rows(self) -> DataFrame:
        """Return the rows as the run found them."""

    def count_live_rows(self) -> int:
        """Return how many rows the run found."""

    def commit_rows(
        self, plan: Plan, rows: DataFrame, counted: CountedChanges, state: RunState, *, full: bool
    ) -> CommitResult:
        """Write changed rows, with ``CHANGE``, in the run's one commit; if ``full``, they are all rows.

        :raises ConflictError: if another run committed first.
        """

    def purge_deleted_rows(self) -> int:
        """Rewrite the files that hold deleted rows, and return the version after that."""


class DeltaTarget(TargetTable):
    """A Delta table of folded rows."""

    def __init__(self, spark: SparkSession, decision: FoldDecision) -> None:
        dataset, config, request = decision.reporter.target, decision.config, decision.request
        super().__init__(spark, JOB, decision)
        self._config = config
        self.changelog: SideTable | None = None
        self.removals: SideTable | None = None
        find = partial(SideTable.open, spark, previous=self.last, options=self._options)
        if config.changelog is not None:
            side_dataset = resolve_dataset(config.changelog, request.warehouse, at="changelog")
            self.changelog = find(side_dataset, CHANGELOG_OWNER, CHANGELOG_OWNER)
        if config.tombstone_retention is not None:
            self.removals = find(dataset.with_suffix(REMOVALS_SUFFIX), REMOVALS, REMOVALS)

    def commit_rows(
        self, plan: Plan, rows: DataFrame, counted: CountedChanges, state: RunState, *, full: bool
    ) -> CommitResult:
        """Write changed rows, with ``CHANGE``, in the run's one commit; if ``full``, they are all rows.

        :raises ConflictError: if another run committed first; this one has written nothing then.
        """

        def write() -> None:
            if self.last is None:
                partitions = self._config.partition_by
                new, options = rows.drop(CHANGE), self._options
                create_table(self.dataset, new, JOB, partition_by=partitions, options=options)
            elif full:
                overwrite_table(self.dataset, rows.drop(CHANGE))
            else:
                write_changes(self._spark, self.dataset, rows, plan, counted)

        return self.commit_state(state, write)

    def purge_deleted_rows(self) -> int:
        """Rewrite the files that hold deleted rows, and return the version after that."""
        return purge_target(self._spark, self.dataset)


def write_changes(
    spark: SparkSession, target: Dataset, rows: DataFrame, plan: Plan, counted: CountedChanges
) -> None:
    """Write changed rows into a target that exists, in one statement.

    :param rows: the columns of the target and ``CHANGE``.
    """
    has_deletes, has_updates = counted.rows["deleted"] > 0, counted.rows["updated"] > 0
    # Delta joins the target with these rows more than once; a broadcast saves a shuffle each time.
    is_small = counted.size is not None and counted.size <= BROADCAST_MAX_BYTES
    changes = F.broadcast(rows) if is_small else rows
    matching = _match_keys(plan)
    upsert = Upsert(
        changes,
        matching,
        list(_build_clauses(plan, counted.rows)),
        # Runs that only insert rows, or only record tombstones of unknown keys, do not read the target.
        inserted=None if has_updates or has_deletes else rows.drop(CHANGE),
        replacing=None if has_deletes else changes.drop(CHANGE),
        matching=matching,
    )
    is_append = upsert.inserted is not None
    settings = {} if is_append else {**_MERGE_CONF, **adaptive_execution_disabled(spark)}
    with override_settings(spark, settings):
        upsert_rows(spark, target, upsert)


def _match_keys(plan: Plan) -> str:
    equal = "<=>" if plan.options.nullable_key else "="
    return " AND ".join(
        f"{sql.quote_name(OLD, name)} {equal} {sql.quote_name(NEW, name)}" for name in plan.key
    )


def _build_clauses(plan: Plan, kinds: Mapping[str, int]) -> Iterator[str]:
    """Yield the MERGE clauses for the kinds of changes that occur."""
    change = sql.quote_name(NEW, CHANGE)
    if kinds["deleted"]:
        yield f"WHEN MATCHED AND {change} = '-D' THEN DELETE"
    if kinds["updated"]:
        sets = ", ".join(f"{sql.quote_name(OLD, name)} = {sql.quote_name(NEW, name)}" for name in plan.values)
        yield f"WHEN MATCHED AND {change} = '+U' THEN UPDATE SET {sets}"
    if kinds["inserted"]:
        values = ", ".join(sql.quote_name(NEW, name) for name in plan.names)
        names = sql.quote_names(plan.names)
        yield f"WHEN NOT MATCHED AND {change} = '+I' THEN INSERT ({names}) VALUES ({values})"
