"""Test the setup of the compose file without containers: its own commands run on this machine.

They start PostgreSQL, a Spark master, a worker and the four processes of Airflow. Only names of hosts, ports
and folders differ.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg2
import pytest
import yaml
from demo import worked_example
from demo.local_airflow import ALL, HOST, LocalAirflow, free_port
from demo.tables import entity_lines, read_entities, write_rows

from airflow_merge_provider.core.child_process import build_child_environment, die_with_parent
from airflow_merge_provider.spark_process.jvm.jars import spark_home

ROOT = Path(__file__).parents[2]
SERVICES = yaml.safe_load((ROOT / "docker-compose.yaml").read_text(encoding="utf-8"))["services"]
PATIENCE = 120.0


def wait_until(reached: Any, subject: str) -> None:
    end = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < end, f"{subject} is not there in time"
        time.sleep(0.5)


def postgres_binary(name: str) -> str:
    path = shutil.which(name) or next(map(str, Path("/usr/lib/postgresql").glob(f"*/bin/{name}")), None)
    if path is None:
        pytest.skip("PostgreSQL is missing: apt-get install postgresql")
    return path


@pytest.fixture(scope="module")
def postgres() -> Iterator[int]:
    """Start PostgreSQL with the user, password and database of the compose file; return its port."""
    environment = SERVICES["postgres"]["environment"]
    # Not below pytest's folder, which only its owner may enter; PostgreSQL refuses to run as root.
    server_folder, port = Path(tempfile.mkdtemp(prefix="merge-postgres-")), free_port()
    owner = "postgres" if os.getuid() == 0 else None
    if owner:
        shutil.chown(server_folder, owner)
    secret = server_folder / "password"
    secret.write_text(environment["POSTGRES_PASSWORD"], encoding="utf-8")
    secret.chmod(0o644)

    def run_command(*command: str) -> None:
        subprocess.run(command, user=owner, cwd=server_folder, check=True, capture_output=True)

    folder = str(server_folder / "data")
    login = ["-U", environment["POSTGRES_USER"], "-A", "scram-sha-256", f"--pwfile={secret}"]
    run_command(postgres_binary("initdb"), "-D", folder, *login)
    listen = f"-p {port} -k {server_folder} -c listen_addresses={HOST}"
    control = postgres_binary("pg_ctl")
    run_command(control, "-D", folder, "-o", listen, "-l", str(server_folder / "log"), "-w", "start")
    try:
        to = {"host": HOST, "port": port, "user": environment["POSTGRES_USER"], "dbname": "postgres"}
        with contextlib.closing(
            psycopg2.connect(password=environment["POSTGRES_PASSWORD"], **to)
        ) as connection:
            connection.autocommit = True
            connection.cursor().execute(f"CREATE DATABASE {environment['POSTGRES_DB']}")
        yield port
    finally:
        run_command(control, "-D", folder, "-m", "immediate", "stop")
        shutil.rmtree(server_folder, ignore_errors=True)


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """Start Spark's master and worker with the commands of the compose file.

    Return the master's two ports.
    """
    folder = tmp_path_factory.mktemp("spark")
    ports = {"7077": free_port(), "8081": free_port(), "8082": free_port()}
    # A process that has a Spark Connect session would start executors without Spark's SQL classes.
    env = build_child_environment(SPARK_LOCAL_IP=HOST, SPARK_WORKER_DIR=str(folder / "work"))
    children = []
    try:
        for name in ("spark-master", "spark-worker"):
            command = [replace_ports(word, ports) for word in SERVICES[name]["command"]]
            with (folder / f"{name}.log").open("wb") as log:
                command[0] = str(spark_home() / "bin" / command[0])
                # Also ends the processes if the tests themselves are killed.
                settings = {"env": env, "preexec_fn": die_with_parent}
                children.append(subprocess.Popen(command, stdout=log, stderr=log, **settings))
            wait_until(lambda: count_workers(ports["8081"]) >= len(children) - 1, name)
        wait_until(lambda: count_workers(ports["8081"]) == 1, "the worker")
        yield {"master": ports["7077"], "page": ports["8081"]}
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait(30)


def replace_ports(word: str, ports: dict[str, int]) -> str:
    """Replace the host names and ports of the compose file by this machine's name and free ports."""
    word = word.replace("spark-master", HOST)
    for written, free in ports.items():
        word = word.replace(written, str(free))
    return word


def read_page(port: int) -> dict[str, object]:
    with contextlib.suppress(httpx.HTTPError, ValueError):
        return dict(httpx.get(f"http://{HOST}:{port}/json/", trust_env=False).json())
    return {}


def count_workers(port: int) -> int:
    return int(str(read_page(port).get("aliveworkers", -1)))


# More than 20 seconds: PostgreSQL, a Spark cluster and four processes of Airflow start.
def test_an_example_runs_in_the_set_up_of_the_compose_file(
    postgres: Any, spark_cluster: Any, tmp_path: Path
) -> None:
    """The worked example has the documented result, and an application of the Spark master computed it."""
    environment = SERVICES["airflow-scheduler"]["environment"]
    spark = environment["AIRFLOW_CONN_SPARK_DEFAULT"].replace("spark-master", HOST)
    settings = {
        "AIRFLOW__CORE__EXECUTOR": environment["AIRFLOW__CORE__EXECUTOR"],
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].replace(
            "postgres:5432", f"{HOST}:{postgres}"
        ),
        "AIRFLOW_CONN_SPARK_DEFAULT": spark.replace("7077", str(spark_cluster["master"])),
        "SPARK_LOCAL_IP": HOST,
    }
    warehouse = tmp_path / "warehouse"
    for name in ("A", "B", "C"):
        write_rows(warehouse / name, getattr(worked_example, name))

    with LocalAirflow(tmp_path / "airflow", warehouse, parts=ALL, settings=settings) as airflow:
        airflow.wait_until_ready(("example_merge_source",))
        run = airflow.trigger_run("example_merge_source")
        state = airflow.follow_run("example_merge_source", run, print)
        reason = "" if state == "success" else airflow.read_reason("example_merge_source", run)

    assert (state, reason) == ("success", "")
    assert entity_lines(read_entities(warehouse / worked_example.TARGET)) == worked_example.EXPECTED
    wait_until(lambda: bool(read_page(spark_cluster["page"])["completedapps"]), "the application")
