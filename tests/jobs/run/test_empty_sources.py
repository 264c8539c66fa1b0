"""Test that a run over a source without rows gives a warning and a table with the source's columns."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.reporter import Progress
from tests.conformance.lean import lean_session
from tests.reports import check_report

EMPTY = pa.schema([("id", pa.string()), ("v", pa.string())])
# The configuration of each capability, and the columns of the table that it leaves.
CASES: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "upsert": ("merge_load", {"strategy": "upsert", "primary_key": "id"}, {"id", "v"}),
    "delete-insert": ("merge_load", {"strategy": "delete-insert", "primary_key": "id"}, {"id", "v"}),
    "append": ("merge_load", {"strategy": "delete-insert"}, {"id", "v"}),
    "scd2": ("merge_load", {"strategy": "scd2", "natural_key": "id"}, {"id", "v", "valid_from", "valid_to"}),
    "scd2 without a key": ("merge_load", {"strategy": "scd2"}, {"id", "v", "valid_from", "valid_to"}),
    "scd2 changes": (
        "merge_load",
        {"strategy": "scd2", "natural_key": "id", "mode": "changes"},
        {"id", "v", "valid_from", "valid_to"},
    ),
    "nested": ("merge_load", {"strategy": "upsert", "primary_key": "id", "nested": "tables"}, {"id", "v"}),
    "deduplicate": ("merge_engine", {"primary_key": ["id"]}, {"id", "v"}),
    "first-row": ("merge_engine", {"primary_key": ["id"], "merge_engine": "first-row"}, {"id", "v"}),
    "merge source": (
        "merge_source",
        {"version": 2, "datasets": ["source s"], "id_column": "id"},
        {"_id", "_deleted", "_updated"},
    ),
    "joiner": (
        "joiner",
        {"inputs": {"a": "source", "b": "source"}, "join_keys": "a.id = b.id"},
        {"a.id", "b.v"},
    ),
}


def run_job(spark: SparkSession, folder: Path, name: str, run_id: str = "r1", **more: Any) -> dict[str, Any]:
    job, config, _ = CASES[name]
    source = {} if job in {"merge_source", "joiner"} else {"source": "source"}
    request = JobRequest(
        job=job,
        config={**source, "target": "target", **config, **more},
        run=RunToken(dag_id="d", run_id=run_id, task_id="t"),
        warehouse=str(folder),
        started_at=1,
    )
    module = importlib.import_module(f"airflow_merge_provider.jobs.{job}.job")
    return check_report(module.run(spark, request, Progress(out=str)))


@pytest.fixture
def lean(spark: SparkSession, tmp_path: Path) -> SparkSession:
    write_deltalake(str(tmp_path / "source"), EMPTY.empty_table())
    return lean_session(spark)


@pytest.mark.parametrize("name", CASES)
def test_a_first_run_over_nothing_makes_a_table_and_warns(
    name: Any, lean: SparkSession, tmp_path: Path
) -> None:
    """A first run without rows creates the table with a warning; the next one has no work and warns again."""
    report = run_job(lean, tmp_path, name)

    assert any("no rows" in warning for warning in report["warnings"]), report["warnings"]
    assert report["changed"]
    assert report["rows"]["inserted"] == 0
    table = DeltaTable(str(tmp_path / "target"))
    columns = {field.name for field in table.schema().fields}
    assert columns >= CASES[name][2], columns
    assert run_job(lean, tmp_path, name, "r2")["target"]["version"] == 0


@pytest.mark.parametrize("name", ["upsert", "scd2"])
def test_an_empty_load_can_be_refused(name: Any, lean: SparkSession, tmp_path: Path) -> None:
    """An empty load is rejected if the option requires it, and nothing is written."""
    with pytest.raises(DataError, match="has no rows to load"):
        run_job(lean, tmp_path, name, on_empty="error")

    assert not (tmp_path / "target").exists()
