"""The rounds of a campaign: new seeds, until the time is over, and what it did not suffice for."""

from __future__ import annotations

import argparse
import secrets
import time
from collections.abc import Iterator, Sequence
from itertools import count

_SEED_END = 1_000_000


def add_seed(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the seed and of the completeness of a campaign."""
    parser.add_argument("--seed", type=int, help="of the first round, to repeat it (default: a new one)")
    complete_help = "fail if the time did not suffice for each kind of workload"
    parser.add_argument("--complete", action="store_true", help=complete_help)


def choose_seed(seed: int | None) -> int:
    """Return the seed of the first round, a new one if there is none, and print it."""
    chosen = secrets.randbelow(_SEED_END) if seed is None else seed
    print(f"--seed {chosen}", flush=True)
    return chosen


class Rounds:
    """Seeds with each kind of workload, until the time is over: at least the first one.

    A round begins with the kind that its seed chooses, so that short campaigns do not try the same kinds
    again and again.

    :param minutes: from the first workload on, so that the start of a server is not part of it.
    :param complete: whether a campaign that did not try each kind is a failed one.
    """

    def __init__(self, kinds: Sequence[str], first: int, minutes: float, *, complete: bool = False) -> None:
        self._kinds, self._first, self._minutes, self._complete = kinds, first, minutes, complete
        self._tried: dict[str, int] = {}
        self._last = first

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """Yield the workloads that the time suffices for."""
        end = time.monotonic() + 60 * self._minutes
        for seed in count(self._first):
            turn = seed % len(self._kinds)
            for kind in (*self._kinds[turn:], *self._kinds[:turn]):
                if self._tried and time.monotonic() > end:
                    return
                self._last = seed
                self._tried[kind] = self._tried.get(kind, 0) + 1
                yield seed, kind

    def describe_seeds(self) -> str:
        """Return the seeds that were tried."""
        return f"seeds {self._first} to {self._last}"

    def get_exit_code(self, failures: int) -> int:
        """Return the exit code of the campaign, and print the kinds that the time did not suffice for."""
        if untried := [kind for kind in self._kinds if kind not in self._tried]:
            print(f"  the time did not suffice for {', '.join(untried)} (use more --minutes)", flush=True)
        return int(failures > 0 or (self._complete and bool(untried)))
