"""Test that rows reach Delta tables only through the writer, which prepares them for all readers."""

from __future__ import annotations

import re
from pathlib import Path

JOBS = Path(__file__).parents[2] / "airflow_merge_provider/jobs"
# The warm-up writes tables of its own that are never read.
WRITERS = ("delta/writer.py", "submit/warm_up.py")
_WRITE = re.compile(r"\.writeTo\(|\.saveAsTable\(|\.insertInto\(|write\.format\(\"delta\"\)|MERGE INTO ")


def test_only_the_writer_writes_tables() -> None:
    """A statement elsewhere would write collated texts and lose values of partition columns."""
    modules = {
        str(path.relative_to(JOBS))
        for path in JOBS.rglob("*.py")
        if _WRITE.search(path.read_text(encoding="utf-8"))
    }

    assert modules == set(WRITERS)
