"""Give the commands Airflow's settings: section ``[merge]`` and the connection of the warehouse.

The commands read environment variables only, so the values are set there. What the variables or the options
of a command set already takes precedence, as in Airflow.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import redirect_stdout

from airflow.providers.common.compat.sdk import conf

from airflow_merge_provider.airflow_cli.connections import check_connections
from airflow_merge_provider.commands.output import print_warning
from airflow_merge_provider.doctor.check import Check
from airflow_merge_provider.doctor.diagnosis import AirflowSide
from airflow_merge_provider.doctor.settings import Setting, list_options, name_variable, read_variable
from airflow_merge_provider.hooks.warehouse import WarehouseHook
from airflow_merge_provider.local_spark.settings import SECTION

_WAREHOUSE = "warehouse"
_S3_VARIABLES = "AWS_"
# Airflow's own command connections sets this variable: without it, the metadata database is not read.
_CONTEXT_VARIABLE, _CONTEXT = "_AIRFLOW_PROCESS_CONTEXT", "server"


def apply_settings(options: argparse.Namespace) -> None:
    """Set the environment variables that a command reads, and for ``doctor`` how to check Airflow's side."""
    os.environ.setdefault(_CONTEXT_VARIABLE, _CONTEXT)
    settings = {name: read_setting(name) for name in list_options()}
    warehouse = settings[_WAREHOUSE]
    # A command that names no dataset does not need the connection, and so no metadata database.
    if hasattr(options, _WAREHOUSE):
        warehouse = _apply_connection(warehouse)
    for name, setting in {**settings, _WAREHOUSE: warehouse}.items():
        if setting.value:
            os.environ[name_variable(name)] = setting.value
    if hasattr(options, "airflow"):
        options.airflow = AirflowSide(settings.__getitem__, lambda: warehouse, _list_connection_checks)


def read_setting(name: str) -> Setting:
    """Return a setting of section ``[merge]`` as Airflow reads it, and where it comes from."""
    from_variable = read_variable(name)
    value = conf.get(SECTION, name, fallback=None)
    if os.environ.get(name_variable(name)) or value in {None, from_variable.value}:
        return from_variable
    return Setting(str(value), "airflow.cfg")


def _apply_connection(warehouse: Setting) -> Setting:
    """Set the variables of the connection's credentials; return its warehouse, else that of the settings."""
    hook = WarehouseHook()
    try:
        # Airflow logs to standard output, where a line would make JSON invalid.
        with redirect_stdout(sys.stderr):
            options, location = hook.storage_options, hook.warehouse
    except Exception as error:  # noqa: BLE001 - no database, no secrets backend, invalid extras
        text = next(iter(str(error).splitlines()), type(error).__name__)
        print_warning(f"connection {hook.default_conn_name!r} is not used: {text}")
        return warehouse
    os.environ.update({name: value for name, value in options.items() if name.startswith(_S3_VARIABLES)})
    if not location or location == warehouse.value:
        return warehouse
    return Setting(location, f"connection {hook.default_conn_name}")


def _list_connection_checks() -> list[Check]:
    with redirect_stdout(sys.stderr):
        return list(check_connections())
