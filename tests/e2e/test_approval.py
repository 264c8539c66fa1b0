"""Test approval and rejection of a run through Airflow's API, with real server, scheduler and Spark.

Each test takes more than 20 seconds: it starts Spark for the run that requests approval and for the
approved run.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from demo.local_airflow import LocalAirflow

from tests.e2e.conftest import MakeHome

DAGS = Path(__file__).parent / "approval_dags"
ROWS = 10
PATIENCE = 180.0
_OVER = ("success", "failed", "skipped", "upstream_failed")


class Orders:
    """A source, the target of its loads, and the approval requests of these loads."""

    def __init__(self, airflow: LocalAirflow, warehouse: Path) -> None:
        self.airflow, self.warehouse = airflow, warehouse
        self.values: list[str] = []

    def change_values(self, count: int, value: str) -> None:
        """Write another value for some of the loaded orders."""
        self.values = [value] * count + self.read_values()[count:]
        rows = pa.table({"id": range(ROWS), "value": self.values})
        write_deltalake(self.warehouse / "orders", rows, mode="overwrite")

    def read_values(self) -> list[str]:
        """Return the values in the target, or those of the first load if there is no target yet."""
        if not DeltaTable.is_deltatable(str(self.warehouse / "loaded")):
            return ["a"] * ROWS
        # This reader supports deletion vectors.
        query_builder = QueryBuilder().register("loaded", DeltaTable(self.warehouse / "loaded"))
        rows = query_builder.execute("SELECT value FROM loaded ORDER BY id")
        return list(pa.RecordBatchReader.from_stream(rows).read_all()["value"].to_pylist())

    def start_run(self) -> str:
        """Start a run and return its id."""
        return self.airflow.trigger_run("approval")

    def wait_for_state(self, run: str, state: str) -> None:
        """Wait until the task is in a state."""
        end = time.monotonic() + PATIENCE
        while True:
            task = self.airflow.get_json(f"/dags/approval/dagRuns/{run}/taskInstances/load")
            if task["state"] == state:
                return
            assert task["state"] not in _OVER, self.airflow.read_reason("approval", run)
            assert time.monotonic() < end, f"the task is {task['state']}"
            time.sleep(0.5)

    def read_question(self, run: str) -> dict[str, Any]:
        """Return the text of the approval request."""
        return self.airflow.get_json(f"/dags/approval/dagRuns/{run}/taskInstances/load/-1/hitlDetails")

    def _scheduler_log(self) -> str:
        return (self.airflow.home / "scheduler.log").read_text(encoding="utf-8", errors="replace")

    def answer_question(self, run: str, option: str) -> None:
        """Answer the request as the task's page does, after the scheduler has registered the process's end.

        If the answer comes earlier, Airflow repeats the try, which requests approval again. Only the
        scheduler's log shows when the end has been registered.
        """
        end = time.monotonic() + PATIENCE
        while (
            f"TaskInstance Finished: dag_id=approval, task_id=load, run_id={run}" not in self._scheduler_log()
        ):
            assert time.monotonic() < end, "the scheduler has not seen the end of the task's process"
            time.sleep(0.5)
        endpoint = f"/dags/approval/dagRuns/{run}/taskInstances/load/-1/hitlDetails"
        self.airflow.send_request("PATCH", endpoint, {"chosen_options": [option], "params_input": {}})


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory, airflow_home: MakeHome) -> Iterator[Orders]:
    """Return orders that have been loaded once, in one Airflow for all tests of this module."""
    home = tmp_path_factory.mktemp("approval")
    warehouse = home / "warehouse"
    warehouse.mkdir()
    with LocalAirflow(airflow_home(home), warehouse, dags=DAGS) as airflow:
        airflow.wait_until_ready(("approval",))
        loaded_orders = Orders(airflow, warehouse)
        loaded_orders.change_values(0, "a")
        loaded_orders.wait_for_state(loaded_orders.start_run(), "success")
        yield loaded_orders


def test_an_approved_run_writes(orders: Orders) -> None:
    """The task waits without a process; the report of the approved run names the person who approved."""
    orders.change_values(5, "approved")
    run = orders.start_run()
    orders.wait_for_state(run, "awaiting_input")
    before = orders.read_values()
    question = orders.read_question(run)

    orders.answer_question(run, "Apply")

    orders.wait_for_state(run, "success")
    assert question["subject"] == "loaded: changes 5 rows in a target of 10 rows (50 %): 5 updated"
    assert "| updated | 5 |" in question["body"]
    shown = r'\| updated \| id = 0 \| value "\w+" → "approved" \|'
    assert re.search(shown, question["body"])
    assert question["options"] == ["Apply", "Reject"]
    assert "approved" not in before
    assert orders.read_values() == orders.values
    report = orders.airflow.read_xcom("approval", run, "load", "merge_report")
    assert (report["rows"]["updated"], bool(report["approved_by"])) == (5, True)
    history = DeltaTable(str(orders.warehouse / "loaded")).history(1)
    assert json.loads(history[0]["userMetadata"])["approved_by"] == report["approved_by"]


def test_a_rejected_run_writes_nothing(orders: Orders) -> None:
    """A rejected run writes nothing, and its task is skipped."""
    orders.change_values(4, "rejected")
    run = orders.start_run()
    orders.wait_for_state(run, "awaiting_input")

    orders.answer_question(run, "Reject")

    orders.wait_for_state(run, "skipped")
    assert "rejected" not in orders.read_values()


def test_an_approved_plan_is_applied_although_its_source_has_grown(orders: Orders) -> None:
    """The run commits exactly the rows that were shown; the next run requests approval of the others."""
    orders.change_values(3, "shown")
    run = orders.start_run()
    orders.wait_for_state(run, "awaiting_input")
    shown = orders.values
    orders.change_values(7, "grown")

    orders.answer_question(run, "Apply")

    orders.wait_for_state(run, "success")
    assert orders.read_values() == shown
    again = orders.start_run()
    orders.wait_for_state(again, "awaiting_input")
    assert (
        orders.read_question(again)["subject"]
        == "loaded: changes 7 rows in a target of 10 rows (70 %): 7 updated"
    )
    orders.answer_question(again, "Reject")
    orders.wait_for_state(again, "skipped")


def test_an_approved_plan_is_not_applied_to_another_target(orders: Orders) -> None:
    """A run whose target has changed since the plan commits nothing, and a new run asks again."""
    orders.change_values(4, "planned")
    run = orders.start_run()
    orders.wait_for_state(run, "awaiting_input")
    loaded = DeltaTable(str(orders.warehouse / "loaded"))
    loaded.update(predicate="id = 0", updates={"value": "'foreign'"})

    orders.answer_question(run, "Apply")

    orders.wait_for_state(run, "failed")
    assert "planned" not in orders.read_values()
    reason = orders.airflow.read_reason("approval", run)
    assert reason.startswith("loaded: the plan is outdated: the target was at version")
    again = orders.start_run()
    orders.wait_for_state(again, "awaiting_input")
    assert (
        orders.read_question(again)["subject"]
        == "loaded: changes 4 rows in a target of 10 rows (40 %): 4 updated"
    )
    orders.answer_question(again, "Reject")
    orders.wait_for_state(again, "skipped")
