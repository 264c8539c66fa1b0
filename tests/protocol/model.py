"""The steps of runs and undos over a lake: decided by the package, and written to tables in memory.

A merge engine folds a source into a target and appends to a change log. Its step ``find`` reads all logs, and
each further step is one commit. Between two steps anything else may happen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from airflow_merge_provider.core.capabilities import JOBS
from airflow_merge_provider.core.errors import ConflictError, DataError, UnrevertedError
from airflow_merge_provider.core.merge_engine import decision as merge_engine
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.previous_run import (
    SIDE_TABLE_LOCATIONS,
    SIDE_TABLE_VERSIONS,
    UNNAMED,
    PreviousRun,
)
from airflow_merge_provider.core.run.reporter import Progress, RunResult
from airflow_merge_provider.core.run.table_log import RUN, SideTableHistory
from airflow_merge_provider.core.source_offset import write_offsets
from airflow_merge_provider.core.table_history import NO_VERSION, RESTORED_VERSION, UNDO, trace_lineage
from airflow_merge_provider.core.undo import decision as undo
from tests.protocol.lake import Lake, LakeLog, Rows, Table

# The row that another writer adds to the target.
FOREIGN, FOREIGN_OPERATION = "foreign", "WRITE"
SOURCE, TARGET, CHANGES, LOG = "changes", "state", "log", "merge_engine_changelog"
ENGINE = merge_engine.JOB
CONFIG = {"source": SOURCE, "target": TARGET, "primary_key": "k", "changelog": CHANGES}
Step = Literal["find", "restore", "write", "check", "commit", "verify", "done"]


@dataclass(frozen=True, slots=True)
class Work:
    """What an attempt has to do: the previous run, what it will commit, and its side table.

    ``side_version`` is the version of the change log that belongs to the run's rows, ``version`` that of the
    run's commit.
    """

    last: PreviousRun | None
    operation: str
    rows: Rows
    gained: Rows
    state: Mapping[str, Any]
    side: SideTableHistory
    side_number: int
    side_version: int | None
    version: int | None = None

    @property
    def since(self) -> int:
        """The version of the target that the run found; -1 if there was none."""
        return -1 if self.last is None else self.last.version

    @property
    def side_since(self) -> int:
        """The newest version of the change log that the run knows; -1 if there was none."""
        return self.side.entries[0].version if self.side.entries else -1


@dataclass(frozen=True, slots=True)
class Process:
    """An attempt of a run or of an undo, and the step that it does next."""

    run: str
    job: Literal["fold", "undo"] = "fold"
    step: Step = "find"
    work: Work | None = None
    outcome: str = ""
    full_refresh: bool = False

    def advance(self, lake: Lake) -> tuple[Process, Lake]:
        """Do one step; a conflict or a refusal ends the attempt."""
        try:
            return _STEPS[self.step](self, lake)
        except ConflictError:
            return self.end("conflict"), lake
        except UnrevertedError:
            return self.end("unreverted"), lake
        except DataError as error:
            return self.end(f"refused: {error}"), lake

    def end(self, outcome: str) -> Process:
        """Return the process after its last step."""
        return replace(self, step="done", work=None, outcome=outcome)


def build_request(process: Process, lake: Lake | None = None) -> JobRequest:
    """Return the request of each attempt of a run, which starts after the newest commit of the target."""
    started_at = max(1, lake[TARGET].time * 1000) if lake else 1
    token = RunToken(dag_id="d", task_id=process.job, run_id=process.run)
    config = CONFIG if process.job == "fold" else {"target": TARGET}
    job = ENGINE if process.job == "fold" else "undo"
    return JobRequest(
        job=job, config=config, run=token, warehouse="/lake", started_at=started_at,
        full_refresh=process.full_refresh,
    )  # fmt: skip


def _find_work(process: Process, lake: Lake) -> tuple[Process, Lake]:
    progress, log = Progress(out=lambda _: None), LakeLog(lake)
    request = build_request(process, lake)
    capability = JOBS[request.job]
    assert capability.open_run is not None
    decision: Any = capability.open_run(log, capability.config.parse(request.config), request, progress)
    if decision.find_own_commit() is not None:
        return process.end("reported"), lake
    run_mode, reason = decision.choose_run_mode()
    if run_mode == "noop":
        if decision.last is None or not decision.last.is_expiring:
            return process.end("noop"), lake
        return replace(process, step="check", work=_find_renewal(decision.last, lake)), lake
    if process.job == "undo":
        work = _find_undo(decision, lake)
    else:
        work = _find_fold(decision, RunResult(run_mode, reason, counts={}), lake)
    return replace(process, step="restore", work=work), lake


def _find_renewal(last: PreviousRun, lake: Lake) -> Work:
    """Return what a run without work commits before the log loses the state of the previous run."""
    version = last.side_table_versions.get(LOG)
    rows, state, side = lake[TARGET].read_rows(last.version), last.renewed_state, _open_log(lake, version, 0)
    return Work(last, "WRITE", rows, (), state, side, lake[CHANGES].number, version)


def _find_fold(decision: merge_engine.FoldDecision, result: RunResult, lake: Lake) -> Work:
    last, since = decision.last, decision.since
    gained = lake[SOURCE].rows[len(lake[SOURCE].read_rows(since)) :]
    is_overwrite = last is None or decision.request.full_refresh
    rows = () if is_overwrite or last is None else lake[TARGET].read_rows(last.version)
    side = _open_log(lake, last.find_side_table_version(LOG), last.run_number) if last else _open_log(lake)
    state = {
        **decision.reporter.build_state(result),
        **write_offsets([decision.source.offset]),
        SIDE_TABLE_LOCATIONS: {LOG: f"/lake/{CHANGES}"},
        merge_engine.IMMUTABLE_OPTIONS: {},
    }
    operation = "MERGE" if last else "CREATE TABLE AS SELECT"
    return Work(last, operation, rows + gained, gained, state, side, lake[CHANGES].number, None)


def _find_undo(decision: undo.UndoDecision, lake: Lake) -> Work:
    choice = decision.choice
    version = NO_VERSION if choice is None else choice.version
    state = {**decision.reporter.build_state(decision.build_result()), UNDO: {RESTORED_VERSION: version}}
    goals = [table.version for table in decision.side_tables]
    side = _open_log(lake, goals[0] if goals else None, decision.restored_number)
    operation, rows = (
        ("DELETE", ()) if version == NO_VERSION else ("RESTORE", lake[TARGET].read_rows(version))
    )
    return Work(decision.last, operation, rows, (), state, side, lake[CHANGES].number, None)


def _open_log(lake: Lake, version: int | None = None, run_number: int = 0) -> SideTableHistory:
    entries = lake[CHANGES].read_history()
    lineage = trace_lineage(entries, lambda _: None)
    side = SideTableHistory(LOG, version if entries else None, run_number, entries, lineage)
    return replace(side, version=side.find_committed_version()) if side.version == UNNAMED else side


def _restore_log(process: Process, lake: Lake) -> tuple[Process, Lake]:
    """Revert what belongs to no run in force."""
    work, table = _require(process), lake[CHANGES]
    if process.job == "undo":
        # An undo opens the side table in this step.
        side = _open_log(lake, work.side.version, work.side.run_number)
        work = replace(work, side=side, side_number=table.number)
    version = work.side.find_restored_version()
    if version is not None:
        table = table.commit_rows("RESTORE", table.read_rows(version), restored=version)
        lake = lake.write_table(CHANGES, table)
        work = replace(work, side=_open_log(lake, work.side.version, work.side.run_number))
    is_cleared = process.job == "undo" and work.side.version is None and _has_log_changes(work, table)
    step: Step = "write" if process.job == "fold" or is_cleared else "check"
    return replace(process, step=step, work=work), lake


def _has_log_changes(work: Work, table: Table) -> bool:
    versions = {} if work.last is None else work.last.side_table_versions
    return bool(table.commits) and LOG in versions


def _write_log(process: Process, lake: Lake) -> tuple[Process, Lake]:
    """Append the changes of a run, or delete those of all runs."""
    work, table = _require(process), lake[CHANGES]
    number = 1 + (work.last.number if work.last else 0)
    is_first = work.side.version is None
    rows = () if process.job == "undo" else (() if is_first else table.rows) + work.gained
    operation = "DELETE" if process.job == "undo" else "WRITE" if table.commits else "CREATE TABLE AS SELECT"
    table.require_unchanged(work.side_since)
    table = table.commit_run(LOG, work.side_number + 1, operation, rows, {RUN: number})
    work = replace(work, side_version=table.newest)
    return replace(process, step="check", work=work), lake.write_table(CHANGES, table)


def _check_target(process: Process, lake: Lake) -> tuple[Process, Lake]:
    lake[TARGET].require_unchanged(_require(process).since)
    return replace(process, step="commit"), lake


def _commit_target(process: Process, lake: Lake) -> tuple[Process, Lake]:
    work, table = _require(process), lake[TARGET]
    versions = {} if work.side_version is None else {LOG: work.side_version}
    state = work.state if process.job == "undo" else {**work.state, SIDE_TABLE_VERSIONS: versions}
    number = 1 + (work.last.number if work.last else 0)
    table = table.commit_run(ENGINE, number, work.operation, work.rows, state)
    work = replace(work, version=table.newest)
    return replace(process, step="verify", work=work), lake.write_table(TARGET, table)


def _verify_target(process: Process, lake: Lake) -> tuple[Process, Lake]:
    """Revert a commit that was made without knowledge of another one."""
    work, table = _require(process), lake[TARGET]
    version = table.newest if work.version is None else work.version
    if table.find_change(work.since, version) is None:
        return process.end("committed"), lake
    if table.newest > version:
        return process.end("unreverted"), lake
    table = table.commit_rows("RESTORE", table.read_rows(version - 1), restored=version - 1)
    return process.end("conflict"), lake.write_table(TARGET, table)


def _require(process: Process) -> Work:
    if process.work is None:
        raise AssertionError(process)
    return process.work


_STEPS = {
    "find": _find_work, "restore": _restore_log, "write": _write_log, "check": _check_target,
    "commit": _commit_target, "verify": _verify_target,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class World:
    """A lake, the attempts over it, and what else may still happen to it, each once.

    Events: ``append`` to the source, ``optimize``, ``foreign`` (a writer adds to the target), ``wait``
    (20 days pass), ``expire`` (its log loses all commits but the newest), ``crash`` (an attempt ends, and a
    retry begins).
    """

    lake: Lake
    processes: tuple[Process, ...]
    events: tuple[str, ...] = ()

    @property
    def foreign_rows(self) -> Rows:
        """The rows that another writer has added to the target."""
        entries = (entry for entry, _ in self.lake[TARGET].commits)
        return tuple(
            FOREIGN
            for entry in entries
            if entry.operation == FOREIGN_OPERATION and entry.user_metadata is None
        )

    @property
    def key(self) -> Any:
        """A value that is equal for worlds with the same future."""
        return self.lake.describe(), tuple(map(repr, self.processes)), tuple(sorted(self.events))

    def list_next(self) -> Iterator[World]:
        """Yield the worlds after each step that can be next."""
        for number, process in enumerate(self.processes):
            if process.step != "done":
                advanced, lake = process.advance(self.lake)
                yield replace(self, lake=lake, processes=self._replace_process(number, advanced))
        for number, event in enumerate(self.events):
            events = self.events[:number] + self.events[number + 1 :]
            if event != "crash":
                yield replace(self, lake=change(event, self.lake), events=events)
                continue
            for position, process in enumerate(self.processes):
                if process.step not in {"find", "done"}:
                    retry = replace(process, step="find", work=None)
                    yield replace(self, processes=self._replace_process(position, retry), events=events)

    def _replace_process(self, number: int, process: Process) -> tuple[Process, ...]:
        return (*self.processes[:number], process, *self.processes[number + 1 :])


def change(event: str, lake: Lake) -> Lake:
    """Return the lake after an event that is no step of a run."""
    target = lake[TARGET]
    if event == "append":
        return append_batch(lake)
    if not target.commits:
        return lake
    if event == "expire":
        return lake.write_table(TARGET, replace(target, oldest=target.newest))
    if event == "wait":
        return lake.write_table(TARGET, target.commit_rows("OPTIMIZE", target.rows, days=20))
    rows = (*target.rows, FOREIGN) if event == "foreign" else target.rows
    operation = FOREIGN_OPERATION if event == "foreign" else "OPTIMIZE"
    return lake.write_table(TARGET, target.commit_rows(operation, rows))


def append_batch(lake: Lake) -> Lake:
    """Append the next batch to the source."""
    source = lake[SOURCE]
    return lake.write_table(SOURCE, source.commit_rows("WRITE", (*source.rows, f"b{len(source.rows)}")))


def settle(lake: Lake, name: str = "last") -> tuple[Lake, list[str]]:
    """Run alone until nothing is left to do; return the outcomes of the runs."""
    outcomes = []
    for number in range(3):
        process = Process(f"{name}-{number}")
        while process.step != "done":
            process, lake = process.advance(lake)
        outcomes.append(process.outcome)
        if process.outcome != "committed":
            break
    return lake, outcomes
