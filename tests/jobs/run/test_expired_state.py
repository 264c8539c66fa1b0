"""Test that no run loses what belongs to its target if the log no longer has the commits of earlier runs."""

from __future__ import annotations

import time
from collections.abc import Callable
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
from airflow_merge_provider.core.run_mode import STATE_EXPIRED
from airflow_merge_provider.jobs.joiner import job as joiner
from airflow_merge_provider.jobs.merge_engine import job as merge_engine
from airflow_merge_provider.jobs.merge_load import job as merge_load
from airflow_merge_provider.jobs.merge_source import job as merge_source
from airflow_merge_provider.jobs.run.retry import run_attempt
from airflow_merge_provider.jobs.undo import job as undo
from tests.jobs.delta_log import expire_log, write_checkpoints
from tests.long import all_long_but
from tests.reports import check_report
from tests.tables import read_rows

pytestmark = pytest.mark.spark

JOBS = {
    "joiner": joiner.run, "merge_engine": merge_engine.run, "merge_load": merge_load.run,
    "merge_source": merge_source.run, "undo": undo.run,
}  # fmt: skip
EXPECT = {"positive": {"condition": "n > 0", "source": "a", "action": "quarantine"}}
BY_KEY = {"source": "a", "primary_key": ["_id"]}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "nested": ("merge_load", {"strategy": "upsert", **BY_KEY, "nested": "tables"}),
    "history": (
        "merge_load", {"strategy": "scd2", "source": "a", "natural_key": "_id", "mode": "changes"},
    ),
    "merge_source": (
        "merge_source", {"version": 2, "datasets": ["a a"], "values": "columns", "stable_id": True},
    ),
    "joiner": (
        "joiner",
        {"inputs": {"a": "a", "b": "b"}, "join_keys": "a._id = b._id", "required_inputs": "a"},
    ),
    "merge_engine": (
        "merge_engine",
        {
            **BY_KEY, "changelog": "changes", "row_kind_column": "op", "tombstone_retention": 60,
            "options": {"sequence.field": "n"},
        },
    ),
}  # fmt: skip


class Lake:
    """Two sources and a target, and runs over them."""

    def __init__(self, spark: SparkSession, folder: Path, name: str) -> None:
        self._spark, self.folder = spark, folder
        self._job, self._config = CONFIGS[name]
        self.runs = 0

    def write_rows(self, *rows: tuple[str, int]) -> None:
        """Append rows to a source that a fold reads, or replace the rows; ``-n`` deletes a folded row."""
        columns = {
            "_id": [row[0] for row in rows], "n": [abs(row[1]) for row in rows],
            "tags": [[row[0]] for row in rows], "op": ["+I" if row[1] > 0 else "-D" for row in rows],
        }  # fmt: skip
        if self._job != "merge_engine":
            columns = {**columns, "n": [row[1] for row in rows]}
        for name in ("a", "b"):
            mode: Any = "append" if self._job == "merge_engine" else "overwrite"
            write_deltalake(str(self.folder / name), pa.table(columns), mode=mode)

    def run(self, *, days: float = 0, undoes: bool = False, **fields: Any) -> dict[str, Any]:
        """Run the configuration, or an undo, some days from now; without Spark if that is possible."""
        self.runs += 1
        expect = {} if self._job == "merge_engine" else {"expect": EXPECT}
        request = JobRequest.model_validate(
            {
                "job": "undo" if undoes else self._job,
                "config": {"target": "t"} if undoes else {"target": "t", **self._config, **expect},
                "run": RunToken(dag_id="d", task_id="t", run_id=f"r{self.runs}"),
                "warehouse": str(self.folder),
                "started_at": int((time.time() + days * 86_400) * 1_000_000),
                **fields,
            }
        )
        result = find_result(request, conf={}, is_local=True, on_line=lambda _: None)
        if isinstance(result, JobResult):
            return check_report(result.report)
        return check_report(run_attempt(self._spark, request, Progress(lambda _: None), JOBS[request.job]))

    def expire_log(self, *, newest: int = 0) -> None:
        """Let the commits of the target and of its side tables age out, but the newest ones of the target."""
        for log in self.folder.glob("*/_delta_log"):
            if log.parent.name not in {"a", "b"}:
                expire_log(self._spark, log.parent, newest=newest if log.parent.name == "t" else 0)

    def list_side_rows(self) -> dict[str, list[str]]:
        """Return the rows of the side tables, without the numbers and times of runs."""
        names = [log.parent.name for log in self.folder.glob("*/_delta_log")]
        hidden = {"_run", "_removed_at", "rejected_at", "source_version"}
        return {
            name: sorted(
                str({key: value for key, value in row.items() if key not in hidden})
                for row in read_rows(self.folder / name)
            )
            for name in names
            if name not in {"a", "b", "t"}
        }

    def list_stable_ids(self) -> list[int]:
        """Return the stable IDs of a merge source; none of another target."""
        rows = read_rows(self.folder / "t") if self._job == "merge_source" else []
        return [row["$stable_id"] for row in rows]

    @property
    def version(self) -> int:
        return DeltaTable(str(self.folder / "t")).version()


