"""Runner of merge load vectors: dlt options are translated, and each load is a table and a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession, functions as F  # noqa: N812 - the usual alias

from airflow_merge_provider.core.errors import MergeError
from airflow_merge_provider.core.merge_load.config import COUNTS, Scd2CheckConfig, load_config
from airflow_merge_provider.core.merge_load.decision import decide_load
from airflow_merge_provider.core.merge_load.load import LIST_INDEX, PARENT_ID, ROOT_ID, ROW_ID
from airflow_merge_provider.core.merge_load.scd2 import HASH_COLUMN
from airflow_merge_provider.core.merge_load.timestamps import parse_timestamp
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.report import Report
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.delta.transaction import CommitResult
from airflow_merge_provider.jobs.delta.writer import NEW, OLD
from airflow_merge_provider.jobs.merge_load.changes import ACTION, DELETE, UPDATE, union_rows
from airflow_merge_provider.jobs.merge_load.job import LoadRun, run
from airflow_merge_provider.jobs.merge_load.scd2.invariants import check_history
from airflow_merge_provider.jobs.merge_load.sequences import LOADED_AT
from airflow_merge_provider.jobs.merge_load.writing import CountedChanges, TableShape, select_inserts
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.expressions import add_columns
from tests.conformance import memory
from tests.conformance.memory import MemoryTables, build_reporter

TARGET = "t"
_TECHNICAL_COLUMNS = (HASH_COLUMN, ROW_ID, PARENT_ID, ROOT_ID, LIST_INDEX)
_TYPES = {
    "bigint": pa.int64(),
    "text": pa.string(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
    "decimal": pa.decimal128(38, 9),
}
# In dlt a variant of upsert is a strategy of its own, and upsert rewrites equal rows unless configured
# otherwise.
_VARIANTS = ("upsert", "insert-only", "cdc")


class MemoryRows:
    """Recorded rows in memory."""

    version = None

    def __init__(self) -> None:
        self._rows: DataFrame | None = None

    def has_rows(self, started_at: int) -> bool:
        """Return whether there are rows."""
        return self._rows is not None and not self._rows.isEmpty()

    def read_rows(self) -> DataFrame | None:
        """Return the recorded rows; None if there are none."""
        return self._rows


class MemoryTimes(MemoryRows):
    """Recorded load times in memory."""

    def save_times(self, times: DataFrame, *, full: bool, needed: bool) -> None:
        """Add times if they are needed; ``full`` deletes those of a history that is replaced."""
        if full and self._rows is not None:
            self._rows = times.localCheckpoint()
        elif needed:
            all_times = times if self._rows is None else self._rows.unionByName(times)
            self._rows = all_times.localCheckpoint()


class MemorySequences(MemoryRows):
    """Recorded sequences in memory."""

    def save_rows(self, rows: DataFrame, *, full: bool, since: datetime | None) -> None:
        """Add rows; ``full`` deletes all others, ``since`` those that were loaded before."""
        previous_rows = None if full else self._rows
        if previous_rows is not None and since is not None:
            previous_rows = previous_rows.where(F.col(LOADED_AT) >= F.lit(since))
        self._rows = (rows if previous_rows is None else union_rows([previous_rows, rows])).localCheckpoint()


class MemoryTarget(memory.MemoryTarget):
    """Target of a load in memory."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, folder)
        self.times = MemoryTimes()
        self.sequences = MemorySequences()

    def commit_changes(
        self,
        counted_changes: CountedChanges,
        state: Mapping[str, Any],
        *,
        full: bool,
        shape: TableShape | None,
    ) -> CommitResult:
        """Apply changes to the rows, as the MERGE statement does."""
        if full or self.last is None:
            return self.commit_state(
                state, partial(self.store_rows, select_inserts(counted_changes.changes, shape))
            )
        merged = self._merge_changes(counted_changes, select_inserts(counted_changes.changes, None))
        for field in self.read_rows().schema:
            if field.metadata:
                merged = merged.withMetadata(field.name, field.metadata)
        return self.commit_state(state, partial(self.store_rows, merged))

    def _merge_changes(self, counted_changes: CountedChanges, inserts: DataFrame) -> DataFrame:
        """Return the rows after updates, deletions and inserts; new columns are NULL in old rows."""
        changes, stored = counted_changes.changes, self.read_rows()
        if not counted_changes.updates_and_deletes:
            return stored.unionByName(inserts, allowMissingColumns=True)
        new = {name: F.lit(None).cast(inserts.schema[name].dataType) for name in inserts.columns}
        old = add_columns(stored, {name: null for name, null in new.items() if name not in stored.columns})
        acting = changes.rows.where(sql.quote_column(ACTION).isin(UPDATE, DELETE))
        joined = old.alias(OLD).join(acting.alias(NEW), F.expr(changes.match_condition), "left")
        action = F.expr(sql.quote_name(NEW, ACTION))
        kept_rows = joined.where(action.isNull() | (action == UPDATE))
        updated = set(changes.updated or changes.columns)
        values = [
            F.when(action == UPDATE, F.expr(sql.quote_name(NEW, name)))
            .otherwise(F.expr(sql.quote_name(OLD, name)))
            .alias(name)
            if name in updated
            else F.expr(sql.quote_name(OLD, name)).alias(name)
            for name in old.columns
        ]
        return kept_rows.select(*values).unionByName(inserts, allowMissingColumns=True)


