"""A YARN cluster of one node: Hadoop's own resource manager and node manager, as two processes."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from airflow_merge_provider.spark_process.jvm.jars import cache_folder, download_packages, spark_home

# Hadoop's servers in one jar, and the library of certificates that the resource manager loads. What Spark
# has already is excluded.
_PACKAGES = ("org.apache.hadoop:hadoop-client-minicluster:3.5.0", "org.bouncycastle:bcpkix-jdk15on:1.70")
_CHECKSUMS = Path(__file__).with_name("yarn_checksums.txt")
_EXCLUDED = "org.apache.hadoop:hadoop-client-api,org.apache.hadoop:hadoop-client-runtime"
_SERVERS = "org.apache.hadoop.yarn.server"
_PROGRAMS = (f"{_SERVERS}.resourcemanager.ResourceManager", f"{_SERVERS}.nodemanager.NodeManager")
_OPENS = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.lang", "java.util")]
_START_SECONDS = 120.0
_PORTS = (
    "resourcemanager.address",
    "resourcemanager.scheduler.address",
    "resourcemanager.resource-tracker.address",
    "resourcemanager.admin.address",
    "resourcemanager.webapp.address",
    "nodemanager.address",
    "nodemanager.localizer.address",
    "nodemanager.webapp.address",
)


class YarnCluster:
    """A running cluster: ``conf`` is its HADOOP_CONF_DIR, ``url`` the address of its resource manager."""

    def __init__(self, folder: Path) -> None:
        self.conf = folder / "conf"
        self.conf.mkdir(parents=True)
        addresses = {name: f"127.0.0.1:{port}" for name, port in zip(_PORTS, _find_ports(), strict=True)}
        self.url = f"http://{addresses['resourcemanager.webapp.address']}"
        scheduler = f"{_SERVERS}.resourcemanager.scheduler.fifo.FifoScheduler"
        settings = {
            **addresses,
            "resourcemanager.hostname": "127.0.0.1",
            "resourcemanager.scheduler.class": scheduler,
            "nodemanager.hostname": "127.0.0.1",
            "nodemanager.resource.memory-mb": "6144",
            "nodemanager.resource.cpu-vcores": "4",
            "nodemanager.vmem-check-enabled": "false",
            "nodemanager.pmem-check-enabled": "false",
            "nodemanager.local-dirs": str(folder / "local"),
            "nodemanager.log-dirs": str(folder / "logs"),
            "nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.0",
        }
        _write_settings(self.conf / "core-site.xml", {"fs.defaultFS": "file:///"})
        _write_settings(
            self.conf / "yarn-site.xml", {f"yarn.{name}": value for name, value in settings.items()}
        )

    def has_node(self) -> bool:
        """Return whether a node has registered."""
        try:
            return '"activeNodes":1' in httpx.get(f"{self.url}/ws/v1/cluster/metrics").text
        except httpx.TransportError:
            return False


@contextlib.contextmanager
def run_yarn(folder: Path) -> Iterator[YarnCluster]:
    """Start a cluster, and end it with everything that runs on it."""
    jars = _find_jars()
    cluster = YarnCluster(folder)
    class_path = f"{cluster.conf}:{jars}/*:{spark_home()}/jars/*"
    with contextlib.ExitStack() as stack:
        for program in _PROGRAMS:
            log = stack.enter_context((folder / f"{program.rpartition('.')[2]}.log").open("w"))
            command = ["java", *_OPENS, "-Xmx512m", "-cp", class_path, program]
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
            stack.callback(_end_process, process)
        deadline = time.monotonic() + _START_SECONDS
        while not cluster.has_node():
            assert time.monotonic() < deadline, f"YARN does not start: see {folder}"
            time.sleep(0.5)
        yield cluster


def _end_process(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _find_jars() -> Path:
    """Return the folder of the servers' jars; they are downloaded once."""
    folder = cache_folder() / "yarn"
    if not folder.is_dir():
        remedy = "deselect its test"
        with download_packages("YARN", _PACKAGES, _EXCLUDED, folder.parent, remedy, _CHECKSUMS) as jars:
            shutil.copytree(jars, folder)
    return folder


def _write_settings(file: Path, settings: dict[str, str]) -> None:
    rows = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>\n"
        for name, value in settings.items()
    )
    file.write_text(f"<configuration>\n{rows}</configuration>\n")


def _find_ports() -> list[int]:
    probes = [socket.socket() for _ in _PORTS]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports
