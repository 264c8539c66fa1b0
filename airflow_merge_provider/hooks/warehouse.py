"""Read versions and properties of tables in the warehouse without a JVM."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseHook, conf

from airflow_merge_provider.core.dataset import Dataset, DatasetRef, resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, DataError, Problem, SetupError
from airflow_merge_provider.core.object_store.azure_settings import AzureSettings, find_account
from airflow_merge_provider.core.object_store.clients import StoreSettings, is_azure, is_gcs
from airflow_merge_provider.core.object_store.gcs_settings import GcsSettings
from airflow_merge_provider.core.object_store.s3_settings import S3Settings
from airflow_merge_provider.delta_rs import load_table
from airflow_merge_provider.hooks._airflow_api import find_connection, find_connection_async

if TYPE_CHECKING:
    from airflow.sdk import Connection
    from deltalake import DeltaTable

# A dataset that does not exist.
_PROBE_FOLDER = "_airflow_merge_provider_connection_test"
# Extras of an aws connection from which only Airflow's own hook makes keys.
_ASSUMED = ("role_arn", "profile_name", "assume_role_method")
# Extras of a Google Cloud connection from which only Airflow's own hook makes credentials.
_GOOGLE_UNSUPPORTED = ("key_secret_name", "credential_config_file", "impersonation_chain", "is_anonymous")
_OLD_GOOGLE_PREFIX = "extra__google_cloud_platform__"
# Extras of the connection of the warehouse, by the names of the options of delta-rs.
_S3_EXTRAS = ("region", "endpoint_url", "session_token")
# Extras of the connection of the warehouse that name the connection with its keys.
_AWS_CONN_ID, _GOOGLE_CONN_ID = "aws_conn_id", "google_cloud_conn_id"


class WarehouseHook(BaseHook):
    """Read table metadata; the warehouse location comes from a ``merge_store`` connection.

    :param merge_store_conn_id: the connection; if the default one does not exist, ``[merge] warehouse`` is
        used.
    :param warehouse: the folder or URI that contains the datasets with bare ids; overrides the connection.
    """

    conn_name_attr = "merge_store_conn_id"
    default_conn_name = "merge_store_default"
    conn_type = "merge_store"
    hook_name = "Merge store"

    def __init__(self, merge_store_conn_id: str = default_conn_name, *, warehouse: str | None = None) -> None:
        super().__init__()
        self.merge_store_conn_id = merge_store_conn_id
        self._warehouse = warehouse

    @cached_property
    def warehouse(self) -> str | None:
        """The folder of datasets with bare ids: argument, else connection, else configuration."""
        if self._warehouse:
            return self._warehouse
        if self._connection is not None and self._connection.host:
            return str(self._connection.host)
        return conf.get("merge", "warehouse", fallback="") or None

    @cached_property
    def s3_settings(self) -> S3Settings:
        """The address and credentials of S3, of the connections and the environment.

        :raises ConfigError: when an extra of the connection is not valid.
        :raises SetupError: when the connection that ``aws_conn_id`` names does not exist or cannot be used.
        """
        conn_id = self._aws_conn_id
        connection = find_connection(conn_id) if conn_id else None
        return self._read_settings(self._require_named(_AWS_CONN_ID, connection))

    @cached_property
    def gcs_settings(self) -> GcsSettings:
        """The key of Google Cloud Storage, of the connections or the environment.

        :raises ConfigError: when an extra of the connection is not valid.
        :raises SetupError: when the connection of ``google_cloud_conn_id`` does not exist or cannot be used.
        """
        conn_id = self._google_cloud_conn_id
        connection = find_connection(conn_id) if conn_id else None
        return self._read_gcs_settings(self._require_named(_GOOGLE_CONN_ID, connection))

    def _read_gcs_settings(self, google_connection: Connection | None) -> GcsSettings:
        """Return the key of the first that has one: storage options, connection, environment."""
        settings = GcsSettings.from_options(self._extra_options)
        if settings == GcsSettings() and google_connection is not None:
            settings = _read_google_connection(google_connection)
        return GcsSettings.from_environment() if settings == GcsSettings() else settings

    def _read_settings(self, aws_connection: Connection | None) -> S3Settings:
        """Return the settings of both connections and the environment; the first that has one counts."""
        connection = self._connection
        if connection is None:
            return S3Settings.from_environment()
        extra = connection.extra_dejson
        options = {name: str(extra.get(name) or "") for name in _S3_EXTRAS}
        settings = S3Settings.from_options(
            {
                **options,
                "ACCESS_KEY_ID": connection.login or "",
                "SECRET_ACCESS_KEY": connection.password or "",
            }
        )
        style = extra.get("path_style")
        settings = replace(settings, path_style=None if style in {None, ""} else str(style).lower() == "true")
        settings = settings.fill_missing(S3Settings.from_options(self._extra_options))
        if aws_connection is not None:
            settings = settings.fill_missing(_read_aws_connection(aws_connection))
        return settings.fill_missing(S3Settings.from_environment())

    @property
    def storage_options(self) -> dict[str, str]:
        """The options of delta-rs for an object store.

        :raises ConfigError: when the connection's storage options are not a JSON object.
        """
        return {**self.store_settings.as_delta_rs(), **self._extra_options}

    @property
    def store_settings(self) -> StoreSettings:
        """The address and credentials of the object store of the warehouse.

        :raises ConfigError: when an extra of the connection is not valid.
        :raises SetupError: when a connection cannot be used.
        """
        connection = self._connection
        location = (connection.host if connection else None) or self.warehouse
        if is_gcs(location):
            self._require_no_endpoint()
            return self.gcs_settings
        if not is_azure(location):
            return self.s3_settings
        if connection is None:
            return AzureSettings.from_environment()
        options = {**self._extra_options}
        if connection.password:
            options["AZURE_STORAGE_ACCOUNT_KEY"] = connection.password
        endpoint = connection.extra_dejson.get("endpoint_url") or None
        return AzureSettings.from_options(find_account(location), options, endpoint)

    @property
    def _aws_conn_id(self) -> str | None:
        """The connection of type ``aws`` that the connection of the warehouse names."""
        return (self._connection.extra_dejson.get(_AWS_CONN_ID) or None) if self._connection else None

    def _require_no_endpoint(self) -> None:
        """Refuse an address of Google Cloud Storage, which Hadoop's client does not read."""
        if self._connection is not None and self._connection.extra_dejson.get("endpoint_url"):
            message = f"endpoint_url of connection {self.merge_store_conn_id!r} is not supported with gs://"
            raise ConfigError.from_problems([Problem("endpoint_url", "connection", message, "remove it")])

    @property
    def _google_cloud_conn_id(self) -> str | None:
        """The connection of type ``google_cloud_platform`` that the connection of the warehouse names."""
        return (self._connection.extra_dejson.get(_GOOGLE_CONN_ID) or None) if self._connection else None

    @cached_property
    def _extra_options(self) -> dict[str, str]:
        """The connection's options of delta-rs, which other stores than S3 need."""
        options: Any = self._connection.extra_dejson.get("storage_options") if self._connection else None
        if isinstance(options, str):
            options = _parse_json(options)
        if not isinstance(options or {}, Mapping):
            problem = Problem(
                "storage_options",
                "connection",
                f"the storage options of connection {self.merge_store_conn_id!r} are not a JSON object",
                'use the form {"AWS_REGION": "…"}',
            )
            raise ConfigError.from_problems([problem])
        return {str(name): str(value) for name, value in (options or {}).items() if value is not None}

    def resolve_dataset(self, ref: DatasetRef) -> Dataset:
        """Return the dataset that a reference names in this warehouse.

        :raises ConfigError: when the reference is not valid.
        """
        return resolve_dataset(ref, self.warehouse, at="dataset")

    def read_version(self, ref: DatasetRef) -> int | None:
        """Return a table's version; ``None`` when there is no such table."""
        table = self.open_table(self.resolve_dataset(ref))
        return None if table is None else table.version()

    def read_identity(self, ref: DatasetRef) -> tuple[int, str] | None:
        """Return a table's version and its id; another table at the same location has another id."""
        table = self.open_table(self.resolve_dataset(ref))
        return None if table is None else (table.version(), str(table.metadata().id))

    def read_properties(self, ref: DatasetRef) -> dict[str, str]:
        """Return a table's properties; an empty dict when there is no such table."""
        table = self.open_table(self.resolve_dataset(ref))
        if table is None:
            return {}
        return {str(name): str(value) for name, value in table.metadata().configuration.items()}

    def run_number(self, ref: DatasetRef, job: str) -> int | None:
        """Return the number of the last run of ``job`` that committed to a table."""
        table = self.open_table(self.resolve_dataset(ref))
        return None if table is None else table.transaction_version(f"airflow-merge/{job}")

    async def fetch_connection(self) -> None:
        """Fetch the connections asynchronously, so that later calls do not block the event loop.

        :raises AirflowApiError: when the API of Airflow does not answer.
        :raises ConfigError: when an extra of the connection is not valid.
        :raises SetupError: when a connection that is named does not exist, or cannot be used.
        """
        connection = await find_connection_async(self.merge_store_conn_id)
        self.__dict__["_connection"] = self._require_default(connection)
        conn_id = self._aws_conn_id
        connection = await find_connection_async(conn_id) if conn_id else None
        self.__dict__["s3_settings"] = self._read_settings(self._require_named(_AWS_CONN_ID, connection))
        conn_id = self._google_cloud_conn_id
        connection = await find_connection_async(conn_id) if conn_id else None
        settings = self._read_gcs_settings(self._require_named(_GOOGLE_CONN_ID, connection))
        self.__dict__["gcs_settings"] = settings

    def test_connection(self) -> tuple[bool, str]:
        """Check whether the warehouse can be reached; for the Test button in the UI."""
        if self.warehouse is None:
            return False, "no warehouse is set: enter its location in the Warehouse field"
        try:
            folder = str(self.resolve_dataset(_PROBE_FOLDER).path).removesuffix(f"/{_PROBE_FOLDER}") or "/"
            if folder.startswith("/") and not Path(folder).is_dir():
                return False, f"{folder} is not a folder on this machine"
            self.read_version(_PROBE_FOLDER)
        except (ConfigError, SetupError) as error:
            return False, str(error)
        return True, f"{self.warehouse} can be reached"

    @cached_property
    def _connection(self) -> Connection | None:
        return self._require_default(find_connection(self.merge_store_conn_id))

    def _require_default(self, connection: Connection | None) -> Connection | None:
        """Return the connection of the warehouse, which may be missing only if no task names it.

        :raises SetupError: when it does not exist.
        """
        if connection is None and self.merge_store_conn_id != self.default_conn_name:
            raise SetupError(
                f"connection {self.merge_store_conn_id!r} does not exist: create it, or leave out "
                "merge_store_conn_id"
            )
        return connection

    def _require_named(self, extra: str, connection: Connection | None) -> Connection | None:
        """Return the connection that an extra of the connection of the warehouse names.

        :raises SetupError: when it does not exist.
        """
        conn_id = self._connection.extra_dejson.get(extra) if self._connection else None
        if connection is None and conn_id:
            raise SetupError(
                f"connection {conn_id!r} does not exist: create it, or correct {extra} of connection "
                f"{self.merge_store_conn_id!r}"
            )
        return connection

    def open_table(self, dataset: Dataset) -> DeltaTable | None:
        """Open a table's log; return ``None`` when there is no such table.

        :raises SetupError: when the location cannot be read.
        """
        from deltalake.exceptions import DeltaError, TableNotFoundError

        if dataset.path is None:
            raise SetupError(f"{dataset.table} is a catalog table: only Spark can read its metadata")
        try:
            return load_table(dataset.path, storage_options=self.storage_options)
        except (DataError, DeltaError, OSError) as error:
            message = str(error).splitlines()[0]
            # delta-rs also raises TableNotFoundError for an unknown URI scheme.
            if isinstance(error, TableNotFoundError) and not message.startswith("Unknown scheme"):
                return None
            raise SetupError(
                f"{dataset.path} cannot be read: {message.split(' Known schemes')[0]}"
            ) from error


