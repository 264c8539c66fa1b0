"""Give the commands Airflow's settings: section ``[merge]`` and the connection of the warehouse.

The commands read environment variables only, so the values are set there. What the variables or the options
of a command set already takes precedence, as in Airflow.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import redirect_stdout
from functools import partial

from airflow.providers.common.compat.sdk import AirflowNotFoundException, conf

from airflow_merge_provider.airflow_cli.connections import check_connections
from airflow_merge_provider.cli.doctor import (
    AirflowSide,
    Check,
    Setting,
    list_options,
    name_variable,
    read_variable,
)
from airflow_merge_provider.cli.output import print_warning
from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.core.object_store.azure_settings import AzureSettings
from airflow_merge_provider.hooks.warehouse import WarehouseHook
from airflow_merge_provider.spark_process.shared.settings import SECTION

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
