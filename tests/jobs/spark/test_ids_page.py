"""Test the recipes for IDs in docs/guides/sources_without_id.md, as they stand on the page."""

from __future__ import annotations

import re
from pathlib import Path

from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[3] / "docs/guides/sources_without_id.md"


def test_ids_of_several_columns_keep_rows_apart(spark: SparkSession) -> None:
    """Rows that differ in NULLs, in empty texts or in the place of a separator have different IDs."""
    names = ("country", "customer_no", "name", "street")
    pairs = [
        ("a", None),
        (None, "a"),
        ("a", ""),
        ("", "a"),
        ("a|b", "c"),
        ("a", "b|c"),
        ('a","b', "c"),
        (None, None),
    ]
    rows = spark.createDataFrame(
        [(*pair, *pair) for pair in pairs], ", ".join(f"{name} string" for name in names)
    )
    text = PAGE.read_text(encoding="utf-8")
    recipes = re.findall(r"SELECT (to_json.*) AS _id, \* FROM shop_raw|`(sha2\(.*\))`", text)

    ids = rows.selectExpr(*(next(filter(None, recipe)) for recipe in recipes)).collect()

    assert [len(set(column)) for column in zip(*ids, strict=True)] == [len(pairs)] * 2
