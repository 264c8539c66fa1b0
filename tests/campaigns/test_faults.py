"""A short campaign of faults: a few runs of every capability are killed, stopped and started twice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]


# More than 20 seconds: dozens of processes, forked from one without threads.
@pytest.mark.long
def test_disturbed_runs_end_as_clean_ones(spark: SparkSession, tmp_path: Path) -> None:
    """No row is lost or duplicated by a fault, and the next run succeeds."""
    remote = os.environ.get("SPARK_REMOTE")
    command = [sys.executable, "-m", "tests.campaigns.faults", "--workloads", "1", "--trials", "1"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}

    ended = subprocess.run(
        [*command, *(["--remote", remote] if remote else [])],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
