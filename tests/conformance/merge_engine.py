"""How a merge engine vector is run: each commit is folded into the rows so far by the job's own functions.

The configuration is parsed and planned as for the operator, and the fold runs on Spark; the rows between two
commits are kept here instead of in a table. ``outcome_on_delta`` runs the whole job over Delta tables.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession, functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from airflow_merge_provider.core.errors import ConfigError, MergeError
from airflow_merge_provider.core.merge_engine import refusals
from airflow_merge_provider.core.merge_engine.checks import plan
from airflow_merge_provider.core.merge_engine.columns import columns_of
from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.core.merge_engine.plan import Plan
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.jobs.merge_engine.counting import AFTER, BEFORE, CHANGE, REMOVED
from airflow_merge_provider.jobs.merge_engine.job import run
from airflow_merge_provider.jobs.merge_engine.outcome import outcome as folded
from airflow_merge_provider.jobs.merge_engine.records import ARRIVAL, KIND, PROBLEM
from airflow_merge_provider.jobs.run.progress import Progress
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.errors import convert_error
from tests.conformance.flink_types import column

Rows = list[dict[str, Any]]
_KIND = "row_kind"


def outcome(spark: SparkSession, vector: Mapping[str, Any], warehouse: Path) -> dict[str, Any]:
    """Run one vector: its last rows and the changes of each commit, or the error that ends it."""
    fields = [column(name, text) for name, text in vector["schema"].items()]
    try:
        planned = plan(_config(vector), columns_of(fields))
    except ConfigError as error:
        return {"id": vector["id"], "error": {"stage": "create", "message": str(error)}}
    table = Table(spark, planned, fields)
    try:
        changes = [table.commit(commit) for commit in vector["commits"]]
    except Exception as error:
        known = convert_error(error)
        if not isinstance(known, MergeError):
            raise
        return {"id": vector["id"], "error": {"stage": "write", "message": str(known)}}
    return {"id": vector["id"], "rows": table.written(), "changes": changes}


def outcome_on_delta(spark: SparkSession, vector: Mapping[str, Any], warehouse: Path) -> dict[str, Any]:
    """Append every commit to a Delta table, run the job after each, and return the target's rows."""
    fields = [column(name, text) for name, text in vector["schema"].items()]
    schema = StructType.fromJson({"type": "struct", "fields": fields})
    names = [*vector["schema"], _KIND]
    for number, commit in enumerate(vector["commits"]):
        read = _records(fields, commit)
        content = pa.Table.from_pylist(read, to_arrow_schema(schema))
        content = content.append_column(_KIND, pa.array([record[0] for record in commit], pa.string()))
        write_deltalake(str(warehouse / "changes"), content.select(names), mode="append")
        request = JobRequest(
            job="merge_engine",
            config={**_settings(vector), "source": "changes", "target": "state", "row_kind_column": _KIND},
            run=RunToken(dag_id="conformance", run_id=str(number), task_id=vector["id"]),
            warehouse=str(warehouse),
            started_at=number,
        )
        run(spark, request, Progress(out=str))
    found = spark.read.format("delta").load(str(warehouse / "state")).toArrow().to_pylist()
    return {"rows": [[written(row[field["name"]], field["type"]) for field in fields] for row in found]}


def _config(vector: Mapping[str, Any]) -> MergeEngineConfig:
    return MergeEngineConfig.parse(_settings(vector))


def _settings(vector: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "merge_engine": vector["engine"],
        "primary_key": vector["primary_key"],
        "partition_by": vector.get("partition_by", []),
        "options": vector["options"],
        "tombstone_retention": vector.get("tombstone_retention"),
    }


def _records(fields: Sequence[Mapping[str, Any]], commit: Sequence[Sequence[Any]]) -> Rows:
    """Return the records of a commit without their kinds."""
    return [
        {field["name"]: native(value, field["type"]) for field, value in zip(fields, values, strict=True)}
        for _, *values in commit
    ]


