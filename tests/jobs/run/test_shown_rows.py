"""Search all that a run leaves behind for values and keys of its rows, which the settings of Airflow mask."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import TaskAwaitingInput
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.context import OutletEventAccessors
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyspark.sql import SparkSession

from airflow_merge_provider.core.protocol import JobFailure, JobRequest, JobResult, parse_result
from airflow_merge_provider.hooks import spark_job
from airflow_merge_provider.jobs.run import entry
from airflow_merge_provider.operators.delete_insert import DeleteInsertOperator
from airflow_merge_provider.operators.joiner import JoinerOperator
from airflow_merge_provider.operators.merge_engine import MergeEngineOperator
from airflow_merge_provider.operators.merge_record import MergeRecordOperator
from airflow_merge_provider.operators.merge_source import MergeSourceOperator
from airflow_merge_provider.operators.scd2 import Scd2Operator
from airflow_merge_provider.operators.undo import UndoOperator
from airflow_merge_provider.operators.upsert import UpsertOperator
from tests.long import all_long_but

pytestmark = pytest.mark.spark

KEY, VALUE = "planted-key", "planted-value"
ROWS = {"id": [KEY, "k2"], "mail": [VALUE, "b"], "amount": [1, 2]}
TABLES = {
    "rows": ROWS,
    "changed": {**ROWS, "amount": [1, 3], "mail": [f"{VALUE}-2", "b"]},
    "twice": {**ROWS, "id": [KEY, KEY]},
    "keyless": {**ROWS, "id": [None, "k2"]},
    "kinds": {**ROWS, "kind": [VALUE, "+I"]},
    "numbers": {"id": ["k2"], "mail": [1], "amount": [1]},
    "crm": {"_id": [KEY, "p2"], "mail": [VALUE, VALUE]},
    "erp": {"_id": [KEY, "p4"], "mail": [VALUE, "d"]},
}
WARN = {"expect": {"large": {"condition": "amount > 100", "action": "warn"}}}
PERSONS = {"datasets": ["crm c", "erp e"], "equality": [["eq", "c.mail", "e.mail"]]}
JOIN = {"inputs": {"a": "rows", "b": "changed"}, "join_keys": {"a": "id", "b": "id"}}
FILES = {"source": "in", "merged": "out", "failure": "bad", "state_path": "state", "original_action": "keep"}
Build = Callable[[], BaseOperator]


def _build(kind: Any, **arguments: Any) -> Build:
    return lambda: kind(task_id="merge", emit_asset=False, **arguments)


# By name: an operator whose plan, report, log or error has rows.
RUNS: dict[str, Build] = {
    "scd2": _build(Scd2Operator, source="rows", target="h", natural_key="id", approve="always", **WARN),
    "merge_engine": _build(
        MergeEngineOperator, source="rows", target="e", primary_key="id", dry_run=True, **WARN
    ),
    "joiner": _build(
        JoinerOperator,
        **JOIN,
        target="j",
        dry_run=True,
        expect={"large": {"condition": "amount > 100", "action": "warn", "source": ["a", "b"]}},
        fields_to_rename="b.id:b_id, b.mail:b_mail, b.amount:b_amount",
    ),
    "merge_source": _build(MergeSourceOperator, **PERSONS, target="g"),
    "merge_record": _build(MergeRecordOperator, **FILES, reader="json", **WARN),
    "undo": _build(UndoOperator, target="u", dry_run=True),
}
# By name: the run that has to come before.
RUNS_BEFORE = {"undo": _build(UpsertOperator, source="rows", target="u", primary_key="id")}
ERRORS: dict[str, Build] = {
    "duplicates": _build(UpsertOperator, source="twice", target="u", primary_key="id"),
    "bad record": _build(
        UpsertOperator, source={"dataset": "in", "format": "json"}, target="u", primary_key="id"
    ),
    "null key": _build(DeleteInsertOperator, source="keyless", target="u", primary_key="id"),
    "adopted type": _build(UpsertOperator, source="rows", target="numbers", primary_key="id", adopt=True),
    "cast": _build(
        UpsertOperator, source="rows", target="u", primary_key="id", source_filter="cast(mail AS int) > 1"
    ),
    "expectation": _build(
        UpsertOperator,
        source="rows",
        target="u",
        primary_key="id",
        expect={"large": "amount > 100", "mail": {"accepted_values": {"mail": ["b"]}}},
    ),
    "change limit": _build(
        UpsertOperator, source="changed", target="rows", primary_key="id", adopt=True, max_change_ratio=0
    ),
    "row kind": _build(
        MergeEngineOperator, source="kinds", target="e", primary_key="id", row_kind_column="kind"
    ),
    "fan-out": _build(
        JoinerOperator,
        inputs={"a": "rows", "b": "twice"},
        join_keys={"a": "id", "b": "id"},
        target="j",
        fields_to_rename="b.id:b_id, b.mail:b_mail, b.amount:b_amount",
        expect={"b": "one_to_one"},
    ),
    "over-merge": _build(MergeSourceOperator, **PERSONS, target="g", max_key_fanout=2),
}


@dataclass
class InProcess:
    """A run in this process, with a request file and a result file as those of a child process."""

    request: JobRequest
    folder: Path

    def run(self) -> JobResult | JobFailure:
        files = [self.folder / name for name in ("request.json", "result.json")]
        files[0].write_text(self.request.model_dump_json())
        entry.main([str(file) for file in files])
        return parse_result(files[1].read_text(), 0.0)


@dataclass
class Worker:
    """A worker of Airflow: runs a task, and collects all that it leaves."""

    folder: Path
    xcoms: dict[str, Any]
    questions: list[Any]
    read_output: Callable[[], str]

    def run_task(self, build: Build, run_id: str = "r") -> str:
        """Return the log, the XComs, the question, the error and the files of a run, except data."""
        instance = SimpleNamespace(
            id=UUID(int=1),
            dag_id="d",
            run_id=run_id,
            task_id="merge",
            map_index=-1,
            xcom_push=lambda key, value: self.xcoms.update({key: value}),
            task=SimpleNamespace(outlets=[]),
        )
        operator = build()
        operator.warehouse = str(self.folder / "lake")
        error = ""
        try:
            context: Any = {"ti": instance, "run_id": run_id, "outlet_events": OutletEventAccessors()}
            operator.execute(context)
        except TaskAwaitingInput as waiting:
            error = str(waiting.kwargs)
        except Exception:  # noqa: BLE001 - Airflow stores what a task raises
            error = traceback.format_exc()
        xcoms = json.dumps(self.xcoms, default=str)
        return "\n".join([self.read_output(), xcoms, *map(str, self.questions), error, *self._read_files()])

    def _read_files(self) -> Iterator[str]:
        for path in sorted(self.folder.rglob("*")):
            if path.parent.name == "_delta_log" and path.suffix == ".json":
                yield from (line for line in path.read_text().splitlines() if '"add"' not in line)
            elif path.is_file() and (path.parent == self.folder or "state" in path.parts):
                yield path.read_text()


@pytest.fixture
def worker(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Worker:
    """Return a worker with tables and files."""
    for name, rows in TABLES.items():
        write_deltalake(tmp_path / "lake" / name, pa.table(rows))
    source = tmp_path / "lake/in"
    source.mkdir()
    (source / "a.json").write_text(json.dumps({"id": KEY, "mail": VALUE, "amount": 1}) + "\n")
    (source / "b.json").write_text(f'{{"id": "{KEY}", "mail": "{VALUE}"\n')
    questions: list[Any] = []

    def send_question(message: Any) -> Any:
        questions.append(message)
        return message

    supervisor = SimpleNamespace(send=send_question)
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", supervisor, raising=False)
    monkeypatch.setattr(entry, "die_with_parent", lambda: None)
    monkeypatch.setattr(entry, "_open_session", lambda conf: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)  # The session outlives the run.
    monkeypatch.setattr(spark_job.SparkJobHook, "_find_connection", lambda hook: None)
    monkeypatch.setattr(
        spark_job, "build_local_process", lambda request, *_, **__: InProcess(request, tmp_path)
    )

    def read_output() -> str:
        output = capsys.readouterr()
        return output.out + output.err

    return Worker(tmp_path, {}, questions, read_output)


@pytest.mark.parametrize("name", all_long_but(RUNS, "merge_engine", "merge_record", "undo"))
def test_a_run_that_shows_no_rows_leaves_no_value(
    worker: Worker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log, report, plan, question, state and result file have names and counts, but no value and no key."""
    monkeypatch.setenv("AIRFLOW__MERGE__SHOW_ROWS", "none")
    if name in RUNS_BEFORE:
        worker.run_task(RUNS_BEFORE[name], "before")
        worker.xcoms.clear()

    left = worker.run_task(RUNS[name])

    assert "run_mode_reason" in left, left
    run_mode = worker.xcoms.get("merge_report", {}).get("run_mode")
    assert (run_mode == "undo") == (name == "undo")
    assert VALUE not in left
    assert KEY not in left
    if name == "scd2":
        plan = QueryBuilder().register("plan", DeltaTable(worker.folder / "lake/h__plan"))
        assert VALUE in str(pa.table(plan.execute("SELECT after FROM plan").read_all()).to_pylist())


