"""Test runs with invalid input, repeated runs, runs without changes, and tables of another kind."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_merge_provider.core.errors import ConflictError, DataError
from airflow_merge_provider.core.risk import RiskError
from airflow_merge_provider.jobs.delta.transaction import commit_once
from airflow_merge_provider.jobs.merge_load import job
from airflow_merge_provider.jobs.run import retry
from tests.jobs.delta_log import list_commits
from tests.jobs.merge_load.conftest import MakeLoads
from tests.jobs.merge_load.loads import Killed, raise_killed

KEY = {"primary_key": "id"}


def check_refusal(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        call()


def test_wrong_rows_are_refused_and_the_target_stays(loads: MakeLoads) -> None:
    """Each kind of invalid input has its own error, and nothing is committed."""
    table = loads("upsert", **KEY)
    check_refusal(table.load_rows, "does not exist")
    table.load_rows([{"id": 1, "v": "a"}])

    check_refusal(
        lambda: table.load_rows([{"id": None, "v": "b"}, {"id": 2, "v": "c"}]),
        "1 row with a NULL in id, such as id=NULL, v='b'",
    )
    check_refusal(
        lambda: table.load_rows([{"id": 2, "v": "a"}, {"id": 2, "v": "b"}]), "1 value of id with several"
    )
    check_refusal(lambda: table.load_rows([{"v": "b"}]), "has no column 'id'")
    check_refusal(
        lambda: table.load_rows([{"id": 1, "v": "b"}], source_filter="nope = 1"), "source_filter: .*nope"
    )
    check_refusal(
        lambda: table.load_rows([{"id": 1, "V": "c"}]), "'V' differs only in case from 'v' of the target"
    )
    check_refusal(
        lambda: table.load_rows([{"id": 1, "v": 5}]),
        "column 'v' has type bigint in the source and type string",
    )
    check_refusal(
        lambda: table.load_rows([{"id": 1, "v": "b", "n": 1}], schema_evolution="error"), "no column 'n'"
    )
    check_refusal(lambda: table.load_rows([{"id": 1, "__merge_action": "x"}]), "has a reserved column")
    check_refusal(lambda: table.load_rows([{"id": 1, "_metadata": "x"}]), "has a reserved column")
    check_refusal(
        lambda: table.load_rows([{"id": 1, "gone": True}], hard_delete="gome"), "did you mean 'gone'"
    )
    check_refusal(lambda: table.load_rows([{"id": 1}], dedup_sort={"s": "desc"}), "has no column 's'")

    assert table.read_version() == 0
    assert table.read_rows() == [{"id": 1, "v": "a"}]


def test_a_run_is_one_commit_and_its_retry_none(loads: MakeLoads) -> None:
    """A run is one commit: its retry appends nothing, another run appends the load again."""
    table = loads("delete-insert")
    table.load_rows([{"id": 1}])

    first = table.load_rows([{"id": 2}], run_id="mine")
    again = table.load_rows(run_id="mine")
    another = table.load_rows(run_id="other")

    assert [first["target"]["version"], again["target"]["version"]] == [1, 1]
    assert again["counts"] == first["counts"]
    assert again["changed"]
    assert another["changed"]
    assert [row["id"] for row in table.read_rows()] == [1, 2, 2]
    assert [commit["txn"] for commit in list_commits(table.target)] == [
        ("airflow-merge/merge_load", number) for number in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("strategy", "settings", "offset"),
    [
        ("upsert", KEY, 1),
        ("upsert", {**KEY, "variant": "cdc"}, 1),
        ("delete-insert", KEY, 1),
        ("delete-insert", {"merge_key": "g"}, 1),
        ("scd2", {"boundary_timestamp": "2024-01-02"}, 1),
        ("scd2", {"natural_key": "id", "boundary_timestamp": "2024-01-02"}, 0),
    ],
    ids=["upsert", "cdc", "by key", "by group", "versions", "history"],
)
def test_a_load_without_news_commits_its_offset_only(
    strategy: str, settings: dict[str, Any], offset: int, memory_loads: MakeLoads
) -> None:
    """A load without changes commits no row: columns without equality are compared by content.

    NULL equals NULL. A history by key reads its source in every run, so it commits nothing.
    """
    table = memory_loads(strategy, **settings)
    maps = pa.array([[("a", 1), ("b", 2)], [("b", 2), ("a", 1)], None], pa.map_(pa.string(), pa.int64()))
    source_table = pa.table({"id": [1, 2, 3], "g": ["x", "x", "y"], "m": maps, "l": [[1], None, []]})
    table.load_rows(source_table)
    turned = source_table.take([2, 0, 1])

    report = table.load_rows(turned)

    assert not report["changed"]
    assert table.read_version() == offset
    assert (table.load_rows()["run_mode"] == "noop") is bool(offset)
    assert table.read_version() == offset


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("upsert", KEY),
        pytest.param("delete-insert", KEY, marks=pytest.mark.long),
        ("delete-insert", {"merge_key": "id"}),
    ],
    ids=["upsert", "by key", "by group"],
)
def test_a_load_that_was_loaded_is_not_read_again(
    strategy: str, settings: dict[str, Any], loads: MakeLoads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unchanged load is not read again, and its report has the number of its rows.

    Nor is a new version of the source that changed no row: its commit has no file. A commit by others or a
    recreated source causes a new read.
    """
    table = loads(strategy, **settings)
    rows = [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]
    loaded = table.load_rows(rows)
    files = DeltaTable(str(table.target)).file_uris()
    same = table.load_rows(rows)
    assert (same["changed"], same["target"]["version"]) == (False, 1)
    assert DeltaTable(str(table.target)).file_uris() == files
    with monkeypatch.context() as patched:
        patched.setattr(job, "stage_load", raise_killed)
        again = table.load_rows()
        planned = table.load_rows(until="transform")
        with pytest.raises(Killed):
            table.load_rows(full_refresh=True)
        with pytest.raises(Killed):
            table.load_rows(schema_evolution="error")
    assert not again["changed"]
    assert again["target"]["version"] == 1
    assert loaded["counts"] == {**again["counts"], "loaded": 2, "tables": 1}
    assert (again["run_mode"], again["rows"]["unchanged"]) == ("noop", 2)
    assert planned["counts"] == again["counts"]
    assert planned["dry_run"]

    write_deltalake(str(table.target), pa.table({"id": [1], "v": ["x"]}), mode="overwrite")
    assert table.load_rows()["changed"]
    assert [row["v"] for row in table.read_rows()] == ["a", "b"]

    shutil.rmtree(table.folder / "s")
    assert table.load_rows([{"id": 1, "v": "c"}])["changed"]


