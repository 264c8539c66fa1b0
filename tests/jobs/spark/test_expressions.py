"""Test expressions over many columns: their values, and support for thousands of columns."""

from __future__ import annotations

import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql.functions import col, lit

from airflow_merge_provider.jobs.spark.expressions import combine_columns, combine_with_and, combine_with_or


@pytest.mark.parametrize(
    ("conditions", "all_hold", "one_holds"),
    [
        ([], True, False),
        ([True], True, True),
        ([True, True, False], False, True),
        ([False, False, False, False, False], False, False),
        ([True, None, True], None, True),
        ([False, None, False], False, None),
    ],
)
def test_conditions_are_combined(
    spark: SparkSession, conditions: list[bool | None], all_hold: bool | None, one_holds: bool | None
) -> None:
    """Combined conditions equal conditions applied in turn, also if one of them is NULL."""
    columns = [lit(condition).cast("boolean") for condition in conditions]

    row = spark.range(1).select(combine_with_and(columns), combine_with_or(columns)).collect()[0]

    assert tuple(row) == (all_hold, one_holds)


def test_thousands_of_columns_fit_into_one_expression(spark: SparkSession) -> None:
    """Thousands of columns fit into one expression, although a chain of as many overflows Spark's stack."""
    number = col("id")
    rows = spark.range(2).select(
        combine_with_or(number == value for value in range(1, 3000)).alias("some"),
        combine_columns(Column.bitwiseXOR, (number + value for value in range(3000)), lit(0)).alias("all"),
    )

    first, second = rows.collect()

    assert (first["some"], second["some"]) == (False, True)
    assert first["all"] == 0
    assert second["all"] == 3000
