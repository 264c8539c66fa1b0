"""Tests of what a run finds out about the previous run of its target, from the log alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.run.previous_run import load_previous_run
from airflow_merge_provider.delta_rs import DeltaRsLog
from tests.tables import OURS, create_table


def append_run(path: str, number: int, version_before: int | None) -> None:
    """Append a row as a run that had found a version of the table."""
    state: dict[str, Any] = {
        "capability": "joiner",
        "number": number,
        "result": {"version_before": version_before},
    }
    metadata = CommitProperties(custom_metadata={"userMetadata": json.dumps(state)})
    rows = pa.table({"_id": [str(number)]})
    write_deltalake(path, rows, mode="append", commit_properties=metadata)


@pytest.mark.parametrize(("version_before", "is_overlooked"), [(2, True), (3, False), (None, False)])
def test_a_change_that_a_run_has_overlooked_is_a_warning(
    tmp_path: Path, version_before: int | None, is_overlooked: bool
) -> None:
    """If a process is killed between its commit and the check of this commit, the next run warns."""
    path = create_table(tmp_path / "t", properties=OURS)
    append_run(path, 1, 1)
    create_table(tmp_path / "t")
    append_run(path, 2, version_before)

    previous = load_previous_run(DeltaRsLog(), Dataset("t", path=path), "joiner")

    assert previous is not None
    assert (previous.run_version, previous.changed_by, previous.warnings) == (4, None, [])
    text = (
        "version 4 of the target was written without knowledge of version 3, WRITE of another writer: "
        "compare both versions, and repair the rows"
    )
    assert previous.integrity_warnings == [text] * is_overlooked
