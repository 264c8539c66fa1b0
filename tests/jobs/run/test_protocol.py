"""Test that runs on Delta commit what the model of tests/protocol says, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import ConflictError
from airflow_merge_provider.core.report import Report
from airflow_merge_provider.core.run.previous_run import SIDE_TABLE_VERSIONS
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.core.run.table_log import RUN, parse_metadata
from airflow_merge_provider.core.table_history import UNDO, HistoryEntry
from airflow_merge_provider.jobs.delta.log import read_history
from airflow_merge_provider.jobs.delta.side_table import SideTable
from airflow_merge_provider.jobs.merge_engine import job as merge_engine
from airflow_merge_provider.jobs.run.retry import run_attempt
from airflow_merge_provider.jobs.undo import job as undo
from tests.protocol.lake import Lake
from tests.protocol.model import (
    CHANGES,
    FOREIGN,
    LOG,
    SOURCE,
    TARGET,
    Process,
    append_batch,
    build_request,
    change,
)
from tests.tables import read_rows


class KilledError(BaseException):
    """The end of a process."""


@dataclass
class DeltaLake:
    """The tables of the model on disk, with runs over them."""

    spark: SparkSession
    folder: Path

    def append_batch(self, number: int) -> None:
        self._append_row(SOURCE, f"b{number}")

    def change_target(self) -> None:
        self._append_row(TARGET, FOREIGN)

    def run(self, process: Process, after_log: Callable[[], object] = lambda: None) -> Report:
        """Run an attempt to its end; something else may happen when it has written its change log."""

        def follow(line: str) -> None:
            if "write change log" in line:
                after_log()

        request = build_request(process).model_copy(update={"warehouse": str(self.folder)})
        job = merge_engine.run if process.job == "fold" else undo.run
        return run_attempt(self.spark, request, Progress(follow), job)

    def describe(self) -> dict[str, Any]:
        """Return the commits and the rows of each table."""
        tables = {}
        for name in (TARGET, CHANGES):
            history = read_history(self.spark, resolve_dataset(name, str(self.folder)), None)
            tables[name] = (
                describe_history(history),
                sorted(row["k"] for row in read_rows(self.folder / name)),
            )
        return tables

    def _append_row(self, name: str, key: str) -> None:
        write_deltalake(str(self.folder / name), pa.table({"k": [key]}), mode="append")


def describe_history(history: Sequence[HistoryEntry]) -> list[Any]:
    """Return what later runs see of commits: their effect, and what runs have written on them."""
    return [
        (
            entry.version,
            entry.effect,
            entry.restored_version,
            *(parse_metadata(entry).get(key) for key in ("number", RUN, UNDO, SIDE_TABLE_VERSIONS)),
        )
        for entry in history
    ]


def describe_lake(lake: Lake) -> dict[str, Any]:
    """Return the commits and the rows of each table of the model."""
    return {
        name: (describe_history(lake[name].read_history()), sorted(lake[name].rows))
        for name in (TARGET, CHANGES)
    }


def run_model(lake: Lake, process: Process, *, steps: int = 9) -> tuple[Process, Lake]:
    """Do the next steps of an attempt in the model."""
    while process.step != "done" and steps:
        (process, lake), steps = process.advance(lake), steps - 1
    return process, lake


def run_both(delta: DeltaLake, lake: Lake, *processes: Process) -> Lake:
    """Run attempts to their ends on Delta and in the model, and compare the tables after each."""
    for process in processes:
        delta.run(process)
        _, lake = run_model(lake, process)
        assert delta.describe() == describe_lake(lake)
    return lake


def kill_and_retry(delta: DeltaLake) -> Lake:
    """Kill a first run before its commit, retry it, and return the model's tables."""

    def die() -> None:
        raise KilledError

    delta.append_batch(0)
    lake = append_batch(Lake())
    with pytest.raises(KilledError):
        delta.run(Process("a"), die)
    _, lake = run_model(lake, Process("a"), steps=3)
    return run_both(delta, lake, Process("a"))


def test_a_retry_and_an_undo_commit_what_the_model_says(spark: SparkSession, tmp_path: Path) -> None:
    """A run dies before its commit, is retried, and undone."""
    delta = DeltaLake(spark, tmp_path)

    run_both(delta, kill_and_retry(delta), Process("u", "undo"))


@pytest.mark.long
def test_runs_commit_what_the_model_says(spark: SparkSession, tmp_path: Path) -> None:
    """A run dies before its commit, another is overtaken, one is undone; a writer changes the target."""
    delta = DeltaLake(spark, tmp_path)
    lake = kill_and_retry(delta)

    delta.append_batch(1)
    lake = append_batch(lake)
    overtaken, lake = run_model(lake, Process("b"), steps=3)
    _, lake = run_model(lake, Process("c"))
    _, lake = run_model(lake, overtaken)
    with pytest.raises(ConflictError):
        delta.run(Process("b"), lambda: delta.run(Process("c")))
    assert delta.describe() == describe_lake(lake)

    delta.change_target()
    lake = change("foreign", lake)
    delta.append_batch(2)
    lake = append_batch(lake)
    run_both(delta, lake, Process("d"), Process("u", "undo"), Process("e"), Process("e"))


def test_the_changes_of_an_attempt_that_came_second_are_reverted(spark: SparkSession, tmp_path: Path) -> None:
    """Two first runs have the same number: the next run keeps what the target's commit names."""
    dataset = resolve_dataset("log", str(tmp_path))

    def append(key: str, named: int | None, run: int) -> int | None:
        table = SideTable(spark, dataset, LOG, named, run_number=run, next_number=run + 1)
        table.append_rows(spark.createDataFrame([(key,)], "k string"))
        return table.version

    named = append("first", None, 0)
    append("second", None, 0)
    append("next", named, 1)

    assert sorted(row["k"] for row in read_rows(tmp_path / "log")) == ["first", "next"]
