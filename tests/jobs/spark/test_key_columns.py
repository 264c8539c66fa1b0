"""Test comparisons of key values of any two types: they are exact, or the types are refused with a cast."""

from __future__ import annotations

from functools import reduce
from itertools import combinations_with_replacement

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions as F  # noqa: N812 - as in Spark

from airflow_merge_provider.core.schema.key_types import choose_comparison, list_casts, read_key_type
from airflow_merge_provider.jobs.spark.expressions import combine_with_and
from airflow_merge_provider.jobs.spark.key_columns import build_key_columns
from tests.key_values import VALUES, convert_values, list_equal

NUMBERS = {"integer", "decimal"}


def test_values_of_two_types_are_equal_as_in_python(spark: SparkSession) -> None:
    """Of every two types that can be compared, exactly the equal values join; NULL joins NULL."""
    frames = {kind: _create_frame(spark, kind) for kind in VALUES}
    joined, expected = [], set()
    for pair in combinations_with_replacement(VALUES, 2):
        comparison = choose_comparison(pair)
        if comparison is None:
            continue
        left, right = (frames[kind].alias(side) for kind, side in zip(pair, "lr", strict=True))
        sides = [build_key_columns(F.col(f"{side}.v"), comparison) for side in "lr"]
        condition = combine_with_and(a.eqNullSafe(b) for a, b in zip(*sides, strict=True))
        names = [F.lit(kind) for kind in pair]
        joined.append(left.join(right, condition).select(*names, F.col("l.n"), F.col("r.n")))
        expected |= {(*pair, *numbers) for numbers in list_equal(*pair)}

    rows = reduce(DataFrame.unionAll, joined).collect()

    assert {tuple(row) for row in rows} == expected
    assert len(rows) == len(expected)


def test_casts_keep_values_apart(spark: SparkSession) -> None:
    """No cast of an error text makes two values one; a number that an integer cannot be is NULL."""
    kinds = [kind for kind in VALUES if "<" not in kind]
    casts = {
        (kind, cast)
        for pair in combinations_with_replacement(kinds, 2)
        for kind, cast in zip(pair, list_casts(pair) or (), strict=False)
    }
    frames = {kind: _create_frame(spark, kind) for kind in kinds}
    counts = [
        frames[kind]
        .select(F.col("v"), F.expr(cast.format("v")).cast("string").alias("cast"))
        .where("cast IS NOT NULL")
        .agg(
            F.countDistinct("v"),
            F.countDistinct("cast"),
            F.count_if(F.col("v") % 1 != 0 if "IF" in cast else F.lit(False)),
        )
        .select(F.lit(kind), F.lit(cast), "*")
        for kind, cast in sorted(casts)
    ]

    rows = reduce(DataFrame.unionAll, counts).collect()

    assert [tuple(row)[:2] for row in rows if row[2] > row[3] or row[4]] == []


def test_types_without_an_exact_comparison_are_cast(spark: SparkSession) -> None:
    """Numbers are compared with numbers, and texts with texts; other pairs have casts that Spark knows."""
    for pair in combinations_with_replacement([kind for kind in VALUES if "<" not in kind], 2):
        families = {read_key_type(kind).family for kind in pair}
        exact = len(set(pair)) == 1 or families == {"text"} or families <= NUMBERS or families == {"float"}
        exact |= families == {"integer", "float"} and "bigint" not in pair
        assert (choose_comparison(pair) is not None, pair) == (exact, pair)
        casts = list_casts(pair)
        if casts is None:
            assert families & {"date", "timestamp", "timestamp_ntz", "binary"} or families == {
                "float",
                "decimal",
            }
            continue
        nulls = spark.sql(f"SELECT CAST(NULL AS {_SPARK_NAMES.get(pair[0], pair[0])}) AS a, NULL AS b")
        nulls = nulls.withColumn("b", F.col("b").cast(_SPARK_NAMES.get(pair[1], pair[1])))
        changed = nulls.select(*(F.expr(cast.format(name)) for cast, name in zip(casts, "ab", strict=True)))
        types = [field.dataType.simpleString() for field in changed.schema]
        assert choose_comparison(types) is not None, (pair, casts, types)
    assert choose_comparison(["map<string,int>"] * 2) is None
    assert choose_comparison(["array<int>", "array<bigint>"]) is None
    assert list_casts(["map<string,int>", "string"]) is None
    assert list_casts(["array<int>", "string"]) is None


_SPARK_NAMES = {"char(3)": "string", "char(5)": "string", "varchar(20)": "string"}


def _create_frame(spark: SparkSession, kind: str) -> DataFrame:
    values = pa.array(convert_values(kind), VALUES[kind][0])
    return spark.createDataFrame(pa.table({"n": pa.array(range(len(values)), pa.int32()), "v": values}))
