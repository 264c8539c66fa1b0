"""Tests of the key of a Google service account and its forms for Spark, delta-rs and fsspec."""

from __future__ import annotations

import json

import pytest

from airflow_merge_provider.core.object_store.clients import (
    GCS_LOG_STORE,
    add_spark_settings,
    complete_arguments,
    find_store_error,
    has_gcs_client,
    is_secret,
    read_environment,
    refuse_location,
)
from airflow_merge_provider.core.object_store.gcs_settings import (
    AUTH_TYPE_SETTING,
    KEY_FILE_SETTING,
    KEY_SETTING,
    GcsSettings,
)
from airflow_merge_provider.core.object_store.s3_settings import S3Settings

KEY = json.dumps({"type": "service_account", "private_key": "s3cr3t"})
_FILE = GcsSettings("/keys/lake.json")


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY"):
        monkeypatch.delenv(name, raising=False)


def test_each_client_gets_the_path_of_the_key_file() -> None:
    """Every client reads the file itself, so that settings do not contain the key."""
    assert _FILE.as_spark() == {
        AUTH_TYPE_SETTING: "SERVICE_ACCOUNT_JSON_KEYFILE",
        KEY_FILE_SETTING: "/keys/lake.json",
    }
    assert _FILE.as_delta_rs() == {"GOOGLE_SERVICE_ACCOUNT": "/keys/lake.json"}
    assert _FILE.as_fsspec() == {"token": "/keys/lake.json"}


def test_each_client_gets_the_content_of_a_key_file() -> None:
    """A key without a file is in a setting that is replaced before Spark starts, and not in the repr."""
    settings = GcsSettings(key=KEY)

    assert settings.as_spark()[KEY_SETTING] == KEY
    assert settings.as_delta_rs() == {"GOOGLE_SERVICE_ACCOUNT_KEY": KEY}
    assert settings.as_fsspec() == {"token": json.loads(KEY)}
    assert "s3cr3t" not in repr(settings)
    assert is_secret(KEY_SETTING)
    assert not is_secret(KEY_FILE_SETTING)


def test_nothing_is_set_without_a_key() -> None:
    """Without a key, every client finds Application Default Credentials itself."""
    settings = GcsSettings()

    assert (settings.as_spark(), settings.as_delta_rs(), settings.as_fsspec()) == ({}, {}, {})


@pytest.mark.parametrize("settings", [_FILE, GcsSettings(key=KEY)])
def test_settings_of_delta_rs_are_read_back(settings: GcsSettings) -> None:
    """Options of delta-rs in any spelling, and its variables, are the same settings."""
    options = settings.as_delta_rs()

    assert GcsSettings.from_options(options) == settings
    assert GcsSettings.from_options({name.lower(): value for name, value in options.items()}) == settings
    assert GcsSettings.from_options({"service_account_path": "/keys/lake.json"}) == _FILE
    assert GcsSettings.from_spark(_FILE.as_spark().get) == _FILE


def test_the_environment_has_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable of delta-rs sets the key of all clients; default credentials stay with the clients."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/other.json")
    assert read_environment("gs://lake") == GcsSettings()
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", "/keys/lake.json")

    assert read_environment("gs://lake") == _FILE
    assert complete_arguments("gs://lake/t") == {"token": "/keys/lake.json", "use_listings_cache": False}
    assert complete_arguments("gs://lake/t", GcsSettings(key=KEY))["token"] == json.loads(KEY)
    assert complete_arguments("gs://lake/t", S3Settings("key")) == complete_arguments("gs://lake/t")


def test_a_run_over_google_cloud_gets_the_log_store_and_the_key() -> None:
    """A run that names Google Cloud anywhere has Delta's log store for it; another run has nothing."""
    config = {"sources": [{"dataset": "gs://lake/crm"}], "target": "golden"}
    conf = add_spark_settings({}, ["/lake", config], _FILE)

    assert conf == {"spark.delta.logStore.gs.impl": GCS_LOG_STORE, **_FILE.as_spark()}
    assert has_gcs_client(conf)
    assert add_spark_settings({"a": "b"}, ["/lake", "s3x", "/gs:/t"], _FILE) == {"a": "b"}


def test_another_way_to_authenticate_wins() -> None:
    """A task that sets how Spark authenticates does not get the key of the connection."""
    conf = add_spark_settings({AUTH_TYPE_SETTING: "COMPUTE_ENGINE"}, "gs://lake", GcsSettings(key=KEY))

    assert conf == {AUTH_TYPE_SETTING: "COMPUTE_ENGINE", "spark.delta.logStore.gs.impl": GCS_LOG_STORE}


def test_errors_of_the_store_name_the_remedy() -> None:
    """A bucket that does not exist, and a library that is not installed, have their own errors."""
    error = find_store_error("gs://lake/t", "404 Not Found <Error><Code>NoSuchBucket</Code></Error>")

    assert error is not None
    assert error.message == "gs://lake/t: the bucket does not exist: create it, or correct the location"
    assert "install airflow-merge-provider[gcs]" in refuse_location("gs://lake", ImportError()).message
