"""Test the default mode: each operator runs its job on the shared Spark server of this machine."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import psutil
import pyarrow as pa
import pytest
from airflow.sdk import BaseOperator
from airflow.sdk.execution_time.context import OutletEventAccessors
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from demo.tables import read_entities, read_rows, write_rows

from airflow_merge_provider.cli.main import main
from airflow_merge_provider.core.change_plan.shown_rows import ShownRows, use_shown_rows
from airflow_merge_provider.core.merge_record.landing import SIDECAR
from airflow_merge_provider.delta_rs import load_table
from airflow_merge_provider.operators.delete_insert import DeleteInsertOperator
from airflow_merge_provider.operators.joiner import JoinerOperator
from airflow_merge_provider.operators.merge_engine import MergeEngineOperator
from airflow_merge_provider.operators.merge_record import MergeRecordOperator
from airflow_merge_provider.operators.scd2 import Scd2Operator
from airflow_merge_provider.operators.upsert import UpsertOperator
from airflow_merge_provider.spark_process.shared import administration
from tests.odd_names import ODD, encode_path

pytestmark = pytest.mark.spark

README = Path(__file__).parents[2] / "README.md"
# As many as the server of two cores has slots.
_TASKS_AT_ONCE = 4
ORDERS = [{"id": number, "customer": str(number), "amount": 10 * number} for number in (1, 2)]
CUSTOMERS = [{"_id": "1", "email": "Ada@example.org"}, {"_id": "2", "city": "Oslo"}]
SHOP = [{"_id": "9", "email": "ada@EXAMPLE.org"}, {"_id": "8", "city": "Rome"}]
# One function is a fold in Python.
AGGREGATES = {"fields.customer.aggregate-function": "listagg"}
LOADS: dict[str, tuple[Any, dict[str, Any]]] = {
    "upsert": (UpsertOperator, {"primary_key": "id"}),
    "delete_insert": (DeleteInsertOperator, {"primary_key": "id"}),
    "scd2": (Scd2Operator, {"natural_key": "id"}),
    "merge_engine": (
        MergeEngineOperator,
        {"primary_key": "id", "merge_engine": "aggregation", "options": AGGREGATES},
    ),
}
# A run over these rows fails in a task of Spark, with an error that has a value.
VALUE = "planted-value"
PLANTED = [{"id": 1, "amount": VALUE}, {"id": 2, "amount": "2"}]
Report = Mapping[str, Any]


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a warehouse with sources, on a machine whose servers end with the test."""
    lake, temporary = tmp_path / "lake", tmp_path / "tmp"
    for folder in (lake / "in", temporary):
        folder.mkdir(parents=True)
    write_deltalake(lake / "orders", pa.Table.from_pylist(ORDERS))
    write_deltalake(lake / "planted", pa.Table.from_pylist(PLANTED))
    write_rows(lake / "crm_customers", CUSTOMERS)
    write_rows(lake / "shop_customers", SHOP)
    for order in ORDERS:
        (lake / f"in/{order['id']}.json").write_text(json.dumps(order) + "\n")
    monkeypatch.delenv("AIRFLOW__MERGE__LOCAL_SPARK")
    monkeypatch.setenv("AIRFLOW__MERGE__LOCAL_SPARK_WARM_UP", "False")
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    # What a run may show is a value of its process, which each task of a worker has for itself.
    with use_shown_rows(ShownRows()):
        yield lake
    for server in administration.stop_servers():
        wait_for_end(server.state.pid)


def wait_for_end(pid: int) -> None:
    """Wait until a process has ended, which need not be a child of this one."""
    with suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(60)


def build_operators() -> dict[str, BaseOperator]:
    """Return an operator of each capability; that of a merge source is in the README."""
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, README.name, "exec"), names)  # noqa: S102 - our own page
    (readme_task,) = names["dag"].tasks
    files = {
        "source": "in",
        "merged": "merged",
        "failure": "failed",
        "state_path": "state",
        "original_action": "keep",
    }
    return {
        "merge_source": readme_task,
        **{
            name: kind(task_id=name, source="orders", target=f"by_{name}", **arguments)
            for name, (kind, arguments) in LOADS.items()
        },
        "joiner": JoinerOperator(
            task_id="joiner",
            inputs={"o": "orders", "c": "crm_customers"},
            join_keys={"o": "customer", "c": "_id"},
            target="joined",
        ),
        "merge_record": MergeRecordOperator(task_id="merge_record", reader="json", **files),
    }


