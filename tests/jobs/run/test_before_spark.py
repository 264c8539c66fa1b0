"""Test that a run that needs no Spark ends before Spark starts, with the report and the errors of a job."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from airflow_merge_provider.before_spark import find_result
from airflow_merge_provider.core.capabilities import CAPABILITIES
from airflow_merge_provider.core.errors import MergeError
from airflow_merge_provider.core.population import build_population
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.report import Report
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.run.population import run_with_population
from airflow_merge_provider.jobs.run.retry import run_attempt

pytestmark = pytest.mark.spark

ROWS = {"_id": ["1", "2"], "name": ["a", "b"], "v": [1, 2]}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "merge_source": (
        "merge_source",
        {"version": 2, "datasets": ["a a", "b b"], "equality": [["eq", "a.name", "b.name"]]},
    ),
    "upsert": ("merge_load", {"strategy": "upsert", "source": "a", "primary_key": ["_id"]}),
    "scd2": ("merge_load", {"strategy": "scd2", "source": "a"}),
    "history": ("merge_load", {"strategy": "scd2", "source": "a", "natural_key": "_id"}),
    "delete_insert": ("merge_load", {"source": "a", "primary_key": ["_id"]}),
    "nested": ("merge_load", {"strategy": "upsert", "source": "a", "primary_key": "_id", "nested": "tables"}),
    "merge_engine": ("merge_engine", {"source": "a", "primary_key": ["_id"]}),
    "joiner": ("joiner", {"inputs": {"a": "a", "b": "b"}, "join_keys": "a._id = b._id"}),
    "joiner_append": (
        "joiner",
        {"inputs": {"a": "a", "b": "b"}, "join_keys": "a._id = b._id", "write_mode": "append"},
    ),
}
# Their tables of nested lists are checked by a job.
WITH_REPAIRS = ("nested",)


def drop_seconds(report: Report) -> dict[str, Any]:
    return {name: value for name, value in report.as_json().items() if name != "seconds"}


class Lake:
    """Two tables in a warehouse, and runs over them."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self.folder = spark, folder
        for name in ("a", "b"):
            self.write_rows(name)

    def write_rows(self, name: str, mode: Any = "overwrite", **columns: Any) -> None:
        """Write rows to a table."""
        write_deltalake(str(self.folder / name), pa.table({**ROWS, **columns}), mode=mode)

    def build_request(self, name: str, run: str = "r1", **fields: Any) -> JobRequest:
        """Build the request of a configuration, with the population that an operator adds."""
        job, raw = CONFIGS[name]
        config = {"target": "t", **raw, **fields.pop("config", {})}
        parsed = CAPABILITIES[job].config.parse(config)
        population = build_population(parsed, set_initial_offset="if-source-populated")
        token = RunToken(dag_id="d", run_id=run, task_id="t")
        return JobRequest(
            job=job, config=config, run=token, warehouse=str(self.folder), started_at=7,
            population=population, **fields,
        )  # fmt: skip

    def run_job(self, request: JobRequest) -> dict[str, Any]:
        """Run a request in Spark, and return its report."""
        job: Any = importlib.import_module(f"airflow_merge_provider.jobs.{request.job}.job").run
        run = partial(run_attempt, run=job)
        return drop_seconds(run_with_population(self._spark, request, Progress(lambda _: None), run))

    def find_report(self, request: JobRequest, **how: Any) -> dict[str, Any] | None:
        """Look for the report of a request without Spark."""
        result = find_result(request, **{"conf": {}, "is_local": True, "on_line": lambda _: None, **how})
        return None if result is None else drop_seconds(result.report)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path)


@pytest.mark.parametrize("name", CONFIGS)
def test_nothing_new_and_retries_are_reported_as_by_a_job(lake: Lake, name: str) -> None:
    """The first run needs Spark. Its retry and a run without news do not, and report what a job reports."""
    first = lake.build_request(name)
    assert lake.find_report(first) is None
    lake.run_job(first)

    for request in (
        first,
        lake.build_request(name, run="r2"),
        lake.build_request(name, run="r2", until="plan"),
    ):
        expected = lake.run_job(request)
        is_left = name in WITH_REPAIRS and request.until == "commit"
        is_work = "not idempotent" in expected["run_mode_reason"] and request.run.run_id != "r1"
        assert lake.find_report(request) == (None if is_left or is_work else expected)


@pytest.mark.parametrize("name", CONFIGS)
def test_news_need_a_job(lake: Lake, name: str) -> None:
    """A new commit of a source, a foreign row in the target and a full refresh are work for Spark."""
    lake.run_job(lake.build_request(name))

    assert lake.find_report(lake.build_request(name, run="r2", full_refresh=True)) is None
    lake.write_rows("a", mode="append")
    assert lake.find_report(lake.build_request(name, run="r2")) is None


def test_rows_of_another_writer_need_a_job(lake: Lake) -> None:
    """A target that another writer changed is not up to date."""
    lake.run_job(lake.build_request("upsert"))
    DeltaTable(str(lake.folder / "t")).delete("v = 1")

    assert lake.find_report(lake.build_request("upsert", run="r2")) is None


def _miss_source(lake: Lake) -> dict[str, Any]:
    return {"source": "nowhere"}


