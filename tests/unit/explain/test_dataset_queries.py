"""Tests of the queries of the dataset page, over tables that delta-rs writes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from airflow_merge_provider.core.change_plan.shown_rows import ShownRows, use_shown_rows
from airflow_merge_provider.core.source_offset import SourceOffset, write_offsets
from airflow_merge_provider.explain import dataset_queries, query_process
from airflow_merge_provider.explain.query_process import answer_query
from tests.unit.cli.conftest import build_result, build_state, name_owner, write_run  # noqa: F401 - a fixture
from tests.unit.cli.lake import build_lake, write_rejected
from tests.unit.cli.test_timeline import write_history as write_versions
from tests.unit.explain.test_merge_source import SCHEMA, build_member

ALL = {"show_rows": "all"}
HOSTILE = "<img src=x onerror=alert(1)>"


def ask(
    folder: Path, target: str, name: str, settings: Mapping[str, str] | None = None, **arguments: Any
) -> Any:
    """Return the answer of a query, or the text of the problem that prevents it."""
    query = {"name": name, "target": target, "warehouse": str(folder), "settings": settings or {}}
    answer = json.loads(json.dumps(answer_query({**query, "arguments": arguments})))
    return answer["answer"] if "answer" in answer else answer["problem"]["text"]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the tables of two loads with their rejected rows, and the state of a merge record."""
    folder = tmp_path_factory.mktemp("lake")
    build_lake(folder)
    write_rejected(folder / "orders", [{"id": number, "status": "broken"} for number in range(120)])
    return folder


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a golden record that gains a member, whose link has a value of a row."""
    folder = tmp_path_factory.mktemp("golden")
    by_mail = [build_member("crm", "c1", ("by mail", "left", "s:a@b.org"))]
    both = [*by_mail, build_member("shop", "s1", ("by mail", "right", "s:a@b.org"))]
    for members in (by_mail, both):
        rows = [
            ("crm:c1", False, None, False, members),
            ("crm:c2", False, None, False, [build_member("crm", "c2")]),
        ]
        columns = zip(zip(*rows, strict=True), SCHEMA, strict=True)
        table = pa.table([pa.array(column, field.type) for column, field in columns], SCHEMA)
        table = table.append_column("city", [["Oslo", "Bergen"]])
        write_deltalake(str(folder / "people"), table, mode="overwrite")
    return folder


def write_history(folder: Path) -> None:
    """Write runs, of which one is undone, and commits of other programs, of which one is damaged."""
    states: list[Any] = [
        {**build_state(1), "result": build_result(inserted=1)},
        {**build_state(2), "result": build_result(inserted=1, unchanged=1), "approved_by": "anna"},
        None,
        {"capability": "merge_load", "number": 3, "token": ["x"], "result": "damaged"},
    ]
    location = str(folder / "t")
    for state in states:
        metadata = {"userMetadata": json.dumps(state)} if state else {}
        write_deltalake(
            location, pa.table({"id": [1], "text": [HOSTILE]}), mode="append",
            commit_properties=CommitProperties(custom_metadata=metadata),
        )  # fmt: skip
    name_owner(location, "merge_load")
    DeltaTable(location).restore(0)
    DeltaTable(location).optimize.compact()


def test_runs_are_those_of_the_log(tmp_path: Path) -> None:
    """Each commit is listed: runs with sentence and approval, undone ones, those of other programs."""
    write_history(tmp_path)

    answer = ask(tmp_path, "t", "runs")

    runs = {run["version"]: run for run in answer["runs"]}
    assert list(runs) == sorted(runs, reverse=True)
    assert (runs[0]["kind"], runs[0]["undone"], runs[0]["number"]) == ("run", False, 1)
    assert (runs[1]["undone"], runs[1]["approved_by"], runs[1]["live_rows"]) == (True, "anna", 2)
    assert runs[1]["sentence"] == "0 rows were loaded into t: 1 inserted; nothing was rejected"
    assert (runs[2]["kind"], runs[2]["undone"], runs[2]["sentence"]) == ("other", None, None)
    assert runs[3]["kind"] == "other", "the metadata of this commit is that of no run"
    assert runs[4]["operation"] == "RESTORE"
    assert all(run["kind"] == "maintenance" for run in answer["runs"] if run["operation"] == "OPTIMIZE")


def test_runs_are_paged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page begins before a version, and too many newer commits are refused."""
    write_history(tmp_path)
    commits = ask(tmp_path, "t", "runs")["runs"]

    pages = [ask(tmp_path, "t", "runs", limit=2)]
    while pages[-1]["next"]:
        pages.append(ask(tmp_path, "t", "runs", before=pages[-1]["next"], limit=2))

    assert [run for page in pages for run in page["runs"]] == commits
    monkeypatch.setattr(dataset_queries, "COMMITS_MAX", 3)
    assert "more than 3 commits are newer" in ask(tmp_path, "t", "runs", before=1)


