"""Fixtures: one small session for the tests of this folder, and a join in a folder of its own per test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.conformance.lean import lean_session
from tests.jobs.joiner.lake import Lake

MakeLake = Callable[..., Lake]


@pytest.fixture(scope="session")
def lean(spark: SparkSession) -> SparkSession:
    """Return a session for inputs of a few rows."""
    return lean_session(spark)


@pytest.fixture
def lake(lean: SparkSession, tmp_path: Path) -> MakeLake:
    """Create a folder of tables, and the join that runs over them."""

    def make_lake(**settings: Any) -> Lake:
        return Lake(lean, tmp_path, **settings)

    return make_lake
