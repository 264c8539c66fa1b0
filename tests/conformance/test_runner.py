"""Test that the runner of vectors ends, with the server of Spark that it has started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_merge_provider.spark_process.connect_token import TOKEN_VARIABLE

ROOT = Path(__file__).parents[2]
VECTORS = json.loads((Path(__file__).parent / "vectors" / "merge_engine.json").read_text(encoding="utf-8"))
IDS = ("dedup-004-delete-last-removes-key", "agg-001-seed-max-and-sum")
# A client that waits for its server, or for threads, does so for minutes or for ever.
_EXIT_SECONDS = 20


# More than 20 seconds: a server of Spark starts.
@pytest.mark.long
def test_the_runner_ends_after_its_last_vector(tmp_path: Path) -> None:
    """Each vector has a line, whether it can be run or not, and the process ends soon after the last one."""
    vectors = [vector for vector in VECTORS["vectors"] if vector["id"] in IDS]
    file = tmp_path / "vectors.json"
    file.write_text(json.dumps([*vectors, {"id": "broken"}]))
    # As a shell starts it: another test may have left the address of its server.
    environment = {
        name: value for name, value in os.environ.items() if name not in {"SPARK_REMOTE", TOKEN_VARIABLE}
    }
    command = [sys.executable, "-m", "tests.conformance", "merge_engine", str(file)]
    with subprocess.Popen(
        command, cwd=ROOT, env={**environment, "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, text=True
    ) as runner:
        assert runner.stdout is not None
        outcomes = [json.loads(runner.stdout.readline()) for _ in range(3)]
        try:
            code = runner.wait(_EXIT_SECONDS)
        finally:
            runner.kill()

    assert code == 0
    assert [outcome["id"] for outcome in outcomes] == [*(vector["id"] for vector in vectors), "broken"]
    assert [outcome.get("rows") for outcome in outcomes[:2]] == [vector["expected"] for vector in vectors]
    assert "error" in outcomes[2]
