"""Run campaigns for some minutes: ``python -m tests.campaigns --minutes 5 [--only inputs] [--seed N]``.

Each round has its own seed, which is printed with its failures. The exit code is 1 if there are failures.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from airflow_merge_provider.capabilities import CAPABILITIES
from tests.campaigns import limits, plans, values
from tests.campaigns.configurations import Tally, try_configurations
from tests.campaigns.faults.processes import open_session
from tests.campaigns.faults.server import ConnectServer
from tests.campaigns.files import KINDS, FileTally, try_files
from tests.campaigns.pipe_files import NAME, try_pipe_files
from tests.campaigns.plans import PlanTally, try_plans
from tests.campaigns.users import UserTally, try_sequences

_ROUND = 500
# Number of sequences of user actions for each workload.
_SEQUENCES = 4


def main() -> int:
    """Run each campaign for its share of the time, and print the failures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5, help="how long, of all together (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the first round (%(default)s)")
    parser.add_argument(
        "--only", choices=_CAMPAIGNS, nargs="+", default=list(_CAMPAIGNS), help="some of them"
    )
    options = parser.parse_args()
    share = options.minutes / len(options.only)
    return max(_CAMPAIGNS[name](share, options.seed) for name in options.only)


def _try_inputs(minutes: float, first: int) -> int:
    end, seed, tally = time.monotonic() + 60 * minutes, first, Tally()
    logging.disable()
    while time.monotonic() < end:
        for capability in CAPABILITIES:
            try_configurations(capability, seed, _ROUND, tally)
        with TemporaryDirectory() as folder:
            try_pipe_files(Path(folder) / "pipes", seed, _ROUND, tally)
        seed += 1
    print(f"inputs, seeds {first} to {seed - 1}:")
    for name in (*CAPABILITIES, NAME):
        print(f"  {name}: {tally.accepted[name]} accepted, {tally.refused[name]} refused")
    return _print_failed(tally.failed)


def _print_failed(failed: Sequence[str]) -> int:
    print(f"  {len(failed)} failed", flush=True)
    for line in failed[:20]:
        print(f"    {line[:2000]}", flush=True)
    return 1 if failed else 0


def _try_faults(minutes: float, first: int) -> int:
    # Use a process without threads, because it is forked for each run.
    command = [
        sys.executable,
        "-m",
        "tests.campaigns.faults",
        "--minutes",
        str(minutes),
        "--seed",
        str(first),
    ]
    print("faults:", flush=True)
    return subprocess.run(command, check=False).returncode


def _try_shared(minutes: float, first: int) -> int:
    print("shared:", flush=True)
    # The server is killed after every tenth task. The campaign changes the temporary folder of its process.
    options = ["--tasks", "100000", "--kills", "10000", "--minutes", str(minutes), "--seed", str(first)]
    return subprocess.run([sys.executable, "-m", "tests.campaigns.shared", *options], check=False).returncode


def _try_undos(minutes: float, first: int) -> int:
    # Each run is a process forked from one without threads.
    print("undos:", flush=True)
    options = ["--sequences", "100000", "--minutes", str(minutes), "--seed", str(first)]
    return subprocess.run(
        [sys.executable, "-m", "tests.campaigns.faults.undos", *options], check=False
    ).returncode


def _try_s3(minutes: float, first: int) -> int:
    print("s3:", flush=True)
    options = ["--races", "100000", "--minutes", str(minutes), "--seed", str(first)]
    return subprocess.run([sys.executable, "-m", "tests.campaigns.races", *options], check=False).returncode


def _try_files(minutes: float, first: int) -> int:
    end, seed, tally = time.monotonic() + 60 * minutes, first, FileTally()
    folder = Path(mkdtemp(prefix="files-"))
    with ConnectServer() as server:
        spark = open_session(server.get_url())
        while time.monotonic() < end:
            for kind in KINDS:
                try_files(spark, kind, seed, folder / f"{kind}-{seed}", tally)
            seed += 1
        spark.stop()
    print(f"files, seeds {first} to {seed - 1}:")
    for kind in KINDS:
        print(f"  {kind}: {tally.merged[kind]} merged, {tally.refused[kind]} refused")
    if not tally.failed:
        shutil.rmtree(folder)
    return _print_failed(tally.failed)


def _try_users(minutes: float, first: int) -> int:
    end, seed, tally = time.monotonic() + 60 * minutes, first, UserTally()
    with ConnectServer() as server, TemporaryDirectory() as folder:
        spark = open_session(server.get_url())
        while time.monotonic() < end:
            failed = len(tally.failed)
            for capability in CAPABILITIES:
                sequence_folder = Path(folder) / f"{capability}-{seed}"
                try_sequences(spark, capability, seed, sequence_folder, tally, _SEQUENCES)
            print(f"  seed {seed}: {tally.ended.total()} sequences", flush=True)
            _print_failed(tally.failed[failed:])
            seed += 1
        spark.stop()
    print(f"users, seeds {first} to {seed - 1}: {dict(tally.ended)}, {len(tally.failed)} failed")
    for name, count in sorted(tally.actions.items()):
        print(f"  {name}: {count}")
    return 1 if tally.failed else 0


def _try_plans(minutes: float, first: int) -> int:
    end, seed, tally = time.monotonic() + 60 * minutes, first, PlanTally()
    with ConnectServer() as server, TemporaryDirectory() as folder:
        spark = open_session(server.get_url())
        while time.monotonic() < end:
            failed = len(tally.failed)
            for capability in plans.CAPABILITIES:
                try_plans(spark, capability, seed, Path(folder) / f"{capability}-{seed}", tally)
            print(f"  seed {seed}: {tally.ended.total()} plans, {dict(tally.ended)}", flush=True)
            _print_failed(tally.failed[failed:])
            seed += 1
        spark.stop()
    print(f"plans, seeds {first} to {seed - 1}: {dict(tally.ended)}, {len(tally.failed)} failed")
    print(f"  workloads without saved plans: {dict(tally.skipped)}")
    for name, count in sorted(tally.actions.items()):
        print(f"  {name}: {count}")
    return 1 if tally.failed else 0


def _try_limits(_: float, __: int) -> int:
    print("limits:", flush=True)
    return limits.main([])


def _try_values(minutes: float, first: int) -> int:
    print("values:", flush=True)
    return values.main(["--minutes", str(minutes), "--seed", str(first)])


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
