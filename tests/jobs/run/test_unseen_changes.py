"""Test that nothing is committed which a plan or an approval has not shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from airflow_merge_provider.core.change_plan.saved_plan import PlanChoice
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.risk import RiskError
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.joiner import job as joiner, target
from airflow_merge_provider.jobs.merge_engine import job as merge_engine
from airflow_merge_provider.jobs.merge_load import job as merge_load
from airflow_merge_provider.jobs.merge_source import job as merge_source
from airflow_merge_provider.jobs.run.retry import run_attempt
from tests.long import all_long_but
from tests.tables import read_rows

pytestmark = pytest.mark.spark

JOBS = {
    "joiner": joiner.run, "merge_engine": merge_engine.run, "merge_load": merge_load.run,
    "merge_source": merge_source.run,
}  # fmt: skip
FILES = {"dataset": "in", "format": "json"}
JOIN = {"join_keys": "a._id = b._id", "required_inputs": "a, b"}
# Runs whose rows were computed again between the comparison with the plan and the commit.
READ_AGAIN: dict[str, tuple[str, dict[str, Any]]] = {
    "append": ("merge_load", {"strategy": "delete-insert", "source": FILES}),
    "history": ("merge_load", {"strategy": "scd2", "source": FILES}),
    "joiner": ("joiner", {"inputs": {"a": FILES, "b": "b"}, **JOIN, "unmatched": "u"}),
}  # fmt: skip
OUTDATED = "the plan is outdated: the changes are not those of the plan"
UPSERT = {"strategy": "upsert", "primary_key": "_id"}
MERGE = {"version": 2, "datasets": ["a a"], "equality": [["eq", "a.v", "a.v"]], "values": "columns"}


@dataclass
class Lake:
    """Sources and a target ``t`` below a folder."""

    spark: SparkSession
    folder: Path
    job: str
    config: Mapping[str, Any]

    def run(
        self, run_id: str, *, after: tuple[str, Callable[[], object]] | None = None, **fields: Any
    ) -> dict[str, Any]:
        """Execute a run, and call a function at the end of one of its steps."""

        def call_after_step(line: str) -> None:
            if after is not None and f" {after[0]}: " in line:
                after[1]()

        request = JobRequest(
            job=self.job, config={"target": "t", **self.config},
            run=RunToken(dag_id="d", run_id=run_id, task_id=self.job),
            warehouse=str(self.folder), started_at=1_704_067_200_000_000, **fields,
        )  # fmt: skip
        return run_attempt(self.spark, request, Progress(call_after_step), JOBS[self.job]).as_json()

    def save_plan(self) -> dict[str, Any]:
        """Save the plan of a run."""
        plan: dict[str, Any] = self.run("plan", until="transform", save_plan=True)["plan"]
        return plan

    def apply_plan(self, after: tuple[str, Callable[[], object]] | None = None) -> dict[str, Any]:
        """Apply the saved plan."""
        return self.run("apply", after=after, apply_plan=PlanChoice(approved_by="ada"))

    def ask(self) -> dict[str, Any]:
        """Return the plan that a run without an approval asks about; it commits nothing."""
        plan: dict[str, Any] = self.ask_report()["plan"]
        return plan

    def ask_report(self, **fields: Any) -> dict[str, Any]:
        """Return the report of a run that asks; it commits nothing."""
        version = self.version
        with pytest.raises(RiskError, match="the run needs the approval of a person") as risk:
            self.run("asking", approval="always", **fields)
        assert self.version == version
        return risk.value.report.as_json()

    def list_other_changes(self, **fields: Any) -> list[str]:
        """Return what a run would change besides the rows of the target."""
        changes: list[str] = self.run("dry", until="transform", **fields)["plan"]["other_changes"]
        return changes

    def write_json(self, rows: Iterable[Mapping[str, Any]], name: str = "1.json") -> None:
        """Replace a file of the plain source."""
        folder = self.folder / "in"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text("\n".join(map(json.dumps, rows)))

    def write_delta(self, rows: list[dict[str, Any]], name: str = "a", **options: Any) -> None:
        """Append to a source table."""
        options = {"mode": "append", "schema_mode": "merge", **options}
        write_deltalake(str(self.folder / name), pa.Table.from_pylist(rows), **options)

    @property
    def version(self) -> int | None:
        """The version of the target; None if there is none."""
        path = str(self.folder / "t")
        return DeltaTable(path).version() if DeltaTable.is_deltatable(path) else None

    def read_target(self, name: str = "t") -> str:
        """Return all rows of a table as one text."""
        return str(read_rows(self.folder / name))

    def update_target(self, column: str, value: str) -> None:
        """Set a column of the target, as another program does."""
        DeltaTable(str(self.folder / "t")).update(updates={f'"{column}"': value})


@pytest.mark.parametrize("name", all_long_but(READ_AGAIN, "append", "joiner"))
def test_nothing_is_read_after_the_comparison(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Files that change after a run was compared with its plan are not in its commit."""
    lake = Lake(spark, tmp_path, *READ_AGAIN[name])
    lake.write_json([{"_id": key, "v": "seen"} for key in "12"])
    lake.write_delta([{"_id": "1"}], "b")
    lake.save_plan()
    unseen = [{"_id": key, "v": "late"} for key in "123"]

    lake.apply_plan(("compare with plan", lambda: lake.write_json(unseen)))

    assert "seen" in lake.read_target()
    assert "late" not in lake.read_target() + (lake.read_target("u") if name == "joiner" else "")


