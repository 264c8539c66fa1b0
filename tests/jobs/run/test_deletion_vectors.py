"""Test that a target without deletion vectors stays without them, so that any reader can read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import ConfigError
from tests.conformance.lean import lean_session
from tests.jobs.run.test_before_spark import CONFIGS, Lake
from tests.long import all_long_but

VECTORS = "deletionVectors"


def list_tables(folder: Path) -> list[DeltaTable]:
    """Return the target and its side tables."""
    return [DeltaTable(str(log.parent)) for log in folder.rglob("_delta_log") if "t" in log.parent.name[:1]]


@pytest.mark.parametrize("name", all_long_but(CONFIGS, "upsert", "merge_engine", "joiner"))
def test_changed_rows_leave_no_deletion_vectors(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Runs that insert, update and delete rewrite files; a reader without support reads the result."""
    lake = Lake(lean_session(spark), tmp_path)
    config = {"incremental": False} if name == "merge_engine" else {}
    lake.run_job(lake.build_request(name, "r1", deletion_vectors=False, config=config))
    for source in ("a", "b"):
        lake.write_rows(source, _id=["1", "3"], v=[1, 3])
    report = lake.run_job(lake.build_request(name, "r2", deletion_vectors=False, config=config))
    assert report["changed"]
    tables = list_tables(tmp_path)
    assert tables
    for table in tables:
        assert table.metadata().partition_columns == []
        assert VECTORS not in (table.protocol().writer_features or [])
        # Fails for tables with deletion vectors.
        table.to_pyarrow_dataset()


@pytest.mark.long
@pytest.mark.parametrize("name", ["upsert", "joiner", "merge_source"])
def test_a_table_with_deletion_vectors_is_refused(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """The option is not ignored for a table that has them; the remedy works."""
    lake = Lake(lean_session(spark), tmp_path)
    lake.run_job(lake.build_request(name, "r1"))
    lake.write_rows("a", v=[1, 3])
    request = lake.build_request(name, "r2", deletion_vectors=False)

    def assert_refused(run: Any) -> None:
        with pytest.raises(ConfigError, match=r"deletion_vectors: .*DROP FEATURE deletionVectors") as error:
            run(request)
        assert error.value.problems[0].code == "immutable-option"

    assert_refused(lake.find_report)
    assert_refused(lake.run_job)
    lean_session(spark).sql(f"ALTER TABLE delta.`{tmp_path / 't'}` DROP FEATURE deletionVectors").collect()
    assert lake.run_job(request)["changed"]
    DeltaTable(str(tmp_path / "t")).to_pyarrow_dataset()