def _parse_json(text: str) -> Any:
    """Parse JSON; return text that is not valid JSON unchanged."""
    try:
        return json.loads(text) if text.strip() else None
    except ValueError:
        return text


def find_warehouse(merge_store_conn_id: str = WarehouseHook.default_conn_name) -> str | None:
    """Return the default warehouse: of the connection, else of the configuration."""
    return WarehouseHook(merge_store_conn_id).warehouse


def _read_aws_connection(connection: Connection) -> S3Settings:
    """Return the settings of a connection of type ``aws``.

    :raises SetupError: when it has no keys but a role or a profile.
    """
    extra = connection.extra_dejson
    if assumed := [name for name in _ASSUMED if extra.get(name)]:
        raise SetupError(
            f"connection {connection.conn_id!r} has {assumed[0]}, which is not supported: use keys, or give "
            "the role to the machine of the workers and leave out aws_conn_id"
        )
    return S3Settings.from_options(
        {
            "ACCESS_KEY_ID": connection.login or "",
            "SECRET_ACCESS_KEY": connection.password or "",
            "SESSION_TOKEN": extra.get("aws_session_token") or "",
            "REGION": extra.get("region_name") or "",
            "ENDPOINT_URL": extra.get("endpoint_url") or "",
        }
    )


def _read_google_connection(connection: Connection) -> GcsSettings:
    """Return the key of a connection of type ``google_cloud_platform``.

    :raises SetupError: when its key cannot be used, or it has other credentials.
    """
    extra = {name.removeprefix(_OLD_GOOGLE_PREFIX): value for name, value in connection.extra_dejson.items()}
    if unsupported := [name for name in _GOOGLE_UNSUPPORTED if extra.get(name)]:
        raise SetupError(
            f"connection {connection.conn_id!r} has {unsupported[0]}, which is not supported: use key_path, "
            "keyfile_dict or Application Default Credentials on the machine of the workers"
        )
    path, content = extra.get("key_path") or None, extra.get("keyfile_dict") or None
    if path is not None and content is not None:
        raise SetupError(
            f"connection {connection.conn_id!r} has key_path and keyfile_dict: remove one of them"
        )
    if path is not None and not Path(path).is_file():
        raise SetupError(
            f"connection {connection.conn_id!r} has key_path {path}, which does not exist on this machine: "
            "copy the file to every worker, or use keyfile_dict"
        )
    if content is None:
        return GcsSettings(path)
    key = _parse_json(content) if isinstance(content, str) else content
    if not isinstance(key, Mapping):
        raise SetupError(
            f"connection {connection.conn_id!r} has a keyfile_dict that is not a JSON object: paste the "
            "content of a key file"
        )
    return GcsSettings(key=json.dumps(key))
