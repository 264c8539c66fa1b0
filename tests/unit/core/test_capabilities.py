"""Tests of the registry of all jobs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import airflow_merge_provider
from airflow_merge_provider.core.capabilities import CAPABILITIES, JOBS, list_internal_columns
from airflow_merge_provider.core.capability import load_function
from airflow_merge_provider.core.pipe.config import LOADS, SOURCE_JOBS
from airflow_merge_provider.jobs.submit.warm_up import RUNS

PACKAGE = Path(airflow_merge_provider.__file__).parent


def test_every_capability_is_registered() -> None:
    """The folder of a job in core has its value, under the name of the folder, and the function to run it."""
    assert set(JOBS) == {path.parent.name for path in (PACKAGE / "core").glob("*/capability.py")}
    for name, job in JOBS.items():
        assert job.name == name
        assert job.job == f"airflow_merge_provider.jobs.{name}.job:run"
        assert (PACKAGE / "jobs" / name / "job.py").is_file()


def test_a_capability_is_imported_when_it_is_asked_for() -> None:
    """A process that runs one job does not import the others."""
    code = (
        "import sys; from airflow_merge_provider.core.capabilities import JOBS; JOBS['merge_load'];"
        "print([name for name in JOBS if f'airflow_merge_provider.core.{name}.capability' in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "['merge_load']"


def test_pipes_and_the_warm_up_run_registered_jobs() -> None:
    """The types of pipes and the runs that warm up a server name all capabilities, and nothing else."""
    assert {"merge_load" if kind in LOADS else kind for kind in SOURCE_JOBS.values()} == set(CAPABILITIES)
    # A merge record reads files, which share little of their plans with tables.
    assert {job for job, _ in RUNS.values()} == set(CAPABILITIES) - {"merge_record"}


def test_internal_columns_are_those_of_the_target() -> None:
    """Golden records and histories have internal columns; a table of another program has none."""
    assert {"_hash", "_ts", "$ids", "_members", "_updated"} <= set(list_internal_columns("merge_source"))
    assert "_row_hash" in list_internal_columns("merge_load")
    assert list_internal_columns("undo") == list_internal_columns("merge_load")
    assert [list_internal_columns(owner) for owner in ("joiner", "orders__items", None)] == [(), (), ()]


@pytest.mark.parametrize("name", sorted(set(CAPABILITIES) - {"merge_record"}))
def test_keys_of_every_table_can_be_explained(name: str) -> None:
    """The function that explains a key is found by its name; files are explained by their state."""
    explanation = CAPABILITIES[name].explanation

    assert explanation is not None
    assert load_function(explanation).__module__.startswith("airflow_merge_provider.explain.")
