"""Test how the commits of a source are classified by its Delta log, without Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from airflow_merge_provider.jobs.delta.commit_log import AddedFile, Commit, CommitLog, _entries_here

ADD = {"path": "a.parquet", "partitionValues": {}, "dataChange": True}
MOVED = {**ADD, "dataChange": False}


def open_log(entries: Mapping[int, Sequence[Any]]) -> CommitLog:
    """Return a log with the given entries."""
    return CommitLog(
        "/there",
        StructType(),
        is_mapped=False,
        entries=lambda versions: [(version, entry) for version in versions for entry in entries[version]],
    )


def list_commits(entries: Mapping[int, Sequence[Any]], since: int, newest: int) -> list[Commit]:
    """Return the commits of a log with the given entries."""
    return open_log(entries).list_commits(since, newest)


@pytest.mark.parametrize(
    ("entries", "changes", "added"),
    [
        ([{"add": ADD}], False, True),
        ([{"commitInfo": {"operation": "WHATEVER"}}, {"add": ADD}], False, True),
        ([{"metaData": {}}], False, False),
        ([], False, False),
        ([{"add": MOVED}, {"remove": {"path": "b", "dataChange": False}}], False, False),
        ([{"add": ADD}, {"remove": {"path": "b", "dataChange": True}}], True, False),
        ([{"remove": {"path": "b", "dataChange": True}}], True, False),
        ([{"add": ADD}, {"cdc": {"path": "_change_data/c", "dataChange": False}}], True, False),
        ([{"add": {**ADD, "deletionVector": {"offset": 1}}}], True, False),
        ([{"add": {**ADD, "deletionVector": None}, "remove": None, "cdc": None}], False, True),
    ],
    ids=[
        "rows",
        "of any writer",
        "schema",
        "empty",
        "compacted",
        "replaced",
        "removed",
        "updated",
        "restored",
        "nulls",
    ],
)
def test_entries_tell_what_became_of_the_rows(entries: Sequence[Any], changes: bool, added: bool) -> None:
    """Entries show how rows changed, whoever wrote them and whatever operation they name."""
    (commit,) = list_commits({8: entries}, 7, 8)

    assert commit.version == 8
    assert commit.changes is changes
    assert [file.path for file in commit.files] == (["/there/a.parquet"] if added else [])


@pytest.mark.parametrize(
    ("written", "path", "name"),
    [
        ("day=a%20b/x.parquet", "/there/day=a b/x.parquet", "x.parquet"),
        ("day=a%2520b/x%25.parquet", "/there/day=a%20b/x%.parquet", "x%.parquet"),
        ("/else%20where/y.parquet", "/else where/y.parquet", "y.parquet"),
        ("s3a://bucket/t/z.parquet", "s3a://bucket/t/z.parquet", "z.parquet"),
    ],
)
def test_files_have_their_whole_path(written: str, path: str, name: str) -> None:
    """Encoded paths are decoded, and paths of a shallow clone refer to the other table."""
    (commit,) = list_commits({1: [{"add": {**ADD, "path": written, "partitionValues": {"day": None}}}]}, 0, 1)

    assert commit.files == [AddedFile(path, 1, {"day": None})]
    assert commit.files[0].bare_path.endswith(f"/{name}")


def test_commits_come_in_their_order() -> None:
    """Commits after the last folded one and up to the pinned one are returned in order."""
    entries = {version: [{"add": {**ADD, "path": str(version)}}] for version in range(9)}

    commits = list_commits(entries, 2, 5)

    assert [(commit.version, commit.files[0].path) for commit in commits] == [
        (3, "/there/3"),
        (4, "/there/4"),
        (5, "/there/5"),
    ]


def test_a_commit_that_is_gone_is_noticed(tmp_path: Path) -> None:
    """A missing commit is detected: the log was cleaned beyond the last commit that runs have read."""
    log = tmp_path / "_delta_log"
    log.mkdir()
    (log / f"{2:020}.json").write_text(json.dumps({"add": ADD}) + "\n", encoding="utf-8")
    entries = _entries_here(str(tmp_path))

    assert list(entries([2])) == [(2, {"add": ADD})]
    with pytest.raises(FileNotFoundError):
        list(entries([1, 2]))


MARKED = {**ADD, "deletionVector": {"offset": 1}}
OF_A = {"remove": {"path": "a.parquet", "dataChange": True}}
A_TO_B = [{"remove": {**OF_A["remove"], "dataChange": False}}, {"add": {**MOVED, "path": "b.parquet"}}]


@pytest.mark.parametrize(
    ("commits", "gained"),
    [
        ([[{"add": ADD}]], ["a"]),
        ([[{"add": ADD}], A_TO_B], ["b"]),
        ([A_TO_B], []),
        ([[{"add": MOVED}]], []),
        ([[{"add": ADD}], [{"add": MARKED}, OF_A]], ["a"]),
        ([[{"add": MARKED}, OF_A]], []),
        ([[{"add": MARKED}, OF_A, {"commitInfo": {"operation": "RESTORE"}}]], ["a"]),
        ([[{"add": ADD}], [OF_A]], []),
        ([[OF_A, {"add": {**ADD, "path": "b.parquet"}, "remove": None}]], ["b"]),
    ],
    ids=[
        "appended",
        "appended and moved",
        "moved",
        "described again",
        "appended and marked",
        "marked",
        "restored",
        "removed",
        "rewritten",
    ],
)
def test_gained_files_hold_all_new_rows(commits: Sequence[Sequence[Any]], gained: Sequence[str]) -> None:
    """Files that only hold rows of the earlier version are left out, however often commits moved them."""
    log = open_log(dict(enumerate(commits, start=8)))

    files = log.list_gained_files(7, 7 + len(commits))

    assert [file.name.removesuffix(".parquet") for file in files] == gained