def _take_foreign_target(lake: Lake) -> dict[str, Any]:
    return {"target": "b"}


def _name_files(lake: Lake) -> dict[str, Any]:
    (lake.folder / "files").mkdir()
    (lake.folder / "files" / "x.csv").write_text("a,b")
    return {"source": "files"}


@pytest.mark.parametrize("make", [_miss_source, _take_foreign_target, _name_files])
@pytest.mark.parametrize("name", ["upsert", "scd2", "merge_engine"])
def test_what_cannot_work_is_refused_with_the_words_of_the_job(
    lake: Lake, name: str, make: Callable[[Lake], dict[str, Any]]
) -> None:
    """A missing source, a target of another writer and files without a log: the same error without Spark."""
    request = lake.build_request(name, config=make(lake))

    with pytest.raises(MergeError) as of_job:
        lake.run_job(request)
    with pytest.raises(MergeError) as raised:
        lake.find_report(request)

    assert (type(raised.value), str(raised.value)) == (of_job.type, str(of_job.value))


@pytest.mark.parametrize("name", ["merge_source", "joiner"])
def test_missing_inputs_are_refused_with_the_words_of_the_job(lake: Lake, name: str) -> None:
    """All missing inputs are named, without Spark."""
    for table in ("a", "b"):
        (lake.folder / table).rename(lake.folder / f"{table}_away")
    request = lake.build_request(name)

    with pytest.raises(MergeError) as of_job:
        lake.run_job(request)
    with pytest.raises(MergeError) as raised:
        lake.find_report(request)

    assert (type(raised.value), str(raised.value)) == (of_job.type, str(of_job.value))


MISTAKES = {
    "key": ("upsert", {"primary_key": ["_idd"]}, {}),
    "deletion flag": ("upsert", {"hard_delete": "gone"}, {}),
    "version key": ("history", {"natural_key": "_idd"}, {}),
    "type": ("upsert", {}, {"v": ["x", "y"]}),
    "lost column": ("upsert", {}, {"v": None}),
    "new column": ("delete_insert", {"schema_evolution": "error"}, {"w": [1, 2]}),
    "case": ("upsert", {"schema_evolution": ["add", "allow_missing"]}, {"v": None, "V": [1, 2]}),
    "history": ("scd2", {"validity_column_names": ["a", "b"]}, {}),
    "lists": ("upsert", {"nested": "tables"}, {"v": [2, 3]}),
    "rule": ("merge_source", {"equality": [["eq", "a.nam", "b.name"]]}, {}),
    "sequence": ("merge_source", {"sequence_column": "seq"}, {}),
    "id": ("merge_source", {"id_column": "v"}, {}),
    "merged column": ("merge_source", {}, {"v": None}),
    "engine key": ("merge_engine", {"primary_key": ["_idd"]}, {}),
    "order": ("merge_engine", {"order_by": ["at"]}, {}),
    "engine type": ("merge_engine", {"incremental": False}, {"v": ["x", "y"]}),
    "aggregate": (
        "merge_engine",
        {"merge_engine": "aggregation", "options": {"fields.name.aggregate-function": "sum"}},
        {},
    ),
    "join key": ("joiner", {"join_keys": "a._id = b._idd"}, {}),
    "join type": ("joiner", {"join_keys": "a._id = b.v"}, {}),
    "field": ("joiner", {"selected_fields": "a._id, b.nam"}, {}),
}


# These depend on the target that a run before has written.
OF_LATER_RUNS = (
    "type", "lost column", "new column", "case", "history", "lists", "merged column", "engine type",
)  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_refused_with_the_words_of_the_job(lake: Lake, mistake: str) -> None:
    """Columns and types are checked without Spark, as the job checks them."""
    name, config, columns = MISTAKES[mistake]
    if mistake in OF_LATER_RUNS:
        lake.run_job(lake.build_request(name))
    rows = {key: value for key, value in {**ROWS, **columns}.items() if value is not None}
    path = str(lake.folder / "a")
    write_deltalake(path, pa.table(rows), mode="overwrite", schema_mode="overwrite")
    request = lake.build_request(name, run="r2", config=config)

    expected = catch_error(lambda: lake.run_job(request))
    actual = catch_error(lambda: lake.find_report(request))

    assert actual == expected is not None


def catch_error(call: Callable[[], object]) -> tuple[type[MergeError], str] | None:
    """Return the error that a call raises."""
    try:
        call()
    except MergeError as error:
        return type(error), str(error)
    return None


def test_another_machine_is_not_asked_about_local_paths(lake: Lake) -> None:
    """An absolute path of a remote Spark is not one of this machine."""
    lake.run_job(lake.build_request("upsert"))
    request = lake.build_request("upsert", run="r2")

    assert lake.find_report(request, is_local=False) is None
    assert lake.find_report(request, conf={"spark.hadoop.fs.defaultFS": "hdfs://n"}) is None
    assert lake.find_report(request) is not None


def test_a_table_that_delta_rs_cannot_read_is_left_to_spark(lake: Lake) -> None:
    """If the log cannot be read, the job decides, or reports the error in its words."""
    lake.run_job(lake.build_request("upsert"))
    (lake.folder / "a" / "_delta_log" / f"{0:020d}.json").write_text("{broken")

    assert lake.find_report(lake.build_request("upsert", run="r2")) is None
