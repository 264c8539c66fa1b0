"""Run campaigns for some minutes: ``python -m tests.campaigns --minutes 5 [--only inputs] [--seed N]``.

The seed of the first round is a new one each time, and is printed first. Each round has its own seed, which
is printed with its failures. The exit code is 1 if there are failures, with ``--complete`` also if the time
did not suffice for each kind of workload.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from airflow_merge_provider.core.capabilities import CAPABILITIES
from tests.campaigns import limits, plans
from tests.campaigns.configurations import Tally, try_configurations
from tests.campaigns.faults.processes import open_session
from tests.campaigns.faults.server import ConnectServer
from tests.campaigns.files import KINDS, FileTally, try_files
from tests.campaigns.pipe_files import NAME, try_pipe_files
from tests.campaigns.plans import PlanTally, try_plans
from tests.campaigns.rounds import Rounds, add_seed, choose_seed
from tests.campaigns.users import UserTally, try_sequences

_ROUND = 500
# Number of sequences of user actions for each workload.
_SEQUENCES = 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Run each campaign for its share of the time, and print the failures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5, help="how long, of all together (%(default)s)")
    add_seed(parser)
    parser.add_argument(
        "--only", choices=_CAMPAIGNS, nargs="+", default=list(_CAMPAIGNS), help="some of them"
    )
    options = parser.parse_args(arguments)
    options.seed = choose_seed(options.seed)
    options.minutes /= len(options.only)
    codes = [_CAMPAIGNS[name](options) for name in options.only]
    # A process that a signal has ended has a negative exit code.
    return int(any(codes))


def _start_rounds(kinds: Sequence[str], options: argparse.Namespace) -> Rounds:
    return Rounds(kinds, options.seed, options.minutes, complete=options.complete)


def _try_inputs(options: argparse.Namespace) -> int:
    tally, rounds = Tally(), _start_rounds([*CAPABILITIES, NAME], options)
    logging.disable()
    for seed, name in rounds:
        if name == NAME:
            with TemporaryDirectory() as folder:
                try_pipe_files(Path(folder) / "pipes", seed, _ROUND, tally)
        else:
            try_configurations(name, seed, _ROUND, tally)
    print(f"inputs, {rounds.describe_seeds()}:")
    for name in (*CAPABILITIES, NAME):
        print(f"  {name}: {tally.accepted[name]} accepted, {tally.refused[name]} refused")
    _print_failed(tally.failed)
    return rounds.get_exit_code(len(tally.failed))


def _print_failed(failed: Sequence[str]) -> None:
    print(f"  {len(failed)} failed", flush=True)
    for line in failed[:20]:
        print(f"    {line[:2000]}", flush=True)


def _run_module(name: str, options: argparse.Namespace, *more: str) -> int:
    """Run a campaign in a process of its own: it forks, so there must be no threads, or changes variables."""
    print(f"{name.rpartition('.')[2]}:", flush=True)
    command = [sys.executable, "-m", f"tests.campaigns.{name}", *more]
    command += ["--minutes", str(options.minutes), "--seed", str(options.seed)]
    command += ["--complete"] if options.complete else []
    return subprocess.run(command, check=False).returncode


def _try_faults(options: argparse.Namespace) -> int:
    return _run_module("faults", options)


def _try_shared(options: argparse.Namespace) -> int:
    # The server is killed after every tenth task.
    return _run_module("shared", options, "--tasks", "100000", "--kills", "10000")


def _try_undos(options: argparse.Namespace) -> int:
    return _run_module("faults.undos", options, "--sequences", "100000")


def _try_s3(options: argparse.Namespace) -> int:
    return _run_module("races", options, "--races", "100000")


def _try_values(options: argparse.Namespace) -> int:
    return _run_module("values", options)


def _try_files(options: argparse.Namespace) -> int:
    tally, rounds = FileTally(), _start_rounds(list(KINDS), options)
    folder = Path(mkdtemp(prefix="files-"))
    with ConnectServer() as server:
        spark = open_session(server.get_url())
        for seed, kind in rounds:
            try_files(spark, kind, seed, folder / f"{kind}-{seed}", tally)
        spark.stop()
    print(f"files, {rounds.describe_seeds()}:")
    for kind in KINDS:
        print(f"  {kind}: {tally.merged[kind]} merged, {tally.refused[kind]} refused")
    if not tally.failed:
        shutil.rmtree(folder)
    _print_failed(tally.failed)
    return rounds.get_exit_code(len(tally.failed))


def _try_users(options: argparse.Namespace) -> int:
    tally, rounds = UserTally(), _start_rounds(list(CAPABILITIES), options)
    with ConnectServer() as server, TemporaryDirectory() as folder:
        spark = open_session(server.get_url())
        for seed, capability in rounds:
            failed = len(tally.failed)
            try_sequences(spark, capability, seed, Path(folder) / f"{capability}-{seed}", tally, _SEQUENCES)
            print(f"  {capability} {seed}: {tally.ended.total()} sequences", flush=True)
            _print_failed(tally.failed[failed:])
        spark.stop()
    print(f"users, {rounds.describe_seeds()}: {dict(tally.ended)}, {len(tally.failed)} failed")
    for name, count in sorted(tally.actions.items()):
        print(f"  {name}: {count}")
    return rounds.get_exit_code(len(tally.failed))


def _try_plans(options: argparse.Namespace) -> int:
    tally, rounds = PlanTally(), _start_rounds(list(plans.CAPABILITIES), options)
    with ConnectServer() as server, TemporaryDirectory() as folder:
        spark = open_session(server.get_url())
        for seed, capability in rounds:
            failed = len(tally.failed)
            try_plans(spark, capability, seed, Path(folder) / f"{capability}-{seed}", tally)
            print(f"  {capability} {seed}: {tally.ended.total()} plans, {dict(tally.ended)}", flush=True)
            _print_failed(tally.failed[failed:])
        spark.stop()
    print(f"plans, {rounds.describe_seeds()}: {dict(tally.ended)}, {len(tally.failed)} failed")
    print(f"  workloads without saved plans: {dict(tally.skipped)}")
    for name, count in sorted(tally.actions.items()):
        print(f"  {name}: {count}")
    return rounds.get_exit_code(len(tally.failed))


def _try_limits(_: argparse.Namespace) -> int:
    print("limits:", flush=True)
    return limits.main([])


_CAMPAIGNS = {
    "inputs": _try_inputs,
    "files": _try_files,
    "values": _try_values,
    "faults": _try_faults,
    "undos": _try_undos,
    "s3": _try_s3,
    "users": _try_users,
    "plans": _try_plans,
    "limits": _try_limits,
    "shared": _try_shared,
}


if __name__ == "__main__":
    sys.exit(main())
