"""Fixture: one small session for the tests of this folder."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.conformance.lean import lean_session


@pytest.fixture(scope="session")
def lean(spark: SparkSession) -> SparkSession:
    """Return a session for inputs of a few rows."""
    return lean_session(spark)