def test_types_are_part_of_a_plan(spark: SparkSession, tmp_path: Path) -> None:
    """Files with the same values in other types make a plan outdated, and so does a table that has them."""
    files = {"dataset": "in", "format": "parquet"}
    lake = Lake(spark, tmp_path, "merge_load", {**UPSERT, "source": files})
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"_id": pa.array([1], pa.int32())}), tmp_path / "in/1.parquet")
    assert lake.save_plan()["other_changes"] == ["creates the table"]
    pq.write_table(pa.table({"_id": pa.array([1], pa.int64())}), tmp_path / "in/1.parquet")

    with pytest.raises(RiskError, match=OUTDATED):
        lake.apply_plan()

    assert lake.version is None
    assert lake.apply_plan()["changed"]


def test_columns_are_part_of_a_plan(spark: SparkSession, tmp_path: Path) -> None:
    """A run that would change no row and another column asks, and its plan names the column."""
    lake = Lake(spark, tmp_path, "joiner", {"inputs": {"a": "a", "b": "b"}, **JOIN})
    lake.write_delta([{"_id": "1"}], "b")
    lake.write_delta([{"_id": "1", "v": 1, "w": "x"}])
    lake.run("first")
    lake.update_target("a.w", "NULL")
    schema = pa.schema([("_id", pa.string()), ("v", pa.int32()), ("x", pa.string())])
    write_deltalake(
        str(tmp_path / "a"), pa.Table.from_pylist([{"_id": "1", "v": 1}], schema),
        mode="overwrite", schema_mode="overwrite",
    )  # fmt: skip

    plan = lake.ask()

    assert sum(plan["kinds"].values()) == 0
    assert plan["other_changes"] == [
        "adds column 'a.x' (string)", "changes column 'a.v' from bigint to int", "drops column 'a.w'"
    ]  # fmt: skip
    assert lake.apply_plan()["changed"]


def test_rows_that_another_program_changed_are_shown(spark: SparkSession, tmp_path: Path) -> None:
    """Outputs whose stored hash is still the right one are changed rows, and a person is asked."""
    lake = Lake(spark, tmp_path, "merge_source", MERGE)
    lake.write_delta([{"_id": "1", "v": "a", "w": "right"}])
    lake.run("first")
    lake.update_target("w", "make_array('wrong')")

    plan = lake.ask()

    assert plan["kinds"]["updated"] == 1
    (example,) = plan["examples"]
    assert (example["before"]["w"], example["after"]["w"]) == (["wrong"], ["right"])


