"""Tests of what an undo reverts beside runs, from the history of the target alone."""

from __future__ import annotations

import json

import pytest

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.progress import Progress
from airflow_merge_provider.core.run.reporter import RunReporter
from airflow_merge_provider.core.table_history import HistoryEntry, Lineage
from airflow_merge_provider.core.undo.choice import UndoChoice, choose_undo
from airflow_merge_provider.core.undo.config import COUNTS, UndoConfig
from airflow_merge_provider.core.undo.decision import UndoDecision


def build_run(version: int, *, changed: bool = True) -> HistoryEntry:
    token = {"run_id": f"r{version}"}
    metadata = {"capability": "merge_load", "number": version + 1, "token": token, "changed": changed}
    return HistoryEntry(version, "MERGE", user_metadata=json.dumps(metadata))


def choose(*entries: HistoryEntry) -> UndoChoice:
    """Undo the newest run; the entries are given in the order of their versions."""
    newest_first = tuple(reversed(entries))
    choice = choose_undo(
        UndoConfig(target="t"), "merge_load", newest_first, Lineage(newest_first, is_complete=True)
    )
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
