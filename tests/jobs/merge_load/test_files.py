"""Test the number of files that a small load writes, whatever the number of shuffle partitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.conformance.lean import lean_session
from tests.jobs.merge_load.loads import Loads

KEY = {"primary_key": "id"}
# As on a cluster or on a large machine.
SHUFFLES = {"planned anew": ("32", "true"), "planned once": ("8", "true")}
STRATEGIES: dict[str, tuple[str, dict[str, Any]]] = {
    "upsert": ("upsert", KEY),
    "upsert with deletions": ("upsert", {**KEY, "hard_delete": "gone"}),
    "insert-only": ("upsert", {**KEY, "variant": "insert-only"}),
    "delete-insert": ("delete-insert", KEY),
    "delete-insert of groups": ("delete-insert", {"merge_key": "area"}),
    "snapshots of keys": ("scd2", {"natural_key": "id"}),
    "snapshots of rows": ("scd2", {}),
    "changes of keys": ("scd2", {"natural_key": "id", "mode": "changes"}),
}
SHORT_CASES = [
    ("planned once", "upsert"), ("planned once", "delete-insert of groups"),
    ("planned once", "snapshots of keys"), ("planned anew", "upsert"),
]  # fmt: skip
LONG_CASES = [
    *(("planned once", name) for name in STRATEGIES if ("planned once", name) not in SHORT_CASES),
    ("planned anew", "delete-insert of groups"),
    ("planned anew", "snapshots of keys"),
]


@pytest.fixture(params=list(SHUFFLES))
def shuffling(spark: SparkSession, request: pytest.FixtureRequest) -> SparkSession:
    """Return a session with many shuffle partitions, as used for large tables."""
    session = lean_session(spark)
    parts, adaptive = SHUFFLES[request.param]
    session.conf.set("spark.sql.shuffle.partitions", parts)
    session.conf.set("spark.sql.adaptive.enabled", adaptive)
    session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    return session


def build_rows(ids: range, value: str) -> list[dict[str, Any]]:
    return [{"id": row_id, "area": row_id % 5, "v": f"{value}{row_id}", "gone": None} for row_id in ids]


@pytest.mark.parametrize(
    ("shuffling", "name"),
    [
        *SHORT_CASES,
        *(pytest.param(*case, marks=pytest.mark.long) for case in LONG_CASES),
    ],
    indirect=["shuffling"],
)
def test_a_load_of_few_rows_writes_few_files(shuffling: SparkSession, tmp_path: Path, name: str) -> None:
    """A small load writes one file; a MERGE that replaces groups writes its few join partitions.

    This holds where the MERGE is planned once.
    """
    most = 8 if name == "delete-insert of groups" else 1
    strategy, settings = STRATEGIES[name]
    table = Loads(shuffling, tmp_path, strategy, **settings)
    table.load_rows(build_rows(range(40), "old"))
    first = set(DeltaTable(str(table.target)).file_uris())
    report = table.load_rows([*build_rows(range(20), "new"), *build_rows(range(20, 50), "old")])
    second = set(DeltaTable(str(table.target)).file_uris())

    assert report["counts"]["loaded"] == 50
    assert len(first) == 1
    assert 1 <= len(second - first) <= most


@pytest.mark.long
@pytest.mark.parametrize("settings", [{}, {"natural_key": "id"}], ids=["rows", "keys"])
def test_an_empty_side_is_counted(shuffling: SparkSession, tmp_path: Path, settings: dict[str, Any]) -> None:
    """Rows are counted while a snapshot is joined, also for an empty side.

    Spark would wait for the count of a side that it left out of the plan.
    """
    table = Loads(shuffling, tmp_path, "scd2", on_empty="apply", **settings)
    table.load_rows(build_rows(range(12), "old"))

    ended = table.load_rows(source_filter="id < 0")
    begun = table.load_rows(build_rows(range(3), "new"))

    assert (ended["counts"]["loaded"], ended["counts"]["closed"]) == (0, 12)
    assert (begun["counts"]["loaded"], begun["counts"]["opened"]) == (3, 3)