@pytest.mark.parametrize(
    ("strategy", "settings", "changes"),
    [
        ("upsert", {**KEY, "skip_unchanged_rows": False}, True),
        ("upsert", {**KEY, "source_filter": "id <= current_date()"}, False),
        ("delete-insert", {**KEY, "destination_scope": "v < current_date()"}, False),
        ("delete-insert", {}, True),
        ("scd2", {"natural_key": "id"}, False),
    ],
    ids=["unchanged", "filter", "scope", "append", "history"],
)
def test_a_load_that_may_say_something_else_is_read_again(
    strategy: str,
    settings: dict[str, Any],
    changes: bool,
    memory_loads: MakeLoads,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A load with possibly different results is read again although its source is unchanged.

    A condition may use the current time, an appended load is appended, a history depends on the load time.
    """
    table = memory_loads(strategy, **settings)
    day = date(2024, 1, 1)
    table.load_rows([{"id": day, "v": day}])

    assert table.load_rows()["changed"] is changes
    monkeypatch.setattr(job, "stage_load", raise_killed)
    with pytest.raises(Killed):
        table.load_rows()


def test_a_dry_run_counts_and_writes_nothing(memory_loads: MakeLoads) -> None:
    """A dry run reports the changes and writes nothing."""
    table = memory_loads("upsert", **KEY)
    table.load_rows([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])

    report = table.load_rows([{"id": 2, "v": "c"}, {"id": 3, "v": "d"}], until="transform")

    assert (report["dry_run"], report["changed"]) == (True, False)
    assert (report["counts"]["loaded"], report["counts"]["duplicates"]) == (2, 0)
    assert [report["rows"][kind] for kind in ("inserted", "updated", "deleted")] == [1, 1, 0]
    assert table.read_version() == 0


def test_two_runs_that_start_from_one_version_do_not_both_write(
    loads: MakeLoads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two runs that start from one version, the second one loses the race, whatever it computed."""
    table = loads("upsert", **KEY)
    table.load_rows([{"id": 1, "v": "a"}])
    write = commit_once

    def commit_second(*args: Any, **named: Any) -> Any:
        monkeypatch.setattr(retry, "commit_once", write)
        table.load_rows([{"id": 1, "v": "theirs"}], run_id="theirs")
        return write(*args, **named)

    monkeypatch.setattr(retry, "commit_once", commit_second)
    with pytest.raises(ConflictError):
        table.load_rows([{"id": 1, "v": "mine"}], run_id="mine")

    assert table.read_rows() == [{"id": 1, "v": "theirs"}]


def test_a_table_of_another_kind_is_refused_until_it_is_written_anew(loads: MakeLoads) -> None:
    """A table of the other kind, rows or versions, is rejected until it is rewritten; so is another key."""
    table = loads("upsert", **KEY)
    table.load_rows([{"id": 1, "v": "a"}])
    history = {
        "strategy": "scd2",
        "primary_key": None,
        "natural_key": "id",
        "boundary_timestamp": "2024-01-02",
    }
    history = {name: value for name, value in history.items() if name != "primary_key"}
    table.settings = {"target": "t", "source": "s", **history}

    check_refusal(table.load_rows, "is not an SCD2 history, but this load writes one")
    table.load_rows(full_refresh=True)
    table.settings["natural_key"] = "v"
    check_refusal(table.load_rows, "natural_key: is \\['v'\\], but the target was written with \\['id'\\]")
    table.settings["natural_key"] = "id"
    report = table.load_rows(boundary_timestamp="2024-01-03")

    assert not report["changed"]
    assert table.read_history("id", "v") == {1: [(2, None, ("a",))]}


def test_a_foreign_table_is_not_touched(loads: MakeLoads) -> None:
    """A table that was not written by a merge load is rejected, because its rows belong to others."""
    table = loads("upsert", **KEY)
    write_deltalake(str(table.target), pa.table({"id": [7]}))

    check_refusal(lambda: table.load_rows([{"id": 1}]), "was written by another writer, not by merge_load")

    assert table.read_version() == 0


def test_an_empty_load_does_what_it_is_told(memory_loads: MakeLoads) -> None:
    """An empty load is an error by default if it would delete rows.

    It changes nothing if it is skipped, and deletes all rows if it is applied.
    """
    table = memory_loads("upsert", **KEY, variant="cdc")
    table.load_rows([{"id": 1, "v": "a"}])
    table.write_source(pa.table({"id": pa.array([], pa.int64()), "v": pa.array([], pa.string())}))

    check_refusal(table.load_rows, "has no rows to load")
    assert not table.load_rows(on_empty="skip")["changed"]
    assert table.load_rows(on_empty="apply")["rows"]["deleted"] == 1
    assert table.read_rows() == []


def test_the_first_to_arrive_counts_among_equals(loads: MakeLoads) -> None:
    """Of equal rows the first to arrive wins: by file time, then by position in the file, not by content."""
    table = loads("delete-insert", **KEY, dedup_sort={"s": "desc"})
    rows = [{"id": n % 3, "s": 1, "v": f"{(n * 7) % 10}"} for n in range(10)]
    table.load_rows(rows)

    assert table.read_rows("id", "v") == [{"id": 0, "v": "0"}, {"id": 1, "v": "7"}, {"id": 2, "v": "4"}]


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("upsert", {"primary_key": "a.b"}),
        pytest.param("delete-insert", {"primary_key": "a.b", "merge_key": "x`y"}, marks=pytest.mark.long),
        ("scd2", {"natural_key": "a.b", "overwrite": "x`y", "current_column": "it's"}),
    ],
    ids=["upsert", "delete-insert", "history"],
)
def test_columns_may_have_any_name(strategy: str, settings: dict[str, Any], loads: MakeLoads) -> None:
    """Columns may have dots, quotes and SQL keywords in their names."""
    table = loads(strategy, **settings)
    rows = [{"a.b": 1, "x`y": "o'k", "select": 1}, {"a.b": 2, "x`y": "z", "select": 2}]
    table.load_rows(rows, **({"boundary_timestamp": "2024-01-01"} if strategy == "scd2" else {}))
    rows[1] = {**rows[1], "x`y": "n", "select": 3}
    table.load_rows(rows, **({"boundary_timestamp": "2024-01-02"} if strategy == "scd2" else {}))

    assert {row["select"] for row in table.read_rows()} >= {1, 3}
    assert {row["x`y"] for row in table.read_rows()} >= {"o'k", "n"}