def test_the_states_of_a_merge_record_are_runs(lake: Path) -> None:
    """A merge record has no table: its states, open bins and files answer."""
    (run,) = ask(lake, "readings_state", "runs")["runs"]
    assert (run["version"], run["operation"]) == (2, "MERGE RECORD")

    waiting = ask(lake, "readings_state", "waiting", ALL)
    assert [(item["group"], item["files"]) for item in waiting["bins"]] == [("oslo", 1)]
    assert ask(lake, "readings_state", "waiting")["bins"][0]["group"] == "***", "a group is made of values"
    assert (
        ask(lake, "readings_state", "find", key="a.json")["explanation"]["events"][0]["outcome"] == "merged"
    )
    assert ask(lake, "readings_state", "about")["is_table"] is False


def test_changes_are_filtered_and_paged(lake: Path) -> None:
    """Rows are selected by kind and by a part of the key; counts are those of all rows."""
    changes = ask(lake, "orders", "changes", ALL, first=0, last=1)

    assert changes["kinds"] == {"inserted": 1, "updated": 1, "deleted": 0}
    assert [(row["kind"], row["after"]["status"]) for row in changes["rows"]] == [
        ("updated", "shipped"),
        ("inserted", "new"),
    ]
    one = ask(lake, "orders", "changes", ALL, first=0, last=1, kind="inserted")
    assert (one["matches"], one["rows"][0]["after"]["id"]) == (1, 9)
    assert ask(lake, "orders", "changes", ALL, first=0, last=1, key="7")["matches"] == 1
    page = ask(lake, "orders", "changes", ALL, first=0, last=1, offset=1, limit=1)
    assert (page["rows"], page["next"]) == (changes["rows"][1:], None)
    assert "has no version 9" in ask(lake, "orders", "changes", first=0, last=9)


