"""Tests of reading logs without Spark, and of what is left to Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.run.columns import list_types
from airflow_merge_provider.core.run.decision import RequiresSparkError
from airflow_merge_provider.core.run.table_log import PinnedDataset, is_continued, pin_dataset
from airflow_merge_provider.delta_rs import DeltaRsLog

ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "tags": pa.array([["a"], []], pa.list_(pa.string()))})


def write_table(folder: Path, name: str = "t", **how: Any) -> Dataset:
    write_deltalake(str(folder / name), ROWS, **how)
    return Dataset(name, path=str(folder / name))


def test_a_table_is_pinned_with_its_commit(tmp_path: Path) -> None:
    """A pinned table has version, ID and the digest of its commit, so that another history is noticed."""
    dataset = write_table(tmp_path)
    pinned = pin_dataset(DeltaRsLog(), dataset)
    write_table(tmp_path, mode="append")
    later = pin_dataset(DeltaRsLog(), dataset)

    assert (pinned.version, later.version) == (0, 1)
    assert pinned.table_id == later.table_id == str(DeltaTable(str(dataset.path)).metadata().id)
    assert is_continued(DeltaRsLog(), later, pinned.offset)
    commit = Path(str(dataset.path), "_delta_log", f"{0:020d}.json")
    commit.write_text(commit.read_text() + "\n")
    assert not is_continued(DeltaRsLog(), later, pinned.offset)
    commit.unlink()
    assert is_continued(DeltaRsLog(), later, pinned.offset)  # the log does not reach back any more


def test_an_example_is_a_value_of_the_version(tmp_path: Path) -> None:
    """NULL is no example, and the value of a newer version neither."""
    dataset = write_table(tmp_path)
    extended = ROWS.append_column('a"b', pa.array([None, "x"])).append_column("none", pa.nulls(2, pa.int32()))
    write_deltalake(str(dataset.path), extended, mode="append", schema_mode="merge")
    pinned = PinnedDataset(dataset, 0), PinnedDataset(dataset, 1)
    names = (pinned[0], "tags"), (pinned[1], 'a"b'), (pinned[1], "none")

    assert [DeltaRsLog().read_example(*name) for name in names] == ['["a"]', '"x"', None]


def test_rows_and_columns_are_those_of_the_version(tmp_path: Path) -> None:
    """Counts and types are read at a version, even if there is a newer one."""
    dataset = write_table(tmp_path)
    wider = ROWS.append_column("n", pa.array([1, 2], pa.int32()))
    write_deltalake(str(dataset.path), wider, mode="append", schema_mode="merge")
    log = DeltaRsLog()

    assert [log.count_rows(dataset, version) for version in (0, 1, 0)] == [2, 4, 2]
    first, second = (list_types(log.read_fields(PinnedDataset(dataset, version))) for version in (0, 1))
    assert first == {"id": "bigint", "tags": "array<string>"}
    assert second == {**first, "n": "int"}


def test_history_and_transactions_are_read(tmp_path: Path) -> None:
    """The history is newest first and may be limited; a writer without a commit has the number 0."""
    dataset = write_table(tmp_path)
    write_table(tmp_path, mode="append")

    assert [entry.version for entry in DeltaRsLog().read_history(dataset, 1)] == [1]
    assert [entry.version for entry in DeltaRsLog().read_history(dataset, None)] == [1, 0]
    assert DeltaRsLog().read_transaction(dataset, "airflow-merge/x") == 0


def test_no_table_is_none_and_other_files_are_an_error(tmp_path: Path) -> None:
    """A folder that does not exist is no table, nor is an empty one; a folder with files is an error."""
    missing, files = (Dataset(name, path=str(tmp_path / name)) for name in ("missing", "files"))
    assert DeltaRsLog().find_newest_version(missing) is None
    assert DeltaRsLog().read_history(missing, None) == []
    assert DeltaRsLog().find_properties(missing) is None
    (tmp_path / "files").mkdir()
    assert DeltaRsLog().find_newest_version(files) is None
    (tmp_path / "files" / "a.csv").write_text("a")

    with pytest.raises(DataError, match="is not a Delta table"):
        DeltaRsLog().find_newest_version(files)


LEFT_TO_SPARK: dict[str, Callable[[DeltaRsLog, Dataset], Any]] = {
    "a catalog table": lambda log, _: log.find_newest_version(Dataset("t", table="lake.t")),
    "plain files": lambda log, _: log.find_newest_version(Dataset("t", "csv", path="/data/t")),
    "whether files exist": lambda log, _: log.find_files_version(Dataset("t", "csv", path="/data/t")),
    "properties of no table": lambda log, _: log.read_properties(Dataset("t", path="/nowhere/t")),
    "an unknown store": lambda log, _: log.find_newest_version(Dataset("t", path="what://lake/t")),
    "a restore to a timestamp": lambda log, table: log.find_restored_version(
        table, log.read_history(table, None)[0]
    ),
}


@pytest.mark.parametrize("question", LEFT_TO_SPARK)
def test_what_the_logs_do_not_tell_is_left_to_spark(question: str, tmp_path: Path) -> None:
    """delta-rs gives no answer instead of a wrong one."""
    with pytest.raises(RequiresSparkError):
        LEFT_TO_SPARK[question](DeltaRsLog(), write_table(tmp_path))


def test_a_broken_log_is_left_to_spark(tmp_path: Path) -> None:
    """A log that delta-rs cannot read is no reason to fail: Spark may read it, or names the error."""
    dataset = write_table(tmp_path)
    Path(str(dataset.path), "_delta_log", f"{0:020d}.json").write_text("{broken")

    with pytest.raises(RequiresSparkError, match="delta-rs cannot read"):
        DeltaRsLog().find_newest_version(dataset)


def test_another_machine_and_stores_without_credentials_are_not_asked(tmp_path: Path) -> None:
    """Paths of another machine are not read here; without credentials, delta-rs would search for seconds."""
    dataset = write_table(tmp_path)

    with pytest.raises(RequiresSparkError, match="cannot read"):
        DeltaRsLog(local_files=False).find_newest_version(dataset)
    with pytest.raises(RequiresSparkError, match="cannot read"):
        DeltaRsLog(object_stores=False).find_newest_version(Dataset("t", path="s3://lake/t"))
