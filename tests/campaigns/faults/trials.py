"""Trials that disturb a run at each of its steps and compare it with the same run undisturbed."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Literal

from airflow_merge_provider.core.protocol import JobFailure, JobResult
from tests.campaigns.faults.lakes import LocalLakes
from tests.campaigns.faults.launched import LaunchedRun
from tests.campaigns.faults.processes import RunEnd, RunProcess, call_in_process
from tests.campaigns.faults.server import ConnectServer
from tests.campaigns.faults.steps import Fault
from tests.campaigns.snapshot import (
    Content,
    compare_folders,
    count_commits,
    list_ids,
    list_record_ids,
    read_folder,
)
from tests.campaigns.workloads import REUSED, Workload, build_workload, write_file

# The second run, and the run that races against it.
RUN, OTHER_RUN = "run-2", "run-2b"
_ATTEMPTS_MAX = 6
# After this number of trials, the next run is checked too.
_NEXT_RUN_EVERY = 3


@dataclass
class FaultTally:
    """Number of trials by kind; ``failed`` has those with another result than the undisturbed run."""

    tried: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)


class RefusedError(Exception):
    """Raised if a workload is rejected without any fault."""


class FaultTrials:
    """Trials of one workload: the second run is disturbed, and the third run has to succeed."""

    def __init__(
        self,
        capability: str,
        seed: int,
        folder: Path,
        server: ConnectServer,
        tally: FaultTally,
        lakes: LocalLakes,
    ) -> None:
        self._workload: Workload = build_workload(capability, seed)
        self.capability = capability
        self.name = f"{capability} {seed}"
        self.folder = folder
        self._server = server
        self._lakes = lakes
        self.tally = tally
        self._numbers, self._checks = count(1), count(1)
        self._template = folder / "template"
        self._clean_ends: dict[tuple[str, ...], tuple[Content, Content]] = {}
        self._commits = 0
        self.steps = 0
        self.seconds = 0.0

    def prepare_trials(self) -> None:
        """Create the initial state of all trials and the expected results.

        :raises RefusedError: if the workload is rejected.
        """
        self._template.mkdir(parents=True)
        try:
            self._run_clean()
        except AssertionError as error:
            raise RefusedError(f"{self.name}, {dict(self._workload.config)}: {error}") from None

    def _run_clean(self) -> None:
        self._write_sources(self._template, 1)
        self._run_until_done(self._template, 1)
        self._write_sources(self._template, 2)
        clean = self._copy_template()
        end = self._run_until_done(clean, 2)
        self.steps, self.seconds = end.steps, end.seconds
        self._commits = self._count_commits(clean)
        self._clean_ends = {(RUN,): self._make_end(clean)}

    def _find_clean_end(self, run_ids: tuple[str, ...]) -> tuple[Content, Content]:
        """Return the results of undisturbed runs, and the results of the third run after them."""
        if run_ids not in self._clean_ends:
            folder = self._copy_template()
            for run_id in run_ids:
                self._run_until_done(folder, 2, run_id)
            self._clean_ends[run_ids] = self._make_end(folder)
        return self._clean_ends[run_ids]

    def _make_end(self, folder: Path) -> tuple[Content, Content]:
        content = self._read_content(folder)
        self._write_sources(folder, 3)
        self._run_until_done(folder, 3)
        next_content = self._read_content(folder)
        self._remove_lake(folder)
        return content, next_content

    def kill_before(self, step: int) -> None:
        """Kill the driver before a step, and retry."""
        self._try_kill("kill at a step", Fault("kill", step=step))

    def kill_after(self, seconds: float) -> None:
        """Kill the driver at any time, and retry."""
        self._try_kill("kill at a moment", Fault("kill", seconds=seconds))

    def stop_before(self, step: int) -> None:
        """Stop the driver before a step, run the retry to its end, and then resume the first driver."""
        with self._open_trial("zombie beside its retry", step) as folder:
            zombie = self._start_run(folder, 2, fault=Fault("stop", step=step))
            try:
                # A run over files waits until the stopped one has ended, so there are never two at once.
                if zombie.wait_for_stop() and self._workload.capability != "merge_record":
                    self._run_until_done(folder, 2)
                else:
                    require_answer(self._start_run(folder, 2).wait_for_end())
            finally:
                zombie.resume_process()
                end = zombie.wait_for_end()
            require_answer(end)
            self._run_until_done(folder, 2)
            self._check_trial(folder)

    def try_race(self, *, is_same_run: bool) -> None:
        """Start two processes at once, two attempts of a run or two runs, and retry the one that failed."""
        run_ids = (RUN, RUN if is_same_run else OTHER_RUN)
        with self._open_trial(
            "two attempts at once" if is_same_run else "two runs at once", run_ids
        ) as folder:
            both = [self._start_run(folder, 2, run_id) for run_id in run_ids]
            for process in both:
                require_answer(process.wait_for_end())
            for run_id in run_ids:
                self._run_until_done(folder, 2, run_id)
            self._check_trial(folder, is_same_run=is_same_run)

    def kill_launched(self, victim: Literal["launcher", "child"], seconds: float, *, is_local: bool) -> None:
        """Kill the process that a user starts, or the Spark process below it, and retry."""
        kind = "kill of the JVM" if is_local else f"kill of the {victim} of a driver"
        with self._open_trial(kind, seconds) as folder:
            work = self.folder / f"run-{next(self._numbers)}"
            request = self._workload.build_request(self._lakes.locate(folder), 2)
            LaunchedRun(work, request, None if is_local else self._server.get_url()).kill_process(
                victim, seconds
            )
            self._run_until_done(folder, 2)
            self._check_trial(folder)

    def reuse_name(self, step: int) -> None:
        """Kill a run over files, let a new file take the name of one of its sources, and retry."""
        with self._open_trial("name used again after a kill", step) as folder:
            self._start_run(folder, 2, fault=Fault("kill", step=step)).wait_for_end()
            old_ids = list_ids((self._template / "in" / REUSED).read_text(encoding="utf-8"))
            self._fetch_files(folder)
            write_file(folder, REUSED, '{"id": "new"}\n', "9")
            self._send_files(folder)
            self._run_until_done(folder, 2)
            flushing = replace(self._workload, config={**self._workload.config, "flush": True})
            for number in (4, 5):
                self._run_until_done(folder, number, workload=flushing)
            self._fetch_files(folder)
            ids = list_record_ids(folder)
            is_kept = self._workload.config["original_action"] == "keep"
            folders = ("in", *(() if is_kept else ("merged", "failure")))
            expected_ids = list_record_ids(self._template, *folders) + Counter(["new"])
            replaced = {ids[record_id] for record_id in old_ids}
            assert replaced in ({0}, {1}), f"{old_ids} are there {replaced} times"
            for record_id in old_ids:
                del ids[record_id], expected_ids[record_id]
            assert ids == expected_ids, f"more {ids - expected_ids}, less {expected_ids - ids}"

    def _try_kill(self, kind: str, fault: Fault) -> None:
        with self._open_trial(kind, fault) as folder:
            self._start_run(folder, 2, fault=fault).wait_for_end()
            self._run_until_done(folder, 2)
            self._check_trial(folder)

    @contextmanager
    def _open_trial(self, kind: str, detail: object) -> Iterator[Path]:
        """Return a copy of the template, and record the result of a trial in it."""
        folder = self._copy_template()
        self.tally.tried[kind] += 1
        try:
            yield folder
        except (AssertionError, TimeoutError) as error:
            self.tally.failed.append(f"{self.name}: {kind}, {detail}: {error}")
            # The folder of a failed trial is kept for inspection.
            self._fetch_files(folder)
            folder.rename(self.folder / f"failed-{len(self.tally.failed)}-{folder.name}")
        else:
            self._remove_lake(folder)

    def _check_trial(self, folder: Path, *, is_same_run: bool = True) -> None:
        """Compare the content with that of the undisturbed run, also after the next run."""
        content, next_content = self._find_clean_end((RUN,) if is_same_run else (RUN, OTHER_RUN))
        compare_folders(content, self._read_content(folder))
        if is_same_run:
            commits = self._count_commits(folder)
            assert commits == self._commits, f"{commits} commits of the run, not {self._commits}"
        if next(self._checks) % _NEXT_RUN_EVERY:
            return
        self._write_sources(folder, 3)
        end = self._run_until_done(folder, 3)
        compare_folders(next_content, self._read_content(folder))
        if isinstance(end.answer, JobResult) and end.answer.report.counts.get("merged"):
            # A job of a killed driver may write files after the retry; the next run with merges removes them.
            staging_names = sorted(path.name for path in folder.rglob("_staging-*"))
            assert staging_names == [], f"nobody removes {staging_names}"

    def _run_until_done(
        self, folder: Path, step: int, run_id: str | None = None, workload: Workload | None = None
    ) -> RunEnd:
        """Run until it succeeds, as a scheduler retries a task."""
        message = ""
        for _ in range(_ATTEMPTS_MAX):
            end = self._start_run(folder, step, run_id, workload=workload).wait_for_end()
            require_answer(end)
            if not isinstance(end.answer, JobFailure):
                return end
            message = end.answer.message
        raise AssertionError(f"not done after {_ATTEMPTS_MAX} attempts: {message}")

    def _start_run(
        self,
        folder: Path,
        step: int,
        run_id: str | None = None,
        *,
        fault: Fault | None = None,
        workload: Workload | None = None,
    ) -> RunProcess:
        request = (workload or self._workload).build_request(self._lakes.locate(folder), step, run_id)
        work = self.folder / f"run-{next(self._numbers)}"
        return RunProcess(work, request, self._server.get_url(), fault)

    def _copy_template(self) -> Path:
        self._fetch_files(self._template)
        copy = shutil.copytree(self._template, self.folder / f"lake-{next(self._numbers)}", symlinks=True)
        self._send_files(copy)
        return copy

    def _remove_lake(self, folder: Path) -> None:
        call_in_process(self._lakes.drop_files, self.folder, folder)
        shutil.rmtree(folder)

    def _fetch_files(self, folder: Path) -> None:
        call_in_process(self._lakes.fetch_files, self.folder, folder)

    def _send_files(self, folder: Path) -> None:
        call_in_process(self._lakes.send_files, self.folder, folder)

    def _write_sources(self, folder: Path, step: int) -> None:
        self._fetch_files(folder)
        call_in_process(self._workload.write_sources, self.folder, folder, step)
        self._send_files(folder)

    def _read_content(self, folder: Path) -> Content:
        self._fetch_files(folder)
        location = self._lakes.locate(folder)
        content: Content = call_in_process(read_folder, self.folder, str(folder), location)
        # Of two runs at once, either may be the one that reads the changes and names its rejected rows.
        return {
            name: sorted(text.replace(OTHER_RUN, RUN) for text in texts) for name, texts in content.items()
        }

    def _count_commits(self, folder: Path) -> int:
        self._fetch_files(folder)
        target = self._workload.config.get("target")
        return count_commits(folder / target, RUN) if target else 0


def require_answer(end: RunEnd) -> None:
    """Check that a process has answered, and that its failure, if any, can be retried."""
    assert end.answer is not None, f"killed by nobody: {end.log[-2000:]}"
    failure = end.answer
    if isinstance(failure, JobFailure):
        assert failure.retryable, f"{failure.code}: {failure.message}\n{failure.trace}"
        assert failure.code == "conflict", f"{failure.code}: {failure.message}\n{failure.trace}"