def test_large_changes_are_refused_before_rows_are_read(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has the sizes of the files in which versions differ."""
    monkeypatch.setattr(dataset_queries, "CHANGES_MAX_BYTES", 100)
    monkeypatch.setattr(dataset_queries, "read_changes", None)

    assert "versions 0 and 1 differ by" in ask(lake, "orders", "changes", first=0, last=1)


def test_changes_of_a_golden_record_name_its_members(golden: Path) -> None:
    """The reason is the member with its rule; its value and internal columns are shown if they may be."""
    (change,) = ask(golden, "people", "changes", ALL, first=0, last=1)["rows"]
    assert change["reason"] == '+ shop/s1 by by mail ("a@b.org")'
    assert set(change["after"]) == {"_id", "city"}

    (change,) = ask(golden, "people", "changes", ALL, first=0, last=1, all_columns=True)["rows"]
    assert "_members" in change["after"]
    (change,) = ask(golden, "people", "changes", first=0, last=1)["rows"]
    assert change["reason"] == "+ shop/s1 by by mail (***)"
    assert change["after"] == {"_id": "crm:c1", "city": "***"}
    masked = ask(golden, "people", "changes", {"show_rows": "none"}, first=0, last=1, all_columns=True)
    assert "crm:c1" not in json.dumps(masked)


def test_a_key_is_explained_and_traced(lake: Path, golden: Path) -> None:
    """A key, a member and a part of a table answer as the commands explain and timeline do."""
    answer = ask(lake, "orders", "find", ALL, key="7")
    assert answer["explanation"]["rows"] == [{"id": 7, "status": "shipped"}]
    assert [state["kind"] for state in answer["timeline"]["states"]] == ["inserted", "updated"]

    (entity,) = ask(golden, "people", "find", ALL, key="s1")["explanation"]["entities"]
    assert entity["output"]["links"] == [
        {"known": "crm/c1", "reached": "shop/s1", "rule": "by mail", "key": '"a@b.org"'}
    ]
    assert "has no output" in ask(golden, "people", "find", key="unknown")


def test_values_of_members_are_those_that_the_newest_run_has_read(tmp_path: Path) -> None:
    """Each member has the row of its dataset at the version of the run, or why it is unknown."""
    offsets = []
    for name, cities in (("crm", ("Oslo", "later")), ("shop", ("Bergen",))):
        location = str(tmp_path / name)
        for city in cities:
            write_deltalake(location, pa.table({"_id": [f"{name[0]}1"], "city": [city]}), mode="overwrite")
        offsets.append(SourceOffset(location, 0, str(DeltaTable(location).metadata().id)))
    members = [build_member("crm", "c1"), build_member("shop", "s1"), build_member("gone", "g1")]
    columns = zip(("crm:c1", False, None, False, members), SCHEMA, strict=True)
    table = pa.table([pa.array([value], field.type) for value, field in columns], SCHEMA)
    metadata = {
        "userMetadata": json.dumps({**build_state(1), "capability": "merge_source", **write_offsets(offsets)})
    }
    write_deltalake(
        str(tmp_path / "people"), table, commit_properties=CommitProperties(custom_metadata=metadata)
    )
    name_owner(str(tmp_path / "people"), "merge_source")

    inputs = ask(tmp_path, "people", "find", ALL, key="crm:c1")["explanation"]["inputs"]
    masked = ask(tmp_path, "people", "find", key="shop/s1")

    assert [item["rows"] for item in inputs] == [
        [{"_id": "c1", "city": "Oslo"}], [{"_id": "s1", "city": "Bergen"}], []
    ]  # fmt: skip
    assert inputs[2]["missing"] == "the newest run has not read this dataset"
    assert "Oslo" not in json.dumps(masked)
    assert len(masked["explanation"]["inputs"]) == 3


@pytest.mark.parametrize("settings", [{}, {"show_rows": "all", "mask_columns": "status, city"}])
def test_values_that_are_not_shown_are_in_no_answer(
    lake: Path, golden: Path, settings: dict[str, str]
) -> None:
    """By default, only values of keys are shown, in rows, texts and links."""
    answers = [
        ask(lake, "orders", "find", settings, key="7"),
        ask(lake, "orders", "changes", settings, first=0, last=1, all_columns=True),
        ask(lake, "orders", "waiting", settings),
        ask(golden, "people", "find", settings, key="crm:c1"),
        ask(golden, "people", "changes", settings, first=0, last=1, all_columns=True),
    ]

    text = json.dumps(answers)
    assert not [value for value in ("shipped", "broken", "a@b.org", "Oslo") if value in text]


def test_each_text_of_an_explanation_is_masked() -> None:
    """Values of columns, and texts about them, are shown only if the column is; names and counts stay."""
    fold = {
        "key": {"id": 7}, "row": True, "records": [{"number": 1, "kind": "+I", "did": "set city Oslo"}],
        "columns": {"id": {"value": 7, "why": "key"}, "city": {"value": "Oslo", "why": "newest: Oslo"}},
    }  # fmt: skip
    join = {"inputs": [{"input": "a", "key": {"a.id": 7}, "rows": [{"city": "Oslo"}], "version": 3}]}

    with use_shown_rows(ShownRows(rows="keys", key_columns=("id", "a.id"))):
        masked = [dataset_queries._mask_values(value) for value in (fold, join)]

    assert "Oslo" not in json.dumps(masked)
    assert masked[0]["columns"]["id"]["value"] == 7
    assert masked[0]["records"] == [{"number": 1, "kind": "+I", "did": "***"}]
    assert masked[1]["inputs"] == [
        {"input": "a", "key": {"a.id": 7}, "rows": [{"city": "***"}], "version": 3}
    ]


def test_a_value_that_is_not_shown_cannot_be_searched(lake: Path, golden: Path) -> None:
    """An answer to a search would tell which values there are."""
    refused = "are not shown here"
    assert refused in ask(lake, "orders", "find", key='{"status": "shipped"}')
    assert refused in ask(lake, "orders", "find", {"show_rows": "none"}, key="7")
    assert refused in ask(lake, "orders", "changes", {"show_rows": "none"}, first=0, last=1, key="7")
    # The ID of a golden record consists of values of its members, perhaps of masked columns.
    assert refused in ask(
        golden, "people", "find", {"show_rows": "all", "mask_columns": "email"}, key="crm:c1"
    )


def test_a_history_names_what_became_of_each_version(
    tmp_path: Path,
    write_run: Any,  # noqa: F811 - the fixture
) -> None:
    """A version is opened or closed; its begin is shown, as it is a part of the key of the row."""
    write_versions(write_run)

    rows = ask(tmp_path, "t", "changes", first=0, last=1)["rows"]

    assert sorted((row["reason"], row["after"]["valid_from"]) for row in rows) == [
        ("closed", "2026-01-01T00:00:00Z"),
        ("opened", "2026-02-01T00:00:00Z"),
    ]
    versions = ask(tmp_path, "t", "find", key="7")["explanation"]["versions"]
    assert [(version["values"]["city"], version["valid_from"][:7]) for version in versions] == [
        ("***", "2026-01"),
        ("***", "2026-02"),
    ]
    assert "Oslo" not in json.dumps(ask(tmp_path, "t", "find", key="7"))


def test_what_is_known_of_a_table(lake: Path) -> None:
    """Columns, sources with versions, configuration, size and the populated flag come from the log."""
    about = ask(lake, "orders", "about")

    assert [(item["name"], item["type"], item["is_key"]) for item in about["columns"]] == [
        ("id", "long", True),
        ("status", "string", False),
    ]
    assert about["sources"] == [{"uri": str(lake / "new_orders"), "version": 1}]
    assert about["config"] == {"strategy": "upsert", "primary_key": ["id"]}
    assert (about["location"], about["version"], about["rows"]) == (str(lake / "orders"), 1, 3)
    assert about["populated"] is False


def test_rejected_rows_are_paged(lake: Path) -> None:
    """The table of rejected rows is named, and read a page at a time."""
    rejected = ask(lake, "orders", "waiting")["rejected"]

    assert (rejected["uri"], rejected["count"]) == (str(lake / "orders__rejected"), 120)
    assert (len(rejected["rows"]), rejected["next"]) == (50, 50)
    assert rejected["rows"][0]["row"] == {"id": 119, "status": "***"}
    assert rejected["rows"][0]["reason"] == "amount > 0"
    assert len(ask(lake, "orders", "waiting", offset=100)["rejected"]["rows"]) == 20
    assert ask(lake, "orders", "waiting", offset=100)["rejected"]["next"] is None


def test_a_table_of_rejected_rows_belongs_to_its_target(tmp_path: Path) -> None:
    """A table of this name that no run has recorded, or that another program has written, is not read."""
    build_lake(tmp_path)
    rows = pa.table({"row": ["{}"], "rejected_at": [1]})
    write_deltalake(str(tmp_path / "orders__rejected"), rows)
    assert ask(tmp_path, "orders", "waiting")["rejected"] is None

    shutil.rmtree(tmp_path / "orders__rejected")
    write_rejected(tmp_path / "orders", [{"id": 1}])
    assert ask(tmp_path, "orders", "waiting")["rejected"]["count"] == 1
    shutil.rmtree(tmp_path / "orders__rejected")
    write_deltalake(str(tmp_path / "orders__rejected"), rows)
    assert ask(tmp_path, "orders", "waiting")["rejected"] is None


def test_only_tables_of_this_package_are_read(lake: Path, tmp_path: Path) -> None:
    """A missing table, a table of another program and a folder of files are refused by name."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files/a.csv").write_text("id\n1\n")

    for name in ("about", "runs", "waiting"):
        assert "was written by another program" in ask(lake, "crm", name)
        assert "is not a Delta table" in ask(tmp_path, "missing", name)
        assert "is not a Delta table" in ask(tmp_path, "files", name)
    assert "was written by another program" in ask(lake, "crm", "find", key="c1")
    assert "without Spark" in ask(lake, "a.b.c", "about")


