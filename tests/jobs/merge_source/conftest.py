"""Fixtures: one small session for the tests of this folder, and a pipe in a folder of its own per test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.conformance.lean import lean_session
from tests.jobs.merge_source.pipe import MemoryPipe, Pipe

MakePipe = Callable[..., Pipe]


@pytest.fixture(scope="session")
def lean(spark: SparkSession) -> SparkSession:
    """Return a session for inputs of a few rows."""
    return lean_session(spark)


@pytest.fixture
def make_pipe(lean: SparkSession, tmp_path: Path) -> MakePipe:
    """Create a pipe of datasets A, B, … with the aliases a, b, … in this test's folder."""

    def create_pipe(datasets: str = "AB", **settings: Any) -> Pipe:
        return Pipe(lean, tmp_path, datasets=[f"{name} {name.lower()}" for name in datasets], **settings)

    return create_pipe


@pytest.fixture
def make_memory_pipe(lean: SparkSession, tmp_path: Path) -> MakePipe:
    """Create the same with datasets and target in memory."""

    def create_pipe(datasets: str = "AB", **settings: Any) -> MemoryPipe:
        names = [f"{name} {name.lower()}" for name in datasets]
        return MemoryPipe(lean, tmp_path, datasets=names, **settings)

    return create_pipe
