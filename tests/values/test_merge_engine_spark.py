"""Test what a merge engine makes of the types that only Spark has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_merge_provider.jobs.spark.session import override_settings
from tests.jobs.merge_engine.stream import Stream
from tests.values.catalog import SPARK_ONLY
from tests.values.merging import find_refusal, list_cells, require_exact
from tests.values.outcomes import REFUSED, read_outcomes

pytestmark = pytest.mark.spark
OUTCOMES = read_outcomes("merge_engine_spark")
# The types as the columns of a source have them.
TYPES = {
    "char_5": "char(5)",
    "varchar_8": "varchar(8)",
    "variant": "variant",
    "time": "time(6)",
    "interval_ym": "interval year to month",
    "interval_ds": "interval day to second",
    "void": "void",
}
STORED = [kind for kind in SPARK_ONLY if kind.name in {"char_5", "varchar_8", "variant", "void"}]
NAMES = [kind.name for kind in STORED]
ENGINES: dict[str, dict[str, Any]] = {
    "payload": {},
    "spark aggregate": {"merge_engine": "aggregation"},
    "python fold": {
        "merge_engine": "partial-update",
        "options": {
            "fields.q.sequence-group": ",".join(NAMES),
            "fields.default-aggregate-function": "last_non_null_value",
        },
    },
    "key": {"primary_key": ["k", "char_5", "varchar_8"]},
    "sequence": {"options": {"sequence.field": "char_5,varchar_8"}},
}


@pytest.mark.parametrize(
    ("name", "use"),
    list_cells(OUTCOMES, [kind for kind in SPARK_ONLY if kind.name in TYPES], *OUTCOMES.uses, refused=True),
)
def test_types_are_refused_by_name(name: str, use: str) -> None:
    """A type that cannot have a use is refused before data is read, with the column and the type."""
    refusal = find_refusal(use, TYPES[name])

    assert OUTCOMES.find_outcome(name, use).removeprefix(REFUSED) in refusal
    assert "column 'v'" in refusal


@pytest.mark.long
@pytest.mark.parametrize(("name", "use"), [("collated", use) for use in OUTCOMES.uses])
def test_collated_texts_are_compared_by_their_bytes(
    spark: SparkSession, tmp_path: Path, name: str, use: str
) -> None:
    """A collation that ignores case makes no two texts equal, and the target has plain texts."""
    (kind,) = (kind for kind in SPARK_ONLY if kind.name == name)
    assert OUTCOMES.find_outcome(kind.name, use) == "as string"
    collation = kind.spark.removeprefix("string ")
    rows = spark.sql(
        f"SELECT k {collation} AS k, s {collation} AS s, n FROM VALUES "
        "('a', 'x', 1), ('A', 'x', 2), ('b', 'a', 3), ('b', 'B', 4) AS t(k, s, n)"
    )
    # Delta refuses collations unless it is told not to check types.
    with override_settings(spark, {"spark.databricks.delta.schema.typeCheck.enabled": "false"}):
        rows.write.format("delta").save(str(tmp_path / "changes"))
    settings: dict[str, Any] = {"options": {"sequence.field": "s"}}
    if use == "spark aggregate":
        settings = {"merge_engine": "aggregation", "options": {"fields.s.aggregate-function": "max"}}
    elif use == "python fold":
        group = {"fields.s.sequence-group": "n", "partial-update.remove-record-on-sequence-group": "s"}
        settings = {"merge_engine": "partial-update", "options": group}
    stream = Stream(spark, tmp_path, **settings)
    stream.run_job()

    newest = 4 if use == "spark aggregate" else 3
    assert stream.read_rows() == [("A", "x", 2), ("a", "x", 1), ("b", "a", newest)]


Texts = dict[str, list[dict[str, str]]]


@pytest.fixture(scope="module")
def texts(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Texts:
    """Return the rows of the source and of a target for each use, with values as texts."""
    folder = tmp_path_factory.mktemp("special")
    streams = {use: Stream(spark, folder, target=use, **engine) for use, engine in ENGINES.items()}
    source = streams["payload"]
    columns = ", ".join(f"`{kind.name}` {kind.spark}" for kind in STORED)
    source.run_sql(f"CREATE TABLE {{source}} (k INT, q INT, {columns}) USING delta")
    for q in (0, 1):
        for k in range(3):
            values = [kind.values[(k + q) % len(kind.values)] if kind.values else "NULL" for kind in STORED]
            source.run_sql(f"INSERT INTO {{source}} SELECT {k}, {q}, {', '.join(values)}")
        for stream in streams.values():
            stream.run_job()
    expressions = ", ".join(f"to_json(struct(`{name}`)) AS `{name}`" for name in NAMES)

    def read_texts(table: str) -> list[dict[str, str]]:
        rows = spark.sql(f"SELECT k, q, {expressions} FROM delta.`{folder / table}`").collect()
        return [row.asDict() for row in rows]

    return {table: read_texts(table) for table in ("changes", *streams)}


@pytest.mark.long
@pytest.mark.parametrize(("name", "use"), list_cells(OUTCOMES, STORED, *OUTCOMES.uses))
def test_types_of_spark_only_are_kept(texts: Texts, name: str, use: str) -> None:
    """CHAR, VARCHAR, VARIANT and VOID have the values of the source."""
    require_exact(OUTCOMES, name, use)
    source = texts["changes"]
    newest = {row["k"]: row for row in sorted(source, key=lambda row: row["q"])}
    if use == "sequence":
        newest = {row["k"]: row for row in sorted(source, key=lambda row: (row["char_5"], row["varchar_8"]))}
    elif use == "key":
        newest = {f"{row['k']} {row['char_5']} {row['varchar_8']}": row for row in source}
    expected = sorted((row["k"], row[name]) for row in newest.values())
    assert sorted((row["k"], row[name]) for row in texts[use]) == expected
