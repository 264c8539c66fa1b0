"""Run many tasks on one shared server, several at once.

``python -m tests.campaigns.shared --tasks 500 --calm 250 --kills 20``. Some tasks are killed. The server is
killed at regular numbers of tasks, after the first ones, which show whether its memory grows. Each task is
retried as a scheduler does, and has to end as the same run in a Spark process of its own.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random

import psutil

from airflow_merge_provider.core.capabilities import CAPABILITIES
from airflow_merge_provider.spark_process.shared.administration import list_servers, stop_servers
from tests.campaigns.rounds import Rounds, add_seed, choose_seed
from tests.campaigns.snapshot import Content, compare_folders, count_commits, read_folder
from tests.campaigns.workloads import Workload, build_workload

RUN = "run-2"
_ATTEMPTS_MAX = 6
_SECONDS_MAX = 600
_TASKS_OF_A_WORKLOAD = 20
# The share of tasks whose launcher or child process is killed.
_KILLED_SHARE = 0.15
_RETRYABLE = (-9, 1, 5)


@dataclass
class SharedTally:
    """What happened; ``memory`` has the largest resident set of each server, in bytes."""

    tried: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    memory: dict[int, int] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)


@dataclass
class Trials:
    """One workload: its state before the second run, and the content after it."""

    workload: Workload
    folder: Path
    numbers: Iterator[int] = field(default_factory=count)

    def prepare(self) -> None:
        """Make the first run, and the second one in a copy, each in a Spark process of its own."""
        self.template.mkdir(parents=True)
        self.workload.write_sources(self.template, 1)
        self.run_until_done(self.template, 1, mode="process")
        self.workload.write_sources(self.template, 2)
        clean = self.copy_template()
        self.run_until_done(clean, 2, mode="process")
        self.content, self.commits = self.read_content(clean)

    @property
    def template(self) -> Path:
        """The state before the second run."""
        return self.folder / "template"

    def try_task(self, random: Random, tally: SharedTally) -> None:
        """Run one task, perhaps kill it, retry it, and compare its end."""
        lake = self.copy_template()
        kind = "task"
        if random.random() < _KILLED_SHARE:
            kind = random.choice(("killed launcher", "killed child"))
            self._kill_run(lake, kind, random.uniform(0, 4))
        tally.tried[kind] += 1
        began = time.monotonic()
        try:
            attempts = self.run_until_done(lake, 2)
            if kind == "task" and attempts == 1:
                tally.seconds.append(time.monotonic() - began)
            tally.tried["retries"] += attempts - 1
            content, commits = self.read_content(lake)
            compare_folders(self.content, content)
            assert commits == self.commits, f"{commits} commits of the run, not {self.commits}"
        except (AssertionError, subprocess.TimeoutExpired) as error:
            tally.failed.append(f"{self.workload.capability} {self.workload.seed}: {kind}, {lake}: {error}")
        else:
            shutil.rmtree(lake)

    def run_until_done(self, lake: Path, step: int, mode: str = "shared") -> int:
        """Run until it succeeds, as a scheduler retries a task; return the number of attempts."""
        output = ""
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            process = self._start_run(lake, step, mode)
            output, _ = process.communicate(timeout=_SECONDS_MAX)
            if process.returncode == 0:
                return attempt
            assert process.returncode in _RETRYABLE, f"exit code {process.returncode}: {output[-2000:]}"
        raise AssertionError(f"not done after {_ATTEMPTS_MAX} attempts: {output[-2000:]}")

    def copy_template(self) -> Path:
        """Return a copy of the state before the second run."""
        return shutil.copytree(self.template, self.folder / f"lake-{next(self.numbers)}", symlinks=True)

    def read_content(self, lake: Path) -> tuple[Content, int]:
        """Return the rows and files below a folder, and the number of commits of the run."""
        target = self.workload.config.get("target")
        return read_folder(str(lake)), count_commits(lake / target, RUN) if target else 0

    def _kill_run(self, lake: Path, kind: str, seconds: float) -> None:
        process = self._start_run(lake, 2, "shared")
        time.sleep(seconds)
        launcher = psutil.Process(process.pid)
        victims = [launcher] if kind == "killed launcher" else launcher.children()
        for victim in victims:
            victim.kill()
        process.communicate(timeout=_SECONDS_MAX)

    def _start_run(self, lake: Path, step: int, mode: str) -> subprocess.Popen[str]:
        request = self.workload.build_request(lake, step)
        file = self.folder / f"request-{next(self.numbers)}.json"
        file.write_text(request.model_dump_json(), encoding="utf-8")
        return subprocess.Popen(
            [sys.executable, "-m", "airflow_merge_provider", "run", str(file)],
            env={**os.environ, "AIRFLOW__MERGE__LOCAL_SPARK": mode},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the campaign, and print the failures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=100, help="how many (%(default)s)")
    parser.add_argument("--kills", type=int, default=0, help="how often the server is killed (%(default)s)")
    parser.add_argument("--calm", type=int, default=0, help="tasks before the first of them (%(default)s)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="how long at most (no limit)")
    parser.add_argument("--at-once", type=int, default=3, help="tasks at the same time (%(default)s)")
    add_seed(parser)
    options = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="shared-"))
    # The servers of this campaign are those of its folder.
    os.environ["TMPDIR"], tempfile.tempdir = str(folder), None
    tally, began = SharedTally(), time.monotonic()
    seed = choose_seed(options.seed)
    rounds = Rounds(list(CAPABILITIES), seed, options.minutes, complete=options.complete)
    try:
        run_tasks(folder, tally, options, rounds, Random(seed))  # noqa: S311 - repeatable
    finally:
        stop_servers()
    ended = len(tally.memory) - 1 - tally.tried["killed servers"]
    if ended > 0:
        tally.failed.append(f"{ended} servers ended although nobody killed them")
    print_report(tally, time.monotonic() - began)
    if not tally.failed:
        shutil.rmtree(folder)
    return rounds.get_exit_code(len(tally.failed))


def run_tasks(
    folder: Path, tally: SharedTally, options: argparse.Namespace, rounds: Rounds, random: Random
) -> None:
    """Run the tasks of one workload after another, and kill the server at regular numbers of tasks."""
    every = max((options.tasks - options.calm) // options.kills, 1) if options.kills else 0
    started, lock = count(1), threading.Lock()
    remaining, end = options.tasks, time.monotonic() + 60 * options.minutes

    def run_task(trials: Trials, seed: float) -> bool:
        if time.monotonic() > end:
            return False
        with lock:
            number = next(started)
        if every and number > options.calm and (number - options.calm) % every == 0:
            threading.Timer(random.uniform(0, 4), kill_servers, (tally,)).start()
        trials.try_task(Random(seed), tally)  # noqa: S311 - repeatable
        observe_memory(tally)
        return True

    for seed, name in rounds:
        trials = Trials(build_workload(name, seed), folder / f"{name}-{seed}")
        trials.prepare()
        seeds = [random.random() for _ in range(min(remaining, _TASKS_OF_A_WORKLOAD))]
        failed = len(tally.failed)
        with ThreadPoolExecutor(options.at_once) as pool:
            tasks = sum(pool.map(lambda seed, trials=trials: run_task(trials, seed), seeds))
        remaining -= tasks
        memory = {pid: f"{size >> 20} MB" for pid, size in tally.memory.items()}
        print(f"{name} {seed}: {tasks} tasks, {len(tally.failed) - failed} failed; {memory}", flush=True)
        for line in tally.failed[failed:]:
            print(f"    {line[:2000]}", flush=True)
        if len(tally.failed) == failed:
            shutil.rmtree(trials.folder)
        if remaining <= 0:
            break


def kill_servers(tally: SharedTally) -> None:
    """Kill the JVM of each server with SIGKILL."""
    for server in list_servers():
        tally.tried["killed servers"] += 1
        psutil.Process(server.state.server_pid).kill()


def observe_memory(tally: SharedTally) -> None:
    """Record the resident memory of the servers."""
    for server in list_servers():
        pid = server.state.server_pid
        try:
            size = psutil.Process(pid).memory_info().rss
        except psutil.NoSuchProcess:
            continue
        tally.memory[pid] = max(size, tally.memory.get(pid, 0))


def print_report(tally: SharedTally, seconds: float) -> None:
    """Print the numbers of the campaign."""
    for kind, number in sorted(tally.tried.items()):
        print(f"  {kind}: {number}")
    largest = max(tally.memory.values(), default=0) >> 20
    tasks = sorted(tally.seconds)
    median = tasks[len(tasks) // 2] if tasks else 0.0
    print(f"  {len(tally.memory)} servers, at most {largest} MB of memory")
    print(f"  {seconds / 60:.1f} minutes; median of undisturbed tasks {median:.1f} s")
    print(f"  {len(tally.failed)} failed")


if __name__ == "__main__":
    sys.exit(main())
