"""Sequences of runs and undos of any depth, some of them killed: ``python -m tests.campaigns.faults.undos``.

After each undo all tables are as before the runs that it has undone. At the end they are as after the runs in
force alone, over the same sources.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.protocol import JobFailure, JobRequest
from tests.campaigns.faults.processes import RunEnd, RunProcess, call_in_process, import_jobs
from tests.campaigns.faults.server import ConnectServer
from tests.campaigns.faults.steps import Fault
from tests.campaigns.rounds import Rounds, add_seed, choose_seed
from tests.campaigns.snapshot import (
    NUMBERS_OF_IDS,
    NUMBERS_OF_RUNS,
    Content,
    compare_folders,
    drop_columns,
    drop_empty_tables,
    read_folder,
)
from tests.campaigns.workloads import build_workload

CAPABILITIES = ("merge_load", "merge_engine", "merge_source", "joiner", "merge_record")
_STEPS = 5
_ATTEMPTS_MAX = 6
_UNDO_SHARE, _UNDO_AGAIN_SHARE, _KILL_SHARE = 0.7, 0.3, 0.35


@dataclass
class UndoTally:
    """What was tried, and the sequences that failed."""

    tried: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ForcedRun:
    """A run in force: its step, its ID, and the content of the tables before it."""

    step: int
    run_id: str
    before: Content


class RefusedRunError(AssertionError):
    """Raised if a run refuses the data of its workload, which only a run may do, not an undo."""


class UndoSequence:
    """One sequence over a workload, repeatable by the seed."""

    def __init__(
        self, capability: str, seed: int, folder: Path, server: ConnectServer, tally: UndoTally
    ) -> None:
        self._workload = build_workload(capability, seed)
        self.name = f"{capability} {seed} {dict(self._workload.config)}"
        self._folder, self._server, self._tally = folder, server, tally
        self._random = Random(f"{capability}/{seed}/undos")  # noqa: S311 - repeatable
        self._numbers = count(1)
        self._runs: list[ForcedRun] = []
        self._actions: list[str] = []
        # The steps of the last run and of the last undo, at which the next one may be killed.
        self._steps = {"run": 30, "undo": 10}

    @property
    def has_undos(self) -> bool:
        """Whether the workload writes one Delta table, or files whose originals are not deleted."""
        config = self._workload.config
        if self._has_files:
            return bool(config["original_action"] != "delete")
        return "dispatch_by" not in config

    @property
    def _has_files(self) -> bool:
        return self._workload.capability == "merge_record"

    def try_sequence(self) -> None:
        """Run and undo, then repeat the runs in force without the others, and compare."""
        if not self.has_undos:
            return
        lake, clean = self._folder / "lake", self._folder / "clean"
        for folder in (lake, clean):
            folder.mkdir(parents=True)
        self._tally.tried["sequences"] += 1
        try:
            for step in range(1, _STEPS + 1):
                self._write_sources(lake, step)
                self._run_step(lake, step)
                if self._runs and self._random.random() < _UNDO_SHARE:
                    self._undo_runs(lake, step)
            for step in range(1, _STEPS + 1):
                self._write_sources(clean, step)
                if any(run.step == step for run in self._runs):
                    self._run_until_done(self._workload.build_request(clean, step))
            compare_folders(self._read_content(clean), self._read_content(lake))
        except (AssertionError, TimeoutError) as error:
            self._tally.failed.append(f"{self.name}, {self._actions}: {error}")
            print(f"    {self._tally.failed[-1][:2000]}", flush=True)
        else:
            shutil.rmtree(self._folder)

    def _run_step(self, lake: Path, step: int) -> None:
        before = self._read_content(lake)
        try:
            report = self._run_disturbed(self._workload.build_request(lake, step), "run")
        except RefusedRunError:
            # Random decisions about entities can contradict each other; such a run writes nothing.
            self._actions.append(f"refused run {step}")
            self._tally.tried["refused runs"] += 1
            compare_folders(before, self._read_content(lake))
            return
        self._actions.append(f"run {step}")
        # A merge record also takes back a run that has only opened bins.
        if report["changed"] or (self._has_files and report["run_mode"] != "noop"):
            self._runs.append(ForcedRun(step, f"run-{step}", before))

    def _undo_runs(self, lake: Path, step: int) -> None:
        """Undo some of the newest runs, and perhaps the undo."""
        depth = self._random.randint(1, len(self._runs))
        runs, content = list(self._runs), self._read_content(lake)
        undo_id = self._undo(lake, step, runs[-depth].run_id if depth > 1 else None, depth)
        compare_folders(*map(_drop_arrivals, (runs[-depth].before, self._read_content(lake))))
        self._runs = runs[:-depth]
        if not self._has_files and self._random.random() < _UNDO_AGAIN_SHARE:
            self._undo(lake, step, undo_id, 0)
            compare_folders(content, self._read_content(lake))
            self._runs = runs

    def _undo(self, lake: Path, step: int, run_id: str | None, depth: int) -> str:
        """Undo a run and all later ones, or an undo if ``depth`` is 0; return the ID of the undo."""
        undo_id = f"undo-{next(self._numbers)}"
        request = self._workload.build_request(lake, step, undo_id)
        choice = {} if run_id is None else {"run": run_id}
        config = {"target": request.config["state_path" if self._has_files else "target"], **choice}
        report = self._run_disturbed(request.model_copy(update={"job": "undo", "config": config}), "undo")
        self._actions.append(f"undo {depth}" if depth else "undo the undo")
        self._tally.tried[f"undos of {depth} runs" if depth else "undos of undos"] += 1
        # Later runs that have only moved the offsets of their sources are undone with it.
        changing_runs = {run.run_id for run in self._runs}
        undone_ids = [run["run_id"] for run in report["details"]["undone"]]
        passed = sum(run_id not in changing_runs for run_id in undone_ids)
        assert report["counts"]["runs"] - passed == depth, report
        return undo_id

    def _run_disturbed(self, request: JobRequest, kind: str) -> Mapping[str, Any]:
        """Run a request, perhaps kill it at one of its steps first, and return its report."""
        if self._random.random() < _KILL_SHARE:
            fault = Fault("kill", step=self._random.randint(1, self._steps[kind]))
            if self._start_run(request, fault).wait_for_end().is_killed:
                self._tally.tried[f"killed {kind}s"] += 1
                self._actions.append(f"kill {kind} at {fault.step}")
        end = self._run_until_done(request)
        self._steps[kind] = max(end.steps, 1)
        assert end.answer is not None
        return end.answer.report.as_json()

    def _run_until_done(self, request: JobRequest) -> RunEnd:
        """Run until it succeeds, as a scheduler retries a task."""
        message = ""
        for _ in range(_ATTEMPTS_MAX):
            end = self._start_run(request).wait_for_end()
            assert end.answer is not None, f"killed by nobody: {end.log[-2000:]}"
            if not isinstance(end.answer, JobFailure):
                return end
            message = end.answer.message
            if end.answer.code == DataError.code:
                raise RefusedRunError(message)
            assert end.answer.retryable, f"{end.answer.code}: {message}"
        raise AssertionError(f"not done after {_ATTEMPTS_MAX} attempts: {message}")

    def _start_run(self, request: JobRequest, fault: Fault | None = None) -> RunProcess:
        work = self._folder / f"process-{next(self._numbers)}"
        return RunProcess(work, request, self._server.get_url(), fault)

    def _write_sources(self, folder: Path, step: int) -> None:
        call_in_process(self._workload.write_sources, self._folder, folder, step)

    def _read_content(self, folder: Path) -> Content:
        """Return the rows of the target and of its side tables, without numbers of runs and IDs."""
        content: Content = call_in_process(read_folder, self._folder, str(folder))
        if self._has_files:
            return content
        target = str(self._workload.config["target"])
        named = {self._workload.config.get(name) for name in ("changelog", "unmatched")}
        own = {name: rows for name, rows in content.items() if name.startswith(target) or name in named}
        dropped = NUMBERS_OF_RUNS + NUMBERS_OF_IDS
        return drop_empty_tables(
            {name: sorted(drop_columns(row, dropped) for row in rows) for name, rows in own.items()}
        )


def _drop_arrivals(content: Content) -> Content:
    """Return the content without the folder in which source files wait: more have arrived meanwhile."""
    return {name: rows for name, rows in content.items() if name.split()[0] != "in"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the campaign, and print the failures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, default=20, help="how many (%(default)s)")
    parser.add_argument("--minutes", type=float, default=60, help="how long at most (%(default)s)")
    add_seed(parser)
    parser.add_argument("--only", choices=CAPABILITIES, nargs="+", default=list(CAPABILITIES))
    parser.add_argument("--remote", help="a Spark Connect server on this machine; otherwise one is started")
    options = parser.parse_args(argv)
    tally, folder = UndoTally(), Path(mkdtemp(prefix="undos-"))
    began = time.monotonic()
    rounds = Rounds(options.only, choose_seed(options.seed), options.minutes, complete=options.complete)
    with ConnectServer(options.remote) as server:
        import_jobs(server.get_url())
        for seed, capability in rounds:
            UndoSequence(capability, seed, folder / f"{capability}-{seed}", server, tally).try_sequence()
            if tally.tried["sequences"] >= options.sequences:
                break
    for kind, number in sorted(tally.tried.items()):
        print(f"  {kind}: {number}")
    print(f"  {(time.monotonic() - began) / 60:.1f} minutes, {len(tally.failed)} failed")
    if not tally.failed:
        shutil.rmtree(folder)
    return rounds.get_exit_code(len(tally.failed))


if __name__ == "__main__":
    sys.exit(main())
