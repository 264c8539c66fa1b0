"""Fixtures: one small session for the tests of this folder, and loads into a folder of its own per test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.conformance.lean import lean_session
from tests.jobs.merge_load.loads import Loads, MemoryLoads

MakeLoads = Callable[..., Loads]


@pytest.fixture(scope="session")
def lean(spark: SparkSession) -> SparkSession:
    """Return a session for inputs of a few rows."""
    return lean_session(spark)


@pytest.fixture
def loads(lean: SparkSession, tmp_path: Path) -> MakeLoads:
    """Create loads of a strategy into this test's folder."""

    def make_loads(strategy: str, **settings: Any) -> Loads:
        return Loads(lean, tmp_path, strategy, **settings)

    return make_loads


@pytest.fixture
def memory_loads(lean: SparkSession, tmp_path: Path) -> MakeLoads:
    """Create loads of a strategy whose source and target are in memory."""

    def make_loads(strategy: str, **settings: Any) -> MemoryLoads:
        return MemoryLoads(lean, tmp_path, strategy, **settings)

    return make_loads
