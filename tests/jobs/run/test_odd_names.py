"""Test runs and commands over a folder whose name has every character that a location may have."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from airflow_merge_provider.before_spark import find_result
from airflow_merge_provider.cli.main import main
from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.report import Report
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.joiner import job as joiner
from airflow_merge_provider.jobs.merge_engine import job as merge_engine
from airflow_merge_provider.jobs.merge_load import job as merge_load
from airflow_merge_provider.jobs.merge_record import job as merge_record
from airflow_merge_provider.jobs.merge_source import job as merge_source
from airflow_merge_provider.jobs.run.population import run_with_population
from airflow_merge_provider.jobs.run.retry import run_attempt
from airflow_merge_provider.jobs.undo import job as undo
from tests.long import all_long_but
from tests.odd_names import ODD, encode_path
from tests.reports import check_report

pytestmark = pytest.mark.spark

JOBS: dict[str, Callable[..., Report]] = {
    "joiner": joiner.run, "merge_engine": merge_engine.run, "merge_load": merge_load.run,
    "merge_record": merge_record.run, "merge_source": merge_source.run, "undo": undo.run,
}  # fmt: skip
UPSERT = {"strategy": "upsert", "source": "{uri}/a", "primary_key": "_id"}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "source": (
        "merge_source",
        {"datasets": ["{path}/a a", "{uri}/b b"], "equality": [["eq", "a.name", "b.name"]]},
    ),
    "upsert": ("merge_load", UPSERT),
    "nested": ("merge_load", {**UPSERT, "nested": "tables"}),
    "delete-insert": ("merge_load", {**UPSERT, "strategy": "delete-insert"}),
    "scd2": ("merge_load", {"strategy": "scd2", "source": "a", "natural_key": "_id"}),
    "engine": ("merge_engine", {"source": "{path}/a", "primary_key": "_id", "changelog": "{uri}/changes"}),
    "joiner": (
        "joiner",
        {
            "inputs": {"a": "{path}/a", "b": "{uri}/b"},
            "join_keys": "a._id = b._id",
            "required_inputs": "a",
            "unmatched": "{uri}/u",
        },
    ),
}


class Lake:
    """A warehouse whose name is odd, and runs over its tables and files."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark, self.root, self.folder, self.runs = spark, root, root / ODD, 0
        self.uri = encode_path(self.folder)
        self.folder.mkdir(parents=True)

    def write_rows(self, name: str, *ids: str) -> None:
        """Append rows to a source, whose partition has an odd name, too."""
        columns = {
            "_id": ids,
            "name": list(ids),
            "tags": [["y"]] * len(ids),
            "part": ["%20 [x]"] * len(ids),
        }
        # delta-rs cannot write to a folder with %20.
        plain = self.root.parent / "plain" / name
        write_deltalake(str(plain), pa.table(columns), mode="append", partition_by=["part"])
        shutil.copytree(plain, self.folder / name, dirs_exist_ok=True)

    def write_file(self, name: str, *ids: str) -> None:
        """Write a Parquet file in the folder ``files``."""
        (self.folder / "files").mkdir(exist_ok=True)
        pq.write_table(pa.table({"_id": ids, "name": list(ids)}), self.folder / "files" / name)

    def build_request(self, job: Any, config: dict[str, Any], **fields: Any) -> JobRequest:
        """Build the request of a new run; its locations are paths or URIs."""
        self.runs += 1
        text = json.dumps(config)
        for name, location in (("{path}", str(self.folder)), ("{uri}", self.uri)):
            text = text.replace(name, json.dumps(location)[1:-1])
        token = RunToken(dag_id="d", run_id=f"r{self.runs}", task_id=job)
        started_at = 1_704_067_200_000_000 + self.runs * 1_000_000
        return JobRequest(
            job=job, config=json.loads(text), run=token, warehouse=self.uri, started_at=started_at, **fields
        )

    def run(self, job: Any, config: dict[str, Any], **fields: Any) -> dict[str, Any]:
        """Run a job, and return its report."""
        request = self.build_request(job, config, **fields)
        attempt = partial(run_attempt, run=JOBS[job])
        return check_report(run_with_population(self.spark, request, Progress(lambda _: None), attempt))

    def command(self, *arguments: str) -> int:
        """Run a command with the warehouse as a URI, and return its exit code."""
        return main([*arguments, "--warehouse", self.uri])

    def list_names(self) -> set[str]:
        """Return the names in the warehouse, after checking that nothing was written beside it."""
        folder = self.root
        for part in Path(ODD).parts:
            assert [path.name for path in folder.iterdir()] == [part]
            folder /= part
        return {path.name for path in folder.iterdir()}


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path / "root")


