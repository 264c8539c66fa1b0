"""Test that every statement that writes a table keeps types and values that all readers understand."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType

from airflow_merge_provider.core.change_plan.shown_rows import ShownRows, use_shown_rows
from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.run.previous_run import load_previous_run
from airflow_merge_provider.jobs.delta.table import SparkLog
from airflow_merge_provider.jobs.delta.writer import (
    NEW,
    OLD,
    append_rows,
    create_table,
    merge_rows,
    overwrite_table,
    replace_rows,
)
from airflow_merge_provider.jobs.run.retry import commit_run
from tests.tables import read_rows

CAP = "merge_engine"
KEY = f"{OLD}.k <=> {NEW}.k"
UPSERT = ["WHEN MATCHED THEN UPDATE SET *", "WHEN NOT MATCHED THEN INSERT *"]
NESTED = "array(named_struct('a', cast(id AS STRING), 'm', map('x', array(cast(id AS STRING)))))"
# Texts that look special, but are names of folders of their own.
LITERAL = ["a/b", " a ", "null", "a%20=b", "ü", "\n", "NaN"]
LOST = {"site": ["''", "'__HIVE_DEFAULT_PARTITION__'", "'a\\0'"], "raw": ["x''", "x'ff'"]}


def write(spark: SparkSession, target: Dataset, statement: Callable[[], object]) -> None:
    """Run one statement as a run does."""
    last = load_previous_run(SparkLog(spark), target, CAP)
    commit_run(spark, target, CAP, last, {}, statement)


def list_statements(spark: SparkSession, target: Dataset) -> dict[str, Callable[[DataFrame], object]]:
    """Return the statements that write into a table, which may add columns."""
    return {
        "append": lambda rows: append_rows(target, rows, new_columns=True),
        "merge": lambda rows: merge_rows(spark, target, rows, KEY, UPSERT, new_columns=True),
        "replace": lambda rows: replace_rows(target, rows, KEY, new_columns=True),
        "overwrite": lambda rows: overwrite_table(target, rows),
    }


def test_texts_of_spark_connect_have_no_collation_in_tables(spark: SparkSession, tmp_path: Path) -> None:
    """Results of Python functions and of casts are plain texts in new tables and columns, also in lists."""
    target = Dataset("t", path=str(tmp_path / "t"))
    source = spark.sql(f"SELECT cast(id AS STRING) AS k, {NESTED} AS v FROM range(2)")
    folded = source.mapInArrow(lambda batches: batches, source.schema)
    write(spark, target, lambda: create_table(target, folded, CAP))
    for name, statement in list_statements(spark, target).items():
        value = folded["k"].cast(StringType())
        write(spark, target, partial(statement, folded.withColumn(name, value)))

        schema = json.loads(DeltaTable(target.path).schema().to_json())
        assert "collat" not in json.dumps(schema).lower()
        assert schema["fields"][-1] == {"name": name, "type": "string", "nullable": True, "metadata": {}}
    assert sorted((row["k"], row["overwrite"]) for row in read_rows(target.path)) == [("0", "0"), ("1", "1")]


@pytest.mark.parametrize("column", LOST)
def test_a_lost_partition_value_is_refused_by_every_statement(
    spark: SparkSession, tmp_path: Path, column: str
) -> None:
    """Delta would store NULL; the error names table, column, row and remedy, and nothing is committed."""
    target = Dataset("t", path=str(tmp_path / "t"))

    def select(site: str) -> DataFrame:
        return spark.sql(f"SELECT 1 AS k, {site} AS {column}")

    rows = [spark.createDataFrame([(site,)], "site STRING").selectExpr("1 AS k", "site") for site in LITERAL]
    everything: Any = rows[0]
    for more in rows[1:]:
        everything = everything.unionByName(more)
    first = everything if column == "site" else select("x'41'")
    with pytest.raises(DataError) as refused:
        write(
            spark, target, lambda: create_table(target, select(LOST[column][0]), CAP, partition_by=[column])
        )
    assert not DeltaTable.is_deltatable(target.path)
    assert str(refused.value).startswith(
        f"{target.uri}: no partition can hold the value of column '{column}' in the row {{\"k\":1,"
    )
    assert refused.value.problems[0].code == "partition-value"
    write(spark, target, lambda: create_table(target, first, CAP, partition_by=[column.upper()]))
    if column == "site":
        assert sorted(row["site"] for row in read_rows(target.path)) == sorted(LITERAL)
    statements = list_statements(spark, target).values()
    for value, statement in zip([*LOST[column], *LOST[column], *LOST[column]], statements, strict=False):
        with use_shown_rows(ShownRows(rows="keys")), pytest.raises(DataError) as refused:
            write(spark, target, partial(statement, select(value)))
        assert f"hold the value of column '{column}' in the row ***: Delta" in str(refused.value)
    assert DeltaTable(target.path).version() == 0
