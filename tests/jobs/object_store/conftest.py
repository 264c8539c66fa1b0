"""Fixtures: an S3 server behind a proxy, and a bucket of its own for each test, which Spark can reach."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.conformance.lean import lean_session
from tests.jobs.object_store.runs import Lake
from tests.s3_server import S3Server, run_s3


@pytest.fixture(scope="session")
def lean(spark: SparkSession) -> SparkSession:
    """Return a session for inputs of a few rows."""
    return lean_session(spark)


@pytest.fixture(scope="session")
def server() -> Iterator[S3Server]:
    """Start the server once."""
    with run_s3() as server:
        yield server


@pytest.fixture
def lake(lean: SparkSession, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """Create a bucket that Spark and delta-rs reach, through a proxy that passes everything on."""
    server.change_behaviour()
    settings = server.settings.as_spark()
    # Hadoop reads the settings of a session without the prefix, and the jobs read them with it.
    settings |= {name.removeprefix("spark.hadoop."): value for name, value in settings.items()}
    for name, value in settings.items():
        lean.conf.set(name, value)
    for name, value in server.settings.as_delta_rs().items():
        monkeypatch.setenv(name, value)
    yield Lake(lean, server, f"{server.make_bucket()}/wh")
    for name in settings:
        lean.conf.unset(name)
