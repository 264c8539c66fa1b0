"""Resolve an Airflow connection to a place to run Spark, and run jobs there in a child process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from airflow.providers.common.compat.sdk import BaseHook, conf

from airflow_merge_provider.core.capabilities import list_key_columns
from airflow_merge_provider.core.change_plan.shown_rows import ShownRows, parse_shown_rows
from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.core.failure_report import TargetState
from airflow_merge_provider.core.object_store.clients import add_spark_settings, is_secret
from airflow_merge_provider.core.protocol import JobFailure, JobRequest, JobResult
from airflow_merge_provider.core.spark_conf import format_settings
from airflow_merge_provider.hooks._airflow_api import find_connection
from airflow_merge_provider.hooks.warehouse import WarehouseHook
from airflow_merge_provider.spark_process.launch import JobProcess, is_local
from airflow_merge_provider.spark_process.shared.client import build_local_process
from airflow_merge_provider.spark_process.shared.settings import SECTION, LocalSparkSettings, parse_settings

if TYPE_CHECKING:
    from airflow.sdk import Connection


def choose_shown_rows(request: JobRequest) -> ShownRows:
    """Return what everything that a run leaves in Airflow may show of its rows.

    :raises ConfigError: if a setting of section ``[merge]`` is not valid.
    """
    keys = list_key_columns(request.job, request.config)
    return parse_shown_rows(lambda name: conf.get("merge", name, fallback=None), keys)


class Process(Protocol):
    """A process that runs one request and can be ended meanwhile."""

    def run(self) -> JobResult | JobFailure: ...

    def kill_process(self) -> None: ...


class SparkJobHook(BaseHook):
    """Run jobs where the connection points to: spark-submit, a Spark Connect server, or this machine.

    :param conn_id: a connection of type ``spark`` or ``spark_connect``. If the default connection does not
        exist, Spark runs on this machine (the stock hook would use YARN).
    :param conf: Spark settings, which override those of this package; None is a setting that is not set.
    :param merge_store_conn_id: the connection with the credentials of object stores; the default one may not
        exist.
    """

    conn_name_attr = "conn_id"
    default_conn_name = "spark_default"
    hook_name = "Spark merge job"

    def __init__(
        self,
        conn_id: str = default_conn_name,
        merge_store_conn_id: str = WarehouseHook.default_conn_name,
        *,
        conf: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.merge_store_conn_id = merge_store_conn_id
        self.conn_id = conn_id
        self.conf = format_settings(conf)
        self._process: Process | None = None
        self._store: WarehouseHook | None = None

    def submit(self, request: JobRequest) -> JobResult | JobFailure:
        """Run one request until it ends; its output lines are written to the task log.

        A run that needs no Spark, because it has nothing to do or cannot succeed, ends without a process.

        :raises ConfigError: when the configuration does not suit the tables.
        :raises DataError: when a source or the target is not as expected.
        :raises SetupError: when something the run needs is missing; nothing has been started in this case.
        :raises JobError: when the process ended without writing a result.
        """
        from airflow_merge_provider import before_spark  # noqa: PLC0415 - import time

        request = request.model_copy(update={"shown_rows": choose_shown_rows(request)})
        for name in filter(is_secret, self.conf):
            self.log.warning("conf contains %s: keys belong in the connection of the warehouse", name)
        connection = self._find_connection()
        store = self._open_store(request)
        # A Spark Connect server has its own settings and jars.
        if connection is None or connection.conn_type != "spark_connect":
            exchange = conf.get(SECTION, "exchange", fallback="")
            locations = [request.warehouse, request.config, exchange]
            self.conf = add_spark_settings(self.conf, locations, store.store_settings)
        process = self._choose_process(request, connection)
        result = before_spark.find_result(
            request,
            conf=self.conf,
            is_local=connection is None,
            has_local_catalog=connection is not None and is_local(connection.host or ""),
            storage_options=store.storage_options,
            on_line=self._log_line,
        )
        if result is not None:
            return result
        self._process = process
        return process.run()

    def find_target_state(self, request: JobRequest) -> TargetState | None:
        """Return what the log of the target says after a failed run; None if that is not known.

        It raises nothing, because it may hide the error of the run.
        """
        from airflow_merge_provider import before_spark  # noqa: PLC0415 - import time

        try:
            return before_spark.find_target_state(
                request,
                conf=self.conf,
                is_local=self._find_connection() is None,
                has_begun=self._process is not None,
                storage_options=self._open_store(request).storage_options,
            )
        except Exception as error:  # noqa: BLE001 - the run has failed already
            self.log.debug("the log of the target cannot be read: %s", error)
            return None

    def on_kill(self) -> None:
        """End the child process if one is running."""
        if self._process is not None:
            self._process.kill_process()

    def _open_store(self, request: JobRequest) -> WarehouseHook:
        """Return the hook of the warehouse, which has the credentials of its object store."""
        if self._store is None:
            self._store = WarehouseHook(self.merge_store_conn_id, warehouse=request.warehouse)
        return self._store

    def _choose_process(self, request: JobRequest, connection: Connection | None) -> Process:
        if connection is None:
            self.log.info("Connection %r does not exist: running Spark on this machine", self.conn_id)
            return build_local_process(request, find_settings(), conf=self.conf, on_line=self._log_line)
        if connection.conn_type == "spark_connect":
            from airflow.providers.apache.spark.hooks.spark_connect import (  # noqa: PLC0415 - import time
                SparkConnectHook,
            )

            url = SparkConnectHook(self.conn_id).get_connection_url()
            return JobProcess(request, remote=url, conf=self.conf, on_line=self._log_line)
        if connection.conn_type in {"spark", "yarn", "k8s", "local"}:
            from airflow_merge_provider.hooks._submit import SubmitProcess  # noqa: PLC0415 - 0.7 CPU s

            settings = self._open_store(request).store_settings
            return SubmitProcess(request, conn_id=self.conn_id, conf=self.conf, store_settings=settings)
        raise SetupError(
            f"connection {self.conn_id!r} has type {connection.conn_type!r}, which is not supported: "
            "set spark_conn_id to a connection of type spark or spark_connect"
        )

    def _find_connection(self) -> Connection | None:
        connection = find_connection(self.conn_id)
        if connection is None and self.conn_id != self.default_conn_name:
            raise SetupError(
                f"connection {self.conn_id!r} does not exist: create it, or leave out spark_conn_id to use "
                "spark_default, or Spark on this machine if that does not exist"
            )
        return connection

    def _log_line(self, line: str) -> None:
        self.log.info("%s", line)


def find_settings() -> LocalSparkSettings:
    """Return the settings of Spark on this machine from section ``[merge]``.

    :raises ConfigError: with every invalid value.
    """
    return parse_settings(lambda name: conf.get(SECTION, name, fallback=None))
