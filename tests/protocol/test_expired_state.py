"""Test what runs, undos and the history say about a target whose log has lost the commits of its runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_merge_provider.before_spark import TaskRun
from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.decision import RequiresSparkError
from airflow_merge_provider.core.run.previous_run import (
    HAS_UNNAMED_SIDE_TABLES,
    UNNAMED,
    PreviousRun,
    list_runs,
    load_previous_run,
)
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.core.run_mode import ALL_UNDONE, NEVER_RUN, STATE_EXPIRED
from airflow_merge_provider.core.undo import decision as undo
from airflow_merge_provider.core.undo.config import UndoConfig
from tests.protocol.lake import DAY, Lake, LakeLog, Table
from tests.protocol.test_cleared_runs import build_lake, open_run

TARGET = resolve_dataset("t", "/lake")
STATE = {"token": {"run_id": "r"}, "result": {"version_before": None}}


def load(table: Table, *, days: float = 0, **fields: Any) -> PreviousRun:
    """Return the previous run of a target, as a run some days after the first commit finds it."""
    token = RunToken(dag_id="d", task_id="t", run_id="s")
    fields = {"job": "joiner", "config": {}, "run": token, "started_at": int(days * DAY * 1000), **fields}
    log = LakeLog(Lake({"t": table}))
    previous = load_previous_run(log, TARGET, "joiner", JobRequest.model_validate(fields))
    assert previous is not None
    return previous


def renew(table: Table) -> Table:
    """Return a target after the commit that repeats the state of its previous run."""
    state = load(table).renewed_state
    return table.commit_run("joiner", table.number + 1, "WRITE", table.rows, state)


def open_undo(table: Table, **config: Any) -> undo.UndoDecision:
    token = RunToken(dag_id="d", task_id="t", run_id="u")
    request = JobRequest(
        job="undo", config={"target": "t", **config}, run=token, started_at=1, warehouse="/lake"
    )
    log = LakeLog(Lake({"t": table}))
    return undo.open_run(log, UndoConfig.parse(request.config), request, Progress(lambda _: None))


def test_a_state_expires_soon_after_half_of_the_retention() -> None:
    """Only a run that may commit has to keep it; an undo is a run of another capability."""
    table = Table().commit_run("joiner", 1, "WRITE", ("a",), STATE)

    assert [load(table, days=days).is_expiring for days in (14.9, 15.1)] == [False, True]
    assert not load(table, days=20, until="transform").is_expiring
    assert not load(table, days=20, job="undo").is_expiring


def test_a_run_without_work_keeps_its_state_with_spark() -> None:
    lake = build_lake("merge_engine", oldest=0)
    offset = {"sources": {"s": 0}, "tables": {"s": "s"}, "commits": {"s": "s@0"}, "immutable_options": {}}
    target = lake["t"].commit_run("merge_engine", 10, "MERGE", (), offset)
    lake = lake.write_table("t", target)
    config = {"config": {"incremental": True}}

    log = LakeLog(lake)

    report = TaskRun(open_run("merge_engine", lake, 9, "new", **config), log).run_to_end()

    assert report.run_mode == "noop"
    late = open_run("merge_engine", lake, 9, "new", started_at=30 * DAY * 1000, **config)
    with pytest.raises(RequiresSparkError, match="may soon lose the state"):
        TaskRun(late, log).run_to_end()


def test_a_target_of_another_version_is_folded_anew() -> None:
    """Its state names the options of its rows in another way, so that a change of them would pass."""
    lake = build_lake("merge_engine", oldest=0)
    target = lake["t"].commit_run("merge_engine", 10, "MERGE", (), {"fixed": {"merge_engine": "aggregation"}})
    lake = lake.write_table("t", target)

    with pytest.raises(
        DataError, match=r"options .* are not known to this version .run once with full_refresh"
    ):
        open_run("merge_engine", lake, 9, "new").choose_run_mode()
    assert open_run("merge_engine", lake, 9, "new", full_refresh=True).choose_run_mode()[0] == "full"


def test_a_renewed_state_is_no_run() -> None:
    """The run stays the one that an undo undoes and that its own retry finds, with its rows and warnings."""
    table = Table().commit_run("joiner", 1, "WRITE", ("a",), {"token": {"run_id": "r0"}})
    table = table.commit_rows("OPTIMIZE", ("a",)).commit_run("joiner", 2, "WRITE", ("a", "b"), STATE)
    table = renew(renew(table))
    newest = load(table)

    assert (newest.number, newest.run_version, newest.state["token"]) == (4, 4, {"run_id": "r"})
    assert newest.state["renewal"] == {"version": 2, "rows": None}
    assert (newest.warnings, newest.integrity_warnings) == ([], [])
    assert [run.version for run in list_runs(table.read_history(), "joiner")] == [2, 0]
    for config in ({}, {"run": "r"}, {"run": "2"}):
        choice = open_undo(table, **config).choice
        assert choice is not None
        assert (choice.version, [run.version for run in choice.undone], choice.foreign) == (1, [2], [])


def test_an_undo_says_that_the_runs_are_no_longer_in_the_history() -> None:
    """It does not say that nothing is in force, or that there was no such run."""
    table = renew(Table().commit_run("joiner", 1, "WRITE", ("a",), STATE).commit_rows("OPTIMIZE", ("a",)))
    table = replace(table, oldest=2)

    with pytest.raises(DataError, match=r"commits of its runs are no longer in the history"):
        open_undo(table)
    with pytest.raises(DataError, match=r"no run 'r'.*begins with version 2: older runs"):
        open_undo(table, run="r")


def test_never_reset_and_expired_are_three_reasons() -> None:
    """Only a state that has aged out is warned of, and leaves side tables without a name."""
    never = Table(writer="joiner").commit_rows("CREATE TABLE", ())
    run = Table().commit_run("joiner", 1, "WRITE", ("a",), STATE)
    reset = run.commit_run("joiner", 2, "DELETE", (), {"undo": {"restored_version": -1}})
    expired = replace(run.commit_rows("OPTIMIZE", ("a",)), oldest=1)
    runs_by_reason = {NEVER_RUN: load(never), ALL_UNDONE: load(reset), STATE_EXPIRED: load(expired)}

    for reason, previous in runs_by_reason.items():
        is_expired = reason == STATE_EXPIRED
        assert previous.missing_state_reason == reason
        assert previous.find_side_table_version("x") == (UNNAMED if is_expired else None)
        assert any(text.startswith(reason) for text in previous.integrity_warnings) == is_expired


@pytest.mark.parametrize(
    ("is_first", "is_flagged", "oldest", "side_table"),
    [
        (False, False, 1, (UNNAMED, 1)),
        (False, True, 0, (UNNAMED, 1)),
        (False, False, 0, (None, 1)),
        (True, False, 0, (None, 0)),
    ],
)
def test_an_undo_restores_a_side_table_that_lost_its_name(
    is_first: bool, is_flagged: bool, oldest: int, side_table: tuple[int | None, int]
) -> None:
    """The state that names it has aged out, or it came after such a state; else there were no rows before."""
    table = Table()
    if not is_first:
        flag = {HAS_UNNAMED_SIDE_TABLES: True} if is_flagged else {}
        table = table.commit_run("joiner", 1, "WRITE", ("a",), flag).commit_rows("OPTIMIZE", ("a",))
    state = {**STATE, "side_table_versions": {"rejected": 5}}
    table = replace(table.commit_run("joiner", table.number + 1, "WRITE", ("b",), state), oldest=oldest)
    decision = open_undo(table)

    assert [version for _, version in decision.side_tables] == [side_table[0]]
    assert decision.restored_number == side_table[1]


@pytest.mark.parametrize("job", ["merge_load", "joiner", "merge_engine"])
def test_rows_are_not_appended_again_after_the_offsets_are_lost(job: str) -> None:
    """A load appends its source in each DAG run; a join only new inputs, and an engine only new batches."""
    lake = build_lake(job, oldest=0)
    target = lake["t"].commit_rows("OPTIMIZE", ())
    lake = lake.write_table("t", replace(target, oldest=target.newest))
    fields = {"config": {"batch_id": "b"}} if job == "merge_engine" else {}
    decision = open_run(job, lake, 12, "new", **fields)

    if job == "merge_load":
        assert decision.choose_run_mode()[0] == "incremental"
        return
    with pytest.raises(DataError, match=r"no longer in the history of.*full_refresh=True"):
        decision.choose_run_mode()
    assert open_run(job, lake, 12, "new", full_refresh=True, **fields).choose_run_mode()[0] != "noop"
