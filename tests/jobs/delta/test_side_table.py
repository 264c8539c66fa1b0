"""Test which rows of a side table the next write removes: those of attempts and others, not deletions."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.jobs.delta.side_table import SideTable

pytestmark = pytest.mark.spark

OWNER = "merge_engine_changelog"


def test_deletions_by_others_stay_and_their_insertions_go(spark: SparkSession, tmp_path: Path) -> None:
    """Also if an attempt that never committed has written to the table after the deletion."""
    dataset = Dataset(id="t__log", path=str(tmp_path / "log"))

    def build_rows(*names: str) -> DataFrame:
        return spark.createDataFrame([(name,) for name in names], "name STRING")

    def open_table(version: int | None, run: int) -> SideTable:
        return SideTable(spark, dataset, OWNER, version, run_number=run - 1, next_number=run)

    table = open_table(None, 1)
    table.append_rows(build_rows("kept", "secret", "masked"))
    spark.sql(f"DELETE FROM delta.`{tmp_path}/log` WHERE name = 'secret'").collect()
    spark.sql(f"UPDATE delta.`{tmp_path}/log` SET name = '***' WHERE name = 'masked'").collect()
    open_table(table.version, 2).append_rows(build_rows("of an attempt"))
    spark.sql(f"INSERT INTO delta.`{tmp_path}/log` VALUES ('of others')").collect()

    open_table(table.version, 2).append_rows(build_rows("new"))

    rows = spark.read.format("delta").load(str(tmp_path / "log")).collect()
    assert sorted(row["name"] for row in rows) == ["***", "kept", "new"]
