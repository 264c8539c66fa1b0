"""Run a job on a connection of type ``spark``: the stock hook, with the request and result files added."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.common.compat.sdk import AirflowException

from airflow_merge_provider.core.child_process import (
    build_child_environment,
    die_with_parent,
    make_work_folder,
)
from airflow_merge_provider.core.errors import JobError, SetupError
from airflow_merge_provider.core.protocol import JobFailure, JobRequest, JobResult, read_result
from airflow_merge_provider.core.spark_conf import properties_text
from airflow_merge_provider.jvm.jars import find_java, spark_home
from airflow_merge_provider.launch import SCRIPT, describe_exit, submit_conf, write_private

_BINARY = "spark-submit"
# The format of the exit code in the stock hook's error.
_EXIT_CODE = re.compile(r"Error code is: (-?\d+)")


class QuietSubmitHook(SparkSubmitHook):
    """The stock hook with a properties file that adds to the cluster's defaults instead of replacing them."""

    def _build_spark_submit_command(self, application: str) -> list[str]:
        command: list[str] = super()._build_spark_submit_command(application)
        return [command[0], "--load-spark-defaults", *command[1:]]

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Submit the application and close the pipe of its output, which the stock hook leaves open."""
        try:
            return super().submit(application, **kwargs)
        finally:
            if self._submit_sp is not None and self._submit_sp.stdout is not None:
                self._submit_sp.stdout.close()


class SubmitProcess:
    """One request through spark-submit in client mode; ``kill_process`` ends it."""

    def __init__(self, request: JobRequest, *, conn_id: str, conf: Mapping[str, str]) -> None:
        self._request = request
        self._conn_id = conn_id
        self._conf = conf
        self._stock: SparkSubmitHook | None = None
        self._killed = False

    def run(self) -> JobResult | JobFailure:
        """Write the request, submit it and read the result.

        :raises SetupError: when Java, Spark or a jar is missing, or the deploy mode is not supported; nothing
            has been started in this case.
        :raises JobError: when the process ended without writing a result.
        """
        find_java()
        start = time.monotonic()
        with make_work_folder() as work:
            self._stock = self._build_hook(work)
            write_private(work / "request.json", self._request.model_dump_json())
            self._submit_request(work, self._stock)
            return read_result(work / "result.json", time.monotonic() - start)

    def kill_process(self) -> None:
        """End the child; its Python process also ends, because it receives the parent-death signal."""
        self._killed = True
        if self._stock is not None:
            self._stock.on_kill()

    def _build_hook(self, work: Path) -> SparkSubmitHook:
        try:
            hook = QuietSubmitHook(
                conn_id=self._conn_id,
                name=f"{self._request.run.dag_id}.{self._request.run.task_id}",
                application_args=[str(work / "request.json"), str(work / "result.json")],
                properties_file=str(work / "spark.properties"),
                spark_binary=None if shutil.which(_BINARY) else str(spark_home() / "bin" / _BINARY),
            )
        except (ValueError, RuntimeError, NameError) as error:
            # The stock hook raises NameError when the Kubernetes packages are missing.
            raise SetupError(f"connection {self._conn_id!r} cannot be used: {error}") from error
        connection: dict[str, Any] = hook._connection  # noqa: SLF001 - the master is only in this attribute
        if connection["deploy_mode"] == "cluster":
            raise SetupError(
                f"connection {self._conn_id!r} sets deploy mode 'cluster', which is not supported because "
                "the worker cannot read the result of the job: set deploy-mode to 'client'"
            )
        local = str(connection["master"]).startswith("local")
        conf = submit_conf(self._conf, local=local)
        # In a file of mode 0600 instead of --conf: settings may contain keys, and command lines are public.
        write_private(work / "spark.properties", properties_text(conf))
        return hook

    def _submit_request(self, work: Path, hook: SparkSubmitHook) -> None:
        env = build_child_environment(PYTHONUNBUFFERED="1", PYSPARK_DRIVER_PYTHON=sys.executable)
        try:
            hook.submit(str(SCRIPT), env=env, preexec_fn=die_with_parent)
        except AirflowException as error:
            if self._killed:
                raise JobError("The Spark process was stopped on request") from None
            if not (work / "result.json").is_file():
                code = _EXIT_CODE.search(str(error))
                raise JobError(describe_exit(int(code[1]) if code else None, [str(error)])) from None
