"""A person approves or rejects a run through the API of Airflow's pages; server, scheduler, Spark are real.

Each test takes more than 20 seconds: it starts Spark for the run that asks and for the one that was approved.
"""

from __future__ import annotations

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
    """A source, the target of its loads, and the questions that they ask."""

    def __init__(self, airflow: LocalAirflow, warehouse: Path) -> None:
        self.airflow, self._warehouse = airflow, warehouse
        self.values: list[str] = []

    def change_values(self, count: int, value: str) -> None:
        """Return some of the orders that are loaded another value."""
        self.values = [value] * count + self.read_values()[count:]
        rows = pa.table({"id": range(ROWS), "value": self.values})
        write_deltalake(self._warehouse / "orders", rows, mode="overwrite")

    def read_values(self) -> list[str]:
        """Return the values that the target holds; those that are loaded first, where it does not exist."""
        if not DeltaTable.is_deltatable(str(self._warehouse / "loaded")):
            return ["a"] * ROWS
        # This reader respects deletion vectors.
        found = QueryBuilder().register("loaded", DeltaTable(self._warehouse / "loaded"))
        rows = found.execute("SELECT value FROM loaded ORDER BY id")
        return list(pa.RecordBatchReader.from_stream(rows).read_all()["value"].to_pylist())

    def start_run(self) -> str:
        """Start a run, and return its id."""
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
        """Return what a person is asked."""
        return self.airflow.get_json(f"/dags/approval/dagRuns/{run}/taskInstances/load/-1/hitlDetails")

    def _scheduler_log(self) -> str:
        return (self.airflow.home / "scheduler.log").read_text(encoding="utf-8", errors="replace")

    def answer_question(self, run: str, option: str) -> None:
        """Answer as the page of the task does, once the scheduler has learned that the task's process ended.

        An answer that comes earlier makes Airflow repeat the try, which asks again; only the scheduler's log
        tells when it has learned it.
        """
        end = time.monotonic() + PATIENCE
        while (
            f"TaskInstance Finished: dag_id=approval, task_id=load, run_id={run}" not in self._scheduler_log()
        ):
            assert time.monotonic() < end, "the scheduler has not seen the end of the task's process"
            time.sleep(0.5)
        place = f"/dags/approval/dagRuns/{run}/taskInstances/load/-1/hitlDetails"
        self.airflow.send_request("PATCH", place, {"chosen_options": [option], "params_input": {}})


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory, airflow_home: MakeHome) -> Iterator[Orders]:
    """Return orders that have been loaded once, in an Airflow for all tests of this file."""
    home = tmp_path_factory.mktemp("approval")
    warehouse = home / "warehouse"
    warehouse.mkdir()
    with LocalAirflow(airflow_home(home), warehouse, dags=DAGS) as airflow:
        airflow.wait_until_ready(("approval",))
        made = Orders(airflow, warehouse)
        made.change_values(0, "a")
        made.wait_for_state(made.start_run(), "success")
        yield made


def test_an_approved_run_writes(orders: Any) -> None:
    """The task waits without a process; the report names who approved."""
    orders.change_values(5, "approved")
    run = orders.start()
    orders.wait(run, "awaiting_input")
    before = orders.loaded()
    asked = orders.question(run)

    orders.answer(run, "Apply")

    orders.wait(run, "success")
    assert asked["subject"].startswith("loaded: the run would write 5 rows where 10 stood")
    assert "| rows: updated | 5 |" in asked["body"]
    assert asked["options"] == ["Apply", "Reject"]
    assert "approved" not in before
    assert orders.loaded() == orders.values
    report = orders.airflow.xcom("approval", run, "load", "merge_report")
    assert (report["rows"]["updated"], bool(report["approved_by"])) == (5, True)


def test_a_rejected_run_writes_nothing(orders: Any) -> None:
    """The task is skipped."""
    orders.change_values(4, "rejected")
    run = orders.start()
    orders.wait(run, "awaiting_input")

    orders.answer(run, "Reject")

    orders.wait(run, "skipped")
    assert "rejected" not in orders.loaded()


def test_a_run_that_has_grown_meanwhile_fails(orders: Any) -> None:
    """What was approved is not what would be written; a new run asks with the figures of then."""
    orders.change_values(3, "grown")
    run = orders.start()
    orders.wait(run, "awaiting_input")
    orders.change_values(7, "grown")

    orders.answer(run, "Apply")

    orders.wait(run, "failed")
    assert "grown" not in orders.loaded()
    reason = orders.airflow.reason("approval", run)
    assert reason.startswith("loaded: the change has grown since it was approved, from 0.3 to 0.7 of the")
    again = orders.start()
    orders.wait(again, "awaiting_input")
    assert "the run would write 7 rows" in orders.question(again)["subject"]
    orders.answer(again, "Reject")
    orders.wait(again, "skipped")
