"""Test comparisons of key values of any two types: they are exact, or the types are refused with a cast."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions as F  # noqa: N812 - as in Spark

from airflow_merge_provider.core.schema.key_types import choose_comparison, list_casts, read_key_type
from airflow_merge_provider.jobs.spark.expressions import combine_with_and
from airflow_merge_provider.jobs.spark.key_columns import build_key_columns

AT = datetime(2024, 5, 1, tzinfo=UTC)
NEAR = AT.replace(microsecond=123456)
FLOATS = [0.0, -0.0, 1.0, 2.0, 16777216.0, 0.5, math.nan, math.inf]
TENTH = float(np.float32(0.1))
TEXTS = ["", "1", "a", "a ", "A", "\u00e9", "e\u0301", "2024-05-01"]
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tinyint": (pa.int8(), [0, 1, -128, 127]),
    "smallint": (pa.int16(), [0, 1, -128, 2**15 - 1]),
    "int": (pa.int32(), [0, 1, -128, 16777217, 2**31 - 1]),
    "bigint": (pa.int64(), [0, 1, 16777217, 2**53 + 1, 2**63 - 1, -(2**63)]),
    "decimal(10,2)": (pa.decimal128(10, 2), ["0.00", "1.00", "0.10", "-128.00", "99999999.99"]),
    "decimal(38,0)": (pa.decimal128(38, 0), ["0", "1", str(2**53 + 1), str(-(2**63)), "9" * 38]),
    "decimal(38,2)": (pa.decimal128(38, 2), ["2.00", "0.10", f"{2**63 - 1}.00", f"-{'9' * 36}.99"]),
    "decimal(38,18)": (pa.decimal128(38, 18), ["2." + "0" * 17 + "1", "2", "0.1", "-0.5", "9" * 20]),
    "decimal(38,38)": (pa.decimal128(38, 38), ["0.1", "0." + "0" * 37 + "1", "-0." + "9" * 38, "-0.5"]),
    "float": (pa.float32(), [*FLOATS, TENTH]),
    "double": (pa.float64(), [*FLOATS, TENTH, 0.1, 16777217.0]),
    "string": (pa.string(), TEXTS),
    "varchar(20)": (pa.string(), TEXTS),
    "char(3)": (pa.string(), ["a  ", "ab "]),
    "char(5)": (pa.string(), ["a    ", "ab   "]),
    "binary": (pa.binary(), [b"", b"1", b"a", "\u00e9".encode()]),
    "boolean": (pa.bool_(), [True, False]),
    "date": (pa.date32(), [AT.date(), date(1582, 10, 4), date(1, 1, 1)]),
    "timestamp": (pa.timestamp("us", "UTC"), [AT, NEAR, NEAR.replace(microsecond=123457)]),
    "timestamp_ntz": (pa.timestamp("us"), [at.replace(tzinfo=None) for at in (AT, NEAR)]),
    "array<double>": (pa.list_(pa.float64()), [[0.0], [-0.0], [math.nan], [None], []]),
    "struct<a:string>": (pa.struct([("a", pa.string())]), [{"a": "x"}, {"a": "X"}, {"a": None}]),
    "map<string,int>": (pa.map_(pa.string(), pa.int32()), []),
}
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
        expected |= {(*pair, *numbers) for numbers in _list_equal(*pair)}

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
    values = pa.array(_convert_values(kind), VALUES[kind][0])
    return spark.createDataFrame(pa.table({"n": pa.array(range(len(values)), pa.int32()), "v": values}))


def _convert_values(kind: str) -> list[Any]:
    values = VALUES[kind][1]
    return [*(map(Decimal, values) if kind.startswith("decimal") else values), None]


def _list_equal(left: str, right: str) -> list[tuple[int, int]]:
    """Return the positions of the values that are equal in Python: numbers as fractions, without rounding."""
    pairs = [[_to_python(value) for value in _convert_values(kind)] for kind in (left, right)]
    return [(n, m) for n, value in enumerate(pairs[0]) for m, other in enumerate(pairs[1]) if value == other]


def _to_python(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, list):
        return [_to_python(item) for item in value]
    return Fraction(value) if isinstance(value, int | float | Decimal) else value
