"""Test datasets that start DAGs in a real scheduler and triggerer: no lost, repeated or endless runs.

A test may take more than 20 seconds: to prove that no more runs start, it waits until none has for a while.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from demo.local_airflow import ALL, HOST, LocalAirflow

from tests.e2e.conftest import MakeHome

DAGS = Path(__file__).parent / "signalling_dags"
NAMES = ("burst_out", "paused_out", "slow_out", "loop_there", "loop_back", "watched_out", "waiting_out")
PATIENCE = 180.0


class Lake:
    """The warehouse of one Airflow, the writes of others to it, and the runs of its DAGs."""

    def __init__(self, airflow: LocalAirflow, warehouse: Path) -> None:
        self.airflow = airflow
        self.warehouse = warehouse

    def write_value(self, dataset: str, value: int) -> None:
        rows = pa.table({"_id": ["x"], "value": [value]})
        write_deltalake(self.warehouse / dataset, rows, mode="append")

    def send_event(self, dataset: str) -> None:
        """Send an asset event as a loader outside Airflow does."""
        self.airflow.send_request("POST", "/assets/events", {"asset_id": self.find_asset(dataset)["id"]})

    def find_asset(self, dataset: str) -> dict[str, object]:
        (asset,) = self.airflow.get_json(f"/assets?uri_pattern=merge://warehouse/{dataset}")["assets"]
        return dict(asset)

    def read_value(self, dataset: str) -> int | None:
        path = self.warehouse / dataset
        if not DeltaTable.is_deltatable(str(path)):
            return None
        values: list[int] = DeltaTable(path).to_pyarrow_table()["value"].to_pylist()
        return max(values)

    def list_runs(self, dag_id: str) -> list[dict[str, object]]:
        return list(self.airflow.get_json(f"/dags/{dag_id}/dagRuns?order_by=id")["dag_runs"])

    def count_events(self, dataset: str) -> int:
        return int(
            self.airflow.get_json(f"/assets/events?asset_id={self.find_asset(dataset)['id']}")[
                "total_entries"
            ]
        )

    def wait_until(self, reached: Any) -> None:
        end = time.monotonic() + PATIENCE
        while not reached():
            assert time.monotonic() < end, "nothing happened in time"
            time.sleep(0.5)

    def wait_for_rest(self, *dag_ids: str, seconds: float = 8.0) -> None:
        """Wait until none of these DAGs has run for a while; check that all their runs succeeded."""
        still, before = time.monotonic(), None
        end = still + PATIENCE
        while time.monotonic() - still < seconds:
            assert time.monotonic() < end, f"{dag_ids} do not come to rest"
            now = [(run["dag_run_id"], run["state"]) for dag_id in dag_ids for run in self.list_runs(dag_id)]
            if now != before or any(state in {"queued", "running"} for _, state in now):
                still, before = time.monotonic(), now
            time.sleep(0.5)
        assert {state for _, state in before or []} <= {"success"}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, airflow_home: MakeHome) -> Iterator[Lake]:
    """Return one Airflow with scheduler and triggerer for all tests of this module."""
    home = tmp_path_factory.mktemp("signalling")
    warehouse = home / "warehouse"
    warehouse.mkdir()
    with LocalAirflow(airflow_home(home), warehouse, parts=ALL, dags=DAGS) as airflow:
        airflow.wait_until_ready(NAMES)
        yield Lake(airflow, warehouse)


def test_nothing_listens_for_other_machines(lake: Lake) -> None:
    """No process listens on addresses that other machines can reach, because there is no login."""
    assert lake.airflow.list_addresses() == {HOST}


def test_a_burst_of_events_loses_nothing(lake: Lake) -> None:
    """Five events at once may start a single run, but the output has the last written value."""
    lake.wait_for_rest("burst_out")
    runs = len(lake.list_runs("burst_out"))

    for value in range(1, 6):
        lake.write_value("burst_a", value)
        lake.send_event("burst_a")

    lake.wait_until(lambda: lake.read_value("burst_out") == 6)
    lake.wait_for_rest("burst_out")
    assert 1 <= len(lake.list_runs("burst_out")) - runs <= 5


def test_any_input_is_enough_and_a_run_without_changes_tells_nobody(lake: Lake) -> None:
    """An event of the other input starts a run too; it changes nothing, and its downstream task runs."""
    if lake.read_value("burst_out") is None:
        lake.write_value("burst_a", 1)
        lake.send_event("burst_a")
        lake.wait_until(lambda: lake.read_value("burst_out") is not None)
    lake.wait_for_rest("burst_out")
    runs, events = len(lake.list_runs("burst_out")), lake.count_events("burst_out")

    lake.send_event("burst_b")

    lake.wait_until(lambda: len(lake.list_runs("burst_out")) > runs)
    lake.wait_for_rest("burst_out")
    last = lake.list_runs("burst_out")[-1]["dag_run_id"]
    states = {
        task_instance["task_id"]: task_instance["state"]
        for task_instance in lake.airflow.get_json(f"/dags/burst_out/dagRuns/{last}/taskInstances")[
            "task_instances"
        ]
    }
    assert states == {"wait": "success", "merge": "success", "after": "success"}
    assert lake.count_events("burst_out") == events


def test_a_paused_consumer_catches_up(lake: Lake) -> None:
    """Events during a pause start no run.

    The first event after it starts a run that processes all changes.
    """
    lake.airflow.send_request("PATCH", "/dags/paused_out", {"is_paused": True})
    for value in (1, 2, 3):
        lake.write_value("paused_in", value)
        lake.send_event("paused_in")
    # Longer than the scheduler takes to start a run for an event.
    time.sleep(5)
    assert not any(run["state"] in {"running", "success"} for run in lake.list_runs("paused_out"))
    lake.airflow.send_request("PATCH", "/dags/paused_out", {"is_paused": False})
    lake.write_value("paused_in", 4)
    lake.send_event("paused_in")

    lake.wait_until(lambda: lake.read_value("paused_out") == 5)
    lake.wait_for_rest("paused_out")
    assert lake.read_value("paused_out") == 5


def test_an_event_during_a_run_makes_one_more(lake: Lake) -> None:
    """An event during a run does not affect that run; one further run processes the later changes."""
    lake.write_value("slow_in", 1)
    lake.send_event("slow_in")
    lake.wait_until(lambda: any(run["state"] == "running" for run in lake.list_runs("slow_out")))
    time.sleep(2)
    lake.write_value("slow_in", 2)
    lake.send_event("slow_in")

    lake.wait_until(lambda: lake.read_value("slow_out") == 3)
    lake.wait_for_rest("slow_out")
    assert len(lake.list_runs("slow_out")) == 2
    assert lake.read_value("slow_out") == 3


def test_a_loop_comes_to_rest(lake: Lake) -> None:
    """Two DAGs that are inputs of each other run until nothing changes, and then stop."""
    lake.write_value("loop_start", 1)
    lake.send_event("loop_start")

    lake.wait_until(lambda: lake.read_value("loop_there") == 6)
    lake.wait_for_rest("loop_there", "loop_back", seconds=15)
    assert lake.read_value("loop_back") == 6


def test_a_change_from_outside_starts_a_run(lake: Lake) -> None:
    """A watcher detects a new table version that was written outside Airflow, and starts a run."""
    lake.write_value("watched_in", 1)
    lake.wait_until(lambda: lake.read_value("watched_out") == 2)

    lake.write_value("watched_in", 5)
    lake.wait_until(lambda: lake.read_value("watched_out") == 6)
    lake.wait_for_rest("watched_out")
    assert lake.read_value("watched_out") == 6


def test_a_mark_by_hand_ends_a_wait(lake: Lake) -> None:
    """The sensor waits in the triggerer until a person marks the dataset as populated by REST."""
    run = lake.airflow.trigger_run("waiting_out")
    path = f"/dags/waiting_out/dagRuns/{run}/taskInstances/wait"
    lake.wait_until(lambda: lake.airflow.get_json(path)["state"] == "deferred")

    store = f"/assets/{lake.find_asset('waiting_in')['id']}/state-store/populated"
    lake.airflow.send_request("PUT", store, {"value": {"by": "vera"}})

    lake.wait_until(lambda: lake.airflow.get_json(path)["state"] == "success")
    return_value = lake.airflow.read_xcom("waiting_out", run, "wait", "return_value")
    assert return_value == {"waiting_in": {"version": None, "origin": "mark"}}
