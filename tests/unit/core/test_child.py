"""Tests of the environment that the worker passes to a Spark process."""

from __future__ import annotations

import pytest

from airflow_merge_provider.core.child_process import build_child_environment


def test_a_child_gets_what_spark_needs_and_nothing_of_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections, variables and keys of Airflow are not passed on; credentials of an object store are."""
    of_airflow = ("AIRFLOW_CONN_DB", "AIRFLOW_VAR_KEY", "AIRFLOW__CORE__FERNET_KEY", "_AIRFLOW_X")
    of_a_session = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
    for name in (*of_airflow, *of_a_session):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of the store")
    monkeypatch.setenv("AIRFLOW_MERGE_PROVIDER_CACHE", "/cache")

    env = build_child_environment(PYTHONUNBUFFERED="1")

    assert "secret" not in env.values()
    assert env["AWS_ACCESS_KEY_ID"] == "of the store"
    assert (env["AIRFLOW_MERGE_PROVIDER_CACHE"], env["PYTHONUNBUFFERED"]) == ("/cache", "1")
    assert env["PATH"]
