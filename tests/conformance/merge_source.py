"""Runner of merge source vectors: inputs become tables of JSON entities, and each step is one run.

``outcome`` has the tables on Delta and runs the whole job, ``outcome_in_memory`` merges without storage.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession, functions as F  # noqa: N812 - the usual alias

from airflow_merge_provider.core.errors import ConfigError, MergeError
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.decision import COUNTS, decide_merge
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.report import Report
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.merge_source.job import MergeRun, SourceOverrides, run
from airflow_merge_provider.jobs.merge_source.output.row_changes import RowChanges
from tests.conformance import memory
from tests.conformance.memory import MemoryTables, build_reporter

TARGET = "conformance_target"
SCHEMA = pa.schema({"_updated": pa.int64(), "entity": pa.string()})


class MemoryTarget(memory.MemoryTarget):
    """Golden records in memory."""

    def count_rows(self) -> int | None:
        """Return the number of rows."""
        return self.read_rows().count()

    def overwrite_rows(self, rows: DataFrame) -> None:
        """Replace all rows."""
        self.store_rows(rows)

    def apply_changes(self, changes: RowChanges, *, new_columns: bool) -> None:
        """Replace rows with the same IDs by the changed rows, and append the others."""
        kept_rows = self.read_rows().join(F.broadcast(changes.rows.select("_id")), "_id", "left_anti")
        self.store_rows(kept_rows.unionByName(changes.rows, allowMissingColumns=new_columns))


class DeltaLake:
    """Datasets and target of a vector as Delta tables; runs are those of the operator."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder = spark, folder

    def append_rows(self, dataset: str, rows: pa.Table) -> None:
        """Append rows to a dataset."""
        write_deltalake(str(self._folder / dataset), rows, mode="append")

    def read_rows(self, dataset: str) -> pa.Table:
        """Return all rows of a dataset."""
        return DeltaTable(str(self._folder / dataset)).to_pyarrow_table()

    def write_rows(self, dataset: str, rows: pa.Table) -> None:
        """Replace all rows of a dataset."""
        write_deltalake(str(self._folder / dataset), rows, mode="overwrite")

    def run_job(self, request: JobRequest) -> Report:
        """Run the job, and return its report."""
        return run(self._spark, request, Progress(out=str))

    def target_rows(self) -> DataFrame:
        """Return the rows of the target."""
        return self._spark.read.format("delta").load(str(self._folder / TARGET))


class MemoryLake(MemoryTables):
    """Tables of a vector in memory, except datasets on Delta: runs begin after tables are resolved."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        super().__init__(spark, folder)
        self.target = MemoryTarget(TARGET, folder)

    def run_job(self, request: JobRequest) -> Report:
        """Merge the datasets into the target, and return the report."""
        config = MergeSourceConfig.parse(request.config)
        pinned = [self.pin_dataset(name) for name in config.dataset_ids]
        self.target.find_commits(request)
        spark, target = self._spark, self.target
        overrides = SourceOverrides(spark, config, request)
        reporter = build_reporter(spark, request, COUNTS, target.dataset, pinned, target.last)
        decision = decide_merge(config, pinned, reporter, overrides.compute_hash)
        return MergeRun(spark, decision, target, overrides).run_to_end()

    def target_rows(self) -> DataFrame:
        """Return the rows of the target."""
        return self.target.read_rows()


Lake = DeltaLake | MemoryLake


def run_vector(
    spark: SparkSession,
    vector: Mapping[str, Any],
    warehouse: Path,
    lake: Callable[[SparkSession, Path], Lake] = DeltaLake,
) -> dict[str, Any]:
    """Run one vector; a step that is not supported yet is its error, like every other rejection."""
    operator = vector.get("operator") or {}
    try:
        MergeSourceConfig.parse({**vector["config"], **operator})
    except ConfigError as error:
        return {"id": vector["id"], "error": str(error)}
    if "steps" not in vector:
        return {"id": vector["id"], "error": "", "steps": []}
    return {"id": vector["id"], "steps": list(_run_steps(lake(spark, warehouse), vector, warehouse))}


def outcome_in_memory(spark: SparkSession, vector: Mapping[str, Any], warehouse: Path) -> dict[str, Any]:
    """Run one vector without storage."""
    return run_vector(spark, vector, warehouse, MemoryLake)


def _run_steps(lake: Lake, vector: Mapping[str, Any], warehouse: Path) -> Iterator[Any]:
    config, operator = vector["config"], vector.get("operator") or {}
    versions: dict[str, int] = {}
    position = -1
    for number, step in enumerate(vector["steps"]):
        config, operator = step.get("config", config), step.get("operator", operator)
        _append_entities(lake, step.get("inputs", {}), versions)
        _remove_entities(lake, step.get("remove", {}))
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
            lake.run_job(request)
            written = list(iterate_written(lake.target_rows(), position))
        except MergeError as error:
            yield {"error": str(error)}
            continue
        except Exception as error:  # noqa: BLE001 - a failed step is an outcome
            yield {"error": f"{type(error).__name__}: {error}"}
            continue
        position = max([position, *(entity["_updated"] for entity in written)])
        yield written


def _append_entities(lake: Lake, inputs: Mapping[str, list[Any]], versions: dict[str, int]) -> None:
    for dataset, entities in inputs.items():
        start = versions.get(dataset, 0)
        rows = [(start + number, json.dumps(entity)) for number, entity in enumerate(entities, start=1)]
        versions[dataset] = start + len(rows)
        content = pa.table({"_updated": [row[0] for row in rows], "entity": [row[1] for row in rows]}, SCHEMA)
        lake.append_rows(dataset, content)


def _remove_entities(lake: Lake, ids: Mapping[str, list[str]]) -> None:
    """Delete all rows of the given entities."""
    for dataset, removed_ids in ids.items():
        rows = lake.read_rows(dataset)
        mask = [json.loads(entity)["_id"] not in removed_ids for entity in rows.column("entity").to_pylist()]
        lake.write_rows(dataset, rows.filter(pa.array(mask)))


def iterate_written(table: DataFrame, position: int) -> Iterator[dict[str, Any]]:
    """Yield the entities that were written after a position, in order, without hidden columns."""
    columns = (
        "_id",
        "_updated",
        "_deleted",
        "`$ids` AS ids",
        "`$replaced` AS replaced",
        "to_json(entity) AS entity",
    )
    # Sorted and filtered here: Delta would first look for files to skip, in jobs of its own.
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
