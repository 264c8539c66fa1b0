"""Tests that Spark refuses names of columns that no table has, where only Spark reads the names."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import MergeError
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.reporter import Progress

pytestmark = pytest.mark.spark

ROWS = {"id": ["a"], "name": ["x"], "amount": [1]}
MISSPELT = "nome"
UPSERT = {"strategy": "upsert", "source": "a", "target": "t", "primary_key": "id"}
STORED = {"strategy": "delete-insert", "source": "a", "target": "stored", "primary_key": "id", "adopt": True}
JOIN = {"inputs": {"a": "a", "b": "b"}, "join_type": "innerjoin", "target": "j"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "source_filter": ("merge_load", {**UPSERT, "source_filter": f"{MISSPELT} = 'x'"}),
    "hard_delete_when": ("merge_load", {**UPSERT, "hard_delete_when": f"{MISSPELT} = 'x'"}),
    "destination_scope": ("merge_load", {**STORED, "destination_scope": f"{MISSPELT} = 'x'"}),
    "dispatch_by": ("merge_load", {**UPSERT, "dispatch_by": MISSPELT}),
    "expect.k": ("merge_load", {**UPSERT, "expect": {"k": f"{MISSPELT} = 'x'"}}),
    "condition_expression": (
        "joiner",
        {
            **JOIN,
            "condition_type": "advanced",
            "condition_expression": f"a.{MISSPELT} = b.name",
            "selected_fields": "a.id",
        },
    ),
}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a warehouse with three tables of the same columns; no run of this file writes them."""
    folder = tmp_path_factory.mktemp("lake")
    for name in ("a", "b", "stored"):
        write_deltalake(folder / name, pa.table(ROWS))
    return folder


@pytest.mark.parametrize("argument", CASES)
def test_a_misspelt_column_in_sql_is_refused(spark: SparkSession, lake: Path, argument: str) -> None:
    """The error names the argument, the column, and a similar one or all of them."""
    job, config = CASES[argument]
    token = RunToken(dag_id="d", run_id=argument, task_id="t")
    request = JobRequest(job=job, config=config, run=token, warehouse=str(lake), started_at=7)

    with pytest.raises(MergeError) as refused:
        importlib.import_module(f"airflow_merge_provider.jobs.{job}.job").run(spark, request, Progress(str))

    error = str(refused.value)
    assert argument in error
    assert MISSPELT in error
    assert "did you mean" in error.lower(), error
    assert "name" in error.partition(MISSPELT)[2]