def test_rows_that_keep_their_values_are_approved(spark: SparkSession, tmp_path: Path) -> None:
    """Another state of a row is a change that a person is asked about, and so are rows of side tables."""
    survivorship = {"v": "first", "w": "first"}
    lake = Lake(spark, tmp_path, "merge_source", {**MERGE, "survivorship": survivorship, "replaced_by": True})
    first = {"_id": "1", "v": "a", "w": "x"}
    lake.write_delta([first, {"_id": "2", "v": "a", "w": "y"}])
    lake.run("first")
    lake.write_delta([first, {"_id": "2", "v": "a", "w": "z"}], mode="overwrite")

    plan = lake.ask()

    assert {kind: count for kind, count in plan["kinds"].items() if count} == {"kept": 1}
    assert plan["other_changes"] == []
    lake.write_delta([first], mode="overwrite")
    assert lake.ask()["other_changes"] == ["records 1 row in lineage"]
    lake.apply_plan()
    lake.config = {**lake.config, "reset": True}
    assert lake.list_other_changes() == ["removes all rows from lineage"]


def test_unmatched_rows_that_a_run_replaces_are_part_of_a_plan(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person sees that the rows before are removed, and how many there will be; the digest has both."""
    lake = Lake(spark, tmp_path, "joiner", {"inputs": {"a": "a", "b": "b"}, **JOIN, "unmatched": "u"})
    lake.write_delta([{"_id": "1"}, {"_id": "2"}], "a")
    lake.write_delta([{"_id": "1"}], "b")
    lake.run("first")
    lake.write_delta([{"_id": "3"}], "b")

    report = lake.ask_report()

    assert report["counts"]["unmatched"] == 2
    assert report["plan"]["other_changes"] == ["removes all rows from u", "records 2 rows in u"]
    # An attempt that died has written the side table; the plan is still the one that was approved.
    with monkeypatch.context() as context:
        context.setattr(target, "commit_run", _die)
        with pytest.raises(MemoryError):
            lake.apply_plan()
    assert lake.apply_plan()["counts"]["unmatched"] == 2
    lake.write_delta([{"_id": "2"}], "b")
    lake.write_delta([{"_id": "3"}], "a")
    assert lake.ask()["other_changes"] == ["removes all rows from u"]


@pytest.mark.long
def test_a_quarantine_that_a_run_empties_is_part_of_a_plan(spark: SparkSession, tmp_path: Path) -> None:
    """It is named once; a quarantine that is empty already is not emptied again."""
    guard = {"max_key_fanout": 2, "on_over_merge": "quarantine"}
    lake = Lake(spark, tmp_path, "merge_source", {**MERGE, **guard})
    lake.write_delta([{"_id": key, "v": "a"} for key in "123"])
    lake.run("first")
    lake.write_delta([{"_id": key, "v": key} for key in "123"], mode="overwrite")

    assert lake.ask()["other_changes"] == ["removes all rows from quarantine"]

    lake.apply_plan()
    assert lake.read_target("t__quarantine") == "[]"
    lake.write_delta([{"_id": key, "v": f"{key}{key}"} for key in "123"], mode="overwrite")
    assert lake.ask()["other_changes"] == []


def test_load_times_are_part_of_a_plan_that_removes_them(spark: SparkSession, tmp_path: Path) -> None:
    """A run that only adds a time asks nobody; a full refresh removes the times, and asks."""
    config = {"strategy": "scd2", "source": "a", "natural_key": "_id", "on_late": "repair"}
    lake = Lake(spark, tmp_path, "merge_load", config)
    lake.write_delta([{"_id": "1"}])
    lake.config = {**config, "boundary_timestamp": "2024-01-01"}
    lake.run("day 1")
    lake.config = {**config, "boundary_timestamp": "2024-01-02"}
    assert not lake.run("day 2", approval="always")["changed"]
    assert "2024, 1, 2" in lake.read_target("t__times")

    plan = lake.ask_report(full_refresh=True)["plan"]

    assert "removes all rows from times" in plan["other_changes"]


def _die(*_: Any, **__: Any) -> None:
    raise MemoryError


def test_rejected_rows_are_part_of_a_plan(spark: SparkSession, tmp_path: Path) -> None:
    """Rows that a run leaves out are in its plan, whose digest follows from them."""
    expect = {"valid": {"condition": "v >= 0", "source": "in", "action": "quarantine"}}
    lake = Lake(spark, tmp_path, "merge_load", {**UPSERT, "source": FILES, "expect": expect})
    lake.write_json([{"_id": "1", "v": 1}])
    lake.run("first")
    lake.write_json([{"_id": "2", "v": -1, "w": None}, {"_id": "3", "v": -2}], "2.json")

    plan = lake.ask()

    assert plan["other_changes"] == ["records 2 rows in rejected"]
    assert sum(plan["kinds"].values()) == 0
    lake.write_json([{"_id": "2", "v": -1}, {"_id": "3", "v": -3}], "2.json")
    with pytest.raises(RiskError, match=OUTDATED):
        lake.apply_plan()
    changed = [{"_id": "2", "v": -1}, {"_id": "3", "v": -4}]
    lake.apply_plan(("compare with plan", lambda: lake.write_json(changed, "2.json")))
    assert "-3" in lake.read_target("t__rejected")
    assert "-4" not in lake.read_target("t__rejected")


def test_removed_keys_are_part_of_a_plan(spark: SparkSession, tmp_path: Path) -> None:
    """A tombstone decides about later records, so a person is asked about it."""
    config = {
        "source": "a", "primary_key": "k", "row_kind_column": "op", "tombstone_retention": 1,
        "options": {"sequence.field": "s"},
    }  # fmt: skip
    lake = Lake(spark, tmp_path, "merge_engine", config)
    lake.write_delta([{"k": 1, "s": 1, "op": "+I"}])
    lake.run("first")
    lake.write_delta([{"k": 2, "s": 5, "op": "-D"}])

    plan = lake.ask()

    assert plan["other_changes"] == ["records 1 row in merge_engine_removals"]
    lake.apply_plan()
    lake.write_delta([{"k": 1, "s": 0, "op": "+I"}])
    assert not lake.run("offsets", approval="always")["changed"]
    emptied = "removes all rows from merge_engine_removals"
    assert lake.list_other_changes(full_refresh=True) == [emptied, *plan["other_changes"]]
    lake.run("again", full_refresh=True)
    assert len(spark.read.format("delta").load(str(tmp_path / "t__removed")).collect()) == 1
    lake.write_delta([{"k": 1, "s": 1, "op": "+I"}], mode="overwrite")
    assert lake.ask_report(full_refresh=True)["plan"]["other_changes"] == [emptied]
    lake.run("empty", full_refresh=True)
    assert lake.read_target("t__removed") == "[]"
    assert lake.list_other_changes(full_refresh=True) == []


def test_sequences_are_part_of_a_plan(spark: SparkSession, tmp_path: Path) -> None:
    """The sequence of a deletion decides about later rows; its commit adds no columns."""
    config = {**UPSERT, "source": "a", "sequence_by": "s", "hard_delete": "d"}
    lake = Lake(spark, tmp_path, "merge_load", config)
    lake.write_delta([{"_id": "1", "s": 1, "d": False}])
    lake.run("first")
    lake.write_delta([{"_id": "2", "s": 5, "d": True, "w": "new"}])

    plan = lake.ask()

    assert plan["other_changes"] == ["records 1 row in sequences"]
    lake.apply_plan()
    assert "w" not in DeltaTable(str(tmp_path / "t")).schema().to_arrow().names
    emptied = "removes all rows from sequences"
    assert emptied in lake.list_other_changes(full_refresh=True)
    lake.write_delta([{"_id": "1", "s": 1, "d": False}], mode="overwrite")
    assert emptied in lake.ask_report(full_refresh=True)["plan"]["other_changes"]
    lake.run("empty", full_refresh=True)
    assert lake.read_target("t__sequences") == "[]"
    assert emptied not in lake.list_other_changes(full_refresh=True)


def test_elements_are_part_of_the_digest(spark: SparkSession, tmp_path: Path) -> None:
    """A list that becomes a table of its own makes a plan outdated if one of its elements changes."""
    lake = Lake(spark, tmp_path, "merge_load", {**UPSERT, "source": FILES, "nested": "tables"})
    lake.write_json([{"_id": "1", "items": [{"n": 1}]}])
    lake.save_plan()
    lake.write_json([{"_id": "1", "items": [{"n": 2}]}])

    with pytest.raises(RiskError, match=OUTDATED):
        lake.apply_plan()

    assert lake.version is None
