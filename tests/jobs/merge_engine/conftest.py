"""Fixtures: one small session for the tests of this folder, and a stream in a folder of its own per test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.conformance.lean import lean_session
from tests.jobs.merge_engine.stream import Stream

MakeStream = Callable[..., Stream]


@pytest.fixture(scope="session")
def lean(spark: SparkSession) -> SparkSession:
    """Return a session for inputs of a few rows."""
    return lean_session(spark)


@pytest.fixture
def make_stream(lean: SparkSession, tmp_path: Path) -> MakeStream:
    """Create a stream in this test's folder."""

    def create_stream(**settings: Any) -> Stream:
        return Stream(lean, tmp_path, **settings)

    return create_stream
