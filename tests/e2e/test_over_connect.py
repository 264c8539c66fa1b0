"""Every capability over a Spark Connect server: first, later, changed and refreshed runs, on real tables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# More than 20 seconds each: a server and some dozens of runs.
SUITES = {
    "merge_source": ("test_recovery.py", "caught_up or retry or changed_are"),
    "merge_engine": ("test_recovery.py", "caught_up or retry or removed or deleted"),
    "merge_load": ("test_recovery.py", "again or retry or lists or times"),
    "joiner": ("test_recovery.py", "again or retry"),
    "merge_record": ("test_formats.py", "json or union or split"),
}


@pytest.mark.parametrize("capability", SUITES)
def test_a_capability_runs_over_a_server(capability: str) -> None:
    """The tests of its runs pass with ``TESTS_SPARK=connect``, in a process that has no Spark of its own."""
    file, chosen = SUITES[capability]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--tb=short",
            "-k",
            chosen,
            f"tests/jobs/{capability}/{file}",
        ],
        cwd=ROOT,
        env={**environment, "TESTS_SPARK": "connect"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
