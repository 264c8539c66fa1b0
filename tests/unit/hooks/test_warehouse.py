"""Tests of reading real tables on this machine with the warehouse hook and without a JVM."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from airflow_merge_provider.core.errors import ConfigError, SetupError
from airflow_merge_provider.core.object_store.gcs_settings import GcsSettings
from airflow_merge_provider.core.object_store.s3_settings import S3Settings
from airflow_merge_provider.hooks.warehouse import WarehouseHook, find_warehouse

SECRET = "s3cr3t-value"  # noqa: S105 - not a secret


@pytest.fixture
def lake(tmp_path: Path) -> Any:
    """Create a warehouse with one table of two versions."""
    rows = pa.table({"_id": ["a", "b"]})
    write_deltalake(tmp_path / "crm", rows, configuration={"delta.appendOnly": "false"})
    committed = CommitProperties(app_transactions=[Transaction("airflow-merge/merge_source", 4)])
    write_deltalake(tmp_path / "crm", rows, mode="append", commit_properties=committed)
    return str(tmp_path)


def define_connection(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MERGE_STORE_DEFAULT", json.dumps({"conn_type": "merge_store", **fields}))


def test_a_table_tells_its_version_properties_and_last_run(lake: Any) -> None:
    """Version, properties and last run are read from the table's own log."""
    hook = WarehouseHook(warehouse=lake)

    assert hook.read_version("crm") == 1
    assert hook.read_properties("crm") == {"delta.appendOnly": "false"}
    assert hook.run_number("crm", "merge_source") == 4
    assert hook.run_number("crm", "joiner") is None


def test_a_missing_table_has_no_version(lake: Any) -> None:
    """A missing table has no version and raises no error."""
    hook = WarehouseHook(warehouse=lake)

    assert hook.read_version("nothing") is None
    assert hook.read_properties("nothing") == {}
    assert hook.run_number("nothing", "merge_source") is None


def test_the_warehouse_is_found_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The warehouse is the given one, else that of the connection, else that of the configuration."""
    assert find_warehouse() is None
    monkeypatch.setenv("AIRFLOW__MERGE__WAREHOUSE", "/configured")
    assert find_warehouse() == "/configured"
    define_connection(monkeypatch, host="s3://connected")
    assert find_warehouse() == "s3://connected"
    assert WarehouseHook(warehouse="/given").warehouse == "/given"


@pytest.mark.parametrize("written", ['{"REGION": "eu", "TIMEOUT": 3}', {"REGION": "eu", "TIMEOUT": 3}])
def test_storage_options_are_json_or_an_object(written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage options may be JSON text, as from the UI, or an object, as from a secrets backend."""
    define_connection(monkeypatch, extra={"storage_options": written})

    assert WarehouseHook().storage_options == {"AWS_REGION": "eu", "REGION": "eu", "TIMEOUT": "3"}
    assert WarehouseHook().s3_settings.region == "eu"


