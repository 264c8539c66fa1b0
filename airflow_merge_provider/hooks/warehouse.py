"""Read versions and properties of tables in the warehouse without a JVM."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook, conf

from airflow_merge_provider.core.dataset import Dataset, resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, Problem, SetupError

if TYPE_CHECKING:
    from airflow.sdk import Connection
    from deltalake import DeltaTable


class WarehouseHook(BaseHook):
    """Read table metadata; the warehouse location comes from a ``merge_store`` connection.

    :param merge_store_conn_id: the connection; if it does not exist, ``[merge] warehouse`` is used.
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
    def storage_options(self) -> dict[str, str]:
        """The options for reading an object store.

        :raises ConfigError: when the connection's storage options are not a JSON object.
        """
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
        return {str(name): str(value) for name, value in (options or {}).items()}

    def resolve_dataset(self, ref: str | Mapping[str, Any]) -> Dataset:
        """Return the dataset that a reference names in this warehouse.

        :raises ConfigError: when the reference is not valid.
        """
        return resolve_dataset(ref, self.warehouse, at="dataset")

    def read_version(self, ref: str | Mapping[str, Any]) -> int | None:
        """Return a table's version; ``None`` when there is no such table."""
        table = self.open_table(self.resolve_dataset(ref))
        return None if table is None else table.version()

    def read_identity(self, ref: str | Mapping[str, Any]) -> tuple[int, str] | None:
        """Return a table's version and its id; another table at the same location has another id."""
        table = self.open_table(self.resolve_dataset(ref))
        return None if table is None else (table.version(), str(table.metadata().id))

    def read_properties(self, ref: str | Mapping[str, Any]) -> dict[str, str]:
        """Return a table's properties; an empty dict when there is no such table."""
        table = self.open_table(self.resolve_dataset(ref))
        if table is None:
            return {}
        return {str(name): str(value) for name, value in table.metadata().configuration.items()}

    def run_number(self, ref: str | Mapping[str, Any], job: str) -> int | None:
        """Return the number of the last run of ``job`` that committed to a table."""
        table = self.open_table(self.resolve_dataset(ref))
        return None if table is None else table.transaction_version(f"airflow-merge/{job}")

    async def fetch_connection(self) -> None:
        """Fetch the connection asynchronously, so that later calls do not block the event loop."""
        try:
            connection: Connection | None = await self.aget_connection(self.merge_store_conn_id)
        except AirflowNotFoundException:
            connection = None
        self.__dict__["_connection"] = connection

    def test_connection(self) -> tuple[bool, str]:
        """Check whether the warehouse can be reached; for the Test button in the UI."""
        if self.warehouse is None:
            return False, "no warehouse is set: enter its location in the Warehouse field"
        if self.warehouse.startswith("/") and not Path(self.warehouse).is_dir():
            return False, f"{self.warehouse} is not a folder on this machine"
        try:
            self.read_version(f"{self.warehouse.rstrip('/')}/_airflow_merge_provider_connection_test")
        except (ConfigError, SetupError) as error:
            return False, str(error)
        return True, f"{self.warehouse} can be reached"

    @cached_property
    def _connection(self) -> Connection | None:
        try:
            return self.get_connection(self.merge_store_conn_id)
        except AirflowNotFoundException:
            return None

    def open_table(self, dataset: Dataset) -> DeltaTable | None:
        """Open a table's log; return ``None`` when there is no such table.

        :raises SetupError: when the location cannot be read.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        if dataset.path is None:
            raise SetupError(f"{dataset.table} is a catalog table: only Spark can read its metadata")
        try:
            return DeltaTable(dataset.path, storage_options=self.storage_options)
        except (DeltaError, OSError) as error:
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


def find_warehouse() -> str | None:
    """Return the default warehouse: of the default connection, else of the configuration."""
    return WarehouseHook().warehouse
