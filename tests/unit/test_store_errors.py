"""Tests of the errors of an object store that cannot be used, before Spark starts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_merge_provider import delta_rs
from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.core.run.decision import RequiresSparkError
from airflow_merge_provider.delta_rs import DeltaRsLog
from tests.s3_server import S3Server, run_s3


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with run_s3() as server:
        yield server


def _find_table(location: str, options: dict[str, str], *, is_local: bool = True) -> object:
    log = DeltaRsLog(options, is_local=is_local)
    return log.find_newest_version(resolve_dataset(location, None, at="target"))


def test_a_missing_bucket_is_named_before_spark(server: S3Server) -> None:
    """A table without a bucket is an error; a table that is only missing is none."""
    options = server.settings.as_delta_rs()

    with pytest.raises(SetupError, match=r"s3://nowhere/t: the bucket does not exist: create it, or correct"):
        _find_table("s3://nowhere/t", options)
    assert _find_table(f"{server.make_bucket()}/t", options) is None


def test_a_store_that_cannot_be_reached_is_named_before_spark(server: S3Server) -> None:
    """The address in the connection may be wrong."""
    options = server.settings.as_delta_rs() | {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}

    with pytest.raises(
        SetupError, match=r"s3://lake/t: the object store cannot be reached: check its address"
    ):
        _find_table("s3://lake/t", options)


def test_a_spark_elsewhere_may_reach_another_store(server: S3Server) -> None:
    """A Spark on another machine may see what this process does not see, so Spark has to answer."""
    with pytest.raises(RequiresSparkError, match="the bucket does not exist"):
        _find_table("s3://nowhere/t", server.settings.as_delta_rs(), is_local=False)


def test_commands_that_read_name_the_bucket(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """History and explain take the address from the environment, and name the bucket."""
    for name, value in server.settings.as_delta_rs().items():
        monkeypatch.setenv(name, value)

    for open_location in (delta_rs.open_table, delta_rs.is_table):
        with pytest.raises(SetupError, match="the bucket does not exist"):
            open_location("s3://nowhere/t")
