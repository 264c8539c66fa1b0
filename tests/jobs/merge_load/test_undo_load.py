"""Test the undo of one load of a history on Delta: commit, side tables, retries, races, what follows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_merge_provider.cli import main as cli
from airflow_merge_provider.core.errors import ConflictError, DataError
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.delta.transaction import commit_once
from airflow_merge_provider.jobs.run import retry
from airflow_merge_provider.jobs.run.retry import run_attempt
from airflow_merge_provider.jobs.undo import job as undo
from tests.jobs.merge_load.conftest import MakeLoads
from tests.jobs.merge_load.loads import Killed, Loads, raise_killed
from tests.reports import check_report

A, B, C = "a", "b", "c"
# Key 1 changes on day 2, key 2 only for that day; key 3 is absent on day 2, key 4 is present only then.
SNAPSHOTS = {
    "r1": {1: A, 2: A, 3: A},
    "r2": {1: B, 2: B, 4: B},
    "r3": {1: B, 2: A, 3: A},
}
WITH_R2 = {
    1: [(1, 2, (A,)), (2, None, (B,))],
    2: [(1, 2, (A,)), (2, 3, (B,)), (3, None, (A,))],
    3: [(1, 2, (A,)), (3, None, (A,))],
    4: [(2, 3, (B,))],
}
WITHOUT_R2 = {1: [(1, 3, (A,)), (3, None, (B,))], 2: [(1, None, (A,))], 3: [(1, None, (A,))]}


def load_snapshot(table: Loads, day: int, rows: dict[int, str], run_id: str) -> dict[str, Any]:
    content = [{"id": key, "v": value} for key, value in rows.items()]
    return table.load_rows(content, run_id=run_id, boundary_timestamp=f"2024-01-{day:02d}")


def load_all(loads: MakeLoads, **settings: Any) -> Loads:
    """Load the snapshots, and that of day 4 without changes, which makes no commit."""
    table = loads("scd2", natural_key="id", current_column="now", **settings)
    for day, (run_id, rows) in enumerate(SNAPSHOTS.items(), 1):
        load_snapshot(table, day, rows, run_id)
    version = table.read_version()
    assert not load_snapshot(table, 4, SNAPSHOTS["r3"], "r4")["changed"]
    assert table.read_version() == version
    return table


def undo_load(
    table: Loads, run: str | None = "r2", *, run_id: str = "u", until: Any = "commit", only: bool = True
) -> dict[str, Any]:
    """Undo a run of the target, alone or with all later ones."""
    config = {"target": "t", "run": run, "only": only}
    token = RunToken(dag_id="d", run_id=run_id, task_id="undo")
    request = JobRequest(
        job="undo", config=config, run=token, warehouse=str(table.folder), started_at=0, until=until
    )
    return check_report(run_attempt(table.spark, request, Progress(lambda _: None), undo.run))


def read_days(table: Loads) -> list[int]:
    """Return the days of the recorded load times that the next run reads."""
    rows = table.spark.read.format("delta").load(f"{table.target}__times").collect()
    return sorted(row["__merge_time"].day for row in rows)


@pytest.mark.long
def test_one_load_is_undone_and_brought_back(loads: MakeLoads, capsys: pytest.CaptureFixture[str]) -> None:
    """The undo is one commit, which a retry reports, history shows and another undo takes back."""
    table = load_all(loads, on_late="repair")
    assert table.read_history("id", "v") == WITH_R2
    table.spark.sql(f"ALTER TABLE delta.`{table.target}` SET TBLPROPERTIES ('x.contact' = 'y')").collect()
    rows, version = table.read_history("id", "v", "now"), table.read_version()
    state = json.loads(DeltaTable(str(table.target)).history(2)[1]["userMetadata"])

    planned = undo_load(table, until="transform")
    assert (table.read_version(), read_days(table)) == (version, [1, 2, 3, 4])
    report = undo_load(table)
    again = undo_load(table)

    assert table.read_history("id", "v") == WITHOUT_R2
    table.check_history()
    assert report["target"]["version"] == again["target"]["version"] == table.read_version() == version + 1
    assert DeltaTable(str(table.target)).metadata().configuration["x.contact"] == "y"
    assert report["details"]["load_time"] == "2024-01-02T00:00:00+00:00"
    assert report["run_mode_reason"] == "the load of 2024-01-02T00:00:00+00:00 is taken out of the history"
    assert [run["run_id"] for run in report["details"]["undone"]] == ["r2"]
    # Key 1 begins later, key 2 is one version instead of three, key 3 instead of two, key 4 is gone.
    kinds = {"opened": 1, "closed": 0, "reopened": 2, "changed": 1, "removed": 5}
    assert report["details"]["versions"] == planned["details"]["versions"] == kinds
    assert report["rows"] == planned["rows"]
    assert planned["plan"]["kinds"] == {"inserted": 1, "updated": 3, "deleted": 5}
    assert read_days(table) == [1, 3, 4]
    own = json.loads(DeltaTable(str(table.target)).history(1)[0]["userMetadata"])
    assert {name: own[name] for name in ("fingerprint", "config", "sources")} == {
        name: state[name] for name in ("fingerprint", "config", "sources")
    }
    assert cli.main(["history", str(table.target)]) == 0
    assert "undo 4" in capsys.readouterr().out

    restored = undo_load(table, "u", run_id="u2", only=False)

    assert [run["run_id"] for run in restored["details"]["restored"]] == ["r2"]
    assert table.read_history("id", "v", "now") == rows


@pytest.mark.long
def test_loads_continue_after_the_undo_of_one(loads: MakeLoads) -> None:
    """The undone load can be done again, the next one continues, and late loads are exact."""
    table = load_all(loads, on_late="repair")
    rows = table.read_history("id", "v")
    undo_load(table)

    with pytest.raises(DataError, match="version 3 has undone only the run 'r2'"):
        undo_load(table, None, run_id="u2", only=False)
    with pytest.raises(DataError, match="'r2', version 1, is already undone"):
        undo_load(table, run_id="u2")
    report = load_snapshot(table, 2, SNAPSHOTS["r2"], "r2")
    assert (report["run_mode"], report["warnings"]) == ("incremental", [])
    assert table.read_history("id", "v") == rows
    # The load without changes of day 4 still limits a late load of day 3.
    undo_load(table, "r3", run_id="u3")
    load_snapshot(table, 3, {1: C}, "r5")

    assert {version for version in table.read_history("id", "v")[1] if version[2] == (C,)} == {(3, 4, (C,))}
    table.check_history()


def test_a_history_without_late_loads_stays_one(loads: MakeLoads) -> None:
    """The time of the next load is recorded, because the history may not show it any more."""
    table = loads("scd2", natural_key="id", active_record_timestamp="9999-12-31")
    for day, value in enumerate((A, B, A), 1):
        load_snapshot(table, day, {1: value}, f"r{day}")

    undo_load(table)

    assert table.read_history("id", "v") == {1: [(1, 31, (A,))]}
    with pytest.raises(DataError, match="is older than the load of 2024-01-03"):
        load_snapshot(table, 2, {1: B}, "r4")


@pytest.mark.long
def test_sequences_of_an_undone_load_are_forgotten(loads: MakeLoads) -> None:
    """A row of a lower sequence than that of the undone load counts, and unconfirmed states vanish."""
    table = loads(
        "scd2", natural_key="id", mode="changes", on_late="repair", sequence_by="n", track_except="n",
        hard_delete="gone",
    )  # fmt: skip

    def load_changes(run_id: str, day: int, *rows: tuple[int, str, int, bool]) -> None:
        content = [{"id": key, "v": value, "n": n, "gone": is_deleted} for key, value, n, is_deleted in rows]
        table.load_rows(content, run_id=run_id, boundary_timestamp=f"2024-01-{day:02d}")

    load_changes("r1", 1, (1, A, 1, False), (2, A, 1, False), (3, A, 1, False))
    load_changes("r2", 2, (1, B, 9, False), (2, A, 9, True), (3, B, 9, False))
    load_changes("r3", 3, (3, B, 9, False), (4, A, 1, False))

    report = undo_load(table)

    expected = {1: [(1, None, (A,))], 2: [(1, None, (A,))], 3: [(1, 3, (A,)), (3, None, (B,))]}
    assert table.read_history("id", "v") == {**expected, 4: [(3, None, (A,))]}
    assert report["counts"]["side_tables"] == 2
    assert report["warnings"][0].startswith("untracked columns have the values of the undone load")
    load_changes("r4", 2, (2, C, 5, False))
    assert table.read_history("id", "v")[2] == [(1, 2, (A,)), (2, None, (C,))]


@pytest.mark.long
def test_an_undo_that_does_not_commit_changes_nothing(
    loads: MakeLoads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a lost race or the end of its process, the time of the load is still recorded."""
    table = load_all(loads, on_late="repair")
    commit = commit_once

    def commit_second(*args: Any, **named: Any) -> Any:
        monkeypatch.setattr(retry, "commit_once", commit)
        load_snapshot(table, 5, {1: C}, "r5")
        return commit(*args, **named)

    monkeypatch.setattr(retry, "commit_once", raise_killed)
    with pytest.raises(Killed):
        undo_load(table)
    monkeypatch.setattr(retry, "commit_once", commit_second)
    with pytest.raises(ConflictError):
        undo_load(table)

    assert read_days(table) == [1, 2, 3, 4, 5]
    assert table.read_history("id", "v")[2] == [(1, 2, (A,)), (2, 3, (B,)), (3, 5, (A,))]
    undo_load(table)
    assert table.read_history("id", "v")[2] == [(1, 5, (A,))]
    assert read_days(table) == [1, 3, 4, 5]
