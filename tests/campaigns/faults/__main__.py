"""Disturb runs for some minutes: ``python -m tests.campaigns.faults --minutes 5 [--seed N] [--store s3]``.

On S3, the server is on this machine, behind a proxy that delays each write of a log entry.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import mkdtemp

from airflow_merge_provider.core.capabilities import CAPABILITIES
from airflow_merge_provider.core.object_store.clients import add_spark_settings
from tests.campaigns.faults.lakes import LocalLakes, S3Lakes
from tests.campaigns.faults.processes import import_jobs
from tests.campaigns.faults.server import ConnectServer
from tests.campaigns.faults.trials import FaultTally, FaultTrials, RefusedError
from tests.campaigns.rounds import Rounds, add_seed, choose_seed
from tests.s3_server import run_s3

_TRIALS_OF_A_WORKLOAD = 30
# Of a write of a log entry on S3, in seconds.
_DELAY_MAX = 0.2
# Interval of random numbers that selects the kinds of trials.
_DRAWS = {"all": (0.0, 1.0), "kills": (0.0, 0.7), "races": (0.78, 1.0)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the campaign, and print the failures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5, help="how long (%(default)s)")
    add_seed(parser)
    parser.add_argument(
        "--trials", type=int, default=_TRIALS_OF_A_WORKLOAD, help="of each workload (%(default)s)"
    )
    parser.add_argument("--only", choices=CAPABILITIES, nargs="+", default=list(CAPABILITIES))
    parser.add_argument("--kinds", choices=_DRAWS, default="all", help="of trials (%(default)s)")
    parser.add_argument("--workloads", type=int, help="how many seeds, whatever time it takes")
    parser.add_argument("--remote", help="a Spark Connect server on this machine; otherwise one is started")
    parser.add_argument("--store", choices=("local", "s3"), default="local", help="(%(default)s)")
    options = parser.parse_args(argv)
    tally = FaultTally()
    first, minutes = choose_seed(options.seed), options.minutes if options.workloads is None else math.inf
    rounds = Rounds(options.only, first, minutes, complete=options.complete)
    folder = Path(mkdtemp(prefix="faults-"))
    with _open_lakes(options.store) as (lakes, conf), ConnectServer(options.remote, conf) as server:
        import_jobs(server.get_url())
        for seed, capability in rounds:
            if options.workloads is not None and seed >= first + options.workloads:
                break
            trials_folder = folder / f"{capability}-{seed}"
            fault_trials = FaultTrials(capability, seed, trials_folder, server, tally, lakes)
            try_workload(fault_trials, options.trials, _DRAWS[options.kinds])
    print_report(tally)
    if not tally.failed:
        shutil.rmtree(folder)
    else:
        print(f"  the folders of what failed are in {folder}")
    return rounds.get_exit_code(len(tally.failed))


@contextmanager
def _open_lakes(store: str) -> Iterator[tuple[LocalLakes, dict[str, str]]]:
    """Return where the lakes are, and the settings with which Spark reaches them."""
    if store == "local":
        yield LocalLakes(), {}
        return
    with run_s3() as server:
        server.change_behaviour(delay_max=_DELAY_MAX)
        os.environ.update(server.settings.as_delta_rs())
        yield S3Lakes(server), add_spark_settings({}, "s3://", server.settings)


def try_workload(fault_trials: FaultTrials, trials: int, draws: tuple[float, float]) -> None:
    """Disturb one workload a number of times, first at each of its steps."""
    name, tally = fault_trials.name, fault_trials.tally
    random = Random(f"{name.replace(' ', '/')}/faults")  # noqa: S311 - repeatable
    try:
        fault_trials.prepare_trials()
    except RefusedError as error:
        tally.tried["refused workloads"] += 1
        tally.failed.append(f"refused without a fault: {error}")
        return
    failed, tried = len(tally.failed), Counter(tally.tried)
    for _ in range(trials):
        _try_fault(fault_trials, random, draws)
    kinds = ", ".join(f"{number} {kind}" for kind, number in sorted((tally.tried - tried).items()))
    print(
        f"{name}: {fault_trials.steps} steps, {len(tally.failed) - failed} of {trials} failed ({kinds})",
        flush=True,
    )
    for line in tally.failed[failed:]:
        print(f"    {line[:2000]}", flush=True)
    if len(tally.failed) == failed:
        shutil.rmtree(fault_trials.folder)


def _try_fault(fault_trials: FaultTrials, random: Random, draws: tuple[float, float]) -> None:
    """Make one trial of a random kind; few trials start a Spark session of their own."""
    step, draw = random.randint(1, fault_trials.steps + 1), random.uniform(*draws)
    if draw < 0.4:
        fault_trials.kill_before(step)
    elif draw < 0.58:
        fault_trials.kill_after(random.uniform(0, fault_trials.seconds))
    elif draw < 0.62:
        fault_trials.kill_launched("launcher", random.uniform(0, 3 + fault_trials.seconds), is_local=False)
    elif draw < 0.64:
        fault_trials.kill_launched("child", random.uniform(0, 3 + fault_trials.seconds), is_local=False)
    elif draw < 0.66:
        fault_trials.kill_launched("child", random.uniform(0, 15), is_local=True)
    elif draw < 0.7 and fault_trials.capability == "merge_record":
        fault_trials.reuse_name(step)
    elif draw < 0.78:
        fault_trials.stop_before(step)
    elif draw < 0.88:
        fault_trials.try_race(is_same_run=True)
    else:
        fault_trials.try_race(is_same_run=False)


def print_report(tally: FaultTally) -> None:
    """Print the number of trials by kind, and the failures."""
    for kind, number in sorted(tally.tried.items()):
        print(f"  {kind}: {number}")
    print(f"  {len(tally.failed)} failed")


if __name__ == "__main__":
    sys.exit(main())