MakeLake = Callable[[str], Lake]


@pytest.fixture
def make_lake(spark: SparkSession, tmp_path: Path) -> MakeLake:
    return lambda name: Lake(spark, tmp_path, name)


@pytest.mark.parametrize("name", all_long_but(CONFIGS, "merge_engine"))
def test_a_run_without_work_keeps_its_state_in_the_log(
    spark: SparkSession, make_lake: MakeLake, name: str
) -> None:
    """It commits the state again, before the log loses it, and only then; no row changes."""
    lake = make_lake(name)
    lake.write_rows(("1", 1), ("2", -2), ("3", 3))
    lake.run()
    write_checkpoints(spark, lake.folder / "t")
    side_rows, version = lake.list_side_rows(), lake.version

    assert not lake.run()["changed"]
    assert not lake.run(days=14)["changed"]
    assert lake.version == version
    assert not lake.run(days=16, until="transform")["changed"]
    assert lake.version == version
    report = lake.run(days=16)
    assert (report["changed"], lake.version) == (False, version + 1)

    lake.expire_log(newest=1)
    lake.write_rows(("4", -4), ("5", 5))
    report = lake.run()
    assert (report["run_mode"], report["changed"]) == ("full" if name == "joiner" else "incremental", True)
    assert not any("history" in warning for warning in report["warnings"])
    for table, rows in side_rows.items():
        assert set(rows) <= set(lake.list_side_rows()[table])


@pytest.mark.parametrize("name", all_long_but(["nested", "history", "merge_source", "joiner"], "history"))
def test_side_tables_stay_if_the_commit_that_names_them_is_gone(make_lake: MakeLake, name: str) -> None:
    """A later run appends to them, also after one that does not, and an undo keeps their rows."""
    lake = make_lake(name)
    lake.write_rows(("1", 1), ("2", -2), ("3", 3))
    lake.run()
    first = lake.list_side_rows()
    lake.expire_log()

    lake.write_rows(("1", 1), ("3", 30))
    report = lake.run()
    assert any(warning.startswith(STATE_EXPIRED) for warning in report["warnings"])
    lake.write_rows(("1", 1), ("3", 30), ("4", -4))
    lake.run()
    second = lake.list_side_rows()
    assert all(set(rows) <= set(second[table]) for table, rows in first.items())
    assert len(second["t__rejected"]) == 2
    assert len(set(lake.list_stable_ids())) == len(lake.list_stable_ids())
    lake.run(undoes=True)

    assert lake.list_side_rows()["t__rejected"] == first["t__rejected"]


def test_a_fold_goes_on_with_its_side_tables_after_a_full_refresh(make_lake: MakeLake) -> None:
    """Nobody knows how far the source was folded, so the fold is refused before."""
    lake = make_lake("merge_engine")
    lake.write_rows(("1", 1), ("2", 2))
    lake.run()
    lake.write_rows(("2", -3), ("3", 3))
    lake.run()
    first = lake.list_side_rows()
    lake.expire_log()

    with pytest.raises(DataError, match=r"no longer contains the source offset.*full_refresh=True"):
        lake.run()
    with pytest.raises(DataError, match=r"the commits of its runs are no longer in the history"):
        lake.run(undoes=True)
    lake.run(full_refresh=True)

    second = lake.list_side_rows()
    assert first["changes"]
    assert first["t__removed"]
    assert all(set(rows) <= set(second[table]) for table, rows in first.items())