def test_long_values_are_cut(tmp_path: Path) -> None:
    """A text of any length has its place in an answer of bounded size."""
    write_deltalake(str(tmp_path / "t"), pa.table({"id": [1], "text": ["x" * 100_000]}))
    name_owner(str(tmp_path / "t"), "merge_load")
    write_deltalake(str(tmp_path / "t"), pa.table({"id": [2], "text": ["y" * 100_000]}), mode="append")

    text = ask(tmp_path, "t", "changes", ALL, first=0, last=1)["rows"][0]["after"]["text"]

    assert text.endswith("… (100000 characters)")
    assert len(text) < 2100


def test_an_unexpected_error_is_no_answer(lake: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The text of an error may have values, and its places do not concern the user."""

    def fail(*_: Any) -> Any:
        raise ValueError("secret of a row")

    monkeypatch.setattr(dataset_queries, "QUERIES", {"about": fail})

    assert ask(lake, "orders", "about") == "the query failed: see the log of the API server"
    log = capsys.readouterr().err
    assert "secret of a row" not in log
    assert "ValueError" in log


def test_a_process_that_needs_more_memory_ends(tmp_path: Path) -> None:
    """What the log does not tell is limited by the process itself, whether Python or delta-rs needs it."""
    rows = 150_000
    names = [f"{number:032d}" for number in range(rows)]
    write_deltalake(str(tmp_path / "t"), pa.table({"id": range(rows), "text": names}))
    name_owner(str(tmp_path / "t"), "merge_load")
    write_deltalake(str(tmp_path / "t"), pa.table({"id": range(rows), "text": names[::-1]}), mode="overwrite")
    arguments = {"first": 0, "last": 1}
    query = {
        "name": "changes",
        "target": "t",
        "warehouse": str(tmp_path),
        "settings": {},
        "arguments": arguments,
    }
    assert query_process.LIMIT_BYTES == 256 * 1024 * 1024
    code = "from airflow_merge_provider.explain import query_process as q; q.LIMIT_BYTES = 2**24; q.main()"

    process = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(query), capture_output=True, text=True, check=False
    )

    assert process.stdout == "" or "memory" in json.loads(process.stdout)["problem"]["text"]


def test_sources_are_those_of_the_newest_run(tmp_path: Path) -> None:
    """A source keeps its location and version, also one with a name that is no identifier."""
    state = {**build_state(1), **write_offsets([SourceOffset(f"/lake/{HOSTILE}", 3, "t")])}
    write_deltalake(
        str(tmp_path / "t"), pa.table({HOSTILE: [1]}),
        commit_properties=CommitProperties(custom_metadata={"userMetadata": json.dumps(state)}),
    )  # fmt: skip
    name_owner(str(tmp_path / "t"), "merge_load")

    about = ask(tmp_path, "t", "about")

    assert about["sources"] == [{"uri": f"/lake/{HOSTILE}", "version": 3}]
    assert about["columns"][0]["name"] == HOSTILE
