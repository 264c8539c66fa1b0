"""Test the MergeRecord example in a DAG run with real Spark: small files in, one file per station out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import example_merge_record
import pytest

from airflow_merge_provider.assets import dataset_asset

pytestmark = [pytest.mark.airflow, pytest.mark.spark]


def test_the_example_merges_what_has_landed_and_tells_it(
    run_dag: Any, asset_events: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The station with enough readings gets an output and one event.

    Those of the other stay in an open bin.
    """
    monkeypatch.setenv("AIRFLOW__MERGE__WAREHOUSE", str(tmp_path))
    for station, count in (("ewr", 6), ("jfk", 1)):
        folder = tmp_path / "readings_landing" / f"station={station}"
        folder.mkdir(parents=True)
        for number in range(count):
            rows = [
                {"station": station, "at": "2026-01-01T00:00:00Z", "temp": 1.5, "wind": float(index)}
                for index in range(100)
            ]
            (folder / f"{number}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))

    run = run_dag(example_merge_record.dag)

    report = run.get_task_instance("merge").xcom_pull(task_ids="merge", key="merge_report")
    assert report["counts"] == {
        "merged": 1, "failed": 0, "outputs": 600, "files": 6, "failed_files": 0, "lost_files": 0,
        "open_bins": 1, "open_files": 1,
    }  # fmt: skip
    assert report["details"]["reasons"] == {"FULL_ENOUGH": 1}
    assert report["details"]["next_expiry"]
    (output,) = (tmp_path / "readings_merged").glob(
        f"merged-{'-'.join('?' * n for n in (8, 4, 4, 4, 12))}.json"
    )
    assert output.read_text().count("\n") == 600
    assert sorted(path.name for path in (tmp_path / "readings_landing").rglob("*.json")) == ["0.json"]
    (event,) = asset_events(dataset_asset("readings_merged").uri)
    assert event["counts"]["outputs"] == 600
