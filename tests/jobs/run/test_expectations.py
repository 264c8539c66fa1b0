"""Test expectations on real tables: what is counted, what stops a run, and that no rejected row is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from airflow_merge_provider.before_spark import find_result
from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.protocol import JobRequest, JobResult, RunToken
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.joiner import job as joiner
from airflow_merge_provider.jobs.merge_engine import job as merge_engine
from airflow_merge_provider.jobs.merge_load import job as merge_load
from airflow_merge_provider.jobs.merge_source import job as merge_source
from airflow_merge_provider.jobs.run.retry import run_attempt
from tests.long import all_long_but
from tests.reports import check_report
from tests.tables import read_rows

pytestmark = pytest.mark.spark

JOBS = {
    "joiner": joiner.run, "merge_engine": merge_engine.run, "merge_load": merge_load.run,
    "merge_source": merge_source.run,
}  # fmt: skip
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "upsert": ("merge_load", {"strategy": "upsert", "source": "a", "primary_key": "_id"}),
    "delete_insert": ("merge_load", {"strategy": "delete-insert", "source": "a", "primary_key": "_id"}),
    "history": (
        "merge_load", {"strategy": "scd2", "source": "a", "natural_key": "_id", "mode": "changes"},
    ),
    "merge_engine": ("merge_engine", {"source": "a", "primary_key": "_id", "incremental": False}),
    "merge_source": ("merge_source", {"version": 2, "datasets": ["a a"], "values": "columns"}),
    "joiner": (
        "joiner", {"inputs": {"a": "a", "b": "b"}, "join_keys": "a._id = b._id", "required_inputs": "a"},
    ),
}  # fmt: skip
Row = tuple[Any, ...]
DAY = 86_400_000_000
POSITIVE = {"condition": "n > 0", "source": "a"}


@dataclass
class Lake:
    """Two sources, a target, and runs of one capability."""

    spark: SparkSession
    folder: Path
    name: str
    runs: int = 0

    def write_rows(self, rows: list[Row], name: str = "a") -> None:
        """Replace the rows of a source: ID, number, status and time."""
        columns = {
            "_id": pa.array([row[0] for row in rows], pa.string()),
            "n": pa.array([row[1] for row in rows], pa.int64()),
            "status": pa.array([row[2] if len(row) > 2 else "open" for row in rows], pa.string()),
            "at": pa.array([row[3] if len(row) > 3 else 0 for row in rows], pa.timestamp("us", "UTC")),
        }
        write_deltalake(str(self.folder / name), pa.table(columns), mode="overwrite")

    def run(self, expect: dict[str, Any], run_id: str = "", **fields: Any) -> dict[str, Any]:
        """Run the configuration with expectations, and return its report."""
        self.runs += 1
        job, config = CONFIGS[self.name]
        options = fields.pop("config", {})
        request = JobRequest.model_validate(
            {
                "job": job,
                "config": {"target": "t", **config, "expect": expect, **options},
                "run": RunToken(dag_id="d", task_id="t", run_id=run_id or f"run-{self.runs}"),
                "warehouse": str(self.folder),
                "started_at": self.runs * DAY,
                **fields,
            }
        )
        result = find_result(request, conf={}, is_local=True, on_line=lambda _: None)
        if isinstance(result, JobResult):
            return check_report(result.report)
        return check_report(run_attempt(self.spark, request, Progress(lambda _: None), JOBS[job]))

    def read_rows(self, name: str = "t") -> list[dict[str, Any]]:
        """Return the rows of a table; none if it does not exist."""
        if not (self.folder / name).exists():
            return []
        if self.name == "merge_source" and name == "t":
            # delta-rs does not read its VARIANT column.
            rows = self.spark.read.format("delta").load(str(self.folder / name))
            return [row.asDict() for row in rows.collect()]
        return read_rows(self.folder / name)

    def list_ids(self) -> list[str]:
        """Return the IDs of the live rows of the target, without the numbers of datasets."""
        column = "a._id" if self.name == "joiner" else "_id"
        return sorted(str(row[column]).split("|")[-1] for row in self.read_rows() if not row.get("_deleted"))

    def list_rejected(self) -> list[tuple[str, tuple[str, ...], str | None, str]]:
        """Return source, expectations, ID and run of each rejected row."""
        rows = self.read_rows("t__rejected")
        return sorted(
            (row["source"], tuple(row["expectations"]), json.loads(row["row"])["_id"] or "", row["run_id"])
            for row in rows
        )

    @property
    def version(self) -> int | None:
        """The version of the target; None if it does not exist."""
        return DeltaTable(self.folder / "t").version() if (self.folder / "t").exists() else None


MakeLake = Callable[[str], Lake]


@pytest.fixture
def make_lake(spark: SparkSession, tmp_path: Path) -> MakeLake:
    def build_lake(name: str) -> Lake:
        lake = Lake(spark, tmp_path, name)
        lake.write_rows([("1", 1), ("2", -2), ("3", None)])
        lake.write_rows([("1", 1), ("2", 2), ("3", 3)], "b")
        return lake

    return build_lake


@pytest.mark.parametrize("name", CONFIGS)
def test_rows_that_fail_stop_the_run(make_lake: MakeLake, name: str) -> None:
    """Nothing is written; the error has all expectations, how many rows fail, and an example. NULL passes."""
    lake = make_lake(name)

    with pytest.raises(DataError, match="1 of 2 problems") as error:
        lake.run({"positive": POSITIVE, "known": {"not_null": ["_id", "n"], "source": "a"}})

    messages = [problem.message for problem in error.value.problems]
    assert messages[0].startswith("1 of 3 rows of the source 'a' does not meet: n > 0, for example _id='2'")
    assert messages[1].startswith("1 of 3 rows of the source 'a' does not meet: _id, n not null")
    assert [problem.path for problem in error.value.problems] == ["expect.positive", "expect.known"]
    assert lake.version is None


@pytest.mark.parametrize("name", ["upsert", "merge_engine"])
def test_an_expectation_on_another_source_is_an_error(make_lake: MakeLake, name: str) -> None:
    """An expectation whose source is misspelled would be checked on nothing."""
    lake = make_lake(name)

    with pytest.raises(DataError, match=r"expect\.x\.source: unknown source 'aa' \(did you mean 'a'\?\)"):
        lake.run({"x": {"condition": "n > 0", "source": "aa"}})

    assert lake.version is None


@pytest.mark.parametrize("name", CONFIGS)
def test_a_warning_writes_all_rows(make_lake: MakeLake, name: str) -> None:
    """The report counts the rows, and a retry reports the same counts."""
    lake = make_lake(name)
    large = {"condition": "coalesce(n, 0) > 100", "source": "a", "action": "warn"}
    identified = {"not_null": "_id", "source": "a"}
    expect = {"positive": {**POSITIVE, "action": "warn"}, "known": identified, "large": large}

    report = lake.run(expect, "one")

    results = {item["name"]: item for item in report["expectations"]}
    assert {name: (item["rows"], item["failed"]) for name, item in results.items()} == {
        "positive": (3, 1), "known": (3, 0), "large": (3, 3),
    }  # fmt: skip
    assert len(results["large"]["examples"]) == 2
    assert results["positive"]["examples"][0]["_id"] == "2"
    assert [text for text in report["warnings"] if text.startswith("expect.positive: 1 of 3 rows")]
    assert lake.list_ids() == ["1", "2", "3"]
    retried = lake.run(expect, "one")
    assert [(item["name"], item["failed"]) for item in retried["expectations"]] == [
        ("positive", 1),
        ("known", 0),
        ("large", 3),
    ]


@pytest.mark.parametrize("name", all_long_but(CONFIGS, "upsert"))
def test_rejected_rows_are_left_out_and_saved_once(make_lake: MakeLake, name: str) -> None:
    """The table of rejected rows has each row with the first run that read it; a corrected row is loaded."""
    lake = make_lake(name)
    expect = {"positive": {**POSITIVE, "action": "quarantine"}}

    report = lake.run(expect)
    assert (lake.list_ids(), report["expectations"][0]["failed"]) == (["1", "3"], 1)
    assert lake.list_rejected() == [("a", ("positive",), "2", "run-1")]
    assert not lake.run(expect)["changed"]

    lake.write_rows([("1", 1), ("2", -2), ("3", None), ("4", -4)])
    lake.run(expect)
    assert lake.list_ids() == ["1", "3"]
    assert [row[2:] for row in lake.list_rejected()] == [("2", "run-1"), ("4", "run-3")]
    assert not lake.run(expect)["changed"]

    lake.write_rows([("1", 1), ("2", 2), ("3", None), ("4", -4)])
    lake.run(expect)
    assert lake.list_ids() == ["1", "2", "3"]
    assert len(lake.list_rejected()) == 2


@pytest.mark.parametrize("name", all_long_but(["upsert", "merge_engine", "merge_source", "joiner"], "joiner"))
def test_a_run_may_reject_all_rows(make_lake: MakeLake, name: str) -> None:
    """The commit records the rejected rows, so that the next run finds nothing to do."""
    lake = make_lake(name)
    expect = {"positive": {**POSITIVE, "action": "quarantine"}}
    lake.run(expect)
    lake.write_rows([("5", -5)])

    lake.run(expect)

    assert [row[2] for row in lake.list_rejected()] == ["2", "5"]
    assert not lake.run(expect)["changed"]
    assert len(lake.list_rejected()) == 2


@pytest.mark.parametrize("name", ["upsert", "merge_source"])
def test_a_dry_run_saves_no_rejected_rows(make_lake: MakeLake, name: str) -> None:
    """The report of a dry run counts them."""
    lake = make_lake(name)

    report = lake.run({"positive": {**POSITIVE, "action": "quarantine"}}, until="transform")

    assert report["expectations"][0]["failed"] == 1
    assert report["plan"]["kinds"]["inserted"] == 2
    assert (lake.version, lake.list_rejected()) == (None, [])


def test_a_dispatched_load_checks_all_rows_first(make_lake: MakeLake) -> None:
    """No table is written if a row of another table fails; each table has its own rejected rows."""
    lake = make_lake("upsert")
    lake.write_rows([("1", 1, "x"), ("2", -2, "y"), ("3", -3, "y")])
    config = {"dispatch_by": "status"}

    with pytest.raises(DataError, match="2 of 3 rows of the source 'a' do not meet: n > 0"):
        lake.run({"positive": POSITIVE}, config=config)
    assert not list((lake.folder / "t").glob("*"))

    report = lake.run({"positive": {**POSITIVE, "action": "quarantine"}}, config=config)
    assert [(item["rows"], item["failed"]) for item in report["expectations"]] == [(3, 2)]
    assert [row["_id"] for row in lake.read_rows("t/x")] == ["1"]
    assert len(lake.read_rows("t/y__rejected")) == 2


@pytest.mark.long
def test_a_rejected_entity_leaves_its_golden_record(make_lake: MakeLake) -> None:
    """An entity whose new version is rejected is not merged, in a full run and in an incremental one."""
    lake = make_lake("merge_source")
    expect = {"positive": {**POSITIVE, "action": "quarantine"}}
    lake.write_rows([("1", 1), ("2", 2)])
    lake.run(expect)
    lake.write_rows([("1", -1), ("2", 2), (None, -3)])

    lake.run(expect)
    assert lake.list_ids() == ["2"]
    assert [row[2] for row in lake.list_rejected()] == ["", "1"]

    lake.run(expect, full_refresh=True)
    assert lake.list_ids() == ["2"]


def test_keys_are_compared_with_other_rows(make_lake: MakeLake) -> None:
    """Repeated and unknown keys are counted and rejected; NULL is neither."""
    lake = make_lake("upsert")
    lake.write_rows([("1", 1), ("1", 2), ("2", None), ("4", 4)])
    expect = {
        "unique_id": {"unique": "_id", "action": "quarantine"},
        "known": {
            "foreign_key": {"columns": "n", "dataset": "b", "references": "n"}, "action": "quarantine",
        },
    }  # fmt: skip

    report = lake.run(expect)

    assert {item["name"]: item["failed"] for item in report["expectations"]} == {"unique_id": 2, "known": 1}
    assert lake.list_ids() == ["2"]
    assert [row[1:3] for row in lake.list_rejected()] == [
        (("known",), "4"), (("unique_id",), "1"), (("unique_id",), "1"),
    ]  # fmt: skip


def test_values_are_compared_by_the_type_of_the_column(make_lake: MakeLake) -> None:
    """A value that the type of the column does not have is accepted for no row; NULL passes."""
    lake = make_lake("upsert")
    lake.write_rows([("1", 1, "open"), ("2", 2, "closed"), ("3", 3, None), ("4", None, "7")])
    expect = {
        "status": {"accepted_values": {"status": ["open", 7]}, "action": "warn"},
        "number": {"accepted_values": {"n": [1, 2.0, 3.2, "many"]}, "action": "warn"},
    }  # fmt: skip

    report = lake.run(expect)

    assert {item["name"]: item["failed"] for item in report["expectations"]} == {"status": 1, "number": 1}


def test_a_source_that_is_not_fresh_is_noticed_without_changes(make_lake: MakeLake) -> None:
    """A run without work compares the newest time of the run before, without Spark."""
    lake = make_lake("upsert")
    lake.write_rows([("1", 1, "open", DAY - 1)])
    expect = {"fresh": {"freshness": {"column": "at", "max_age": "36 hours"}}}

    assert lake.run(expect)["expectations"][0]["newest"] == DAY - 1
    report = lake.run(expect)
    assert (report["run_mode"], report["expectations"][0]["failed"]) == ("noop", 0)
    with pytest.raises(DataError, match="is not fresh: the newest time is 1970-01-01T23:59:59"):
        lake.run(expect)
    lake.write_rows([("1", 1, "open", None)])
    with pytest.raises(DataError, match="is not fresh: there is no time"):
        lake.run(expect)


@pytest.mark.parametrize("name", ["upsert", "merge_engine", "merge_source", "joiner"])
def test_changes_are_checked_before_the_commit(make_lake: MakeLake, name: str) -> None:
    """A condition sees the kind of each change, and the row before and after; words see the row after."""
    lake = make_lake(name)
    column = "a.n" if name == "joiner" else "n"
    lake.run({})
    lake.write_rows([("1", 9), ("2", -2), ("3", None)])
    version = lake.version

    with pytest.raises(DataError, match="of the changes of the run does not meet") as error:
        lake.run({"no_updates": {"condition": "kind <> 'updated'", "on": "changes"}})

    assert error.value.problems[0].path == "expect.no_updates"
    assert lake.version == version
    report = lake.run({"known": {"not_null": column, "on": "changes", "action": "warn"}})
    assert (report["changed"], report["expectations"][0]["failed"]) == (True, 0)


@pytest.mark.parametrize(
    ("expect", "path", "message"),
    [
        ({"x": "nn > 0"}, "expect.x", "'nn > 0' is not a valid condition: "),
        ({"x": "n + 1"}, "expect.x", "'n + 1' is not a valid condition: "),
        ({"x": "sum(n) > 1"}, "expect.x", "'sum(n) > 1' is not a valid condition: "),
        ({"x": {"not_null": "nn"}}, "expect.x.not_null", "the source 'a' has no column 'nn'"),
        (
            {"x": {"foreign_key": {"columns": "n", "dataset": "none"}}}, "expect.x.foreign_key.dataset",
            "does not exist",
        ),
        (
            {"x": {"foreign_key": {"columns": "_id", "dataset": "b", "references": "n"}}},
            "expect.x.foreign_key", "column '_id' is string, and the referenced column 'n' is",
        ),
        (
            {"x": {"freshness": {"column": "when", "max_age": "1 day"}}}, "expect.x.freshness",
            "the source 'a' has no column 'when'",
        ),
    ],
)  # fmt: skip
def test_expectations_that_do_not_suit_the_columns_are_errors(
    make_lake: MakeLake, expect: dict[str, Any], path: str, message: str
) -> None:
    """The error names the expectation, and the run writes nothing."""
    lake = make_lake("upsert")

    with pytest.raises(DataError) as error:
        lake.run(expect)

    assert error.value.problems[0].path == path
    assert message in error.value.problems[0].message
    assert lake.version is None


def test_values_that_cannot_be_compared_are_not_unique(make_lake: MakeLake) -> None:
    """Spark does not group maps: the error names the column and its type."""
    lake = make_lake("upsert")
    tags = pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))
    rows = pa.table({"_id": ["1"], "tags": tags})
    write_deltalake(str(lake.folder / "a"), rows, mode="overwrite", schema_mode="overwrite")

    with pytest.raises(DataError, match=r"expect\.x\.unique: column 'tags' is map<string,bigint>: "):
        lake.run({"x": {"unique": "tags"}})


def test_a_rejected_retraction_is_not_lost(make_lake: MakeLake) -> None:
    """Records that retract or delete are not checked: leaving them out would keep rows that have ended."""
    lake = make_lake("merge_engine")
    lake.write_rows([("1", 1, "+I"), ("2", 2, "+I"), ("1", -1, "-D"), ("3", -3, "+I")])
    expect = {"positive": {"condition": "n > 0 AND status <> '-U'", "action": "quarantine"}}

    report = lake.run(expect, config={"row_kind_column": "status"})

    assert lake.list_ids() == ["2"]
    assert (report["expectations"][0]["rows"], report["expectations"][0]["failed"]) == (3, 1)
