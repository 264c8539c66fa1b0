"""What the image of Spark does on Kubernetes: its entry point starts a driver or an executor.

A pod is a process of this machine. Its volumes are folders below a folder of the pod, and the names of
services lead to this machine.
"""

from __future__ import annotations

import itertools
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_merge_provider.spark_process.jvm.jars import find_java, spark_home
from tests.kubernetes_api import NAMESPACE, Manifest

_BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_BACKEND_ARGUMENTS = {
    "driver-url": "SPARK_DRIVER_URL",
    "executor-id": "SPARK_EXECUTOR_ID",
    "cores": "SPARK_EXECUTOR_CORES",
    "app-id": "SPARK_APPLICATION_ID",
    "hostname": "SPARK_EXECUTOR_POD_IP",
    "resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "podName": "SPARK_EXECUTOR_POD_NAME",
}
_SERVICE = re.compile(rf"[\w.-]+\.{NAMESPACE}\.svc")


class SparkImage:
    """The image, whose containers keep their files and their log in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start_container(self, pod: Manifest, files: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start the process of a pod; ``files`` are those of its config maps, by their path."""
        root = self.folder / pod["metadata"]["name"]
        for path, text in files.items():
            file = root / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        container = pod["spec"]["containers"][0]
        volumes = tuple(mount["mountPath"] for mount in container["volumeMounts"])

        def find_path(text: str) -> str:
            return f"{root}{text}" if text.startswith(volumes) else text

        environment = {item["name"]: find_path(_read_variable(item, pod)) for item in container["env"]}
        hosts = root / "hosts"
        names = {"localhost", socket.gethostname(), *_find_services(environment, files)}
        hosts.write_text("".join(f"127.0.0.1 {name}\n" for name in sorted(names)))
        environment["JAVA_TOOL_OPTIONS"] = f"-Djdk.net.hosts.file={hosts}"
        environment["PATH"] = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        command = _build_command([find_path(arg) for arg in container["args"]], environment)
        with (root / "log").open("wb") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=root)


def _read_variable(item: dict[str, Any], pod: Manifest) -> str:
    """Return the value of a variable: a text, or a field of the pod."""
    if "value" in item:
        return str(item["value"])
    fields = {"status.podIP": "127.0.0.1", "metadata.name": pod["metadata"]["name"]}
    return str(fields[item["valueFrom"]["fieldRef"]["fieldPath"]])


def _find_services(environment: Mapping[str, str], files: Mapping[str, str]) -> set[str]:
    return {name for text in (*environment.values(), *files.values()) for name in _SERVICE.findall(text)}


def _build_command(args: list[str], environment: Mapping[str, str]) -> list[str]:
    """Return the command that the entry point of the image runs."""
    if args[0] == "driver":
        address = f"spark.driver.bindAddress={environment['SPARK_DRIVER_BIND_ADDRESS']}"
        submit = str(spark_home() / "bin/spark-submit")
        return [submit, "--conf", address, "--deploy-mode", "client", *args[1:]]
    options = [value for name, value in environment.items() if name.startswith("SPARK_JAVA_OPT_")]
    arguments = itertools.chain.from_iterable(
        (f"--{name}", environment[variable]) for name, variable in _BACKEND_ARGUMENTS.items()
    )
    return [str(find_java()), *options, "-Xmx512m", "-cp", f"{spark_home()}/jars/*", _BACKEND, *arguments]
