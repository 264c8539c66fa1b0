"""How a merge load vector is run: dlt's options become ours, each load's rows a table and a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.errors import MergeError
from airflow_merge_provider.core.merge_load.config import load_config
from airflow_merge_provider.core.merge_load.load import LIST_INDEX, PARENT_ID, ROOT_ID, ROW_ID
from airflow_merge_provider.core.merge_load.moments import moment
from airflow_merge_provider.core.merge_load.scd2 import HASH_COLUMN
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.jobs.merge_load.job import run
from airflow_merge_provider.jobs.progress import Progress

TARGET = "t"
_OURS = (HASH_COLUMN, ROW_ID, PARENT_ID, ROOT_ID, LIST_INDEX)
_TYPES = {
    "bigint": pa.int64(),
    "text": pa.string(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
    "decimal": pa.decimal128(38, 9),
}
# In dlt a variant of upsert is a strategy of its own, and upsert rewrites equal rows unless told otherwise.
_VARIANTS = ("upsert", "insert-only", "cdc")


def outcome(spark: SparkSession, vector: Mapping[str, Any], warehouse: Path) -> dict[str, Any]:
    """Run one vector, load by load; what a load may not do is its error."""
    return {"id": vector["id"], "loads": list(_loads(spark, vector, warehouse))}


def _loads(spark: SparkSession, vector: Mapping[str, Any], warehouse: Path) -> Iterator[dict[str, Any]]:
    for number, load in enumerate(vector["loads"]):
        options = {**vector.get("options", {}), **(load.get("options") or {})}
        error = None
        try:
            config = settings(vector["strategy"], options, load)
            if _has_lists(vector):
                config["nested"] = "tables"
            config["source"] = f"source_{number}"
            load_config(config)
            _write(
                [plain(row) for row in load.get("rows") or ()],
                options.get("columns") or {},
                warehouse / config["source"],
            )
            request = JobRequest(
                job="merge_load",
                config=config,
                run=RunToken(dag_id="conformance", run_id=str(number), task_id=vector["id"]),
                warehouse=str(warehouse),
                started_at=number * 1_000_000,
            )
            run(spark, request, Progress(out=str))
        except MergeError as refused:
            error = str(refused)
        except Exception as broken:  # noqa: BLE001 - a load that breaks is an outcome of its own
            error = f"{type(broken).__name__}: {broken}"
        yield {"tables": _tables(spark, warehouse)} | ({} if error is None else {"error": error})


def settings(strategy: str | None, options: Mapping[str, Any], load: Mapping[str, Any]) -> dict[str, Any]:
    """Give our configuration for dlt's options."""
    given = {name: plain(value) for name, value in (options.get("write_disposition") or {}).items()}
    hints = options.get("columns") or {}
    flags = [name for name, hint in hints.items() if hint.get("hard_delete")]
    sorts = {name: hint["dedup_sort"] for name, hint in hints.items() if hint.get("dedup_sort")}
    found: dict[str, Any] = {**given, "target": TARGET, "strategy": strategy or "delete-insert"}
    found["merge_key"] = options.get("merge_key")
    found["hard_delete"] = flags[0] if len(flags) == 1 else flags or None
    found["dedup_sort"] = sorts or None
    if strategy == "scd2":
        found["boundary_timestamp"] = plain(load.get("boundary_timestamp"))
    else:
        found["primary_key"] = options.get("primary_key")
    if strategy in _VARIANTS:
        found |= {"strategy": "upsert", "variant": strategy}
        found.setdefault("skip_unchanged_rows", False)
    if load.get("empty") in {"materialize", "arrow"}:
        found["on_empty"] = "apply"
    elif "empty" in load:
        found["on_empty"] = "skip"
    return {name: value for name, value in found.items() if value is not None}


def plain(value: Any) -> Any:
    """Read the values that JSON has no form for."""
    if isinstance(value, Mapping) and len(value) == 1:
        ((kind, text),) = value.items()
        readers = {"$date": date.fromisoformat, "$datetime": datetime.fromisoformat, "$float": float}
        if kind in readers:
            return readers[kind](text)
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def _write(rows: Sequence[Mapping[str, Any]], hints: Mapping[str, Any], place: Path) -> None:
    """Write rows as dlt would type them: a column without any value does not exist."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        kind = _TYPES.get((hints.get(name) or {}).get("data_type", ""))
        if kind is None and all(value is None for value in values):
            continue
        columns[name] = _array(values, kind)
    write_deltalake(str(place), pa.table(columns or {"nothing": pa.array([], pa.string())}))


def _array(values: Sequence[Any], kind: pa.DataType | None) -> pa.Array:
    if kind is not None and pa.types.is_timestamp(kind):
        values = [None if value is None else moment(value) for value in values]
    return pa.array(values, kind)


def _has_lists(vector: Mapping[str, Any]) -> bool:
    """Tell whether rows hold lists, which are tables in dlt."""
    rows = (row for load in vector["loads"] for row in load.get("rows") or ())
    return any(isinstance(value, list) for row in rows for value in row.values())


def _tables(spark: SparkSession, warehouse: Path) -> dict[str, list[dict[str, Any]]]:
    """Give all rows of the target and its lists without the columns that are the load's own."""
    found = {}
    for place in sorted(warehouse.glob(f"{TARGET}*/_delta_log")):
        name = place.parent.name
        if (name != TARGET and not name.startswith(f"{TARGET}__")) or name == f"{TARGET}__times":
            continue
        rows: DataFrame = spark.read.format("delta").load(str(place.parent)).drop(*_OURS)
        found[name] = [_shown(row.asDict(recursive=True)) for row in rows.collect()]
    return found


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _shown(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_shown(each) for each in value]
    if isinstance(value, datetime):
        # Spark gives moments in the time of this machine.
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value
