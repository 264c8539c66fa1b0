"""Check the connections that operators use by default; values of credentials are never part of the result."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException

from airflow_merge_provider.cli.doctor import Check, collect_checks, describe_credentials
from airflow_merge_provider.hooks.spark_job import SparkJobHook
from airflow_merge_provider.hooks.warehouse import WarehouseHook

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
