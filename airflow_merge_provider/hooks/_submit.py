"""Run a job on a connection of type ``spark``: the stock hook, and a folder for request and result."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.common.compat.sdk import AirflowException, BaseHook, conf, conf as airflow_conf

from airflow_merge_provider.core.child_process import (
    build_child_environment,
    die_with_parent,
    make_work_folder,
)
from airflow_merge_provider.core.dataset import format_hadoop_path, resolve_dataset
from airflow_merge_provider.core.errors import JobError, SetupError
from airflow_merge_provider.core.object_store.clients import StoreSettings, complete_arguments
from airflow_merge_provider.core.object_store.s3_settings import S3Settings
from airflow_merge_provider.core.protocol import JobFailure, JobRequest, JobResult, parse_result
from airflow_merge_provider.file_store.folder import open_folder, remove_path
from airflow_merge_provider.spark_process.jvm.jars import find_java, spark_home
from airflow_merge_provider.spark_process.launch import (
    MEMORY_EXIT_CODES,
    SCRIPT,
    STOPPED_ON_REQUEST,
    describe_exit,
    submit_conf,
    write_private,
    write_properties,
)

_FOLDER = "_merge_runs"
# A killed worker leaves its folder, and its driver may still write the result: no run takes this long.
_EXCHANGE_KEPT_SECONDS = 7 * 24 * 3600
_REQUEST, _RESULT, _COMPLETE = "request.json", "result", "_SUCCESS"


class RunFolder:
    """A folder of one attempt: the worker writes the request, the driver the result; then it is removed.

    It is below ``[merge] exchange``, by default below the warehouse of the run.
    """

    def __init__(self, request: JobRequest, settings: StoreSettings) -> None:
        """Choose the folder.

        :param settings: the address and the credentials of the object store.
        :raises SetupError: if neither the setting nor the run has a location, or it has no library.
        """
        base = conf.get("merge", "exchange", fallback="") or request.warehouse
        if not base:
            raise SetupError(
                "deploy mode 'cluster' needs a folder that worker and cluster reach: set a warehouse, or "
                "[merge] exchange"
            )
        self._request = request
        folder = resolve_dataset(_FOLDER, base)
        self._uri = f"{folder.path}/{int(time.time())}-{uuid.uuid4().hex}"
        self._files, self._root = open_folder(self._uri, complete_arguments(self._uri, settings))

    @property
    def uri(self) -> str:
        """The folder as Spark addresses it."""
        return format_hadoop_path(self._uri)

    @property
    def application_arguments(self) -> list[str]:
        """The arguments of the job: the URIs of the request and of the result."""
        return [f"{self.uri}/{_REQUEST}", f"{self.uri}/{_RESULT}"]

    def write_request(self) -> None:
        """Write the request.

        :raises SetupError: if the folder cannot be written.
        """
        try:
            self._files.makedirs(self._root, exist_ok=True)
            self._files.pipe_file(f"{self._root}/{_REQUEST}", self._request.model_dump_json().encode())
        except OSError as error:
            raise SetupError(
                f"{self._uri}: the folder for the request cannot be written ({error})"
            ) from error

    def remove_left_folders(self) -> None:
        """Remove the folders of killed workers; a folder has the time of its creation in its name."""
        with suppress(OSError):
            for path in map(str, self._files.ls(self._root.rpartition("/")[0], detail=False)):
                created = path.rstrip("/").rpartition("/")[2].partition("-")[0]
                if created.isdecimal() and time.time() - int(created) > _EXCHANGE_KEPT_SECONDS:
                    remove_path(self._files, path)

    def find_result(self, start: float) -> JobResult | JobFailure | None:
        """Return the result; None if the driver has written none.

        :param start: the monotonic time at which the run began.
        :raises JobError: if the result cannot be read.
        """
        folder = f"{self._root}/{_RESULT}"
        try:
            if not self._files.exists(f"{folder}/{_COMPLETE}"):
                return None
            names = sorted(map(str, self._files.ls(folder, detail=False)))
            parts = [name for name in names if name.rpartition("/")[2].startswith("part-")]
            text = "".join(self._files.cat_file(part).decode() for part in parts)
        except OSError as error:
            raise JobError(f"{self._uri}: the result of the run cannot be read ({error})") from error
        return parse_result(text, time.monotonic() - start)

    def remove_folder(self) -> str | None:
        """Remove the folder, whose files may contain rows of the run; return a warning if that fails.

        A run that has committed does not fail because its folder stays.
        """
        try:
            remove_path(self._files, self._root)
        except OSError as error:
            return f"{self._uri} contains the request and the report of the run and stays: {error}"
        return None


_SUBMIT_PROGRAM = "spark-submit"
# The extra of a connection with the address of YARN's resource manager, by its name in the stock hook.
_RESOURCE_MANAGER = "yarn_resourcemanager_webapp_address"
_SUBMIT_POLL_SECONDS = 5.0
_POD_PREFIX_MAX_CHARACTERS = 40
# The format of the exit code in the stock hook's error.
_EXIT_CODE = re.compile(r"Error code is: (-?\d+)")


class SubmitProcess:
    """One request through spark-submit; ``kill_process`` ends it.

    In deploy mode ``client`` the driver is a child of this process and exchanges files with it; in deploy
    mode ``cluster`` it runs elsewhere, and the files are in a folder that both reach.
    """

    def __init__(
        self,
        request: JobRequest,
        *,
        conn_id: str,
        conf: Mapping[str, str],
        store_settings: StoreSettings | None = None,
    ) -> None:
        self._request = request
        self._conn_id = conn_id
        self._conf = conf
        self._store_settings = store_settings or S3Settings()
        self._stock: QuietSubmitHook | None = None
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
            self._stock = hook = self._build_hook()
            conf = submit_conf(self._conf, local=hook.master.startswith("local"))
            if hook.is_cluster:
                return self._run_on_cluster(hook, conf, work, start)
            hook.write_settings(conf, work / "spark.properties")
            result = work / "result.json"
            hook._application_args = [str(work / "request.json"), str(result)]  # noqa: SLF001
            write_private(work / "request.json", self._request.model_dump_json())
            environment = build_child_environment(PYTHONUNBUFFERED="1", PYSPARK_DRIVER_PYTHON=sys.executable)
            error = self._submit_application(hook, str(SCRIPT), environment)
            if error is not None and not result.is_file():
                raise error
            return parse_result(result.read_text(encoding="utf-8"), time.monotonic() - start)

    def kill_process(self) -> None:
        """End the child, whose Python process receives the parent-death signal, or the application."""
        self._killed = True
        if self._stock is not None:
            self._stock.on_kill()

    def _run_on_cluster(
        self, hook: QuietSubmitHook, conf: dict[str, str], work: Path, start: float
    ) -> JobResult | JobFailure:
        """Submit the application, wait until it ends, and read the result that its driver has written."""
        folder = RunFolder(self._request, self._store_settings)
        hook.write_settings(
            {**self._choose_cluster_settings(hook, folder), **conf}, work / "spark.properties"
        )
        hook._application_args = folder.application_arguments  # noqa: SLF001 - known after the deploy mode
        folder.remove_left_folders()
        folder.write_request()
        try:
            application = airflow_conf.get("merge", "cluster_application", fallback="") or str(SCRIPT)
            error = self._submit_application(hook, application, build_child_environment(PYTHONUNBUFFERED="1"))
            result = self._await_result(hook, folder, start) if error is None else folder.find_result(start)
        finally:
            if warning := folder.remove_folder():
                hook.log.warning("%s", warning)
        if result is not None:
            return result
        if self._killed:
            raise JobError(STOPPED_ON_REQUEST)
        if hook.runs_in_pod and hook.has_seen_pod:
            raise _build_pod_error(hook) from error
        raise error or JobError(
            "The driver on the cluster ended without a result: see its log in the user interface of the "
            "cluster; its Python needs the package airflow-merge-provider"
        )

    def _choose_cluster_settings(self, hook: QuietSubmitHook, folder: RunFolder) -> dict[str, str]:
        """Return the settings of a driver on a cluster; those of the user override them."""
        if hook.master == "yarn":
            # Airflow retries. YARN would run a run that has failed once more.
            return {"spark.yarn.maxAppAttempts": "1"}
        if not hook.runs_in_pod:
            return {}
        run = self._request.run
        run_name = re.sub(r"[^a-z0-9]+", "-", f"{run.dag_id}-{run.task_id}".lower())
        prefix = run_name[:_POD_PREFIX_MAX_CHARACTERS].strip("-")
        return {
            "spark.kubernetes.driver.pod.name": f"{prefix}-{uuid.uuid4().hex[:16]}-driver".lstrip("-"),
            # For files of the worker that the image does not contain; they are removed with the folder.
            "spark.kubernetes.file.upload.path": folder.uri,
        }

    def _await_result(
        self, hook: QuietSubmitHook, folder: RunFolder, start: float
    ) -> JobResult | JobFailure | None:
        """Return the result; wait for it as long as YARN runs the application.

        With the address of the resource manager, spark-submit ends as soon as YARN has the application.
        """
        while True:
            is_active = _is_application_active(hook)
            result = folder.find_result(start)
            if result is not None or not is_active:
                return result
            time.sleep(_SUBMIT_POLL_SECONDS)

    def _build_hook(self) -> QuietSubmitHook:
        try:
            hook = QuietSubmitHook(
                conn_id=self._conn_id,
                name=f"{self._request.run.dag_id}.{self._request.run.task_id}",
                spark_binary=None
                if shutil.which(_SUBMIT_PROGRAM)
                else str(spark_home() / "bin" / _SUBMIT_PROGRAM),
                yarn_track_via_rm_api=self._has_resource_manager(),
            )
        except NameError as error:
            # The stock hook uses the Kubernetes client without checking that it is installed.
            raise SetupError(
                f"connection {self._conn_id!r} needs the Kubernetes client: install "
                f"apache-airflow-providers-cncf-kubernetes ({error})"
            ) from error
        except (ValueError, RuntimeError) as error:
            raise SetupError(f"connection {self._conn_id!r} cannot be used: {error}") from error
        if hook.is_cluster and hook.master.startswith("spark://"):
            raise SetupError(
                f"connection {self._conn_id!r} sets deploy mode 'cluster', which Spark does not support for "
                "Python on a standalone master: set deploy-mode to 'client'"
            )
        return hook

    def _submit_application(
        self, hook: QuietSubmitHook, application: str, environment: dict[str, str]
    ) -> JobError | None:
        """Submit the application and wait until it ends; return its error, which a result may explain.

        :raises JobError: if it was stopped on request.
        """
        if self._killed:
            # Killed before there was a child.
            raise JobError(STOPPED_ON_REQUEST)
        try:
            hook.submit(application, env=environment, preexec_fn=die_with_parent)
        except AirflowException as error:
            if self._killed:
                raise JobError(STOPPED_ON_REQUEST) from None
            code = _EXIT_CODE.search(str(error))
            return JobError(describe_exit(int(code[1]) if code else None, [str(error)]))
        return None

    def _has_resource_manager(self) -> bool:
        """Return whether YARN can be asked about the application and end it through its address."""
        connection = BaseHook.get_connection(self._conn_id)
        extra = connection.extra_dejson
        is_yarn_cluster = connection.host == "yarn" and extra.get("deploy-mode") == "cluster"
        return is_yarn_cluster and bool(extra.get(_RESOURCE_MANAGER))


def _is_application_active(hook: QuietSubmitHook) -> bool:
    """Return whether YARN still runs the application; false if spark-submit has waited for its end."""
    application = hook._yarn_application_id  # noqa: SLF001 - it has no public name
    if application is None or not hook._yarn_track_via_rm_api:  # noqa: SLF001
        return False
    return hook.query_yarn_application_status(application) not in {"SUCCEEDED", "FAILED"}


def _build_pod_error(hook: QuietSubmitHook) -> JobError:
    """Return the error of a driver pod that ended without a result, which says how to read its log."""
    namespace, name = hook.driver_pod
    code = hook.driver_exit_code
    remedy = "its Python needs the package airflow-merge-provider"
    if code is None:
        remedy = "if it is gone, somebody has deleted it, or its node has failed"
    elif code in MEMORY_EXIT_CODES:
        remedy = "it ran out of memory: raise spark.driver.memory or spark.driver.memoryOverhead"
    return JobError(
        f"driver pod {namespace}/{name} ended without a result (exit code {code}): "
        f"read its log with kubectl logs --namespace {namespace} {name} ({remedy})"
    )


_KUBERNETES_NAMESPACE, _POD_NAME = "spark.kubernetes.namespace", "spark.kubernetes.driver.pod.name"
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
            namespace = settings.get(_KUBERNETES_NAMESPACE) or self._connection["namespace"]
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