@pytest.mark.parametrize("name", all_long_but(CONFIGS, "engine"))
def test_a_table_in_a_folder_with_an_odd_name(
    lake: Lake, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs write, continue and are undone, and every command reads the table, in both spellings."""
    job, config = CONFIGS[name]
    lake.write_rows("a", "1", "2")
    lake.write_rows("b", "1", "3")
    lake.run(job, {**config, "target": "{uri}/t"})
    unchanged = find_result(
        lake.build_request(job, {**config, "target": "t"}), conf={}, is_local=True, on_line=str
    )
    lake.write_rows("a", "4")
    changed = lake.run(job, {**config, "target": "{path}/t"})
    key = {"source": "0|1|1|1", "joiner": '{"a._id": "1"}'}.get(name, "1")
    codes = [lake.command(*command, "t", *more) for command, more in (
        (["history"], []), (["diff"], ["0", "1"]), (["explain"], [key]), (["timeline"], [key]),
    )]  # fmt: skip
    captured = capsys.readouterr()
    saved = lake.run(job, {**config, "target": "p"}, until="transform", save_plan=True)
    undone = lake.run("undo", {"target": "{uri}/t"})

    # The versions of a snapshot begin at the time of its load; tables of nested lists are read by Spark.
    assert name in {"scd2", "nested"} or (unchanged is not None and unchanged.report.run_mode == "noop")
    assert (changed["changed"], saved["changed"], undone["changed"]) == (True, False, True)
    assert (codes, captured.err) == ([0, 0, 0, 0], "")
    assert changed["target"]["uri"] == str(lake.folder / "t")
    assert {"a", "b", "t", "p__plan"} <= lake.list_names()


def test_files_in_a_folder_with_an_odd_name(lake: Lake) -> None:
    """Files are read in every run; a name with a colon, which Hadoop cannot read, is refused by name."""
    config = {
        **UPSERT, "source": {"dataset": "{uri}/files", "format": "parquet"}, "target": "t"
    }  # fmt: skip
    counts = []
    for number in (1, 2, 3):
        lake.write_file(f"{number} [x]%20*{{a,b}}.parquet", str(number))
        counts.append(lake.run("merge_load", config)["rows"]["inserted"])
    lake.write_file("12:30.parquet", "4")

    with pytest.raises(DataError, match=r"files/12:30\.parquet has a colon in its name") as refused:
        lake.run("merge_load", config)

    assert counts == [1, 1, 1]
    assert "rename the file" in str(refused.value)
    options = {"pathGlobFilter": "[0-9] *.parquet"}
    filtered = {**config, "source": {"dataset": "{path}/files", "format": "parquet", "options": options}}
    assert lake.run("merge_load", {**filtered, "target": "f"}, until="transform")["sources"]


@pytest.mark.parametrize("name", ["path", "uri"])
def test_a_merge_record_in_a_folder_with_an_odd_name(
    lake: Lake, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files are merged, explained and put back, and no folder with another name is made."""
    names = ("source", "merged", "failure", "original", "state_path")
    config: dict[str, Any] = {key: f"{{{name}}}/{key}" for key in names}
    config |= {"reader": "json", "min_records": 2, "max_records": 2}
    (lake.folder / "source").mkdir()
    for key in ("a [1]%20.json", "b.json", "c.json"):
        (lake.folder / "source" / key).write_text('{"id": 1}\n')
    (lake.folder / "source" / "bad.json").write_text("{\n")

    report = lake.run("merge_record", config)

    codes = [
        lake.command("history", "state_path"),
        lake.command("bins", "merged"),
        lake.command("explain", encode_path(lake.folder / "state_path"), "a [1]%20.json"),
    ]
    assert (report["counts"]["merged"], report["counts"]["failed"]) == (1, 1)
    assert (codes, capsys.readouterr().err) == ([0, 0, 0], "")
    assert lake.list_names() == set(names)
    assert lake.run("undo", {"target": f"{{{name}}}/merged"})["changed"]
    assert (lake.folder / "source" / "a [1]%20.json").is_file()
