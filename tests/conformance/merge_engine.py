"""Runner of merge engine vectors: each commit becomes rows of the source, and one run folds them.

``outcome`` has source and target on Delta and runs the job, ``outcome_in_memory`` folds without storage.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession, functions as F  # noqa: N812 - the usual alias
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import ConfigError, MergeError
from airflow_merge_provider.core.merge_engine.checks import plan_fold
from airflow_merge_provider.core.merge_engine.columns import parse_columns
from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.core.merge_engine.decision import COUNTS, decide_fold
from airflow_merge_provider.core.merge_engine.plan import Plan
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.report import Report
from airflow_merge_provider.core.run.previous_run import PreviousRun
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.core.run.table_log import PinnedDataset
from airflow_merge_provider.jobs.delta.side_table import SideTable
from airflow_merge_provider.jobs.delta.table import SparkLog
from airflow_merge_provider.jobs.delta.transaction import CommitResult
from airflow_merge_provider.jobs.merge_engine.counting import CHANGE, CountedChanges
from airflow_merge_provider.jobs.merge_engine.job import FoldRun, run
from airflow_merge_provider.jobs.merge_engine.side_tables import KIND_COLUMN, RUN_COLUMN
from airflow_merge_provider.jobs.merge_engine.source import IncrementalRead, select_records
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.errors import convert_error
from airflow_merge_provider.jobs.spark.expressions import combine_with_and
from tests.conformance import memory
from tests.conformance.flink_types import parse_column
from tests.conformance.memory import MemorySideTable, build_reporter

SOURCE, TARGET, CHANGELOG = "changes", "state", "log"
_KIND = "row_kind"
_COMMIT, _ROW = "#commit", "#row"


class MemorySource:
    """The commits of a source in memory."""

    def __init__(self, spark: SparkSession, config: MergeEngineConfig, schema: StructType) -> None:
        self._spark, self._config = spark, config
        # Commits contain NULL in columns that a target declares as NOT NULL.
        fields = [StructField(field.name, field.dataType, metadata=field.metadata) for field in schema]
        if config.row_kind_column is not None:
            fields.append(StructField(_KIND, StringType()))
        self._names = [field.name for field in fields]
        self._schema = StructType([*fields, *(StructField(name, LongType()) for name in (_COMMIT, _ROW))])
        self._commits: list[pa.Table] = []

    @property
    def pinned(self) -> PinnedDataset:
        """Return the source at its newest commit."""
        return PinnedDataset(Dataset(SOURCE, path=SOURCE), len(self._commits) - 1, SOURCE)

    def append_rows(self, rows: pa.Table) -> None:
        """Append rows as one commit."""
        positions = {_COMMIT: [len(self._commits)] * len(rows), _ROW: range(len(rows))}
        for name, numbers in positions.items():
            rows = rows.append_column(name, pa.array(numbers, pa.int64()))
        self._commits.append(rows)

    def read_gained(self, since: int | None) -> IncrementalRead | None:
        """Return the rows of the commits after ``since``."""
        gained = self._commits[0 if since is None else since + 1 :]
        if not gained:
            return None
        rows = self._spark.createDataFrame(pa.concat_tables(gained), self._schema)
        arrival = (F.col(_COMMIT), F.lit(""), F.col(_ROW))
        return IncrementalRead(select_records(self._config, rows, self._names, arrival), "appends")


class MemoryTarget(memory.MemoryTarget):
    """Folded rows in memory, with the side tables.

    It exists before the first run if a column is declared as NOT NULL, because a run never declares one.
    """

    def __init__(
        self, spark: SparkSession, folder: Path, config: MergeEngineConfig, schema: StructType
    ) -> None:
        super().__init__(TARGET, folder)
        self._spark, self._schema = spark, schema
        if not all(field.nullable for field in schema):
            self.rows = spark.createDataFrame([], schema)
            self.last = PreviousRun(0, 0, None, {})
        self.changelog: SideTable | None = MemorySideTable(spark)
        self.removals = None if config.tombstone_retention is None else MemorySideTable(spark)

    def store_rows(self, rows: DataFrame) -> None:
        """Store rows with the declared columns."""
        self.rows = self._spark.createDataFrame(rows.toArrow(), self._schema)

    def commit_rows(
        self, plan: Plan, rows: DataFrame, counted: CountedChanges, state: Mapping[str, Any], *, full: bool
    ) -> CommitResult:
        """Replace rows with the same keys by the changed rows, and append the others."""
        written = rows.where(sql.quote_column(CHANGE) != "-D").drop(CHANGE)
        if not full and self.last is not None:
            stored, changed = self.read_rows(), F.broadcast(rows.select(*map(sql.quote_column, plan.key)))
            pairs = [
                stored[sql.quote_name(name)].eqNullSafe(changed[sql.quote_name(name)]) for name in plan.key
            ]
            written = stored.join(changed, combine_with_and(pairs), "left_anti").unionByName(written)
        return self.commit_state(state, partial(self.store_rows, written))

    def purge_deleted_rows(self) -> int:
        """Refuse, because there are no files."""
        raise NotImplementedError


class DeltaLake:
    """Source and target of a vector as Delta tables; runs are those of the operator."""

    def __init__(
        self, spark: SparkSession, folder: Path, config: MergeEngineConfig, schema: StructType
    ) -> None:
        self._spark, self._folder = spark, folder

    def append_rows(self, rows: pa.Table) -> None:
        """Append rows to the source."""
        write_deltalake(str(self._folder / SOURCE), rows, mode="append")

    def run_job(self, request: JobRequest) -> Report:
        """Run the job, and return its report."""
        return run(self._spark, request, Progress(out=str))

    def read_rows(self, name: str) -> pa.Table:
        """Return the rows of the target or of its change log."""
        return self._spark.read.format("delta").load(str(self._folder / name)).toArrow()


class MemoryLake:
    """Source and target of a vector in memory."""

    def __init__(
        self, spark: SparkSession, folder: Path, config: MergeEngineConfig, schema: StructType
    ) -> None:
        self._spark = spark
        self._source, self._target = (
            MemorySource(spark, config, schema),
            MemoryTarget(spark, folder, config, schema),
        )

    def append_rows(self, rows: pa.Table) -> None:
        """Append rows to the source."""
        self._source.append_rows(rows)

    def run_job(self, request: JobRequest) -> Report:
        """Fold the new rows of the source, and return the report."""
        self._target.find_commits(request)
        config, spark, target = MergeEngineConfig.parse(request.config), self._spark, self._target
        pinned = self._source.pinned
        reporter = build_reporter(spark, request, COUNTS, target.dataset, [pinned], target.last)
        decision = decide_fold(config, pinned, SparkLog(spark), reporter)
        return FoldRun(spark, decision, target, self._source).run_to_end()

    def read_rows(self, name: str) -> pa.Table:
        """Return the rows of the target or of its change log."""
        rows = self._target.read_rows() if name == TARGET else self._target.changelog.read_rows()
        return rows.toArrow()


Lake = DeltaLake | MemoryLake


def run_vector(
    spark: SparkSession,
    vector: Mapping[str, Any],
    warehouse: Path,
    lake: Callable[[SparkSession, Path, MergeEngineConfig, StructType], Lake] = DeltaLake,
) -> dict[str, Any]:
    """Run one vector: return its last rows and the changes of each commit, or its error."""
    fields = [parse_column(name, text) for name, text in vector["schema"].items()]
    settings = _build_settings(vector)
    try:
        config = MergeEngineConfig.parse(settings)
        plan_fold(config, parse_columns(fields))
    except ConfigError as error:
        return {"id": vector["id"], "error": {"stage": "create", "message": str(error)}}
    tables = lake(spark, warehouse, config, StructType.fromJson({"type": "struct", "fields": fields}))
    numbers: list[int] = []
    try:
        for number, commit in enumerate(vector["commits"]):
            tables.append_rows(_build_records(fields, commit, config.row_kind_column))
            report = tables.run_job(_build_request(vector, settings, number, warehouse))
            # A run without records has no number.
            numbers.append(max(numbers, default=0) + 1 if report.counts["records"] else 0)
    except Exception as error:
        converted_error = convert_error(error)
        if not isinstance(converted_error, MergeError):
            raise
        return {"id": vector["id"], "error": {"stage": "write", "message": str(converted_error)}}
    rows, changes = tables.read_rows(TARGET).to_pylist(), tables.read_rows(CHANGELOG).to_pylist()
    return {
        "id": vector["id"],
        "rows": [_format_row(row, fields) for row in rows],
        "changes": [
            [[row[KIND_COLUMN], *_format_row(row, fields)] for row in changes if row[RUN_COLUMN] == number]
            for number in numbers
        ],
    }


def outcome_in_memory(spark: SparkSession, vector: Mapping[str, Any], warehouse: Path) -> dict[str, Any]:
    """Run one vector without storage."""
    return run_vector(spark, vector, warehouse, MemoryLake)


def _build_settings(vector: Mapping[str, Any]) -> dict[str, Any]:
    kind_is_inside = "rowkind.field" in vector["options"]
    return {
        "merge_engine": vector["engine"],
        "primary_key": vector["primary_key"],
        "partition_by": vector.get("partition_by", []),
        "order_by": vector.get("order_by", []),
        "options": vector["options"],
        "tombstone_retention": vector.get("tombstone_retention"),
        "row_kind_column": None if kind_is_inside else _KIND,
        "source": SOURCE,
        "target": TARGET,
        "changelog": CHANGELOG,
    }


def _build_request(
    vector: Mapping[str, Any], settings: Mapping[str, Any], number: int, warehouse: Path
) -> JobRequest:
    return JobRequest(
        job="merge_engine",
        config=dict(settings),
        run=RunToken(dag_id="conformance", run_id=str(number), task_id=vector["id"]),
        warehouse=str(warehouse),
        started_at=number,
    )


def _build_records(
    fields: Sequence[Mapping[str, Any]], commit: Sequence[Sequence[Any]], kind_column: str | None
) -> pa.Table:
    """Return the records of a commit, each with its kind and its values."""
    rows = [
        {
            field["name"]: parse_value(value, field["type"])
            for field, value in zip(fields, values, strict=True)
        }
        for _, *values in commit
    ]
    nullable = [{**field, "nullable": True} for field in fields]
    content = pa.Table.from_pylist(
        rows, to_arrow_schema(StructType.fromJson({"type": "struct", "fields": nullable}))
    )
    if kind_column is None:
        return content
    return content.append_column(kind_column, pa.array([record[0] for record in commit], pa.string()))


def _format_row(row: Mapping[str, Any], fields: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the values of a row in the notation of the vectors."""
    return [format_value(row[field["name"]], field["type"]) for field in fields]


