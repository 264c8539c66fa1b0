"""Tests of the registry of all jobs."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

import airflow_merge_provider
from airflow_merge_provider.core.capabilities import CAPABILITIES, JOBS
from airflow_merge_provider.core.pipe.config import LOADS, SOURCES
from airflow_merge_provider.core.protocol import Job
from airflow_merge_provider.jobs.submit.warm_up import RUNS

PACKAGE = Path(airflow_merge_provider.__file__).parent


def test_every_job_of_the_protocol_is_registered() -> None:
    """A job that a request can name has its value, its folder in core, and its job."""
    assert set(JOBS) == set(get_args(Job))
    for name in JOBS:
        assert (PACKAGE / "core" / name).is_dir()
        assert (PACKAGE / "jobs" / name / "job.py").is_file()


def test_pipes_and_the_warm_up_run_registered_jobs() -> None:
    """The types of pipes and the runs that warm up a server name all capabilities, and nothing else."""
    assert {"merge_load" if kind in LOADS else kind for kind in SOURCES.values()} == set(CAPABILITIES)
    # A merge record reads files, which share little of their plans with tables.
    assert {job for job, _ in RUNS.values()} == set(CAPABILITIES) - {"merge_record"}


@pytest.mark.parametrize("name", sorted(set(CAPABILITIES) - {"merge_record"}))
def test_keys_of_every_table_can_be_explained(name: str) -> None:
    """The function that explains a key is found by its name; files are explained by their state."""
    explain = CAPABILITIES[name].load_explanation()

    assert explain is not None
    assert explain.__module__.startswith("airflow_merge_provider.explain.")