def build_failing_operator() -> BaseOperator:
    """Return an operator whose run cannot cast a value."""
    amounts = {"source": "planted", "source_filter": "cast(amount AS int) > 1"}
    return UpsertOperator(task_id="failing", target="none", primary_key="id", **amounts)


def run_task(operator: Any, lake: Path, run_id: str) -> Report:
    """Execute a task as a worker does; return the report in its XCom."""
    xcoms: dict[str, Any] = {}
    instance = SimpleNamespace(
        id=UUID(int=1), dag_id="d", run_id=run_id, task_id=operator.task_id, map_index=-1,
        xcom_push=lambda key, value: xcoms.update({key: value}), task=SimpleNamespace(outlets=[]),
    )  # fmt: skip
    operator.warehouse = str(lake)
    operator.execute({"ti": instance, "run_id": run_id, "outlet_events": OutletEventAccessors()})
    report: Report = xcoms["merge_report"]
    return report


def read_members(lake: Path, report: Report) -> list[list[str]]:
    """Return the members of the outputs of a merge source."""
    outputs = read_entities(lake / report["target"]["dataset"], report["target"]["version"])
    return sorted(output["$ids"] for output in outputs if "_deleted" not in output)


def read_merged_files(folder: Path) -> list[list[int]]:
    """Return the keys in each file that a merge record has written."""
    files = [path for path in folder.glob("merged-*") if not path.name.endswith(SIDECAR)]
    return [sorted(json.loads(line)["id"] for line in path.read_text().splitlines()) for path in files]


def plan_and_run(lake: Path, runs: Path) -> list[int]:
    """Plan and run a file over a copy of the orders in a folder with an odd name, and return exit codes."""
    odd = runs / ODD
    # delta-rs cannot write to a folder with %20.
    shutil.copytree(lake / "orders", odd / "orders")
    file, config = odd / "load.json", {"source": "orders", "target": f"{odd}/t", "primary_key": "id"}
    file.write_text(json.dumps({"job": "upsert", **config}))
    return [main([command, str(file), "--warehouse", encode_path(odd)]) for command in ("plan", "run")]


# More than 20 seconds: a server starts, and each run is a process.
def test_each_operator_runs_on_the_shared_server(
    lake: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Operators without settings use one server, and write their targets; the next day merges changes.

    No table has a collation, which other readers do not know, and the command line uses the server for a
    folder with an odd name. Customers of the README with one address become one: case-insensitive, a missing
    address matches none. The value on which a run fails is neither in the log of the server nor in that of
    the task.
    """
    operators = build_operators()

    with ThreadPoolExecutor(_TASKS_AT_ONCE) as threads:
        reports = threads.map(lambda operator: run_task(operator, lake, "monday"), operators.values())
        failure = threads.submit(run_task, build_failing_operator(), lake, "monday").exception()
        monday = dict(zip(operators, reports, strict=True))
    write_rows(lake / "shop_customers", [{"_id": "9", "email": "grace@example.org", "city": "Rome"}])
    tuesday = run_task(operators["merge_source"], lake, "tuesday")

    codes = plan_and_run(lake, tmp_path / "runs")

    (server,) = administration.list_servers()
    assert psutil.Process(server.state.server_pid).name() == "java"
    assert "CAST_INVALID_INPUT" in str(failure)
    logs = [path.read_text(encoding="utf-8") for path in server.folder.path.glob("server.log*")]
    assert logs
    for text in (*logs, *capfd.readouterr(), str(failure)):
        assert VALUE not in text
    assert [name for name, report in monday.items() if not report["changed"]] == []
    assert read_members(lake, monday["merge_source"]) == [["1", "9"], ["2"], ["8"]]
    assert read_members(lake, tuesday) == [["1"], ["2"], ["9"]]
    for name in LOADS:
        assert sorted(row["id"] for row in read_rows(lake / f"by_{name}")) == [1, 2], name
    joined = {(row["o.id"], row["c._id"]) for row in read_rows(lake / "joined")}
    assert joined == {(1, "1"), (2, "2")}
    assert read_merged_files(lake / "merged") == [[1, 2]]
    assert codes == [0, 0]
    # The files of a folder with %20 can be read as long as the table is open.
    table = load_table(str(tmp_path / "runs" / ODD / "t"))
    rows = QueryBuilder().register("t", table).execute("SELECT id FROM t ORDER BY id").read_all()
    assert pa.table(rows)["id"].to_pylist() == [1, 2]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [Path(ODD).parts[0]]
    tables = [DeltaTable(log.parent) for log in lake.rglob("_delta_log")]
    assert len(tables) > len(LOADS)
    assert [table.table_uri for table in tables if "collat" in table.schema().to_json().lower()] == []
