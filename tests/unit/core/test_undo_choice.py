"""Tests of what an undo reverts beside runs, from the history of the target alone."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.reporter import Progress, RunReporter
from airflow_merge_provider.core.table_history import HistoryEntry, Lineage, trace_lineage
from airflow_merge_provider.core.undo.choice import UndoChoice, choose_undo, list_side_tables
from airflow_merge_provider.core.undo.config import COUNTS, UndoConfig
from airflow_merge_provider.core.undo.decision import UndoDecision


def build_run(version: int, run_id: str = "", *, changed: bool = True) -> HistoryEntry:
    return build_commit(version, "MERGE", run_id or f"r{version}", {"changed": changed})


def build_undo(version: int, restored_version: int, *, version_before: int | None = None) -> HistoryEntry:
    """Build the commit of an undo that found the version before it, or an earlier one."""
    before = version - 1 if version_before is None else version_before
    state = {"undo": {"restored_version": restored_version}, "result": {"version_before": before}}
    operation = "WRITE" if restored_version < 0 else "RESTORE"
    return build_commit(version, operation, f"u{version}", state, {"version": str(restored_version)})


def build_commit(
    version: int,
    operation: str,
    run_id: str,
    state: dict[str, Any],
    parameters: dict[str, str] | None = None,
) -> HistoryEntry:
    token = {"run_id": run_id}
    metadata = {"capability": "merge_load", "number": version + 1, "token": token, **state}
    return HistoryEntry(version, operation, parameters or {}, user_metadata=json.dumps(metadata))


def choose(*entries: HistoryEntry, **config: Any) -> UndoChoice:
    """Undo the newest run, or what is configured; the entries are given in the order of their versions."""
    newest_first = tuple(reversed(entries))
    lineage = trace_lineage(newest_first, lambda _: None)
    choice = choose_undo(UndoConfig(target="t", **config), "merge_load", newest_first, lineage)
    assert choice is not None
    return choice


@pytest.mark.parametrize(
    ("operation", "properties", "is_reverted"),
    [
        *((name, None, True) for name in ("ADD CONSTRAINT", "ADD COLUMNS", "CLUSTER BY")),
        ("SET TBLPROPERTIES", '{"delta.appendOnly":"true"}', True),
        ("SET TBLPROPERTIES", '{"merge.populated":"true","x.owner":"y"}', True),
        ("SET TBLPROPERTIES", '{"merge.populated":"true"}', False),
        ("UNSET TBLPROPERTIES", '["merge.populated"]', False),
        ("SET TBLPROPERTIES", "no JSON", True),
        ("SET TBLPROPERTIES", "null", True),
        ("OPTIMIZE", None, False),
        ("VACUUM END", None, False),
    ],
)
def test_a_definition_that_is_reverted_is_named(
    operation: str, properties: str | None, is_reverted: bool
) -> None:
    """RESTORE also reverts columns, properties and constraints; runs set the populated flag themselves."""
    change = HistoryEntry(2, operation, {} if properties is None else {"properties": properties})

    warnings = choose(build_run(0), build_run(1), change).list_warnings()

    text = f"the change of the table's definition in version 2 ({operation}) is reverted too: "
    assert warnings == [f"{text}make it again if you still need it"] * int(is_reverted)


def test_definitions_that_stay_are_not_named() -> None:
    """Changes before the run stay, and an undo of the first run deletes the rows only."""
    change = HistoryEntry(1, "ADD CONSTRAINT")

    assert choose(build_run(0), change, build_run(2)).list_warnings() == []
    assert choose(build_run(0), change).list_warnings() == []


def test_an_undo_needs_the_log_of_the_version_before() -> None:
    """If the log no longer describes the version before a run, the undo is refused."""
    newest = (build_run(5),)

    with pytest.raises(DataError, match=r"before version 5 is no longer in the.*logRetentionDuration"):
        choose_undo(UndoConfig(target="t"), "merge_load", newest, Lineage(newest, is_complete=False))


def test_a_report_lists_the_newest_of_the_undone_runs() -> None:
    """It counts all of them."""
    newest_first = tuple(reversed([build_run(version) for version in range(30)]))
    config = UndoConfig(target="t", run="r5")
    choice = choose_undo(config, "merge_load", newest_first, Lineage(newest_first, is_complete=True))
    request = JobRequest(
        job="undo", config={}, run=RunToken(dag_id="d", run_id="u", task_id="undo"), started_at=0
    )
    target = Dataset(id="t", path="/lake/t")
    reporter = RunReporter(lambda _: None, request, Progress(out=str), COUNTS, target, {}, None)

    result = UndoDecision(config, "merge_load", choice, None, reporter).build_result()

    assert result.counts["runs"] == 25
    assert [run["version"] for run in result.details["undone"]] == list(range(29, 9, -1))


@pytest.mark.parametrize("name", [None, "r1", "2"])
def test_a_compaction_belongs_to_its_run(name: str | None) -> None:
    """However a run is named, its compaction is reverted with it, without a warning."""
    newest_first = (HistoryEntry(2, "REORG"), build_run(1), build_run(0))
    config = UndoConfig(target="t", run=name)

    choice = choose_undo(config, "merge_load", newest_first, Lineage(newest_first, is_complete=True))

    assert choice is not None
    assert (choice.version, [run.version for run in choice.undone]) == (0, [1])
    assert choice.list_warnings() == []


def test_runs_that_changed_no_rows_are_undone_with_the_run_before() -> None:
    """Without a name, an undo takes back the newest rows; a name is that of one run."""
    entries = (build_run(0), build_run(1), build_run(2, changed=False))
    newest_first = tuple(reversed(entries))

    choice = choose(*entries)
    named = choose_undo(
        UndoConfig(target="t", run="r2"), "merge_load", newest_first, Lineage(newest_first, is_complete=True)
    )

    assert (choice.version, [run.version for run in choice.undone]) == (0, [2, 1])
    assert named is not None
    assert (named.version, [run.version for run in named.undone]) == (1, [2])


def test_an_undo_of_an_undo_reverts_no_foreign_change() -> None:
    """It is refused as an undo is, and returns to what the undo had found, with the populated flag."""
    unset = HistoryEntry(1, "UNSET TBLPROPERTIES", {"properties": '["merge.populated"]'})
    entries = (build_run(0), unset, build_undo(2, -1, version_before=0))
    foreign = HistoryEntry(3, "DELETE")

    choice = choose(*entries, run="u2")

    assert (choice.version, [run.version for run in choice.restored]) == (0, [0])
    assert choice.list_warnings() == []
    with pytest.raises(DataError, match=r"changed rows in version 3 \(DELETE\)") as refusal:
        choose(*entries, foreign, run="u2")
    assert choose(*entries, foreign, to_version=read_hint(refusal)).foreign == [foreign]
    assert choose(*entries, HistoryEntry(3, "OPTIMIZE"), run="u2").version == 0


def test_an_undo_of_a_repeated_undo_returns_the_flag() -> None:
    """An undo of all runs that died between its commits has removed the flag, which nobody else had."""
    unset = {"properties": '["merge.populated"]'}
    removal = HistoryEntry(1, "UNSET TBLPROPERTIES", unset, user_metadata='{"removes_flag": true}')
    reset = HistoryEntry(1, "UNSET TBLPROPERTIES", unset)

    for first, operation, version in (
        (removal, "OPTIMIZE", 0),
        (removal, "SET TBLPROPERTIES", 2),
        (removal, "DELETE", 2),
        (reset, "OPTIMIZE", 2),
    ):
        entries = (build_run(0), first, HistoryEntry(2, operation), build_undo(3, -1))
        assert choose(*entries, run="u3").version == version
    named_so = build_commit(0, "MERGE", "r0", {"config": {"primary_key": ["removes_flag"]}})
    assert choose(named_so, build_undo(1, -1), run="u1").version == 0


@pytest.mark.parametrize("first", [0, 3])
def test_the_hint_of_a_refused_undo_can_be_followed(first: int) -> None:
    """The version that the error names is that before the run, or for a first run that of the run."""
    before = (build_run(0), HistoryEntry(1, "OPTIMIZE"), build_undo(2, -1))[:first]
    entries = (*before, build_run(first), HistoryEntry(first + 1, "UPDATE"))
    with pytest.raises(DataError, match="another writer changed rows") as refusal:
        choose(*entries)

    choice = choose(*entries, to_version=read_hint(refusal))

    assert choice.foreign == [entries[-1]]
    if first:
        assert (choice.version, [run.version for run in choice.undone]) == (2, [3])
        return
    assert "and undo the run then, or revert the other change first" in str(refusal.value)
    assert (choice.version, choice.undone) == (0, [])
    choice = choose(*entries, build_undo(2, 0))
    assert (choice.version, [run.version for run in choice.undone]) == (-1, [0])


def read_hint(refusal: pytest.ExceptionInfo[DataError]) -> int:
    """Return the version that the hint of an error tells to restore."""
    version = re.search(r"set to_version to (\d+) ", str(refusal.value))
    assert version is not None
    return int(version[1])


def test_all_commits_of_a_run_are_undone_together() -> None:
    """A cleared run and mapped tasks have several commits with one ID; a number is that of one commit."""
    entries = (build_run(0), build_run(1, "r"), HistoryEntry(2, "OPTIMIZE"), build_run(3, "r"))
    offsets = build_run(4, changed=False)

    for later in ((), (offsets,), (build_run(4), build_undo(5, 3))):
        choice = choose(*entries, *later, run="r")
        assert (choice.version, [run.version for run in choice.undone if run.version < 4]) == (0, [3, 1])
    choice = choose(*entries, build_run(4), run="4")
    assert (choice.version, [run.version for run in choice.undone]) == (2, [4, 3])
    message = (
        r"the run 'r' has 2 commits, and other runs have committed since the first of them: number 4 "
        r"\(version 3\), number 2 \(version 1\) \(set run to the number"
    )
    for mixed in ((*entries, build_run(4)), (*entries[:2], build_run(2), entries[3])):
        with pytest.raises(DataError, match=message):
            choose(*mixed, run="r")
    # Of two undos with one ID, the newest is undone.
    undo_of_3 = {"undo": {"restored_version": 2}, "result": {"version_before": 3}}
    undos = (build_undo(2, 0), build_run(3), build_commit(4, "RESTORE", "u2", undo_of_3, {"version": "2"}))
    choice = choose(build_run(0), build_run(1), *undos, run="u2")
    assert (choice.version, [run.version for run in choice.restored]) == (3, [3])
    # An undo in a DAG run of the same ID is not one of its loads.
    choice = choose(build_run(0), build_run(1), build_undo(2, 0), build_run(3, "u2"), run="u2")
    assert (choice.version, [run.version for run in choice.undone]) == (2, [3])


def test_side_tables_are_beside_a_target_that_was_moved() -> None:
    """A table in the folder of its target moves with it; one elsewhere, or in a catalog, stays."""
    target = Dataset("t", path="/new/t")
    for other, uri in (
        (Dataset("log", path="/old/log"), "/new/log"),
        (Dataset("file:///old/x/../log", path="/old/log"), "/new/log"),
        (Dataset("/old/my log", path="/old/my log"), "/old/my log"),
        (Dataset("/logs/log", path="/logs/log"), "/logs/log"),
        (Dataset("lake.logs.log", table="lake.logs.log"), "table:lake.logs.log"),
    ):
        name = Dataset("t", path="/old/t").name_neighbour(other)
        states = [
            {
                "side_table_versions": {"joiner_unmatched": version},
                "side_table_locations": {"joiner_unmatched": name},
            }
            for version in (3, 2)
        ]
        (side_table,) = list_side_tables(target, states[0], states[1], None)
        assert (side_table.dataset.uri, side_table.version) == (uri, 2)
