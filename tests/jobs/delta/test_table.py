"""Test reading of tables: versions, formats, missing tables, and tables of another kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from airflow_merge_provider.core.dataset import Dataset, resolve_dataset
from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.run.previous_run import load_previous_run
from airflow_merge_provider.core.run.table_log import PinnedDataset
from airflow_merge_provider.jobs.delta.table import (
    SparkLog,
    count_live_rows,
    count_records,
    pin_dataset,
    read_dataset,
)
from airflow_merge_provider.jobs.delta.writer import create_table
from airflow_merge_provider.jobs.spark import sql

ODD_NAMES = [
    "a blank",
    "it's",
    "tick`s",
    "ünï 日本",
    "per%20cent",
    "br[ack]et",
    "back\\slash",
    'dou"ble',
    "a.b",
]


def _build_numbers(spark: SparkSession, count: int) -> Any:
    return spark.range(count).selectExpr("id", "CAST(id AS STRING) AS name")


def test_a_pinned_read_does_not_see_later_commits(spark: SparkSession, tmp_path: Path) -> None:
    """A pinned read returns the pinned version, whatever is committed later."""
    dataset = Dataset(id="d", path=str(tmp_path / "d"))
    _build_numbers(spark, 3).write.format("delta").save(dataset.path)
    pinned = pin_dataset(spark, dataset)

    _build_numbers(spark, 5).write.format("delta").mode("append").save(dataset.path)

    assert pinned.version == 0
    assert read_dataset(spark, pinned).count() == 3
    assert read_dataset(spark, pin_dataset(spark, dataset)).count() == 8


@pytest.mark.parametrize("odd", ODD_NAMES)
def test_any_path_can_be_created_pinned_read_and_owned(spark: SparkSession, tmp_path: Path, odd: Any) -> None:
    """Paths are quoted: tables in paths of any characters can be created, pinned, read and owned."""
    target = Dataset(id="t", path=str(tmp_path / odd))

    create_table(target, _build_numbers(spark, 2), "merge_source")

    assert (tmp_path / odd / "_delta_log").is_dir()
    assert read_dataset(spark, pin_dataset(spark, target)).count() == 2
    assert load_previous_run(SparkLog(spark), target, "merge_source").version == 0


def test_a_catalog_table_is_pinned_and_read_at_its_version(spark: SparkSession) -> None:
    """A name with dots is read through the catalog, at the pinned version."""
    dataset = Dataset(id="default.pinned", table="default.pinned")
    assert not pin_dataset(spark, dataset).exists
    _build_numbers(spark, 2).writeTo("default.pinned").using("delta").create()
    pinned = pin_dataset(spark, dataset)
    _build_numbers(spark, 2).writeTo("default.pinned").append()

    assert read_dataset(spark, pinned).count() == 2
    spark.sql("DROP TABLE default.pinned")


@pytest.mark.parametrize("kind", ["parquet", "json", "csv", "orc", "text", "xml"])
def test_files_of_every_format_are_read_with_their_options(
    spark: SparkSession, tmp_path: Path, kind: Any
) -> None:
    """Plain files of every format are read with their options, like any other dataset."""
    options = {"csv": {"header": "true"}, "xml": {"rowTag": "row"}}.get(kind, {})
    columns = ["name"] if kind == "text" else ["id", "name"]
    _build_numbers(spark, 4).select(columns).write.format(kind).options(**options).save(str(tmp_path / "f"))
    dataset = resolve_dataset({"dataset": str(tmp_path / "f"), "format": kind, "options": options}, None)

    rows = read_dataset(spark, pin_dataset(spark, dataset))

    assert rows.count() == 4
    assert set(rows.columns) == ({"value"} if kind == "text" else set(columns))


def test_csv_files_are_read_with_every_value(spark: SparkSession, tmp_path: Path) -> None:
    """CSV is read as in RFC 4180, and a record that cannot be read is an error, not NULLs."""
    texts = {
        "lf": 'id,v\n1,"a ""b""\r\n"\n2," x "\n3,""\n4,\n',
        "crlf": 'id,v\r\n1,"a ""b""\r\n"\r\n2," x "\r\n3,""\r\n4,\r\n',
        "ragged": "id,v\n1\n",
    }
    rows = {}
    for name, text in texts.items():
        (tmp_path / name).write_bytes(text.encode())
        reference = {"dataset": str(tmp_path / name), "format": "csv", "options": {"header": "true"}}
        rows[name] = read_dataset(spark, pin_dataset(spark, resolve_dataset(reference, None)))

    expected = [("1", 'a "b"\r\n'), ("2", " x "), ("3", ""), ("4", None)]
    assert [tuple(row) for row in rows["lf"].collect()] == expected
    assert [tuple(row) for row in rows["crlf"].collect()] == expected
    with pytest.raises(PySparkException, match=r"/ragged: the record '1' cannot be read, .* value: v \("):
        rows["ragged"].collect()


@pytest.mark.parametrize(
    ("kind", "text", "options"),
    [
        ("csv", "id,v\n1\n2,x\n", {"header": "true"}),
        ("json", '{"id": 1}\n{"id\n', {}),
        ("xml", "<rows><row><id>1</id></row><row><id>1</row></rows>", {"rowTag": "row"}),
    ],
)
def test_a_record_that_cannot_be_read_stops_the_run_unless_allowed(
    spark: SparkSession, tmp_path: Path, kind: str, text: str, options: dict[str, str]
) -> None:
    """With the mode PERMISSIVE its values are NULL; otherwise it is an error, in every format of text."""
    (tmp_path / "f").write_text(text)

    def count_rows(mode: dict[str, str]) -> int:
        reference = {"dataset": str(tmp_path / "f"), "format": kind, "options": {**options, **mode}}
        return len(read_dataset(spark, pin_dataset(spark, resolve_dataset(reference, None))).collect())

    assert count_rows({"mode": "PERMISSIVE"}) == 2
    with pytest.raises(
        (PySparkException, DataError), match=r"/f(: the record '.*' cannot be read| .* not one JSON record)"
    ) as error:
        count_rows({})
    assert "__merge" not in str(error.value)


def test_the_version_of_files_changes_with_them_and_only_with_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The version of plain files, which have no log, changes if and only if the files change."""
    dataset = Dataset(id="f", path=str(tmp_path / "f"), format="json")
    assert pin_dataset(spark, dataset).version is None
    _build_numbers(spark, 4).write.json(dataset.path)
    first = pin_dataset(spark, dataset)
    assert pin_dataset(spark, dataset) == first

    _build_numbers(spark, 1).write.mode("append").json(dataset.path)

    assert pin_dataset(spark, dataset).version not in (None, first.version)