@pytest.mark.parametrize("written", ["", None])
def test_no_storage_options_are_none(written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty field of the form means no storage options."""
    define_connection(monkeypatch, extra={"storage_options": written})

    assert WarehouseHook().storage_options == {}


def test_storage_options_that_are_no_object_are_refused_without_showing_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Storage options that are not an object are rejected without showing them. They may hold keys."""
    define_connection(monkeypatch, extra={"storage_options": "key=s3cr3t"})

    with pytest.raises(ConfigError, match="are not a JSON object") as refused:
        _ = WarehouseHook().storage_options

    assert "s3cr3t" not in str(refused.value)


@pytest.mark.parametrize("ref", ["lake.crm.people", "foo://lake/people"])
def test_what_cannot_be_read_without_spark_says_so(ref: Any) -> None:
    """A catalog table, or a store that delta-rs does not support, raises an error that names the reason."""
    with pytest.raises(SetupError):
        WarehouseHook(warehouse="/lake").read_version(ref)


def test_the_connection_test_says_whether_the_warehouse_is_there(
    lake: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The connection test in the UI returns a sentence on whether the warehouse exists."""
    assert WarehouseHook().test_connection() == (
        False,
        "no warehouse is set: enter its location in the Warehouse field",
    )
    define_connection(monkeypatch, host=lake)
    assert WarehouseHook().test_connection() == (True, f"{lake} can be reached")
    define_connection(monkeypatch, host=str(tmp_path / "missing"))
    assert WarehouseHook().test_connection()[0] is False


def test_the_connection_has_the_keys_of_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    """Login and password are the keys, and the extras are the address; each client gets the same."""
    extra = {"region": "eu-west-1", "endpoint_url": "https://minio:9000", "path_style": "false"}
    extra |= {"session_token": SECRET}
    define_connection(monkeypatch, login="key", password=SECRET, extra=extra)

    hook = WarehouseHook()

    assert hook.s3_settings == S3Settings("key", SECRET, SECRET, "eu-west-1", "https://minio:9000", False)
    assert hook.storage_options["AWS_SECRET_ACCESS_KEY"] == SECRET
    assert SECRET not in repr(hook.s3_settings)


def test_an_aws_connection_completes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys can be in a connection of type aws, which other operators use too."""
    define_connection(monkeypatch, extra={"aws_conn_id": "lake", "region": "eu-west-1"})
    aws = {"region_name": "us-west-2", "aws_session_token": "token", "endpoint_url": "http://minio"}
    monkeypatch.setenv(
        "AIRFLOW_CONN_LAKE",
        json.dumps({"conn_type": "aws", "login": "key", "password": SECRET, "extra": aws}),
    )
    expected = S3Settings("key", SECRET, "token", "eu-west-1", "http://minio")

    assert WarehouseHook().s3_settings == expected
    hook = WarehouseHook()
    asyncio.run(hook.fetch_connection())
    assert hook.__dict__["s3_settings"] == expected


@pytest.mark.parametrize("name", ["role_arn", "profile_name"])
def test_an_aws_connection_with_a_role_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A role that only the amazon provider can assume is an error, and not a request without keys."""
    define_connection(monkeypatch, extra={"aws_conn_id": "lake"})
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "aws", "extra": {name: "r"}}))

    with pytest.raises(SetupError, match=f"connection 'lake' has {name}, which is not supported: use keys"):
        _ = WarehouseHook().s3_settings


def define_google(monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any], **store_extra: Any) -> None:
    define_connection(
        monkeypatch, host="gs://lake/wh", extra={"google_cloud_conn_id": "google", **store_extra}
    )
    google = {"conn_type": "google_cloud_platform", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_GOOGLE", json.dumps(google))


@pytest.mark.parametrize("prefix", ["", "extra__google_cloud_platform__"])
def test_a_google_cloud_connection_has_the_key_file(
    prefix: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The key file of the connection is used by each client; old connections have longer names."""
    file = tmp_path / "key.json"
    file.write_text("{}")
    define_google(monkeypatch, {f"{prefix}key_path": str(file), f"{prefix}keyfile_dict": ""})

    assert WarehouseHook().store_settings == GcsSettings(str(file))
    assert WarehouseHook().storage_options == {"GOOGLE_SERVICE_ACCOUNT": str(file)}
    hook = WarehouseHook()
    asyncio.run(hook.fetch_connection())
    assert hook.__dict__["gcs_settings"] == GcsSettings(str(file))


@pytest.mark.parametrize("written", [{"private_key": SECRET}, json.dumps({"private_key": SECRET})])
def test_a_google_cloud_connection_has_the_content_of_a_key_file(
    written: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The content may be an object or JSON text; the representation of the settings does not show it."""
    define_google(monkeypatch, {"keyfile_dict": written})

    settings = WarehouseHook().store_settings

    assert settings == GcsSettings(key=json.dumps({"private_key": SECRET}))
    assert SECRET not in repr(settings)


def test_storage_options_replace_the_google_cloud_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key in the storage options is used by each client, and that of the connection by none."""
    options = {"google_service_account": "/keys/lake.json"}
    define_google(monkeypatch, {"keyfile_dict": {"private_key": SECRET}}, storage_options=options)

    assert WarehouseHook().store_settings == GcsSettings("/keys/lake.json")


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        *(
            ({name: "a@b"}, f"connection 'google' has {name}, which is not supported")
            for name in ("impersonation_chain", "key_secret_name", "credential_config_file", "is_anonymous")
        ),
        (
            {"key_path": "/nowhere/k.json"},
            "has key_path /nowhere/k.json, which does not exist on this machine",
        ),
        ({"keyfile_dict": SECRET}, "has a keyfile_dict that is not a JSON object: paste the content"),
        ({"keyfile_dict": "{}", "key_path": "/k.json"}, "has key_path and keyfile_dict: remove one of them"),
    ],
)
def test_a_google_cloud_connection_that_cannot_be_used_is_refused(
    extra: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other credentials, and a key that is not one, are errors, and not a request without credentials."""
    define_google(monkeypatch, extra)

    with pytest.raises(SetupError, match=message) as refused:
        _ = WarehouseHook().store_settings

    assert SECRET not in str(refused.value)


def test_an_endpoint_of_google_cloud_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hadoop's client would use Google's address while delta-rs would use another one."""
    define_google(monkeypatch, {}, endpoint_url="http://localhost:4443")

    with pytest.raises(ConfigError, match=r"endpoint_url: .* is not supported with gs://"):
        _ = WarehouseHook().store_settings
