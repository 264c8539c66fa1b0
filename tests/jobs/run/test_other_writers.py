"""Test every capability if another writer changes the target after a run has found its version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from airflow_merge_provider.core.change_plan.saved_plan import PlanChoice
from airflow_merge_provider.core.errors import ConflictError, DataError
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.risk import RiskError
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.joiner import job as joiner
from airflow_merge_provider.jobs.merge_engine import job as merge_engine
from airflow_merge_provider.jobs.merge_load import job as merge_load
from airflow_merge_provider.jobs.merge_source import job as merge_source
from airflow_merge_provider.jobs.run.retry import run_attempt
from airflow_merge_provider.jobs.undo import job as undo
from tests.conformance.lean import new_session
from tests.long import all_long_but

pytestmark = pytest.mark.spark

JOBS = {
    "joiner": joiner.run, "merge_engine": merge_engine.run, "merge_load": merge_load.run,
    "merge_source": merge_source.run, "undo": undo.run,
}  # fmt: skip
# The configuration of each case, and the last step of a run before it writes its target.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "upsert": ("merge_load", "compare", {"strategy": "upsert", "source": "a", "primary_key": "_id"}),
    "append": ("merge_load", "compare", {"strategy": "delete-insert", "source": "a"}),
    "history": ("merge_load", "compare", {"strategy": "scd2", "source": "a", "natural_key": "_id"}),
    "merge_engine": ("merge_engine", "aggregate", {"source": "a", "primary_key": "_id"}),
    "merge_source": (
        "merge_source", "resolve inputs",
        {"version": 2, "datasets": ["a a"], "equality": [["eq", "a.name", "a.name"]]},
    ),
    "joiner": (
        "joiner", "count inputs", {"inputs": {"a": "a", "b": "a"}, "join_keys": "a._id = b._id"},
    ),
    "appended join": (
        "joiner", "count inputs",
        {"inputs": {"a": "a", "b": "a"}, "join_keys": "a._id = b._id", "write_mode": "append"},
    ),
}  # fmt: skip


class Lake:
    """A source and a target; another writer deletes all rows of the target after a step of a run."""

    def __init__(self, spark: SparkSession, folder: Path, name: str) -> None:
        self._spark, self._other, self.folder = spark, new_session(spark), folder
        self.job, self._step, self._config = CASES[name]
        self.write_source("1", "x")

    def write_source(self, key: str, name: str) -> None:
        rows = pa.table({"_id": [key], "name": [name]})
        write_deltalake(str(self.folder / "a"), rows, mode="append")

    def run(self, run_id: str, *, step: str | None = None, **fields: Any) -> dict[str, Any]:
        """Execute a run, and let the other writer commit after a step of it."""
        job = fields.pop("job", self.job)
        config = {"target": "t", **({} if job == "undo" else self._config)}
        request = JobRequest(
            job=job, config=config, run=RunToken(dag_id="d", run_id=run_id, task_id=job),
            warehouse=str(self.folder), started_at=1_704_067_200_000_000, **fields,
        )  # fmt: skip
        return run_attempt(self._spark, request, Progress(self._build_writer(step)), JOBS[job]).as_json()

    def run_beside_writer(self, run_id: str, **fields: Any) -> None:
        """Execute a run that fails because another writer commits before it does."""
        version = DeltaTable(str(self.folder / "t")).version()
        with pytest.raises(ConflictError) as conflict:
            self.run(run_id, step=fields.pop("step", self._step), **fields)
        message = str(conflict.value)
        assert message.startswith(
            f"t: another writer committed version {version + 1} of {self.folder / 't'} ("
        )
        assert "DELETE by Apache-Spark" in message
        assert "run it again" in message
        assert DeltaTable(str(self.folder / "t")).version() == version + 1
        assert self.count_rows() == 0

    def count_rows(self) -> int:
        return self._spark.read.format("delta").load(str(self.folder / "t")).count()

    def _build_writer(self, step: str | None) -> Callable[[str], None]:
        lines: list[str] = []

        def write_after_step(line: str) -> None:
            if step is not None and f" {step}: " in line and not lines:
                lines.append(line)
                self._other.sql(f"DELETE FROM delta.`{self.folder / 't'}`").collect()

        return write_after_step


@pytest.mark.parametrize("name", all_long_but(CASES, "upsert", "merge_engine"))
def test_a_run_does_not_overwrite_another_writer(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """The run fails and writes nothing; its retry starts from the rows that the other writer has left."""
    lake = Lake(spark, tmp_path, name)
    lake.run("first")
    lake.write_source("2", "y")

    lake.run_beside_writer("second")

    report = lake.run("second")
    # What was deleted comes back if the source still has it, unless a run only writes new records.
    assert lake.count_rows() == (1 if name == "merge_engine" else 2)
    assert report["changed"]


def test_a_plan_is_not_applied_over_another_writer(spark: SparkSession, tmp_path: Path) -> None:
    """A change of the target after the check of the plan is a conflict; the retry finds the plan outdated."""
    lake = Lake(spark, tmp_path, "upsert")
    lake.run("first")
    lake.write_source("2", "y")
    lake.run("plan", until="transform", save_plan=True)
    applied = {"apply_plan": PlanChoice(approved_by="ada")}

    lake.run_beside_writer("apply", step="compare with plan", **applied)

    with pytest.raises(RiskError, match="the plan is outdated"):
        lake.run("apply", **applied)


def test_an_undo_does_not_revert_another_writer(spark: SparkSession, tmp_path: Path) -> None:
    """A change of the target after the undo has looked for one is a conflict; the retry refuses it."""
    lake = Lake(spark, tmp_path, "upsert")
    lake.run("first")
    lake.write_source("2", "y")
    lake.run("second")

    lake.run_beside_writer("undo", step="restore side tables", job="undo")

    with pytest.raises(DataError, match=r"another writer changed rows in version 2 \(DELETE\)"):
        lake.run("undo", job="undo")