def test_a_missing_dataset_has_no_version_and_cannot_be_read(spark: SparkSession, tmp_path: Path) -> None:
    """A missing dataset has version None, and reading it raises an error."""
    pinned = pin_dataset(spark, Dataset(id="gone", path=str(tmp_path / "gone")))

    assert not pinned.exists
    with pytest.raises(DataError, match=r"gone: .*/gone does not exist \(check"):
        read_dataset(spark, pinned)


def test_an_empty_folder_is_a_missing_dataset(spark: SparkSession, tmp_path: Path) -> None:
    """An empty folder counts as a missing dataset."""
    (tmp_path / "prepared").mkdir()

    assert not pin_dataset(spark, Dataset(id="p", path=str(tmp_path / "prepared"))).exists


def test_a_folder_of_other_files_is_no_delta_table(spark: SparkSession, tmp_path: Path) -> None:
    """A folder with files of another format is rejected as a Delta table.

    The error names the right format.
    """
    _build_numbers(spark, 1).write.parquet(str(tmp_path / "p"))

    with pytest.raises(DataError, match=r'is not a Delta table \(.*"format": "parquet"'):
        pin_dataset(spark, Dataset(id="p", path=str(tmp_path / "p")))


def test_a_view_and_a_table_of_another_format_are_no_delta_tables(spark: SparkSession) -> None:
    """A view and a catalog table of another format are rejected as Delta tables, each with its remedy."""
    spark.sql("CREATE OR REPLACE VIEW default.a_view AS SELECT 1 AS id")
    spark.sql("CREATE TABLE default.a_parquet USING parquet AS SELECT 1 AS id")
    for name, message in {
        "default.a_view": r"is a view, which has no versions \(name the table that it reads",
        "default.a_parquet": r'is not a Delta table \(set the format of an input: .*"parquet"',
    }.items():
        with pytest.raises(DataError, match=message):
            pin_dataset(spark, Dataset(id=name, table=name))

    as_parquet = pin_dataset(spark, Dataset(id="a", table="default.a_parquet", format="parquet"))

    assert read_dataset(spark, as_parquet).count() == 1
    spark.sql("DROP VIEW default.a_view")
    spark.sql("DROP TABLE default.a_parquet")


def test_a_target_that_something_else_wrote_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A target that was not written by this package is rejected."""
    target = Dataset(id="t", path=str(tmp_path / "t"))
    assert load_previous_run(SparkLog(spark), target, "merge_source") is None
    _build_numbers(spark, 1).write.format("delta").save(target.path)

    with pytest.raises(
        DataError, match=r"was written by another writer, not by merge_source \(choose another"
    ):
        load_previous_run(SparkLog(spark), target, "merge_source")


def test_a_target_of_another_capability_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A target of another capability is rejected, because a table has one writer."""
    target = Dataset(id="t", path=str(tmp_path / "t"))
    create_table(target, _build_numbers(spark, 1), "merge_engine")

    with pytest.raises(DataError, match="was written by merge_engine, not by merge_source"):
        load_previous_run(SparkLog(spark), target, "merge_source")


def test_a_target_folder_of_other_files_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A folder with other files is rejected as a target."""
    Path(tmp_path / "t").mkdir()
    Path(tmp_path / "t" / "notes.txt").write_text("mine")

    with pytest.raises(DataError, match="is not a Delta table"):
        load_previous_run(SparkLog(spark), Dataset(id="t", path=str(tmp_path / "t")), "merge_source")


def test_rows_that_are_marked_as_deleted_are_counted_from_the_log(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Rows deleted by deletion vectors are counted from the log at each version, without reading rows."""
    target = Dataset(id="t", path=str(tmp_path / "t"))
    create_table(target, _build_numbers(spark, 100).coalesce(2), "merge_source")
    spark.sql(f"DELETE FROM {sql.quote_table(target)} WHERE id % 10 = 3")
    spark.sql(f"DELETE FROM {sql.quote_table(target)} WHERE id BETWEEN 40 AND 44")

    datasets = [PinnedDataset(target, version) for version in range(3)]

    assert "deletionVector" in (tmp_path / "t/_delta_log/00000000000000000002.json").read_text()
    assert [count_records(spark, dataset, live=True) for dataset in datasets] == [100, 90, 86]
    assert [count_records(spark, dataset) for dataset in datasets] == [100, 100, 100]
    assert [count_live_rows(spark, dataset) for dataset in datasets] == [100, 90, 86]
