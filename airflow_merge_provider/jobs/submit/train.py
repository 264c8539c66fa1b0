"""Exercise a JVM before its classes are archived: write, merge, replace and read a table."""

from __future__ import annotations

import sys

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.run.previous_run import load_previous_run
from airflow_merge_provider.jobs.delta.table import SparkLog, pin_dataset, read_dataset
from airflow_merge_provider.jobs.delta.writer import NEW, OLD, create_table, merge_rows, replace_rows
from airflow_merge_provider.jobs.run.retry import commit_run
from airflow_merge_provider.jobs.spark.session import get_session

_SAME = f"{OLD}.id = {NEW}.id"
_CLAUSES = ("WHEN MATCHED THEN UPDATE SET *", "WHEN NOT MATCHED THEN INSERT *")


def exercise_spark(path: str) -> None:
    """Execute the Spark operations that every job uses, on a few rows."""
    spark = get_session()
    target = Dataset(id="trained", path=path)
    columns = ["id", "CAST(id AS STRING) AS name", "array(id, id + 1) AS ids"]
    columns += ["sha2(CAST(id AS STRING), 256) AS hash", "parse_json(concat('[', id, ']')) AS entity"]
    rows = spark.range(100).selectExpr(*columns)
    commit_run(spark, target, "train", None, {}, lambda: create_table(target, rows, "train"))
    previous_run = load_previous_run(SparkLog(spark), target, "train")
    changes = read_dataset(spark, pin_dataset(spark, target)).where("id < 10")
    merge_rows(spark, target, changes, _SAME, _CLAUSES)
    replace = lambda: replace_rows(target, changes, _SAME)  # noqa: E731 - one statement
    commit_run(spark, target, "train", previous_run, {}, replace)
    spark.table(f"delta.`{path}`").groupBy("name").agg({"id": "max"}).toArrow()
    spark.stop()


if __name__ == "__main__":
    exercise_spark(sys.argv[1])