def test_a_row_that_is_older_than_the_stored_one_does_nothing(memory_loads: MakeLoads) -> None:
    """A late row neither updates nor deletes a newer stored row; NULL is the lowest sequence."""
    table = memory_loads("upsert", **KEY, sequence_by="s", hard_delete="gone")
    table.load_rows(
        [{"id": key, "s": s, "v": "a", "gone": False} for key, s in ((1, 5), (2, 5), (3, None), (4, 5))]
    )

    report = table.load_rows(
        [
            {"id": 1, "s": 4, "v": "late", "gone": False},
            {"id": 2, "s": 3, "v": "late", "gone": True},
            {"id": 3, "s": 1, "v": "new", "gone": False},
            {"id": 4, "s": 5, "v": "restated", "gone": False},
            {"id": 4, "s": None, "v": "null", "gone": True},
        ]
    )

    assert {name: report["rows"][name] for name in ("updated", "deleted")} == {"updated": 2, "deleted": 0}
    assert [row["v"] for row in table.read_rows("v", "id")] == ["a", "a", "new", "restated"]


def test_a_load_that_changes_too_much_writes_nothing(memory_loads: MakeLoads) -> None:
    """If two of two rows are replaced or deleted, a dry run warns and a run fails.

    With a higher limit the run succeeds.
    """
    table = memory_loads("upsert", **KEY, hard_delete="gone")
    table.load_rows(
        [{"id": 1, "v": "a", "gone": None}, {"id": 2, "v": "b", "gone": None}], max_change_ratio=0.0
    )
    table.write_source([{"id": 1, "v": "c", "gone": None}, {"id": 2, "v": "b", "gone": True}])

    dry = table.load_rows(until="transform", max_change_ratio=0.9)
    with pytest.raises(
        RiskError, match=r"2 rows to a target of 2 rows, a change ratio of 1; the limit is 0.9"
    ) as refused:
        table.load_rows(max_change_ratio=0.9)

    assert dry["warnings"][0].startswith("max_change_ratio: the run would write 2 rows")
    assert refused.value.report.counts == dry["counts"]
    assert table.read_version() == 0
    assert table.load_rows(max_change_ratio=1.0)["target"]["version"] == 1
    rows = [{"id": id_, "v": "z", "gone": False} for id_ in (7, 8, 9)]
    with pytest.raises(RiskError, match=r"replace 1 row with 3 rows, a net change ratio of 2"):
        table.load_rows(rows, full_refresh=True, max_change_ratio=1.0)


@pytest.mark.long
def test_tables_may_be_wide(memory_loads: MakeLoads) -> None:
    """A table may have hundreds of columns, and a change of the last one is detected."""
    table = memory_loads("upsert", **KEY, skip_unchanged_rows=True)
    rows = [{"id": number, **{f"c{position}": "a" for position in range(400)}} for number in (1, 2)]
    table.load_rows(rows)

    report = table.load_rows([rows[0], {**rows[1], "c399": "new"}])

    assert report["rows"]["updated"] == 1
    assert table.read_rows("id", "c399") == [{"id": 1, "c399": "a"}, {"id": 2, "c399": "new"}]