@pytest.mark.parametrize(
    "name", all_long_but(ERRORS, "duplicates", "cast", "bad record", "expectation", "change limit")
)
def test_an_error_has_no_value_but_those_of_keys(worker: Worker, name: str) -> None:
    """By default, the text and the report of an error have no value of a column that is not a key."""
    left = worker.run_task(ERRORS[name])

    assert "Traceback" in left
    assert worker.xcoms["merge_failure"]["outcome"] in left
    assert ("merge_plan" in worker.xcoms) == (name == "change limit")
    assert "***" in left or KEY in left, left
    assert VALUE not in left


def test_the_settings_choose_what_is_shown(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows are shown on request, except masked columns; by default, keys are."""
    build = _build(UpsertOperator, source="rows", target="u", primary_key="id", dry_run=True, **WARN)

    by_default = worker.run_task(build)
    monkeypatch.setenv("AIRFLOW__MERGE__SHOW_ROWS", "all")
    all_rows = worker.run_task(build)
    monkeypatch.setenv("AIRFLOW__MERGE__MASK_COLUMNS", "MAIL, other")
    masked = worker.run_task(build)

    assert (KEY in by_default, VALUE in by_default) == (True, False)
    assert (KEY in all_rows, VALUE in all_rows) == (True, True)
    assert (KEY in masked, VALUE in masked) == (True, False)
    assert '"amount": 1' in masked
