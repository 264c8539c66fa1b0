"""Tests of the compose file and its image without building them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_merge_provider.spark_process.jvm.jars import spark_home

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yaml"
COMPOSE = yaml.safe_load(FILE.read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
CONSTRAINTS = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
)
AIRFLOW = [name for name in SERVICES if name.startswith("airflow-")]
SETTINGS = SERVICES["airflow-scheduler"]["environment"]


def is_valid(file: Path) -> bool:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)]
    return subprocess.run(check, capture_output=True, check=False).returncode == 0


def test_it_is_valid_by_the_compose_specification(tmp_path: Path) -> None:
    """The file is valid by the compose specification, and a misspelt condition is rejected."""
    wrong = tmp_path / "docker-compose.yaml"
    wrong.write_text(FILE.read_text(encoding="utf-8").replace("service_healthy", "service_healty"))

    assert is_valid(FILE)
    assert not is_valid(wrong)


def test_whatever_is_named_is_there() -> None:
    """Services in depends_on, services with health checks, and volumes are all defined."""
    for service in SERVICES.values():
        for name, wait in (service.get("depends_on") or {}).items():
            assert name in SERVICES
            assert wait["condition"] != "service_healthy" or "healthcheck" in SERVICES[name]
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert (ROOT / source).is_dir() if source.startswith(".") else source in COMPOSE["volumes"]


def test_airflow_has_its_four_processes_and_every_command_exists() -> None:
    """Airflow has its four processes and each command exists. Tasks start after the API server."""
    from airflow.cli.cli_config import core_commands
    from airflow.cli.cli_parser import get_parser

    commands = {command.name for command in core_commands}
    init = SERVICES["airflow-init"]["command"]
    assert init[:2] == ["bash", "-c"]
    for command in init[2].split(" && "):
        program, *arguments = shlex.split(command)
        assert program == "airflow"
        assert get_parser().parse_args(arguments).func
    assert {SERVICES[name]["command"][0] for name in AIRFLOW} - commands == {"bash"}
    assert [SERVICES[f"airflow-{name}"]["command"] for name in ("api-server", "scheduler")]
    for name in ("scheduler", "dag-processor", "triggerer"):
        assert SERVICES[f"airflow-{name}"]["command"] == [name]
        assert SERVICES[f"airflow-{name}"]["depends_on"]["airflow-api-server"]


def test_every_setting_is_one_of_airflow() -> None:
    """Every environment variable is an existing Airflow setting. Airflow would ignore a misspelt one."""
    from airflow.configuration import conf

    for name in SETTINGS:
        if match := re.fullmatch(r"AIRFLOW__(\w+?)__(\w+)", name):
            section, option = match[1].lower(), match[2].lower()
            assert option in conf.configuration_description[section]["options"] or section == "merge", name


def test_the_spark_connection_is_the_master_of_this_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Spark connection resolves to the master of this file, in client mode, with the stock hook."""
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    assert json.loads(SETTINGS["AIRFLOW_CONN_SPARK_DEFAULT"])["conn_type"] == "spark"
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", SETTINGS["AIRFLOW_CONN_SPARK_DEFAULT"])

    where = SparkSubmitHook()._connection

    assert (where["master"], where["deploy_mode"]) == ("spark://spark-master:7077", "client")
    assert SERVICES["spark-worker"]["command"][-1] == where["master"]


@pytest.mark.parametrize("name", ["spark-master", "spark-worker"])
def test_sparks_commands_are_those_of_the_package(name: Any) -> None:
    """The commands of Spark are those of the pyspark package: its launcher, and a class in its jars."""
    launcher, main = SERVICES[name]["command"][:2]

    assert (spark_home() / "bin" / launcher).is_file()
    assert main.startswith("org.apache.spark.deploy.")


def test_the_versions_are_those_that_are_tested() -> None:
    """The versions in the image's name, its arguments and their defaults are those of constraints.txt."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    airflow, spark = CONSTRAINTS["apache-airflow"], CONSTRAINTS["pyspark"]
    build = SERVICES["airflow-scheduler"]["build"]["args"]

    assert build == {"AIRFLOW_VERSION": airflow, "SPARK_VERSION": spark}
    assert f"ARG AIRFLOW_VERSION={airflow}" in DOCKERFILE
    assert f"ARG SPARK_VERSION={spark}" in DOCKERFILE
    assert f":{airflow}-spark{spark}" in SERVICES["spark-worker"]["image"]
    assert f"pyspark>=4.1,<={spark}" in project["optional-dependencies"]["spark"]


def test_the_image_holds_what_it_copies_and_owns_what_is_mounted() -> None:
    """Every file that the image copies is in the build context.

    New volumes belong to the owner of the folder in the image.
    """
    let_in = (ROOT / ".dockerignore").read_text(encoding="utf-8")
    for line in re.findall(r"^COPY --chown=airflow:0 (.+) \S+$", DOCKERFILE, re.MULTILINE):
        for name in line.split():
            assert (ROOT / name).exists()
            assert f"!{name}" in let_in
    mounted = {volume.split(":")[1] for name in AIRFLOW for volume in SERVICES[name]["volumes"]}
    image_folders = set(re.findall(r"/\S+", re.search(r"mkdir -p (.+?) \\", DOCKERFILE)[1]))
    of_airflow = {"/opt/airflow/dags", "/opt/airflow/logs"}  # of the image below
    assert mounted - image_folders - of_airflow == set()
