"""Tests of the settings of an object store and their forms for Spark, delta-rs and fsspec."""

from __future__ import annotations

import pytest

from airflow_merge_provider.core.object_store.azure_settings import AzureSettings
from airflow_merge_provider.core.object_store.clients import (
    LOG_STORE,
    add_spark_settings,
    complete_arguments,
    complete_options,
    has_log_store,
    read_environment,
)
from airflow_merge_provider.core.object_store.s3_settings import S3Settings

_MINIO = S3Settings("key", "secret", "token", "eu-west-1", "http://minio:9000")


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)


def test_each_client_gets_the_same_settings() -> None:
    """A store at another address has buckets in its path; without TLS, delta-rs must be allowed to use it."""
    assert _MINIO.as_spark() == {
        "spark.hadoop.fs.s3a.access.key": "key",
        "spark.hadoop.fs.s3a.secret.key": "secret",
        "spark.hadoop.fs.s3a.session.token": "token",
        "spark.hadoop.fs.s3a.endpoint.region": "eu-west-1",
        "spark.hadoop.fs.s3a.endpoint": "http://minio:9000",
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }
    assert _MINIO.as_delta_rs() == {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_SESSION_TOKEN": "token",
        "AWS_REGION": "eu-west-1",
        "AWS_ENDPOINT_URL": "http://minio:9000",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
        "AWS_ALLOW_HTTP": "true",
    }
    assert _MINIO.as_fsspec() == {
        "key": "key",
        "secret": "secret",
        "token": "token",
        "endpoint_url": "http://minio:9000",
        "client_kwargs": {"region_name": "eu-west-1"},
        "config_kwargs": {"s3": {"addressing_style": "path"}},
    }


def test_nothing_is_set_for_amazon_without_settings() -> None:
    """Without settings, every client uses its own chain of credentials and Amazon's address."""
    assert (S3Settings().as_spark(), S3Settings().as_delta_rs(), S3Settings().as_fsspec()) == ({}, {}, {})


def test_settings_of_spark_and_of_delta_rs_are_read_back() -> None:
    """The settings survive each form from which they are read again."""
    settings = S3Settings("key", "secret", "token", "eu-west-1", "http://minio:9000", path_style=True)

    assert S3Settings.from_spark(settings.as_spark().get) == settings
    assert S3Settings.from_options(settings.as_delta_rs()) == settings
    assert S3Settings.from_options({"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"}).path_style is False


def test_keys_of_two_origins_are_never_mixed() -> None:
    """A key without a token does not get the token of another key; other settings are completed."""
    own = S3Settings("own", "own secret")

    assert own.fill_missing(_MINIO) == S3Settings("own", "own secret", None, "eu-west-1", "http://minio:9000")
    assert S3Settings(region="us-west-2").fill_missing(_MINIO) == S3Settings(
        "key", "secret", "token", "us-west-2", "http://minio:9000"
    )


def test_the_environment_adds_the_address_and_leaves_keys_to_the_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The variables of AWS name the address; keys stay in the environment, where each client finds them."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio:9000")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://s3:9000")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    assert S3Settings.from_environment() == S3Settings(region="eu-west-1", endpoint="http://s3:9000")
    assert complete_options("s3a://lake/t")["AWS_ALLOW_HTTP"] == "true"
    assert complete_options("/lake/t", {"A": "b"}) == {"A": "b"}
    assert complete_arguments("s3://lake/t", S3Settings("key", "secret"))["key"] == "key"
    assert complete_arguments("file:///lake/t") == {}


def test_the_environment_has_the_key_of_azure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hadoop's client does not read the variables, so they become settings."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "shop")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "key")

    settings = read_environment("abfss://lake@shop.dfs.core.windows.net/wh")

    assert settings == AzureSettings("shop.dfs.core.windows.net", "key")
    assert "key" in settings.as_spark().values()


def test_a_run_over_s3_gets_the_client_and_the_log_store() -> None:
    """A run that names S3 anywhere has the log store; another run has the user's settings only."""
    config = {"sources": [{"dataset": "s3a://lake/crm"}], "target": "golden"}
    conf = add_spark_settings({"spark.sql.ansi.enabled": "false"}, ["/lake", config], _MINIO)

    assert conf["spark.delta.logStore.s3.impl"] == conf["spark.delta.logStore.s3a.impl"] == LOG_STORE
    assert conf["spark.hadoop.fs.s3.impl"] == "org.apache.hadoop.fs.s3a.S3AFileSystem"
    assert conf["spark.sql.ansi.enabled"] == "false"
    assert has_log_store(conf)
    assert add_spark_settings({"a": "b"}, ["/lake", {"target": "golden"}], _MINIO) == {"a": "b"}


def test_settings_of_the_user_win() -> None:
    """A setting of the task replaces that of the connection."""
    conf = {"spark.hadoop.fs.s3a.endpoint": "http://other", "spark.delta.logStore.s3.impl": "mine"}

    assert add_spark_settings(conf, "s3://lake", _MINIO).items() >= conf.items()
