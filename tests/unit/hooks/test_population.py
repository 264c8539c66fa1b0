"""Tests of the populated status of real tables and files on this machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.core.errors import ConfigError, SetupError
from airflow_merge_provider.hooks.population import get_status, list_missing
from airflow_merge_provider.hooks.warehouse import WarehouseHook
from tests.tables import FLAGGED, OURS, create_table


def read_status(tmp_path: Path, *refs: Any) -> Any:
    return get_status(WarehouseHook(warehouse=str(tmp_path)), refs)


def list_states(tmp_path: Path, *refs: Any) -> Any:
    return [(status.state, status.origin) for status in read_status(tmp_path, *refs)]


def test_a_table_of_ours_is_populated_by_its_flag(tmp_path: Path) -> None:
    """A table that this package writes is populated by its flag only, because its rows may be incomplete."""
    create_table(tmp_path / "flagged", properties=FLAGGED)
    create_table(tmp_path / "half", properties=OURS)

    assert list_states(tmp_path, "flagged", "half") == [("populated", "flag"), ("unpopulated", "rows")]
    assert read_status(tmp_path, "flagged")[0].version == 1


def test_a_table_of_others_is_populated_by_its_rows(tmp_path: Path) -> None:
    """Another table is populated if it has rows; a flag on it takes precedence."""
    create_table(tmp_path / "full")
    create_table(tmp_path / "empty", rows=0)
    create_table(tmp_path / "held_back", properties={"merge.populated": "false"})

    states = list_states(tmp_path, "full", "empty", "held_back")

    assert states == [("populated", "rows"), ("unpopulated", "rows"), ("unpopulated", "flag")]


def test_a_table_that_lost_its_rows_is_not_populated(tmp_path: Path) -> None:
    """A table without rows in its current version is not populated."""
    from deltalake import DeltaTable

    DeltaTable(create_table(tmp_path / "gone")).delete()

    assert list_states(tmp_path, "gone") == [("unpopulated", "rows")]


def test_plain_files_are_populated_where_they_exist(tmp_path: Path) -> None:
    """Files are populated if the folder holds a file that Spark reads; files of writers do not count."""
    (tmp_path / "days").mkdir()
    (tmp_path / "days" / "1.json").write_text("{}")
    (tmp_path / "unfinished" / "_temporary").mkdir(parents=True)
    (tmp_path / "unfinished" / "_started").write_text("")
    for folder in ("_delta_log", "_temporary/0", ".checkpoints"):
        (tmp_path / "hidden" / folder).mkdir(parents=True)
        (tmp_path / "hidden" / folder / "0.json").write_text("{}")
    (tmp_path / "hidden" / "_SUCCESS").write_text("")
    (tmp_path / "parts" / "_day=1").mkdir(parents=True)
    (tmp_path / "parts" / "_day=1" / "1.json").write_text("{}")
    (tmp_path / "one.csv").write_text("a")
    refs = [
        {"dataset": name, "format": "json"} for name in ("days", "parts", "hidden", "unfinished", "nothing")
    ]

    states = list_states(tmp_path, *refs, {"dataset": f"{tmp_path}/one.csv", "format": "csv"})

    assert states[:2] == [("populated", "files")] * 2
    assert states[2:] == [*[(None, "missing")] * 3, ("populated", "files")]


def test_files_are_no_table(tmp_path: Path) -> None:
    """A folder without a Delta log holds no dataset that is named without a format."""
    (tmp_path / "days").mkdir()
    (tmp_path / "days" / "1.parquet").write_text("")

    assert list_states(tmp_path, "days") == [(None, "missing")]


def test_a_catalog_table_cannot_be_seen(tmp_path: Path) -> None:
    """Only Spark can read a catalog table, so only manual marks decide its status."""
    (status,) = read_status(tmp_path, "lake.crm.customers")

    assert (status.state, status.origin) == ("unpopulated", "catalog")
    assert "not marked as populated" in str(status)


def test_what_is_waited_for_says_why(tmp_path: Path) -> None:
    """The status has a reason. A missing dataset is waited for if configured, an unpopulated one always."""
    create_table(tmp_path / "half", properties=OURS)
    statuses = read_status(tmp_path, "half", "nothing", "half")

    relaxed = list_missing(statuses, ignore_non_existent=True)
    strict = list_missing(statuses, ignore_non_existent=False)

    assert [str(status) for status in relaxed] == ["half exists at version 1, but is not populated yet"]
    assert [str(status) for status in strict][1:] == [f"nothing does not exist at {tmp_path}/nothing"]


def test_what_cannot_be_seen_is_an_error(tmp_path: Path) -> None:
    """A wrong name and an unknown store raise an error instead of returning a status."""
    with pytest.raises(ConfigError, match="requires a warehouse"):
        get_status(WarehouseHook(), ["customers"])
    with pytest.raises(SetupError, match="Unknown scheme"):
        read_status(tmp_path, "nowhere://lake/customers")


def test_a_look_is_quick(tmp_path: Path) -> None:
    """The status of a local table takes well under 0.3 s and starts no JVM."""
    create_table(tmp_path / "flagged", properties=FLAGGED)

    start = time.monotonic()
    read_status(tmp_path, "flagged")

    assert time.monotonic() - start < 0.3
