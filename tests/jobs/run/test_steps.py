"""Test that a run takes the steps that CONTRIBUTING.md lists, in their order."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from airflow.sdk.execution_time.context import OutletEventAccessors
from deltalake import write_deltalake
from pyspark.sql import SparkSession

import airflow_merge_provider
from airflow_merge_provider.core.protocol import JobFailure, JobRequest, JobResult
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.run.entry import answer_request
from airflow_merge_provider.operators.upsert import UpsertOperator

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[3] / "CONTRIBUTING.md"
PACKAGE = f"{Path(airflow_merge_provider.__file__).parent}/"
Step = tuple[str, str]


class JobOfThisProcess:
    """A job that runs in the process of its task."""

    def __init__(self, request: JobRequest, *_: Any, **__: Any) -> None:
        self._request = request

    def run(self) -> JobResult | JobFailure:
        return answer_request(self._request, {}, Progress(lambda _: None))


def list_steps() -> list[Step]:
    """Return the modules and functions of the page, in order."""
    _, _, section = PAGE.read_text(encoding="utf-8").partition("## A run, from the operator to the commit\n")
    rows = re.findall(r"^\| `(\w+)` \| `([\w/]+\.py)` \|", section.partition("\n## ")[0], re.MULTILINE)
    return [(module, function) for function, module in rows]


def trace_calls(execute: Callable[[], object]) -> list[Step]:
    """Return the functions of the package that are called, in order."""
    calls: list[Step] = []

    def record(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            calls.append((code.co_filename.removeprefix(PACKAGE), code.co_name))

    former = sys.getprofile()
    sys.setprofile(record)
    try:
        execute()
    finally:
        sys.setprofile(former)
    return calls


def find_missing(steps: list[Step], calls: list[Step]) -> Iterator[Step]:
    """Yield the steps that do not follow the steps before them."""
    position = 0
    for step in steps:
        try:
            position = calls.index(step, position) + 1
        except ValueError:
            yield step


def test_a_run_takes_the_steps_of_the_page(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run of an upsert, from its operator to its asset, in one process."""
    monkeypatch.setattr("airflow_merge_provider.hooks.spark_job.build_local_process", JobOfThisProcess)
    monkeypatch.setattr("airflow_merge_provider.jobs.spark.session.get_session", lambda _: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    write_deltalake(tmp_path / "s", pa.table({"id": [1, 2]}))
    operator = UpsertOperator(
        task_id="t", source="s", target="t", primary_key="id", warehouse=str(tmp_path),
        expect={"known": {"not_null": ["id"]}},
    )  # fmt: skip
    reports: dict[str, Any] = {}
    instance = SimpleNamespace(
        id=UUID(int=1), dag_id="d", run_id="r", task_id="t", map_index=-1,
        xcom_push=lambda key, value: reports.update({key: value}), task=SimpleNamespace(outlets=[]),
    )  # fmt: skip
    context: Any = {"ti": instance, "run_id": "r", "outlet_events": OutletEventAccessors()}

    calls = trace_calls(lambda: operator.execute(context))

    assert reports["merge_report"]["rows"]["inserted"] == 2
    steps = list_steps()
    assert len(steps) > 20
    assert list(find_missing(steps, calls)) == []
    assert list(find_missing(steps[::-1], calls)) != []