class Table:
    """A table in memory that commits are folded into by Spark."""

    def __init__(self, spark: SparkSession, planned: Plan, fields: Sequence[Mapping[str, Any]]) -> None:
        self._spark, self._plan, self._fields = spark, planned, fields
        self._schema = StructType.fromJson(
            {"type": "struct", "fields": [{**field, "nullable": True, "metadata": {}} for field in fields]}
        )
        self._arrow = to_arrow_schema(self._schema)
        self._rows: dict[Any, dict[str, Any]] = {}
        self._removed: Rows = []

    def commit(self, records: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Fold one commit in and give its net changes; each record is its kind and its values."""
        batch = self._frame(_records(self._fields, records), [record[0] for record in records])
        stored = self._frame(list(self._rows.values())) if self._rows else None
        removed = None
        if self._removed:
            columns = (*self._plan.key, *self._plan.remembered)
            removed = self._frame(self._removed).select(*map(sql.column, columns))
        found = self._flat(folded(self._plan, batch, stored, removed)).toArrow().to_pylist()
        self._refuse(found)
        for row in found:
            if row.get(REMOVED):
                self._removed.append({name: row[name] for name in self._plan.key} | row[REMOVED])
        return [change for row in found if row[CHANGE] for change in self._take(row)]

    def written(self) -> list[list[Any]]:
        """Give the rows as vectors write them."""
        return [self._values(row) for row in self._rows.values()]

    def _frame(self, rows: Rows, kinds: list[str] | None = None) -> DataFrame:
        content, schema = pa.Table.from_pylist(rows, self._arrow), self._schema
        if kinds is None:
            return self._spark.createDataFrame(content, schema)
        content = content.append_column(KIND, pa.array(kinds, pa.string()))
        content = content.append_column("#n", pa.array(range(len(kinds)), pa.int32()))
        schema = StructType(
            [*schema.fields, StructField(KIND, StringType()), StructField("#n", IntegerType())]
        )
        frame = self._spark.createDataFrame(content, schema)
        return frame.withColumn(ARRIVAL, F.struct("#n")).drop("#n")

    def _flat(self, found: DataFrame) -> DataFrame:
        """Take the rows before and after apart, each of their columns with the name of its image."""
        images = [
            sql.column(image)[name].alias(f"{image}.{name}")
            for image in (BEFORE, AFTER)
            for name in self._plan.values
        ]
        kept = (*self._plan.key, CHANGE, PROBLEM, *([REMOVED] if self._plan.remembers else []))
        return found.select(*map(sql.column, kept), *images)

    def _refuse(self, found: Rows) -> None:
        texts = sorted({row[PROBLEM] for row in found if row[PROBLEM]})
        if texts:
            raise refusals.refused([(text, 1, "") for text in texts])

    def _take(self, row: Mapping[str, Any]) -> list[list[Any]]:
        key = tuple(row[name] for name in self._plan.key)
        before, after = self._image(row, BEFORE), self._image(row, AFTER)
        change = row[CHANGE]
        if change == "-D":
            del self._rows[key]
            return [["-D", *self._values(before)]]
        self._rows[key] = after
        images = [("-U", before), ("+U", after)] if change == "+U" else [("+I", after)]
        return [[kind, *self._values(image)] for kind, image in images]

    def _image(self, row: Mapping[str, Any], image: str) -> dict[str, Any]:
        key = {name: row[name] for name in self._plan.key}
        return {**key, **{name: row[f"{image}.{name}"] for name in self._plan.values}}

    def _values(self, row: Mapping[str, Any]) -> list[Any]:
        return [written(row[field["name"]], field["type"]) for field in self._fields]


def native(value: Any, kind: Any) -> Any:
    """Read a value of a vector as what Arrow takes for its type."""
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
        return [native(each, kind["elementType"]) for each in value]
    if kind["type"] == "struct":
        return {field["name"]: native(value.get(field["name"]), field["type"]) for field in kind["fields"]}
    pairs = value.items() if isinstance(value, Mapping) else value
    return [(native(key, kind["keyType"]), native(each, kind["valueType"])) for key, each in pairs]


def written(value: Any, kind: Any) -> Any:
    """Write a value of Arrow as vectors do."""
    if value is None:
        return None
    if isinstance(kind, Mapping):
        return _written_nested(value, kind)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dt.datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, dt.date):
        return value.isoformat()
    return f"{value:f}" if isinstance(value, Decimal) else value


def _written_nested(value: Any, kind: Mapping[str, Any]) -> Any:
    if kind["type"] == "array":
        return [written(each, kind["elementType"]) for each in value]
    if kind["type"] == "struct":
        return {field["name"]: written(value[field["name"]], field["type"]) for field in kind["fields"]}
    pairs = [[written(key, kind["keyType"]), written(each, kind["valueType"])] for key, each in value]
    return dict(pairs) if kind["keyType"] == "string" else pairs
