"""Test the OpenLineage events of every operator in a real Airflow, with a file as transport.

A test may take more than 20 seconds: its DAG has ten tasks that run Spark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from demo.local_airflow import ALL, LocalAirflow

from tests.e2e.conftest import MakeHome

pytestmark = pytest.mark.spark

DAGS = Path(__file__).parent / "lineage_dags"
# The inputs and outputs of each task, by their names in the lake.
DATASETS = {
    "merge_source": (["crm", "erp"], ["golden"]),
    "joiner": (["crm", "orders"], ["joined", "joined_unmatched"]),
    "merge_engine": (["changes"], ["balances", "balances_log"]),
    "scd2": (["crm"], ["history"]),
    "scd2_check": (["history"], []),
    "upsert": (["crm"], ["customers"]),
    "delete_insert": (["crm"], ["loaded", "loaded__rejected"]),
    "merge_record": (["landing"], ["failed", "merged", "merged_sources"]),
    "dry_run": (["crm"], []),
    "failing": (["absent"], ["never"]),
    "undo": ([], ["customers"]),
    "read_asset": (["customers"], []),
}
WRITING = ("merge_source", "joiner", "merge_engine", "scd2", "upsert", "delete_insert")
RUNS = 2

Event = dict[str, Any]
Events = list[dict[str, list[Event]]]


def write_lake(lake: Path) -> None:
    """Write the sources of the DAG."""
    crm = {"_id": ["c1", "c2"], "email": ["a@x", "b@x"], "name": ["Ann", "Bob"]}
    write_deltalake(lake / "crm", pa.table(crm))
    write_deltalake(lake / "erp", pa.table({"_id": ["e1"], "mail": ["A@X"], "name": ["Anna"]}))
    write_deltalake(lake / "changes", pa.table({"id": [1, 1, 2], "amount": [5, 7, 1], "at": [1, 2, 3]}))
    for folder in ("orders", "landing"):
        (lake / folder).mkdir()
    (lake / "orders" / "1.csv").write_text("customer,amount\nc1,10\nc9,1\n", encoding="utf-8")
    for number in range(3):
        line = json.dumps({"id": number, "v": "x"})
        (lake / "landing" / f"{number}.json").write_text(f"{line}\n", encoding="utf-8")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lineage") / "lake"
    folder.mkdir()
    write_lake(folder)
    return folder


@pytest.fixture(scope="module")
def events(lake: Path, airflow_home: MakeHome) -> Iterator[Events]:
    """Return the events of two runs: for each run, those of each task in order.

    Each event has a file of its own, because several processes write at the same time.
    """
    folder = lake.parent / "events"
    folder.mkdir()
    transport = {"type": "file", "log_file_path": f"{folder}/event", "append": False}
    settings = {
        "AIRFLOW__OPENLINEAGE__DISABLED": "False",
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
        "AIRFLOW__OPENLINEAGE__SPARK_INJECT_PARENT_JOB_INFO": "True",
    }
    with LocalAirflow(airflow_home(lake.parent), lake, parts=ALL, dags=DAGS, settings=settings) as airflow:
        airflow.wait_until_ready(("lineage",))
        run_ids = []
        for _ in range(RUNS):
            run_ids.append(airflow.trigger_run("lineage"))
            airflow.follow_run("lineage", run_ids[-1], print)
        yield [group_events(folder, run_id) for run_id in run_ids]


def group_events(folder: Path, run_id: str) -> dict[str, list[Event]]:
    """Return the events of the tasks of a run, by task; the names of the files are their times."""
    grouped_events: dict[str, list[Event]] = {}
    for file in sorted(folder.iterdir()):
        event = json.loads(file.read_text(encoding="utf-8"))
        facet = event["run"]["facets"].get("airflow", {})
        if "task" in facet and facet["dagRun"]["run_id"] == run_id:
            grouped_events.setdefault(facet["task"]["task_id"], []).append(event)
    return grouped_events


def list_names(event: Event, lake: Path) -> tuple[list[str], list[str]]:
    """Return the names of inputs and outputs below the lake; all of them are local files."""
    datasets = (event.get("inputs") or [], event.get("outputs") or [])
    assert {dataset["namespace"] for side in datasets for dataset in side} <= {"file"}
    inputs, outputs = (
        sorted(str(Path(dataset["name"]).relative_to(lake)) for dataset in side) for side in datasets
    )
    return inputs, outputs


def find_dataset(event: Event, side: str, name: str, lake: Path) -> Event:
    (dataset,) = [dataset for dataset in event[side] if dataset["name"] == f"{lake}/{name}"]
    return dict(dataset)


@pytest.mark.parametrize("task_id", DATASETS)
def test_every_event_of_a_task_names_the_same_datasets(task_id: str, events: Events, lake: Path) -> None:
    """START and COMPLETE, or FAIL, have the same inputs and outputs in a run with work and in one without."""
    last = "FAIL" if task_id == "failing" else "COMPLETE"
    for run in events:
        names = {event["eventType"]: list_names(event, lake) for event in run[task_id]}
        assert names == {"START": DATASETS[task_id], last: DATASETS[task_id]}


@pytest.mark.parametrize("task_id", WRITING)
def test_a_target_has_its_columns_and_rows(task_id: str, events: Events, lake: Path) -> None:
    """The first run creates each target, with its columns, their sources, and the number of rows."""
    complete = events[0][task_id][-1]
    target = find_dataset(complete, "outputs", DATASETS[task_id][1][0], lake)

    facets = target["facets"]
    assert {"schema", "version", "storage", "columnLineage", "lifecycleStateChange"} <= set(facets)
    assert facets["lifecycleStateChange"]["lifecycleStateChange"] == "CREATE"
    assert target["outputFacets"]["outputStatistics"]["rowCount"] > 0
    columns = {field["name"] for field in facets["schema"]["fields"]}
    traced_columns = facets["columnLineage"]["fields"]
    assert set(traced_columns) <= columns
    sources = {
        (field["name"], field["field"])
        for column in traced_columns.values()
        for field in [*column["inputFields"], *facets["columnLineage"]["dataset"]]
    }
    assert {name for name, _ in sources} <= {source["name"] for source in complete["inputs"]}
    for source in complete["inputs"]:
        assert {"schema", "version"} <= set(source["facets"])
        source_columns = {field["name"] for field in source["facets"]["schema"]["fields"]}
        assert {field for name, field in sources if name == source["name"]} <= source_columns


def test_a_run_without_work_has_schemas_and_no_rows(events: Events, lake: Path) -> None:
    """The second run finds nothing to do: its events still describe the datasets."""
    for task_id in ("merge_source", "merge_engine", "delete_insert"):
        complete = events[1][task_id][-1]
        target = find_dataset(complete, "outputs", DATASETS[task_id][1][0], lake)
        assert target["outputFacets"]["outputStatistics"]["rowCount"] == 0
        assert "schema" in target["facets"]
        assert "lifecycleStateChange" not in target["facets"]
        assert all("inputStatistics" not in source.get("inputFacets", {}) for source in complete["inputs"])


def test_other_outputs_are_counted(events: Events, lake: Path) -> None:
    """Unmatched rows, and the files of each folder, are counted."""
    unmatched = find_dataset(events[0]["joiner"][-1], "outputs", "joined_unmatched", lake)
    merged, originals = (
        find_dataset(events[0]["merge_record"][-1], "outputs", name, lake)
        for name in ("merged", "merged_sources")
    )

    # The order of c9 has no customer.
    assert unmatched["outputFacets"]["outputStatistics"]["rowCount"] == 1
    assert merged["outputFacets"]["outputStatistics"]["rowCount"] == 3
    assert originals["outputFacets"]["outputStatistics"]["fileCount"] == 3
    assert [field["name"] for field in merged["facets"]["schema"]["fields"]] == ["id", "v"]
    assert set(merged["facets"]["columnLineage"]["fields"]) == {"id", "v"}


def test_expectations_are_assertions_of_their_source(events: Events, lake: Path) -> None:
    """Each has its kind, its condition, its column and whether it was met."""
    source = find_dataset(events[0]["delete_insert"][-1], "inputs", "crm", lake)

    assertions = source["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert [(item["name"], item["assertion"], item["success"]) for item in assertions] == [
        ("not_bob", "custom_sql", False),
        ("has_email", "not_null", True),
    ]
    assert (assertions[0]["content"], assertions[1]["column"]) == ("name <> 'Bob'", "email")


def test_an_undo_of_the_first_run_empties_the_target(events: Events, lake: Path) -> None:
    """Each run of the DAG creates the rows of the table, and takes them back."""
    target = find_dataset(events[0]["undo"][-1], "outputs", "customers", lake)

    assert target["facets"]["lifecycleStateChange"]["lifecycleStateChange"] == "TRUNCATE"