def parse_value(value: Any, kind: Any) -> Any:
    """Convert a value of a vector to what Arrow accepts for its type."""
    if value is None:
        return None
    if isinstance(kind, Mapping):
        return _native_nested(value, kind)
    readers = {
        "binary": bytes.fromhex,
        "date": dt.date.fromisoformat,
        "timestamp_ntz": dt.datetime.fromisoformat,
        "timestamp": dt.datetime.fromisoformat,
        "float": float,
        "double": float,
    }
    if kind.startswith("decimal"):
        return Decimal(str(value))
    return readers[kind](value) if kind in readers else value


def _native_nested(value: Any, kind: Mapping[str, Any]) -> Any:
    if kind["type"] == "array":
        return [parse_value(item, kind["elementType"]) for item in value]
    if kind["type"] == "struct":
        return {
            field["name"]: parse_value(value.get(field["name"]), field["type"]) for field in kind["fields"]
        }
    pairs = value.items() if isinstance(value, Mapping) else value
    return [(parse_value(key, kind["keyType"]), parse_value(item, kind["valueType"])) for key, item in pairs]


def format_value(value: Any, kind: Any) -> Any:
    """Convert a value of Arrow to the notation of the vectors."""
    if value is None:
        return None
    if isinstance(kind, Mapping):
        return _format_nested(value, kind)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dt.datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, dt.date):
        return value.isoformat()
    return f"{value:f}" if isinstance(value, Decimal) else value


def _format_nested(value: Any, kind: Mapping[str, Any]) -> Any:
    if kind["type"] == "array":
        return [format_value(item, kind["elementType"]) for item in value]
    if kind["type"] == "struct":
        return {field["name"]: format_value(value[field["name"]], field["type"]) for field in kind["fields"]}
    pairs = [
        [format_value(key, kind["keyType"]), format_value(item, kind["valueType"])] for key, item in value
    ]
    return dict(pairs) if kind["keyType"] == "string" else pairs
