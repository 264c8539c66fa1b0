"""Fixtures of the unit tests: configurations, tables and answers of runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import build_report


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a warehouse with the sources of the configurations below."""
    folder = tmp_path_factory.mktemp("lake")
    import pyarrow as pa
    from deltalake import write_deltalake

    for name in ("a", "b", "s", "extract"):
        write_deltalake(str(folder / name), pa.table({"_id": ["1"], "id": [1], "x": [1]}))
    return str(folder)


@pytest.fixture
def file(tmp_path: Path) -> Any:
    """Write a value as a JSON file."""

    def write_json(value: object) -> str:
        path = tmp_path / "pipe.json"
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return str(path)

    return write_json


@pytest.fixture
def job_run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Answer runs of the command line without Spark, and record the requests."""
    from airflow_merge_provider.cli import runs
    from airflow_merge_provider.core.protocol import JobResult

    run_values: dict[str, Any] = {"answer": JobResult(report=build_report())}

    def run_job(request: Any, **how: Any) -> Any:
        run_values.update(how, request=request)
        how["on_line"]("[merge +  0.1s] look: 0.1s")
        return run_values["answer"]

    monkeypatch.setattr(runs, "run_job", run_job)
    return run_values
