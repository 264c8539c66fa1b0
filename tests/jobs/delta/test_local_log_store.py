"""Test that one of two writers of a version of a local table succeeds, and how files are written."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_COMMITS = 10


def _append(spark: SparkSession, table: Path, value: int) -> None:
    spark.sql(f"INSERT INTO delta.`{table}` VALUES ({value})").collect()


def _read_values(spark: SparkSession, table: Path) -> list[int]:
    return sorted(row[0] for row in spark.read.format("delta").load(str(table)).collect())


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Path:
    """Create a table with one row."""
    path = tmp_path / "t"
    spark.sql(f"CREATE TABLE delta.`{path}` (id INT) USING delta").collect()
    _append(spark, path, 0)
    return path


def test_no_commit_of_two_writers_is_lost(spark: SparkSession, table: Path) -> None:
    """Spark and another program append at the same time: all acknowledged rows are in the table."""
    values = range(100, 100 + _COMMITS)

    def append_rows() -> None:
        for value in values:
            rows = pa.table({"id": pa.array([value], pa.int32())})
            write_deltalake(str(table), rows, mode="append")

    other_writer = threading.Thread(target=append_rows)
    other_writer.start()
    for value in range(1, 1 + _COMMITS):
        _append(spark, table, value)
    other_writer.join()

    assert _read_values(spark, table) == [*range(1 + _COMMITS), *values]
    assert DeltaTable(str(table)).version() == 1 + 2 * _COMMITS


def test_a_commit_leaves_only_its_entry(spark: SparkSession, table: Path) -> None:
    """Neither the file that is linked stays, nor a checksum that an earlier file of this name has left."""
    log = table / "_delta_log"
    entry = log / f"{2:020d}.json"
    (log / f".{entry.name}.crc").write_bytes(b"crc\0of another file")

    _append(spark, table, 1)

    assert _read_values(spark, table) == [0, 1]
    assert entry.stat().st_nlink == 1
    assert [path.name for path in log.iterdir() if ".json" in path.name and path.suffix != ".json"] == []


def test_files_have_the_permissions_of_hadoop(table: Path) -> None:
    """They are set without the program chmod, for data files and for the log, whatever the umask is."""
    files = [next(table.glob("*.parquet")), next(table.glob("_delta_log/*.json"))]

    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o644}


def test_a_table_can_be_reached_through_a_link(spark: SparkSession, table: Path) -> None:
    """The folder of a table may be a symbolic link."""
    link = table.parent / "link"
    link.symlink_to(table)

    _append(spark, link, 1)

    assert _read_values(spark, table) == _read_values(spark, link) == [0, 1]