class DeltaLake:
    """Sources and target of a vector as Delta tables; runs are those of the operator."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder = spark, folder

    def write_rows(self, source: str, rows: pa.Table) -> None:
        """Replace all rows of a source."""
        write_deltalake(str(self._folder / source), rows)

    def run_job(self, request: JobRequest) -> Report:
        """Run the job, and return its report."""
        return run(self._spark, request, Progress(out=str))

    def read_tables(self) -> dict[str, DataFrame]:
        """Return the target and its child tables by name."""
        tables = {}
        for log_path in sorted(self._folder.glob(f"{TARGET}*/_delta_log")):
            name = log_path.parent.name
            if (name != TARGET and not name.startswith(f"{TARGET}__")) or name == f"{TARGET}__times":
                continue
            tables[name] = self._spark.read.format("delta").load(str(log_path.parent))
        return tables


class MemoryLake(MemoryTables):
    """Sources and target in memory, for rows without lists: runs begin after their tables are resolved."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        super().__init__(spark, folder)
        self.target = MemoryTarget(TARGET, folder)

    def run_job(self, request: JobRequest) -> Report:
        """Load the source, or check the history, and return the report."""
        config, progress = load_config(request.config), Progress(out=str)
        if isinstance(config, Scd2CheckConfig):
            source = None if config.source is None else self.pin_dataset(str(config.source))
            return check_history(self._spark, request, config, self.target.pin_rows(), source, progress)
        source = self.pin_dataset(str(config.source))
        self.target.find_commits(request)
        target = self.target
        reporter = build_reporter(self._spark, request, COUNTS, target.dataset, [source], target.last)
        return LoadRun(self._spark, decide_load(config, source, reporter), target).run_to_end()

    def read_tables(self) -> dict[str, DataFrame]:
        """Return the target, if there is one."""
        return {} if self.target.last is None else {TARGET: self.target.read_rows()}


Lake = DeltaLake | MemoryLake


def run_vector(
    spark: SparkSession,
    vector: Mapping[str, Any],
    warehouse: Path,
    lake: Callable[[SparkSession, Path], Lake] = DeltaLake,
) -> dict[str, Any]:
    """Run one vector, load by load; a rejected load is its error."""
    return {"id": vector["id"], "loads": list(_run_loads(lake(spark, warehouse), vector, warehouse))}


def outcome_in_memory(spark: SparkSession, vector: Mapping[str, Any], warehouse: Path) -> dict[str, Any]:
    """Run one vector without storage."""
    return run_vector(spark, vector, warehouse, MemoryLake)


