"""What a JVM does before its classes are written to an archive: write, merge, replace and read a table."""

from __future__ import annotations

import sys

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.jobs import statements, tables
from airflow_merge_provider.jobs.session import get_session
from airflow_merge_provider.jobs.statements import NEW, OLD

_SAME = f"{OLD}.id = {NEW}.id"
_CLAUSES = ("WHEN MATCHED THEN UPDATE SET *", "WHEN NOT MATCHED THEN INSERT *")


def train(path: str) -> None:
    """Go through what every job goes through, on a few rows."""
    spark = get_session()
    target = Dataset(id="trained", path=path)
    columns = ["id", "CAST(id AS STRING) AS name", "array(id, id + 1) AS ids"]
    columns += ["sha2(CAST(id AS STRING), 256) AS hash", "parse_json(concat('[', id, ']')) AS entity"]
    rows = spark.range(100).selectExpr(*columns)
    tables.commit(spark, target, "train", None, {}, lambda: statements.create_as(target, rows, "train"))
    last = tables.last_run(spark, target, "train")
    changes = tables.read(spark, tables.pin(spark, target)).where("id < 10")
    statements.merge(spark, target, changes, _SAME, _CLAUSES)
    replaced = lambda: statements.replace(target, changes, _SAME)  # noqa: E731 - one statement
    tables.commit(spark, target, "train", last, {}, replaced)
    spark.table(f"delta.`{path}`").groupBy("name").agg({"id": "max"}).toArrow()
    spark.stop()


if __name__ == "__main__":
    train(sys.argv[1])
