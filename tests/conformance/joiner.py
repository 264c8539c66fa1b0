"""Runner of joiner vectors: inputs become tables, and one run joins them into another table.

``outcome`` has the tables on Delta and runs the whole job, ``outcome_in_memory`` joins without storage.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import ConfigError, MergeError
from airflow_merge_provider.core.joiner.config import COUNTS, JoinerConfig
from airflow_merge_provider.core.joiner.decision import decide_join
from airflow_merge_provider.core.joiner.plan import preview_join
from airflow_merge_provider.core.joiner.schema import (
    Schema,
    Schemas,
    normalize_type,
    parse_fields,
)
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.reporter import Progress, RunReporter
from airflow_merge_provider.core.schema.key_types import split_type
from airflow_merge_provider.jobs.delta.table import MemoryDataset, build_row_counter, pin_dataset
from airflow_merge_provider.jobs.joiner.counting import count_input_records
from airflow_merge_provider.jobs.joiner.job import JoinRun, prepare_join, run
from airflow_merge_provider.jobs.joiner.target import Target, WriteResult, read_schema
from airflow_merge_provider.jobs.spark.session import override_settings
from airflow_merge_provider.jobs.spark.staging import create_dataframe

TARGET = "conformance_target"
_ATOMS = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


@dataclass(frozen=True)
class MemoryTarget(Target):
    """Joined rows in memory."""

    written: list[DataFrame] = field(default_factory=list)

    def check_columns(self, spark: SparkSession, fields: Schema) -> None:
        """Accept every column."""

    def count_rows(self, spark: SparkSession) -> int:
        """Return the number of rows."""
        return 0

    def read_rows(self, spark: SparkSession) -> DataFrame:
        """Return the rows; a vector joins into a target without rows."""
        raise NotImplementedError

    def commit_rows(self, spark: SparkSession, rows: DataFrame, state: Mapping[str, Any]) -> WriteResult:
        """Store the rows; they are computed when they are read."""
        self.written.append(rows)
        return WriteResult(0, None)


def outcome_in_memory(spark: SparkSession, vector: Mapping[str, Any], warehouse: Path) -> dict[str, Any]:
    """Run one vector without storage; ``frame`` is the schema that Spark returns for the rows."""
    pinned = {
        stage: MemoryDataset(
            Dataset(stage, path=f"t{number}"), 0, stage,
            rows=create_dataframe(spark, parse_rows(content["rows"], parse_fields(content["schema"]))),
        )
        for number, (stage, content) in enumerate(vector["inputs"].items())
    }  # fmt: skip
    config = {
        **vector["config"],
        "inputs": {stage: pinned_dataset.dataset.path for stage, pinned_dataset in pinned.items()},
    }
    shown = preview_join(config, {stage: content["schema"] for stage, content in vector["inputs"].items()})
    request = _build_request(config, warehouse)
    target = MemoryTarget(Dataset(TARGET, path=TARGET), append=False, last=None)
    parsed = JoinerConfig.parse(request.config)
    reporter = RunReporter(
        build_row_counter(spark), request, Progress(out=str), COUNTS, target.dataset, pinned, None
    )
    report = JoinRun(spark, decide_join(parsed, pinned, reporter), target).run_to_end()
    (rows,) = target.written
    return {
        "id": vector["id"],
        "schema": shown["output"],
        "frame": [field.as_list() for field in read_schema(rows)],
        "rows": rows_of(rows),
        "records_in": {name: source.rows for name, source in report.sources.items()},
    }


def run_vector(spark: SparkSession, vector: Mapping[str, Any], warehouse: Path) -> dict[str, Any]:
    """Run one vector: errors are found without tables, and other results are read from the target."""
    schemas = {stage: parse_fields(content["schema"]) for stage, content in vector["inputs"].items()}
    config = {**vector["config"], "inputs": {stage: f"t{number}" for number, stage in enumerate(schemas)}}
    try:
        shown = preview_join(
            config, {stage: content["schema"] for stage, content in vector["inputs"].items()}
        )
        for number, (stage, schema) in enumerate(schemas.items()):
            config["inputs"][stage] = _write_input(
                warehouse / f"t{number}", vector["inputs"][stage]["rows"], schema
            )
        with override_settings(spark, {"spark.sql.caseSensitive": "true"}):
            frame, counted = _run_join(spark, config, schemas, warehouse)
            kinds = [field.type for field in read_schema(frame)]
            rows = rows_of(frame)
    except MergeError as error:
        return {"id": vector["id"], "errors": [_format_problem(problem) for problem in error.problems]}
    return {
        "id": vector["id"],
        # A Delta table makes every column nullable; the nullability of the join is in the preview.
        "schema": [[name, kind, flag] for (name, _, flag), kind in zip(shown["output"], kinds, strict=True)],
        "rows": rows,
        "records_in": counted["records_in"],
        "records_out": counted.get("outputs", len(rows)),
        "input_schemas": shown["inputs"],
    }


def _run_join(
    spark: SparkSession, config: Mapping[str, Any], schemas: Schemas, warehouse: Path
) -> tuple[DataFrame, Mapping[str, Any]]:
    """Return the rows that a run wrote, and its counts.

    No Delta table can hold names that differ in case only; such a result is intercepted before it is written.
    """
    request = _build_request(config, warehouse)
    try:
        JoinerConfig.parse(request.config, schemas)
    except ConfigError:
        pinned = {
            stage: pin_dataset(spark, Dataset(stage, ref["format"], ref["dataset"]))
            for stage, ref in config["inputs"].items()
        }
        join = prepare_join(spark, config, pinned)
        return join.rows, {"records_in": count_input_records(spark, join.frames, pinned)}
    report = run(spark, request, Progress(out=str))
    rows = spark.read.format("delta").load(str(warehouse / TARGET))
    records = {name: source.rows for name, source in report.sources.items()}
    return rows, {"records_in": records, "outputs": report.counts["outputs"]}


def _build_request(config: Mapping[str, Any], warehouse: Path) -> JobRequest:
    return JobRequest(
        job="joiner",
        config={**config, "target": TARGET},
        run=RunToken(dag_id="conformance", run_id="1", task_id="join"),
        warehouse=str(warehouse),
        started_at=0,
    )


def _write_input(path: Path, rows: list[list[Any]], schema: Schema) -> dict[str, str]:
    """Write an input. Spark's Delta does not accept a name that differs from another in case only."""
    if len({field.name.lower() for field in schema}) == len(schema):
        write_deltalake(str(path), parse_rows(rows, schema))
        return {"dataset": str(path), "format": "delta"}
    path.mkdir(parents=True)
    parquet.write_table(parse_rows(rows, schema), path / "rows.parquet")
    return {"dataset": str(path), "format": "parquet"}


