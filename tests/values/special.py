"""Tables of the types that only Spark has, which Spark itself writes and reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from airflow_merge_provider.jobs.spark.session import override_settings
from tests.values.catalog import SPARK_ONLY, Kind
from tests.values.neighbours import ID, name_row
from tests.values.steps import Steps

SPECIAL = tuple(kind for kind in SPARK_ONLY if kind.name in {"char_5", "varchar_8", "variant"})
UNSTORABLE = {
    kind.name: kind for kind in SPARK_ONLY if kind.name in {"collated", "time", "interval_ym", "interval_ds"}
}
# What the expressions of the catalog are as values of Python.
VALUES: dict[str, list[Any]] = {
    "char_5": ["a    ", "a    ", "     ", None],
    "varchar_8": ["a", "a ", "", None],
    "variant": [1, [1, None], 1.5, None],
}


SPECIAL_KEYS = {(char, text) for char in ("a    ", "     ") for text in ("a", "a ", "")}


def build_special(step: int, list_all: Callable[[Kind], list[Any]]) -> dict[str, list[Any]]:
    """Return the values of each row by its ID: the own type of a row has its next value after a step."""
    rows = {}
    for own in SPECIAL:
        for number in range(len(own.values) + 1):
            all_values = [list_all(kind) for kind in SPECIAL]
            rows[name_row(own.name, number)] = [
                values[(number + (step if kind == own else 0)) % len(values)]
                for kind, values in zip(SPECIAL, all_values, strict=True)
            ]
    return rows


def expect_special(step: int, name: str) -> dict[str, Any]:
    """Return the values of a type by the ID of the row."""
    position = [kind.name for kind in SPECIAL].index(name)
    return {id_: row[position] for id_, row in build_special(step, lambda kind: VALUES[kind.name]).items()}


def parse_variant(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "variant": None if row["variant"] is None else json.loads(row["variant"])}


def write_special(spark: SparkSession, path: Path, step: int) -> None:
    """Write a row for each value of each type, or its next value, and a column of no type."""
    columns = [f"{kind.name} {kind.spark}" for kind in SPECIAL]
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS delta.`{path}` ({ID} STRING, {', '.join(columns)}, void VOID) "
        "USING delta"
    ).collect()
    rows = " UNION ALL ".join(
        f"SELECT '{id_}', {', '.join(values)}, NULL"
        for id_, values in build_special(step, lambda kind: [*kind.values, "NULL"]).items()
    )
    spark.sql(f"INSERT OVERWRITE delta.`{path}` {rows}").collect()


def read_special(spark: SparkSession, path: Path) -> dict[str, dict[str, Any]]:
    """Return the rows by their IDs; a variant is read as JSON."""
    rows = spark.read.format("delta").load(str(path))
    assert [field.dataType.simpleString() for field in rows.schema] == ["string"] * 3 + ["variant"]
    rows = rows.selectExpr(ID, "char_5", "varchar_8", "to_json(variant) AS variant")
    return {row[ID]: parse_variant(row.asDict()) for row in rows.collect()}


def write_special_keys(spark: SparkSession, path: Path, value: str) -> None:
    """Write a row for each pair of texts of CHAR and VARCHAR."""
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS delta.`{path}` (char_5 CHAR(5), varchar_8 VARCHAR(8), x STRING) "
        "USING delta"
    ).collect()
    spark.sql(
        f"INSERT OVERWRITE delta.`{path}` SELECT c, v, '{value}' FROM VALUES ('a'), ('') AS c(c) "
        "CROSS JOIN VALUES ('a'), ('a '), ('') AS v(v)"
    ).collect()


@contextmanager
def write_unstorable(spark: SparkSession, path: Path) -> Iterator[None]:
    """Write a file with a column of each type that no table can hold, and let Spark read it meanwhile."""
    with override_settings(spark, {"spark.sql.timeType.enabled": "true"}):
        values = (f"CAST({kind.values[0]} AS {kind.spark}) AS {kind.name}" for kind in UNSTORABLE.values())
        spark.sql(f"SELECT 1 AS {ID}, {', '.join(values)}").write.parquet(str(path))
        yield


def check_special_payload(steps: Steps, name: str) -> None:
    """Check that the rows have the values of the source."""
    rows = steps.find_result("payload")
    assert {id_: row[name] for id_, row in rows.items()} == expect_special(0, name)


def check_special_plan(steps: Steps, name: str) -> None:
    """Check that the plan and the examples of its report show the values."""
    report, plan = steps.find_result("plan")
    shown = [*map(json.loads, plan["after"]), *(example["after"] for example in report["plan"]["examples"])]
    expected = expect_special(1, name)
    assert shown
    assert [row.get(name) for row in shown] == [expected[row[ID]] for row in shown]


def check_special_explanation(steps: Steps, name: str) -> None:
    """Check that explanations show the values."""
    rows = steps.find_result("explain")
    shown = {id_: float(row[name]) if row[name] == "1.5" else row[name] for id_, row in rows.items()}
    assert shown == expect_special(1, name)


def check_special_undo(steps: Steps, name: str) -> None:
    """Check that after an undo the rows are those before the run."""
    rows = steps.find_result("undo")
    assert {id_: row[name] for id_, row in rows.items()} == expect_special(0, name)
