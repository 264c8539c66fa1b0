"""Airflow's settings for the commands: section ``[merge]``, the connections, and whether they can be used.

The commands read environment variables only, so the values are set there. What the variables or the options
of a command set already takes precedence, as in Airflow.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import partial
from typing import Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException, conf

from airflow_merge_provider.cli.doctor import (
    AirflowSide,
    Check,
    Setting,
    collect_checks,
    describe_credentials,
    list_options,
    name_variable,
    read_variable,
)
from airflow_merge_provider.cli.output import print_warning
from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.core.object_store.azure_settings import AzureSettings
from airflow_merge_provider.hooks.spark_job import SparkJobHook
from airflow_merge_provider.hooks.warehouse import WarehouseHook
from airflow_merge_provider.spark_process.shared.settings import SECTION

_SPARK_TYPES = ("spark", "yarn", "k8s", "local")
_HADOOP_VARIABLES = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")


def check_connections(merge_store_conn_id: str = WarehouseHook.default_conn_name) -> Iterator[Check]:
    """Yield the connection of the warehouse and that of Spark: whether they exist, and what they mean."""
    yield from collect_checks(
        _name_check(merge_store_conn_id), partial(_check_warehouse, merge_store_conn_id)
    )
    yield from collect_checks(_name_check(SparkJobHook.default_conn_name), _check_spark)


def _check_warehouse(merge_store_conn_id: str) -> Iterator[Check]:
    """Yield what the connection of the warehouse sets.

    :raises ConfigError: if its storage options are not valid.
    :raises SetupError: if the connection that it names cannot be used.
    """
    name = _name_check(merge_store_conn_id)
    connection = _find_connection(merge_store_conn_id)
    if connection is None:
        yield Check(name, "ok", "does not exist: [merge] warehouse and environment variables are used")
        return
    if connection.conn_type != WarehouseHook.conn_type:
        remedy = f"set its type to {WarehouseHook.conn_type}"
        yield Check(name, "warning", f"has type {connection.conn_type}", remedy)
        return
    parts = [f"warehouse {connection.host}" if connection.host else "no warehouse"]
    parts += describe_credentials(WarehouseHook(merge_store_conn_id).store_settings)
    conn_ids = [connection.extra_dejson.get(name) for name in ("aws_conn_id", "google_cloud_conn_id")]
    parts += [f"keys of connection {conn_id}" for conn_id in conn_ids if conn_id]
    yield Check(name, "ok", f"{connection.conn_type}: {', '.join(parts)}")


def _check_spark() -> Iterator[Check]:
    """Yield where the connection of Spark runs jobs."""
    name = _name_check(SparkJobHook.default_conn_name)
    connection = _find_connection(SparkJobHook.default_conn_name)
    if connection is None:
        yield Check(name, "ok", "does not exist: Spark runs on this machine")
        return
    where = f"{connection.conn_type}: {_describe_master(connection)}"
    if connection.conn_type not in {*_SPARK_TYPES, "spark_connect"}:
        remedy = "delete it to run Spark on this machine, or set its type to spark or spark_connect"
        yield Check(name, "missing", f"type {connection.conn_type} is not supported", remedy)
    elif str(connection.host).startswith("yarn") and not any(map(os.environ.get, _HADOOP_VARIABLES)):
        # Airflow creates this connection, with host yarn, in new databases.
        remedy = f"delete it to run Spark on this machine, or set {_HADOOP_VARIABLES[0]}"
        yield Check(name, "warning", f"{where}, but no YARN cluster is configured", remedy)
    else:
        yield Check(name, "ok", where)


def _find_connection(conn_id: str) -> Any:
    try:
        return WarehouseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        return None


def _describe_master(connection: Any) -> str:
    """Return the master or the server, without user and password."""
    host = str(connection.host or "no host")
    return f"{host}:{connection.port}" if connection.port else host


def _name_check(conn_id: str) -> str:
    return f"connection {conn_id}"


_WAREHOUSE = "warehouse"
_STORE_VARIABLES = ("AWS_", "AZURE_", "GOOGLE_")
# Airflow's own command connections sets this variable: without it, the metadata database is not read.
_CONTEXT_VARIABLE, _CONTEXT = "_AIRFLOW_PROCESS_CONTEXT", "server"


def apply_settings(options: argparse.Namespace) -> None:
    """Set the environment variables that a command reads, and for ``doctor`` how to check Airflow's side.

    :raises SetupError: when the connection that ``--store-conn`` names does not exist, or cannot be used.
    """
    os.environ.setdefault(_CONTEXT_VARIABLE, _CONTEXT)
    settings = {name: read_setting(name) for name in list_options()}
    warehouse = settings[_WAREHOUSE]
    # A command that names no dataset does not need the connection, and so no metadata database.
    if hasattr(options, _WAREHOUSE):
        warehouse = _apply_connection(warehouse, options.store_conn)
    for name, setting in {**settings, _WAREHOUSE: warehouse}.items():
        if setting.value:
            os.environ[name_variable(name)] = setting.value
    if hasattr(options, "airflow"):
        list_checks = partial(_list_connection_checks, options.store_conn)
        options.airflow = AirflowSide(settings.__getitem__, warehouse, list_checks)


def read_setting(name: str) -> Setting:
    """Return a setting of section ``[merge]`` as Airflow reads it, and where it comes from."""
    from_variable = read_variable(name)
    value = conf.get(SECTION, name, fallback=None)
    if os.environ.get(name_variable(name)) or value in {None, from_variable.value}:
        return from_variable
    return Setting(str(value), "airflow.cfg")


def _apply_connection(warehouse: Setting, conn_id: str | None) -> Setting:
    """Set the variables of the connection's credentials; return its warehouse, else that of the settings.

    :raises SetupError: when ``conn_id`` is set and there is no such connection, or it cannot be used.
    """
    name = conn_id or WarehouseHook.default_conn_name
    hook = WarehouseHook(name)
    try:
        # Airflow logs to standard output, where a line would make JSON invalid.
        with redirect_stdout(sys.stderr):
            if conn_id:
                hook.get_connection(conn_id)
            variables, location = _list_variables(hook), hook.warehouse
    except AirflowNotFoundException as error:
        remedy = "create it with `airflow connections add`, or in Airflow's UI"
        raise SetupError(f"connection {name!r}: does not exist ({remedy})") from error
    except Exception as error:
        text = next(iter(str(error).splitlines()), type(error).__name__)
        if conn_id:
            raise SetupError(f"connection {name!r}: cannot be used: {text}") from error
        # No database, no secrets backend, invalid extras: not every command needs the connection.
        print_warning(f"connection {name!r} is not used: {text}")
        return warehouse
    os.environ.update(variables)
    if not location or location == warehouse.value:
        return warehouse
    return Setting(location, f"connection {name}")


def _list_variables(hook: WarehouseHook) -> dict[str, str]:
    """Return the environment variables from which the clients of the object store read their credentials."""
    options = {
        name: value for name, value in hook.storage_options.items() if name.startswith(_STORE_VARIABLES)
    }
    settings = hook.store_settings
    if isinstance(settings, AzureSettings) and settings.account:
        options["AZURE_STORAGE_ACCOUNT_NAME"] = settings.account.partition(".")[0]
    return options


def _list_connection_checks(conn_id: str | None) -> list[Check]:
    with redirect_stdout(sys.stderr):
        return list(check_connections(conn_id or WarehouseHook.default_conn_name))
