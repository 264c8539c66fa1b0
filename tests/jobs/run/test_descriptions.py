"""Test that a job describes its datasets, and that their columns are traced to those of the sources."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from airflow_merge_provider.core.lineage import describe_datasets, describe_run
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.lineage_model import DatasetLineage, RunLineage
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.delta.table import SparkLog

pytestmark = pytest.mark.spark

ROWS = {"_id": ["1", "2"], "name": ["a", "b"], "v": [1, 2]}
RULES = {"version": 2, "datasets": ["a a", "b b"], "equality": [["eq", "a.name", "b.name"]]}
JOIN = {"inputs": {"a": "a", "b": "b"}, "join_keys": "a._id = b._id", "required_inputs": "a"}
# The columns of each target that no source provides: values of the run itself.
CONFIGS: dict[str, tuple[Any, dict[str, Any], set[str]]] = {
    "entities": ("merge_source", RULES, {"_updated", "$replaced", "_previous", "_ts", "_deleted"}),
    "columns": (
        "merge_source",
        {**RULES, "values": "columns", "survivorship": {"name": "first"}},
        {"_updated", "$replaced", "_previous", "_ts", "_deleted"},
    ),
    "upsert": ("merge_load", {"strategy": "upsert", "source": "a", "primary_key": ["_id"]}, set()),
    "versions": ("merge_load", {"strategy": "scd2", "source": "a"}, {"valid_from", "valid_to"}),
    "history": ("merge_load", {"strategy": "scd2", "source": "a", "natural_key": "_id"}, {"valid_from"}),
    "delete_insert": ("merge_load", {"source": "a", "primary_key": ["_id"]}, set()),
    "nested": ("merge_load", {"source": "a", "primary_key": ["_id"], "nested": "tables"}, {"_row_id"}),
    "merge_engine": ("merge_engine", {"source": "a", "primary_key": ["_id"], "changelog": "log"}, set()),
    "joiner": ("joiner", {**JOIN, "indicator": "inputs", "unmatched": "left"}, {"inputs"}),
}


class Lake:
    """A warehouse with two tables, and runs in it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self.folder = spark, folder
        self.lines: list[str] = []

    def run_job(self, job: Any, config: dict[str, Any], run_id: str = "r1") -> RunLineage:
        """Run a request, and return its lineage as an operator builds it."""
        request = JobRequest(
            job=job,
            config=config,
            run=RunToken(dag_id="d", run_id=run_id, task_id="t"),
            warehouse=str(self.folder),
            started_at=1_700_000_000_000_000,
            describes_datasets=True,
        )
        progress = Progress(self.lines.append)
        report = importlib.import_module(f"airflow_merge_provider.jobs.{job}.job").run(
            self._spark, request, progress
        )
        descriptions = describe_datasets(SparkLog(self._spark), request, report, progress)
        return describe_run(job, config, request.warehouse, report=report, descriptions=descriptions)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    for name in ("a", "b"):
        write_deltalake(tmp_path / name, pa.table(ROWS))
    return Lake(spark, tmp_path)


def list_columns(dataset: DatasetLineage) -> list[str]:
    return [field["name"] for field in dataset.fields or ()]


@pytest.mark.parametrize("name", CONFIGS)
def test_every_column_is_traced(lake: Lake, name: str) -> None:
    """Each dataset has its columns, and each column of the target its sources, also in a second run."""
    job, raw_config, own_columns = CONFIGS[name]
    config = {"target": "t", **raw_config}

    for run_id in ("r1", "r2"):
        lineage = lake.run_job(job, config, run_id)

        assert all(list_columns(dataset) == [*ROWS] for dataset in lineage.inputs)
        target, *side_tables = lineage.outputs
        if target.dataset.format == "delta":
            schema = DeltaTable(lake.folder / "t").schema()
            assert list_columns(target) == [field.name for field in schema.fields]
            assert all(list_columns(dataset) for dataset in side_tables)
        if list_columns(target):
            assert target.columns is not None
            assert set(list_columns(target)) - set(target.columns.columns) == own_columns
    assert not [line for line in lake.lines if "lineage:" in line]


def test_merged_files_have_the_fields_of_their_sources(lake: Lake) -> None:
    """The fields of merged files are known without a table."""
    (lake.folder / "landing").mkdir()
    for number in range(2):
        line = json.dumps({"id": number, "at": {"city": "x"}})
        (lake.folder / "landing" / f"{number}.json").write_text(f"{line}\n", encoding="utf-8")
    folders = {name: name for name in ("merged", "failure", "original")}

    lineage = lake.run_job(
        "merge_record", {"source": "landing", **folders, "state_path": "state", "reader": "json"}
    )

    merged = lineage.outputs[0]
    assert list_columns(lineage.inputs[0]) == list_columns(merged) == ["at", "id"]
    assert merged.columns is not None
    assert set(merged.columns.columns) == {"at", "id"}
    assert (merged.counts.rows, merged.counts.files) == (2, 1)


def test_a_catalog_table_has_a_location(lake: Lake, spark: SparkSession) -> None:
    """Only Spark knows where the rows of a catalog table are."""
    spark.sql(f"CREATE TABLE default.lineage_people USING delta LOCATION '{lake.folder}/a'").collect()
    try:
        lineage = lake.run_job(
            "merge_load",
            {"strategy": "upsert", "source": "default.lineage_people", "target": "t", "primary_key": "_id"},
        )
    finally:
        spark.sql("DROP TABLE default.lineage_people").collect()

    (people,) = lineage.inputs
    assert people.name == ("merge://catalog", "default.lineage_people")
    assert people.location == ("file", f"{lake.folder}/a")
    assert list_columns(people) == [*ROWS]


def test_a_source_of_files_has_the_columns_that_the_run_has_read(lake: Lake) -> None:
    """The columns of csv files are inferred from all rows, so they are not read again."""
    (lake.folder / "files").mkdir()
    (lake.folder / "files" / "1.csv").write_text("_id,w\n1,x\n", encoding="utf-8")
    source = {"dataset": f"{lake.folder}/files", "format": "csv", "options": {"header": "true"}}

    lineage = lake.run_job("merge_load", {"source": source, "target": "t", "primary_key": ["_id"]})

    assert list_columns(lineage.inputs[0]) == ["_id", "w"]