def _run_loads(lake: Lake, vector: Mapping[str, Any], warehouse: Path) -> Iterator[dict[str, Any]]:
    for number, load in enumerate(vector["loads"]):
        options = {**vector.get("options", {}), **(load.get("options") or {})}
        error = None
        try:
            config = build_settings(vector["strategy"], options, load)
            if has_lists(vector):
                config["nested"] = "tables"
            config["source"] = f"source_{number}"
            load_config(config)
            request = JobRequest(
                job="merge_load",
                config=config,
                run=RunToken(dag_id="conformance", run_id=str(number), task_id=vector["id"]),
                warehouse=str(warehouse),
                started_at=number * 1_000_000,
            )
            rows = [parse_value(row) for row in load.get("rows") or ()]
            lake.write_rows(config["source"], _build_rows(rows, options.get("columns")))
            lake.run_job(request)
        except MergeError as refused:
            error = str(refused)
        except Exception as broken:  # noqa: BLE001 - a failed load is an outcome
            error = f"{type(broken).__name__}: {broken}"
        shown = {name: _read_rows(table) for name, table in lake.read_tables().items()}
        yield {"tables": shown} | ({} if error is None else {"error": error})


def build_settings(
    strategy: str | None, options: Mapping[str, Any], load: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the configuration of this package for dlt's options."""
    disposition = {
        name: parse_value(value) for name, value in (options.get("write_disposition") or {}).items()
    }
    hints = options.get("columns") or {}
    flags = [name for name, hint in hints.items() if hint.get("hard_delete")]
    sorts = {name: hint["dedup_sort"] for name, hint in hints.items() if hint.get("dedup_sort")}
    settings: dict[str, Any] = {**disposition, "target": TARGET, "strategy": strategy or "delete-insert"}
    # Rows of dlt have no missing columns, only missing values.
    settings["schema_evolution"] = ["add", "allow_missing"]
    settings["merge_key"] = options.get("merge_key")
    settings["hard_delete"] = flags[0] if len(flags) == 1 else flags or None
    settings["dedup_sort"] = sorts or None
    if strategy == "scd2":
        settings["boundary_timestamp"] = parse_value(load.get("boundary_timestamp"))
    else:
        settings["primary_key"] = options.get("primary_key")
    if strategy in _VARIANTS:
        settings |= {"strategy": "upsert", "variant": strategy}
        settings.setdefault("skip_unchanged_rows", False)
    if load.get("empty") in {"materialize", "arrow"}:
        settings["on_empty"] = "apply"
    elif "empty" in load:
        settings["on_empty"] = "skip"
    return {name: value for name, value in settings.items() if value is not None}


def parse_value(value: Any) -> Any:
    """Parse the values that JSON cannot express."""
    if isinstance(value, Mapping) and len(value) == 1:
        ((kind, text),) = value.items()
        readers = {"$date": date.fromisoformat, "$datetime": datetime.fromisoformat, "$float": float}
        if kind in readers:
            return readers[kind](text)
    if isinstance(value, Mapping):
        return {name: parse_value(item) for name, item in value.items()}
    return [parse_value(item) for item in value] if isinstance(value, list) else value


def _build_rows(rows: Sequence[Mapping[str, Any]], hints: Mapping[str, Any] | None) -> pa.Table:
    """Return rows as dlt types them: a column without any value does not exist."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        kind = _TYPES.get(((hints or {}).get(name) or {}).get("data_type", ""))
        if kind is None and all(value is None for value in values):
            continue
        columns[name] = _build_array(values, kind)
    return pa.table(columns or {"nothing": pa.array([], pa.string())})


def _build_array(values: Sequence[Any], kind: pa.DataType | None) -> pa.Array:
    if kind is not None and pa.types.is_timestamp(kind):
        values = [None if value is None else parse_timestamp(value) for value in values]
    return pa.array(values, kind)


def has_lists(vector: Mapping[str, Any]) -> bool:
    """Return whether rows contain lists, which are child tables in dlt."""
    rows = (row for load in vector["loads"] for row in load.get("rows") or ())
    return any(isinstance(value, list) for row in rows for value in row.values())


def _read_rows(table: DataFrame) -> list[dict[str, Any]]:
    """Return all rows of a table without the columns that the load adds."""
    return [_format_value(row.asDict(recursive=True)) for row in table.drop(*_TECHNICAL_COLUMNS).collect()]


def _format_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _format_value(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_format_value(item) for item in value]
    if isinstance(value, datetime):
        # Spark returns timestamps in the time zone of this machine.
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value
