"""Test that a capability needs nothing but its own modules, its name in the registry, and an operator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import jsonschema
import pyarrow as pa
import pytest
from airflow.sdk.execution_time.context import OutletEventAccessors
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from airflow_merge_provider.cli import main as cli
from airflow_merge_provider.core.capabilities import CAPABILITIES, JOBS, list_counts, list_key_columns
from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.lineage import describe_run
from airflow_merge_provider.core.protocol import DatasetDescription, JobFailure, JobRequest, JobResult
from airflow_merge_provider.core.report import Report, build_report_schema
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.run.entry import answer_request
from tests.sixth_capability.copy_operator import CopyOperator
from tests.tables import read_rows

CONFIG = {"source": "s", "target": "t", "primary_key": "id"}


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Register the capability, and return a warehouse with a source and a run file."""
    for registry in (CAPABILITIES, JOBS):
        monkeypatch.setitem(registry._folders, "copy", "tests.sixth_capability")
    monkeypatch.setenv("AIRFLOW__MERGE__WAREHOUSE", str(tmp_path))
    write_source(tmp_path, {1: "a", 2: "b"})
    (tmp_path / "copy.json").write_text(json.dumps({"job": "copy", **CONFIG}))
    return tmp_path


@pytest.fixture
def spark_here(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run jobs of tasks and of the command line in this process."""

    def run(request: JobRequest, *_: Any, **__: Any) -> JobResult | JobFailure:
        return answer_request(request, {}, Progress(lambda _: None))

    monkeypatch.setattr("airflow_merge_provider.jobs.spark.session.get_session", lambda _: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    monkeypatch.setattr("airflow_merge_provider.cli.runs.run_job", run)
    monkeypatch.setattr(
        "airflow_merge_provider.hooks.spark_job.build_local_process",
        lambda request, *_, **__: SimpleNamespace(run=lambda: run(request)),
    )


def write_source(warehouse: Path, texts: Mapping[int, str]) -> None:
    rows = pa.table({"id": list(texts), "x": list(texts.values())})
    write_deltalake(warehouse / "s", rows, mode="overwrite")


def read_target(warehouse: Path) -> dict[int, str]:
    return {row["id"]: row["x"] for row in read_rows(warehouse / "t")}


def execute(warehouse: Path, run_id: str) -> dict[str, Any]:
    """Run the operator, and return the report that it stores for its page."""
    operator = CopyOperator(task_id="copy", **CONFIG, warehouse=str(warehouse))
    reports: dict[str, Any] = {}
    instance = SimpleNamespace(
        id=UUID(int=1), dag_id="d", run_id=run_id, task_id="copy", map_index=-1,
        xcom_push=lambda key, value: reports.update({key: value}), task=SimpleNamespace(outlets=[]),
    )  # fmt: skip
    context: Any = {"ti": instance, "run_id": run_id, "outlet_events": OutletEventAccessors()}
    operator.execute(context)
    report: dict[str, Any] = reports["merge_report"]
    jsonschema.Draft202012Validator(build_report_schema(list_counts())).validate(report)
    return report


def run_command(capsys: pytest.CaptureFixture[str], *arguments: str, exit_code: int = 0) -> str:
    """Run a command, and return what it prints."""
    assert cli.main(list(arguments)) == exit_code
    printed = capsys.readouterr()
    return printed.out if exit_code == 0 else printed.err


def test_a_sixth_capability_is_checked(copies: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Arguments, columns, schema, keys and lineage follow from the configuration, without Spark."""
    file = str(copies / "copy.json")
    operator = CopyOperator(task_id="copy", **CONFIG, warehouse=str(copies))
    assert CopyOperator.config_fields == ("source", "target", "primary_key")
    assert [len(operator.inlets), len(operator.outlets)] == [1, 1]
    with pytest.raises(ConfigError, match=r"task 'copy': primary_keys: .*did you mean 'primary_key'"):
        CopyOperator(task_id="copy", **CONFIG, primary_keys="id")

    checked = f"{file}: valid copy configuration\ncolumns checked: s\n"
    assert run_command(capsys, "check", file) == checked
    (copies / "wrong.json").write_text(json.dumps({"job": "copy", **CONFIG, "primary_key": "idd"}))
    refusal = run_command(capsys, "check", str(copies / "wrong.json"), exit_code=3)
    assert "primary_key: the source s has no column 'idd'" in refusal
    assert set(CONFIG) == set(json.loads(run_command(capsys, "schema", "copy"))["properties"])
    assert list_key_columns("copy", CONFIG) == ("id",)


def test_a_sixth_capability_runs(copies: Path, spark_here: None, capsys: pytest.CaptureFixture[str]) -> None:
    """Its operator, its plans, its undo and its explanations are those of every capability."""
    file = str(copies / "copy.json")
    report = execute(copies, "first")
    assert report["summary"] == "2 rows were copied to t"
    assert (report["run_mode"], report["rows"]["inserted"], report["counts"]) == ("initial", 2, {"copied": 2})
    assert (
        execute(copies, "again")["summary"] == "Nothing to do: no source has changed since the previous run"
    )

    write_source(copies, {1: "a", 2: "c", 3: "d"})
    plan = run_command(capsys, "plan", file)
    assert '+ id = 3, x = "d"  [inserted]\n~ id = 2  [updated]\n    x: "b" -> "c"\n' in plan
    assert read_target(copies) == {1: "a", 2: "b"}
    assert json.loads(run_command(capsys, "plan", file, "--no-rows"))["details"] == {"columns": ["id", "x"]}
    assert json.loads(run_command(capsys, "run", file, "--run-id", "second"))["counts"] == {"copied": 3}
    assert read_target(copies) == {1: "a", 2: "c", 3: "d"}

    explanation = run_command(capsys, "explain", "t", "2")
    assert "source " in explanation
    assert '  copied: id = 2, x = "c"' in explanation
    assert explanation.index("run second: updated") < explanation.index("run first of d.copy: inserted")
    fields = tuple({"name": name, "type": "string"} for name in ("id", "x"))
    descriptions = {str(copies / "s"): DatasetDescription(fields=fields)}
    lineage = describe_run(
        "copy", CONFIG, str(copies), report=Report.model_validate(report), descriptions=descriptions
    )
    (output,) = lineage.outputs
    assert output.columns is not None
    assert output.lifecycle_change == "CREATE"
    assert set(output.columns.columns) == {"id", "x"}

    undone = json.loads(run_command(capsys, "undo", "t"))
    assert [run["run_id"] for run in undone["details"]["undone"]] == ["second"]
    assert read_target(copies) == {1: "a", 2: "b"}
    explanation = run_command(capsys, "explain", "t", "2")
    assert ('x = "b"' in explanation, "run second" in explanation) == (True, False)
