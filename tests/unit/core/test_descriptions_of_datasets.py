"""Tests of the description of datasets after a run, from logs that delta-rs reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from airflow_merge_provider.core.lineage import describe_datasets
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.report import Report
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.delta_rs import DeltaRsLog
from tests import fakes
from tests.unit.core.columns_shown import build_fields


class CountingLog(DeltaRsLog):
    """A reader of logs that counts the schemas that it reads."""

    schema_reads = 0

    def read_fields(self, pinned: Any) -> Any:
        self.schema_reads += 1
        return super().read_fields(pinned)


def build_request(folder: Path, **config: Any) -> JobRequest:
    return JobRequest(
        job="merge_engine",
        config={"source": "crm", "target": "golden", "primary_key": "id", "changelog": "log", **config},
        run=RunToken(dag_id="d", run_id="r", task_id="t"),
        warehouse=str(folder),
        started_at=1,
        describes_datasets=True,
    )


def build_report(folder: Path) -> Report:
    return fakes.build_report(
        sources={"crm": {"uri": f"{folder}/crm", "version": 0, "rows": 1}},
        target={"dataset": "golden", "uri": f"{folder}/golden", "version": 1, "version_before": 0},
    )


def write_tables(folder: Path) -> None:
    write_deltalake(folder / "crm", pa.table({"id": [1]}))
    write_deltalake(folder / "crm", pa.table({"id": [1], "later": [1]}), mode="append", schema_mode="merge")
    for _ in range(2):
        write_deltalake(folder / "golden", pa.table({"id": [1], "v": ["x"]}), mode="append")
    write_deltalake(folder / "log", pa.table({"id": [1], "_kind": ["+I"]}))


def test_columns_are_those_of_the_versions_of_the_run(tmp_path: Path) -> None:
    """A source has the columns of the version that was read; a side table those of its newest version."""
    write_tables(tmp_path)
    lines: list[str] = []

    descriptions = describe_datasets(
        DeltaRsLog(), build_request(tmp_path), build_report(tmp_path), Progress(lines.append)
    )

    columns = {
        uri.rpartition("/")[2]: [field["name"] for field in description.fields or ()]
        for uri, description in descriptions.items()
    }
    assert columns == {"crm": ["id"], "golden": ["id", "v"], "log": ["id", "_kind"]}
    assert descriptions[f"{tmp_path}/log"].version == 0
    assert lines == []


def test_a_schema_that_the_run_has_recorded_is_not_read_again(tmp_path: Path) -> None:
    """Only the columns of datasets that the run has not read are in question."""
    write_tables(tmp_path)
    log, progress = CountingLog(), Progress(print)
    for name in ("crm", "golden", "log"):
        progress.record_schema(f"{tmp_path}/{name}", build_fields("recorded"))

    descriptions = describe_datasets(log, build_request(tmp_path), build_report(tmp_path), progress)

    assert log.schema_reads == 0
    assert [description.fields for description in descriptions.values()] == 3 * [
        tuple(build_fields("recorded"))
    ]


def test_a_dataset_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    """A run that has succeeded does not fail for its lineage; its log says what is missing."""
    write_tables(tmp_path)
    lines: list[str] = []
    request = build_request(tmp_path, changelog="lake.crm.log")

    descriptions = describe_datasets(DeltaRsLog(), request, build_report(tmp_path), Progress(lines.append))

    assert set(descriptions) == {f"{tmp_path}/crm", f"{tmp_path}/golden"}
    (line,) = lines
    assert "lineage: the columns of table:lake.crm.log are unknown" in line


def test_nothing_is_read_unless_lineage_is_wanted(tmp_path: Path) -> None:
    """Without OpenLineage, no log is read for its schema."""
    request = build_request(tmp_path).model_copy(update={"describes_datasets": False})

    assert describe_datasets(DeltaRsLog(), request, build_report(tmp_path), Progress(print)) == {}
