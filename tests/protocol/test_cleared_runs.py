"""Test that a run is not repeated if nobody can tell whether it has appended its rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_merge_provider.core.capabilities import CAPABILITIES
from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.joiner import decision as joiner
from airflow_merge_provider.core.merge_engine import decision as merge_engine
from airflow_merge_provider.core.merge_load import decision as merge_load
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.decision import RunDecision
from airflow_merge_provider.core.run.reporter import Progress
from tests.protocol.lake import DAY, Lake, LakeLog

JOIN = {"inputs": {"a": "s", "b": "s"}, "join_keys": "a.k = b.k", "write_mode": "append"}
APPENDING: dict[str, tuple[Any, dict[str, Any]]] = {
    "merge_load": (merge_load, {"strategy": "delete-insert", "source": "s"}),
    "joiner": (joiner, JOIN),
    "merge_engine": (merge_engine, {"source": "s", "primary_key": "k", "incremental": False}),
}
RUNS = 9


def open_run(job: str, lake: Lake, day: float, run: str = "r", **fields: Any) -> RunDecision:
    """Return the decision about a run whose DAG run was created on a day, and was cleared since."""
    module, config = APPENDING[job]
    request = JobRequest.model_validate(
        {
            "job": job,
            "config": {"target": "t", **config, **fields.pop("config", {})},
            "run": RunToken(dag_id="d", task_id="t", run_id=run, clear_number=fields.pop("clear_number", 1)),
            "warehouse": "/lake",
            "started_at": RUNS * DAY * 1000,
            "run_after": int(day * DAY * 1000),
            **fields,
        }
    )
    config_class = CAPABILITIES[job].config
    decision: RunDecision = module.open_run(
        LakeLog(lake), config_class.parse(request.config), request, Progress(lambda _: None)
    )
    return decision


@pytest.mark.parametrize("job", APPENDING)
def test_the_target_is_looked_up_before_the_sources(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that reads newer sources and commits in between is a conflict, not one that is overwritten."""
    lake, reads = build_lake(job, oldest=0), list[str]()

    def record(read: Any) -> Any:
        def record_read(log: LakeLog, dataset: Any, *more: Any) -> Any:
            reads.append(dataset.uri)
            return read(log, dataset, *more)

        return record_read

    for name in ("read_history", "find_newest_version"):
        monkeypatch.setattr(LakeLog, name, record(getattr(LakeLog, name)))

    open_run(job, lake, 9, "new")

    assert reads.index("/lake/s") > reads.index("/lake/t")


def build_lake(job: str, oldest: int) -> Lake:
    """Return a lake whose target has a commit of a run on each day, of which the log has the last ones."""
    lake = Lake()
    lake = lake.write_table("s", lake["s"].commit_rows("WRITE", ("b0",)))
    target = lake["t"]
    for number in range(RUNS):
        token = RunToken(dag_id="d", task_id="t", run_id=f"r{number}").model_dump()
        state = {"token": token, "immutable_options": {}}
        target = target.commit_run(job, number + 1, "WRITE", (), state)
    return lake.write_table("t", replace(target, oldest=oldest))


@pytest.mark.parametrize("job", APPENDING)
def test_a_run_older_than_the_history_does_not_append_again(job: str) -> None:
    """Its commit may have aged out. A newer run, one whose commit is known, and a full refresh go on."""
    lake = build_lake(job, oldest=5)

    with pytest.raises(
        DataError, match="the history of /lake/t begins after this DAG run: nobody can"
    ) as raised:
        open_run(job, lake, 3, "r3").find_own_commit()
    effect = "append them all once more" if job == "joiner" else "replace all rows"
    assert f"{effect} with full_refresh=True" in str(raised.value)
    assert open_run(job, lake, 3, "r3", full_refresh=True).find_own_commit() is None
    assert open_run(job, lake, 6, "new").find_own_commit() is None
    # A backfill: the DAG run is new, and stands for an earlier day.
    assert open_run(job, lake, 3, "backfill", clear_number=0).find_own_commit() is None
    assert open_run(job, build_lake(job, oldest=0), 3, "new").find_own_commit() is None
    commit = open_run(job, lake, 6, "r6").find_own_commit()
    assert commit is not None
    assert commit.version == 6


def test_a_batch_that_the_target_may_have_dropped_is_not_folded_again() -> None:
    """The target names its last 100 batches: an older DAG run may have folded its batch before."""
    lake = build_lake("merge_engine", oldest=0)
    for number in range(104):
        decision = open_run(
            "merge_engine", lake, 50 + number, started_at=(50 + number) * DAY * 1000, **name(number)
        )
        assert decision.choose_run_mode()[0] != "noop"
        state = {**decision.build_batches(), "immutable_options": {}}  # type: ignore[attr-defined]
        target = lake["t"]
        token = RunToken(dag_id="d", task_id="t", run_id=f"s{number}").model_dump()
        target = target.commit_run("merge_engine", target.number + 1, "MERGE", (), {**state, "token": token})
        lake = lake.write_table("t", target)

    assert open_run("merge_engine", lake, 60, **name(60)).choose_run_mode()[0] == "noop"
    # It failed on its day, and is repeated now.
    assert open_run("merge_engine", lake, 60, **name(200)).choose_run_mode()[0] != "noop"
    for number in (3, 200):
        with pytest.raises(DataError, match=f"batch_id: batch 'b{number}' may have been folded"):
            open_run("merge_engine", lake, 53, **name(number)).choose_run_mode()
    assert open_run("merge_engine", lake, 53, full_refresh=True, **name(3)).choose_run_mode()[0] == "full"
    assert open_run("merge_engine", lake, 53, clear_number=0, **name(200)).choose_run_mode()[0] == "full"


def name(number: int) -> dict[str, Any]:
    return {"config": {"batch_id": f"b{number}"}}