def parse_rows(rows: list[list[Any]], schema: Schema) -> pa.Table:
    """Return the rows of an input in the notation of the vector."""
    columns = [[_parse_value(row[number], field.type) for row in rows] for number, field in enumerate(schema)]
    named = pa.schema([pa.field(field.name, arrow_type(field.type), field.nullable) for field in schema])
    kinds = zip(columns, named, strict=True)
    return pa.Table.from_arrays([pa.array(values, field.type) for values, field in kinds], schema=named)


def arrow_type(written: str) -> pa.DataType:
    """Return the Arrow type of a type in the vectors."""
    kind, inner = split_type(written)
    if kind == "array":
        return pa.list_(arrow_type(inner[0][1]))
    if kind == "map":
        return pa.map_(arrow_type(inner[0][1]), arrow_type(inner[1][1]))
    if kind == "struct":
        return pa.struct([(name, arrow_type(field_type)) for name, field_type in inner])
    if kind.startswith("decimal"):
        return pa.decimal128(*map(int, normalize_type(kind)[len("decimal(") : -1].split(",")))
    return _ATOMS[normalize_type(kind)]


def _parse_value(value: Any, written: str) -> Any:
    """Parse a value of a vector."""
    kind, inner = split_type(written)
    if value is None:
        return None
    if kind == "array":
        return [_parse_value(item, inner[0][1]) for item in value]
    if kind == "map":
        pairs = value.items() if isinstance(value, dict) else value
        return [(_parse_value(key, inner[0][1]), _parse_value(item, inner[1][1])) for key, item in pairs]
    if kind == "struct":
        return {name: _parse_value(value.get(name), field_type) for name, field_type in inner}
    readers = {
        "bytes": bytes.fromhex,
        "date": dt.date.fromisoformat,
        "decimal": Decimal,
        "double": float,
        "float": float,
        "timestamp": _parse_timestamp,
        "timestamp_ntz": dt.datetime.fromisoformat,
    }
    return readers.get(kind.partition("(")[0], lambda same: same)(value)  # type: ignore[no-untyped-call]


def _parse_timestamp(text: str) -> dt.datetime:
    """Parse a timestamp; a timestamp without a zone is in UTC."""
    moment = dt.datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)


def rows_of(frame: DataFrame) -> list[list[Any]]:
    """Return the rows of a DataFrame in the notation of outcomes."""
    table = frame.toArrow()
    columns = [
        [_format_value(value, column.type) for value in column.to_pylist()] for column in table.columns
    ]
    return [list(row) for row in zip(*columns, strict=True)]


def _format_value(value: Any, kind: pa.DataType) -> Any:
    """Format a value in the notation of outcomes."""
    if pa.types.is_map(kind) and value is not None:
        pairs = [
            (_format_value(key, kind.key_type), _format_value(item, kind.item_type)) for key, item in value
        ]
        return dict(pairs) if pa.types.is_string(kind.key_type) else [list(pair) for pair in pairs]
    if isinstance(value, dict):
        return {field.name: _format_value(value[field.name], field.type) for field in kind}
    if isinstance(value, list):
        return [_format_value(item, kind.value_type) for item in value]
    if isinstance(value, dt.datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return str(value) if isinstance(value, Decimal) else value


def _format_problem(problem: Any) -> dict[str, str]:
    return {"category": problem.code, "property": problem.path, "message": str(problem)}
