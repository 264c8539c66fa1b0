"""Test a commit if another writer commits to the table between the version that was found and the commit."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import ConflictError, UnrevertedError
from airflow_merge_provider.core.run.previous_run import PreviousRun, load_previous_run
from airflow_merge_provider.jobs.delta.table import SparkLog
from airflow_merge_provider.jobs.delta.transaction import CommitResult
from airflow_merge_provider.jobs.delta.writer import (
    NEW,
    OLD,
    append_rows,
    create_table,
    merge_rows,
    overwrite_table,
    replace_rows,
    restore_table,
)
from airflow_merge_provider.jobs.run.retry import commit_run
from tests.long import all_long_but
from tests.tables import read_rows

pytestmark = pytest.mark.spark

CAPABILITY = "merge_load"
KEY = f"{OLD}.id = {NEW}.id"
UPSERT = ["WHEN MATCHED THEN UPDATE SET *", "WHEN NOT MATCHED THEN INSERT *"]
STATEMENTS = ("append", "merge", "overwrite", "replace", "restore")


class Target:
    """A table with the rows 1 and 2, and the run that has created it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.path = spark, str(folder / "t")
        self.dataset = Dataset(id="t", path=self.path)
        rows = self.build_rows(1, 2)
        # delta-rs writes no tables with deletion vectors.
        create = partial(
            create_table, self.dataset, rows, CAPABILITY, {"delta.enableDeletionVectors": "false"}
        )
        commit_run(spark, self.dataset, CAPABILITY, None, {}, create)
        self.previous = self.find_previous()

    def find_previous(self) -> PreviousRun:
        previous = load_previous_run(SparkLog(self.spark), self.dataset, CAPABILITY)
        assert previous is not None
        return previous

    def build_rows(self, *ids: int) -> DataFrame:
        return self.spark.createDataFrame([(number,) for number in ids], "id LONG").coalesce(1)

    def build_statement(self, name: str) -> Callable[[], None]:
        """Return a statement that adds the row 3, or that leaves only the rows 1 to 3."""
        rows = self.build_rows(3)
        statements: dict[str, Callable[[], None]] = {
            "append": partial(append_rows, self.dataset, rows),
            "merge": partial(merge_rows, self.spark, self.dataset, rows, KEY, UPSERT),
            "overwrite": partial(overwrite_table, self.dataset, self.build_rows(1, 2, 3)),
            "replace": partial(replace_rows, self.dataset, rows, KEY),
            "restore": partial(restore_table, self.spark, self.dataset, 0),
        }
        return statements[name]

    def commit(self, write: Callable[[], object]) -> CommitResult:
        return commit_run(self.spark, self.dataset, CAPABILITY, self.previous, {}, write)

    def list_ids(self) -> list[int]:
        return sorted(row["id"] for row in read_rows(self.path))

    def list_operations(self) -> list[str]:
        return [entry["operation"] for entry in reversed(DeltaTable(self.path).history())]


@pytest.fixture
def target(spark: SparkSession, tmp_path: Path) -> Target:
    return Target(spark, tmp_path)


def append_other(path: str, number: int = 9) -> None:
    """Append a row as another program does."""
    write_deltalake(path, pa.table({"id": pa.array([number], pa.int64())}), mode="append")


def set_property(path: str) -> None:
    DeltaTable(path).alter.set_table_properties({"note": "x"}, raise_if_not_exists=False)


def run_in_worker(rows: DataFrame, marker: Path, act: Callable[[], object]) -> DataFrame:
    """Return rows whose first computation does something else, in a Python worker of Spark."""

    def pass_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if not marker.exists():
            marker.touch()
            act()
        yield from batches

    return rows.mapInArrow(pass_batches, rows.schema)


def test_nothing_is_written_after_another_commit(target: Target) -> None:
    """A run writes nothing if another writer has changed rows since the version that it found."""
    append_other(target.path)

    with pytest.raises(
        ConflictError,
        match=rf"^t: another writer committed version 1 of {target.path} \(WRITE by delta-rs.*\) "
        r"after this run had read version 0 \(nothing was written; run it again",
    ):
        target.commit(target.build_statement("overwrite"))

    assert target.list_ids() == [1, 2, 9]
    assert target.list_operations() == ["CREATE TABLE AS SELECT", "WRITE"]


