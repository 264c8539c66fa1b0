"""Test every capability, first and later runs, in a classic Spark session without Spark Connect."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# More than 20 seconds each: they start Spark and run dozens of jobs.
SUITES = {
    "merge_source": ("test_recovery.py", "-k", "retry or changed_are"),
    "merge_engine": ("test_recovery.py", "../run/test_readers.py", "-k", "retry or removed or functions"),
    "merge_load": ("test_recovery.py", "-k", "retry or lists"),
    "joiner": ("test_recovery.py", "-k", "retry"),
    "merge_record": ("test_formats.py", "-k", "json"),
    "spark": (".", "-m", "classic"),
}


@pytest.mark.parametrize("folder", SUITES)
def test_a_capability_runs_in_a_classic_session(folder: str) -> None:
    """The run tests of a capability pass in a process of their own with ``TESTS_SPARK=classic``."""
    files = [f"tests/jobs/{folder}/{name}" for name in SUITES[folder] if name.endswith((".py", "."))]
    chosen = SUITES[folder][len(files) :]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "SPARK_"))
    }
    options = ["-q", "-p", "no:cacheprovider", "--tb=short"]
    process = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *chosen, *files],
        cwd=ROOT,
        env={**environment, "TESTS_SPARK": "classic"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert process.returncode == 0, process.stdout[-4000:]
    assert " passed" in process.stdout
