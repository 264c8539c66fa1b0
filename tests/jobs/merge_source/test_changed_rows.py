"""Test the change set of a merge source: what it says about members."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_merge_provider.core.merge_source.columns import REPLACED_COLUMN
from airflow_merge_provider.core.merge_source.explanation import describe_member_changes
from airflow_merge_provider.jobs.merge_source.output.row_changes import ENTITY_HASH, ID, list_changed_rows

pytestmark = pytest.mark.spark

_MEMBER = "STRUCT<dataset: STRING, id: STRING, keys: ARRAY<STRUCT<rule: STRING, key: STRING>>>"
_SCHEMA = f"{ID} STRING, {ENTITY_HASH} STRING, _deleted BOOLEAN, `{REPLACED_COLUMN}` BOOLEAN, "
_SCHEMA += f"_members ARRAY<{_MEMBER}>"
_NAMES = ["z1", "a10", "a2", "Ä", "😀", "a/b"]


def build_members(count: int) -> list[dict[str, Any]]:
    return [
        {"dataset": dataset, "id": name, "keys": []}
        for dataset, name in [("erp", "1"), *(("crm", name) for name in _NAMES)]
    ][:count]


@pytest.mark.parametrize("is_new", [True, False], ids=["new outputs", "outputs that end"])
def test_members_that_all_join_or_leave(spark: SparkSession, is_new: bool) -> None:
    """SQL writes the text of outputs whose members are all new or all gone as Python writes the others."""
    sides = [
        [(f"o{count}", str(side), False, False, build_members(count) if side else []) for count in range(8)]
        for side in (is_new, not is_new)
    ]
    after, before = (spark.createDataFrame(rows, _SCHEMA) for rows in sides)

    rows = list_changed_rows(after, before).rows.select("after._id", "detail").collect()

    expected = {
        f"o{count}": describe_member_changes(
            f"o{count}",
            [] if is_new else build_members(count),
            build_members(count) if is_new else [],
        )
        for count in range(8)
    }
    assert {row[0]: row[1] or "" for row in rows} == expected
    assert expected["o7"].endswith("and 4 more")