def test_a_table_of_another_writer_is_not_replaced(spark: SparkSession, tmp_path: Path) -> None:
    """A first run writes nothing if another writer has created a table meanwhile."""
    append_other(str(tmp_path / "t"))
    dataset = Dataset(id="t", path=str(tmp_path / "t"))
    rows = spark.createDataFrame([(1,)], "id LONG")

    with pytest.raises(ConflictError, match=r"version 0 of .* after this run had found no table"):
        commit_run(spark, dataset, CAPABILITY, None, {}, partial(create_table, dataset, rows, CAPABILITY))


def test_a_table_that_was_created_again_is_not_changed(target: Target) -> None:
    """A table that another writer has dropped and created meanwhile has other rows, and lower versions."""
    append_other(target.path)
    append_other(target.path)
    target.previous = target.find_previous()
    shutil.rmtree(target.path)
    append_other(target.path)

    with pytest.raises(
        ConflictError, match=r"version 0 of .* \(WRITE by .* had read version 2 \(nothing was"
    ):
        target.commit(target.build_statement("append"))

    assert target.list_ids() == [9]


@pytest.mark.parametrize("name", all_long_but(STATEMENTS, "append", "merge"))
def test_a_commit_without_knowledge_of_another_one_is_reverted(target: Target, name: str) -> None:
    """The last moment is the one before Delta reads the version that a statement changes."""
    statement = target.build_statement(name)

    def write() -> None:
        append_other(target.path)
        statement()

    with pytest.raises(
        ConflictError, match=r"version 1 of .* had read version 0 \(version 2 .* was reverted"
    ):
        target.commit(write)

    assert target.list_ids() == [1, 2, 9]
    assert target.list_operations()[-1] == "RESTORE"
    target.previous = target.find_previous()
    assert target.previous.changed_by is not None
    assert target.commit(target.build_statement(name)).number == target.previous.number + 1
    assert target.list_ids() == {"overwrite": [1, 2, 3], "restore": [1, 2]}.get(name, [1, 2, 3, 9])


def test_a_commit_that_others_follow_is_not_reverted(target: Target) -> None:
    """The error names both versions if a RESTORE would revert a third commit."""

    def write() -> None:
        append_other(target.path)
        target.build_statement("append")()
        append_other(target.path, 10)

    with pytest.raises(UnrevertedError, match=r"version 1 of .*version 2 .* could not be reverted: compare"):
        target.commit(write)

    assert target.list_ids() == [1, 2, 3, 9, 10]


@pytest.mark.parametrize("name", all_long_but(["append", "merge", "overwrite"], "append"))
def test_delta_refuses_a_commit_after_another_one(target: Target, tmp_path: Path, name: str) -> None:
    """A statement is refused if another process commits while it executes, even if it reads no row."""
    rows = run_in_worker(target.build_rows(3), tmp_path / "marker", partial(append_other, target.path))
    write: dict[str, Any] = {
        "append": partial(append_rows, target.dataset, rows),
        "merge": partial(merge_rows, target.spark, target.dataset, rows, KEY, UPSERT),
        "overwrite": partial(overwrite_table, target.dataset, rows),
    }

    with pytest.raises(ConflictError, match=r"version 1 of .* \(WRITE by delta-rs.*nothing was written"):
        target.commit(write[name])

    assert target.list_ids() == [1, 2, 9]


def test_maintenance_is_no_conflict(target: Target, tmp_path: Path) -> None:
    """Rows are appended once, although the table gets properties before and while they are appended."""
    set_property(target.path)
    rows = run_in_worker(target.build_rows(3), tmp_path / "marker", partial(set_property, target.path))

    assert target.commit(partial(append_rows, target.dataset, rows)) == CommitResult(version=3, number=2)
    assert target.list_ids() == [1, 2, 3]
