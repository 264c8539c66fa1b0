"""Test that the next run completes a MergeRecord run whose process was killed with SIGKILL at some step."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.jobs.merge_record.landing import Landing
from tests.jobs.merge_record.test_crash import build_landing

ROOT = Path(__file__).parents[2]
# Runs in a process of its own and ends it at the given change of the storage; -1 means never.
CHILD = """
import os, signal, sys
from pathlib import Path
from airflow_merge_provider.jobs.merge_record.files.storage import LocalStorage
from tests.jobs.merge_record.landing import Landing

left = int(sys.argv[2])

class Mortal(LocalStorage):
    pass

def dying(name):
    whole = getattr(LocalStorage, name)
    def change(self, *given):
        global left
        done = whole(self, *given)
        if "lease" not in str(given[0]):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return done
    return change

for name in ("write_file", "create_file", "write_sidecar", "delete_path", "move_file"):
    setattr(Mortal, name, dying(name))
Landing(
    Path(sys.argv[1]), min_records=2, max_records=2, correlation_attribute_name="k",
    attribute_sources=["sidecar"],
).run_job(run_id="r", opened=Mortal)
"""


def run_child(root: Path, change: int) -> int:
    command = [sys.executable, "-c", CHILD, str(root), str(change)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode in {0, -signal.SIGKILL}, ended.stderr
    return ended.returncode


def test_a_process_that_is_killed_is_finished_by_the_next(tmp_path: Path) -> None:
    """Wherever the process dies, the next run leaves the same files with the same bytes.

    It dies at plan, staging, output, manifest, moves, ledger and state.
    """
    landing = build_landing(tmp_path / "whole")
    assert run_child(landing.root, -1) == 0
    (tmp_path / "whole").rename(tmp_path / "kept")
    expected = Landing(tmp_path / "kept").read_everything()

    for change in (1, 3, 5, 8, 11, 14, 18):
        killed_landing = build_landing(tmp_path / "whole")
        assert run_child(killed_landing.root, change) == -signal.SIGKILL, change
        assert (killed_landing.root / "state" / "lease.json").exists()
        assert run_child(killed_landing.root, -1) == 0
        assert killed_landing.read_everything() == expected, change
        (tmp_path / "whole").rename(tmp_path / f"tried-{change}")
