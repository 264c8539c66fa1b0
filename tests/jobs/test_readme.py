"""Test the DAG of the README: its operator's job runs over two small tables of customers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from demo.tables import read_entities, write_rows
from pyspark.sql import SparkSession

from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.progress import Progress
from airflow_merge_provider.jobs.merge_source.job import run

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def operator() -> Any:
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, README.name, "exec"), names)  # noqa: S102 - our own page
    (task,) = names["dag"].tasks
    return task


def test_customers_with_one_address_become_one(spark: SparkSession, tmp_path: Path, operator: Any) -> None:
    """Customers with one address become one: case-insensitive, a missing address matches none.

    The changes of the next day are merged.
    """
    write_rows(
        tmp_path / "crm_customers", [{"_id": "1", "email": "Ada@example.org"}, {"_id": "2", "city": "Oslo"}]
    )
    write_rows(
        tmp_path / "shop_customers", [{"_id": "9", "email": "ada@EXAMPLE.org"}, {"_id": "8", "city": "Rome"}]
    )
    assert merge_day(spark, tmp_path, operator, "monday") == [["1", "9"], ["2"], ["8"]]

    write_rows(tmp_path / "shop_customers", [{"_id": "9", "email": "grace@example.org", "city": "Rome"}])
    assert merge_day(spark, tmp_path, operator, "tuesday") == [["1"], ["2"], ["9"]]


def merge_day(spark: SparkSession, warehouse: Any, operator: Any, day: Any) -> Any:
    options = {name: getattr(operator, name) for name in operator.config_fields}
    request = JobRequest(
        job=operator.job,
        config={name: value for name, value in options.items() if value is not None},
        run=RunToken(dag_id=operator.dag_id, run_id=day, task_id=operator.task_id),
        warehouse=str(warehouse),
        started_at=0,
        full_refresh=operator.full_refresh,
    )
    report = run(spark, request, Progress())
    outputs = read_entities(warehouse / operator.target, report["target"]["version"])
    return sorted(output["$ids"] for output in outputs if "_deleted" not in output)
