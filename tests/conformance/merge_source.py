"""How a merge source vector is run: its inputs become Delta tables of JSON entities, each step is one run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import ConfigError, MergeError
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.jobs.merge_source.job import run
from airflow_merge_provider.jobs.progress import Progress

TARGET = "conformance_target"
SCHEMA = pa.schema({"_updated": pa.int64(), "entity": pa.string()})


def outcome(spark: SparkSession, vector: Mapping[str, Any], warehouse: Path) -> dict[str, Any]:
    """Run one vector; what a step may not do yet is its error, like every other refusal."""
    operator = vector.get("operator") or {}
    try:
        MergeSourceConfig.parse({**vector["config"], **operator})
    except ConfigError as error:
        return {"id": vector["id"], "error": str(error)}
    if "steps" not in vector:
        return {"id": vector["id"], "error": "", "steps": []}
    return {"id": vector["id"], "steps": list(_steps(spark, vector, warehouse))}


def _steps(spark: SparkSession, vector: Mapping[str, Any], warehouse: Path) -> Iterator[Any]:
    config, operator = vector["config"], vector.get("operator") or {}
    versions: dict[str, int] = {}
    position = -1
    for number, step in enumerate(vector["steps"]):
        config, operator = step.get("config", config), step.get("operator", operator)
        _append(step.get("inputs", {}), versions, warehouse)
        _remove(step.get("remove", {}), warehouse)
        settings = {**config, **operator, "target": TARGET, "entity_column": "entity"}
        if step.get("reset"):
            settings["reset"], position = True, -1
        request = JobRequest(
            job="merge_source",
            config=settings,
            run=RunToken(dag_id="conformance", run_id=str(number), task_id=vector["id"]),
            warehouse=str(warehouse),
            started_at=number,
            full_refresh=bool(step.get("full")),
        )
        try:
            run(spark, request, Progress(out=str))
            written = list(_written(spark, warehouse, position))
        except MergeError as error:
            yield {"error": str(error)}
            continue
        except Exception as error:  # noqa: BLE001 - a step that breaks is an outcome of its own
            yield {"error": f"{type(error).__name__}: {error}"}
            continue
        position = max([position, *(entity["_updated"] for entity in written)])
        yield written


def _append(inputs: Mapping[str, list[Any]], versions: dict[str, int], warehouse: Path) -> None:
    for dataset, entities in inputs.items():
        start = versions.get(dataset, 0)
        rows = [(start + place, json.dumps(entity)) for place, entity in enumerate(entities, start=1)]
        versions[dataset] = start + len(rows)
        content = pa.table({"_updated": [row[0] for row in rows], "entity": [row[1] for row in rows]}, SCHEMA)
        write_deltalake(str(warehouse / dataset), content, mode="append")


def _remove(ids: Mapping[str, list[str]], warehouse: Path) -> None:
    """Delete all rows of some entities."""
    for dataset, gone in ids.items():
        rows = DeltaTable(str(warehouse / dataset)).to_pyarrow_table()
        kept = [json.loads(entity)["_id"] not in gone for entity in rows.column("entity").to_pylist()]
        write_deltalake(str(warehouse / dataset), rows.filter(pa.array(kept)), mode="overwrite")


def _written(spark: SparkSession, warehouse: Path, position: int) -> Iterator[dict[str, Any]]:
    """Give what the last run wrote, in its order, without hidden columns."""
    table = spark.read.format("delta").load(str(warehouse / TARGET))
    columns = (
        "_id",
        "_updated",
        "_deleted",
        "`$ids` AS ids",
        "`$replaced` AS replaced",
        "to_json(entity) AS entity",
    )
    # Sorted and chosen here: Delta would first look for files to skip, in jobs of its own.
    rows = [row for row in table.selectExpr(*columns).collect() if row["_updated"] > position]
    for row in sorted(rows, key=lambda row: row["_updated"]):
        entity = {"_id": row["_id"], "_updated": row["_updated"]}
        if row["_deleted"]:
            entity["_deleted"] = True
        if row["replaced"]:
            entity["$replaced"] = True
        if row["ids"] is not None:
            entity["$ids"] = row["ids"]
        yield {**entity, **json.loads(row["entity"] or "{}")}
