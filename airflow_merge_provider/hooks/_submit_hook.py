"""The stock hook of spark-submit, as runs need it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_merge_provider.core.child_process import build_child_environment, make_work_folder
from airflow_merge_provider.spark_process.launch import write_properties

_NAMESPACE, _POD_NAME = "spark.kubernetes.namespace", "spark.kubernetes.driver.pod.name"
# Spark's default.
_DEFAULT_NAMESPACE = "default"


class QuietSubmitHook(SparkSubmitHook):
    """The stock hook with a properties file that adds to the cluster's defaults instead of replacing them."""

    # The settings of the application; none before write_settings.
    _settings: Mapping[str, str] = {}

    @property
    def master(self) -> str:
        """The master of the connection."""
        return str(self._connection["master"])

    @property
    def is_cluster(self) -> bool:
        """Whether the driver runs on the cluster."""
        return bool(self._connection["deploy_mode"] == "cluster")

    @property
    def runs_in_pod(self) -> bool:
        """Whether the driver runs in a pod of Kubernetes."""
        return self.is_cluster and self.master.startswith("k8s://")

    @property
    def has_seen_pod(self) -> bool:
        """Whether spark-submit has logged the state of the driver pod, which it does once the pod exists."""
        return self._kubernetes_application_id is not None

    @property
    def driver_pod(self) -> tuple[str, str]:
        """The namespace and the name of the driver pod."""
        return str(self._connection["namespace"]), self._settings[_POD_NAME]

    @property
    def driver_exit_code(self) -> int | None:
        """The exit code of the driver pod; None if spark-submit has not logged it."""
        return self._spark_exit_code

    def write_settings(self, settings: Mapping[str, str], file: Path) -> None:
        """Write the settings of the application into its properties file.

        With ``--conf``, they would be on the command line, which is public, and they may contain keys.

        :param settings: for a driver in a pod, they contain the name of the pod.
        """
        self._settings = settings
        self._properties_file = str(file)
        if self.runs_in_pod:
            # The stock hook reads the name from the output of spark-submit, which may log less.
            self._kubernetes_driver_pod = settings[_POD_NAME]
            namespace = settings.get(_NAMESPACE) or self._connection["namespace"]
            self._connection["namespace"] = namespace or _DEFAULT_NAMESPACE
        write_properties(settings, file)

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Submit the application and close the pipe of its output, which the stock hook leaves open."""
        try:
            return super().submit(application, **kwargs)
        finally:
            if self._submit_sp is not None and self._submit_sp.stdout is not None:
                self._submit_sp.stdout.close()

    def _build_spark_submit_command(self, application: str) -> list[str]:
        command: list[str] = super()._build_spark_submit_command(application)
        return [command[0], "--load-spark-defaults", *command[1:]]

    def _delete_driver_pod(self) -> None:
        """Delete the driver pod with spark-submit, whose credentials have created it.

        The stock hook uses the credentials of Airflow's executor, which may not run on Kubernetes.
        """
        namespace, name = self.driver_pod
        with make_work_folder() as work:
            # The file of the application is removed as soon as its spark-submit has ended.
            properties = work / "spark.properties"
            write_properties(self._settings, properties)
            command = [*self._get_spark_binary_path(), "--load-spark-defaults"]
            command += ["--properties-file", str(properties), "--master", self.master]
            command += ["--kill", f"{namespace}:{name}"]
            process = subprocess.run(  # noqa: S603 - our own command, no shell
                command,
                env=build_child_environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
        if process.returncode:
            self.log.warning(
                "driver pod %s/%s cannot be deleted: use kubectl delete pod --namespace %s %s\n%s",
                *(namespace, name, namespace, name, process.stdout.strip()),
            )
        else:
            self.log.info("deleted driver pod %s/%s", namespace, name)
