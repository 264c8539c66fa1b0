"""Tests of ``airflow merge``: the commands in Airflow's own command line, with its settings."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.airflow_cli.settings import apply_settings, check_connections
from airflow_merge_provider.cli import main as cli
from airflow_merge_provider.cli.registry import COMMANDS
from airflow_merge_provider.get_provider_info import get_provider_info

PROGRAM = Path(sys.executable).with_name("airflow")
SECRET = "secret-of-the-test"  # noqa: S105 - no secret
_UNSET = ("AIRFLOW__MERGE__", "AIRFLOW_CONN_", "AWS_")
# Most of the time of a command is the start of Airflow, so commands that change nothing share one.
_COMMANDS = """
import contextlib, io, json, sys
from airflow.__main__ import main

ends = []
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["airflow", *arguments]
    code, out, err = 0, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    ends.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(ends))
"""


def run_airflow(
    home: Path, *arguments: str, program: Sequence[str | Path] = (PROGRAM,), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Airflow's command line with a home of its own, without a metadata database."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(_UNSET)}
    return subprocess.run(
        [*program, *arguments],
        env={**variables, "AIRFLOW_HOME": str(home), "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def write_settings(home: Path, **settings: str) -> None:
    """Write a configuration file of Airflow with settings of section merge."""
    lines = [f"{name} = {value}" for name, value in settings.items()]
    (home / "airflow.cfg").write_text("\n".join(["[merge]", *lines, ""]))


def test_the_group_lists_every_command(tmp_path: Path) -> None:
    """`airflow merge --help` has the same commands, and their help the same arguments and examples.

    Exit codes are the same, too; a wrong combination of options is refused.
    """
    commands = [
        ["merge", "--help"],
        ["merge", "undo", "--help"],
        ["merge", "history", str(tmp_path / "none")],
        ["merge", "undo", "t", "--run", "1", "--to-version", "2"],
    ]

    process = run_airflow(tmp_path, json.dumps(commands), program=(sys.executable, "-c", _COMMANDS))

    assert process.returncode == 0, process.stderr
    group, undo, missing, wrong = json.loads(process.stdout.splitlines()[-1])
    assert (group[0], undo[0], missing[0], wrong[0]) == (0, 0, 3, 2)
    for command in COMMANDS:
        assert command.name in group[1]
    assert "--to-version N" in undo[1]
    assert "airflow merge undo history --warehouse lake --dry-run" in undo[1]
    assert "airflow_merge_provider" not in undo[1]
    assert "not allowed with argument" in wrong[2]


def test_a_command_prints_what_the_plain_one_prints(
    write_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program of Airflow has the command, with the same output."""
    target = write_run("orders", [{"id": 1}])

    process = run_airflow(tmp_path, "merge", "history", target)

    assert cli.main(["history", target]) == 0
    assert (process.returncode, process.stdout) == (0, capsys.readouterr().out)


@pytest.mark.long
def test_settings_and_connections_are_those_of_airflow(write_run: Any, tmp_path: Path) -> None:
    """The warehouse is that of the connection, else of airflow.cfg; credentials are never printed."""
    write_run("orders", [{"id": 1}])
    write_settings(tmp_path, warehouse="/of/the/file", local_spark_memory="3g")
    fields = {"conn_type": "merge_store", "login": "key-of-the-test", "password": SECRET}
    connection = json.dumps({**fields, "host": str(tmp_path)})
    environment = {
        "AIRFLOW_CONN_MERGE_STORE_DEFAULT": connection,
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "yarn", "password": SECRET}),
        "AIRFLOW__MERGE__LOCAL_SPARK_CORES": "1",
        "HADOOP_CONF_DIR": "",
    }

    process = run_airflow(tmp_path, "merge", "doctor", "--json", **environment)

    content = json.loads(process.stdout)
    checks = {check["check"]: check for check in content["checks"]}
    assert checks["warehouse"]["value"].startswith(f"{tmp_path} (connection merge_store_default)")
    assert checks["[merge] warehouse"]["value"] == "/of/the/file (airflow.cfg)"
    assert checks["[merge] local_spark_memory"]["value"] == "3g (airflow.cfg)"
    assert checks["[merge] local_spark_cores"]["value"] == "1 (variable AIRFLOW__MERGE__LOCAL_SPARK_CORES)"
    assert checks["[merge] local_spark_idle"]["value"] == "10m (default)"
    store = checks["connection merge_store_default"]
    assert (store["state"], store["value"]) == ("ok", f"merge_store: warehouse {tmp_path}, S3 keys are set")
    spark = checks["connection spark_default"]
    assert (spark["state"], spark["value"]) == (
        "warning",
        "spark: yarn, but no YARN cluster is configured",
    )
    assert content["not_checked"] == []
    assert "of-the-test" not in process.stdout + process.stderr

    assert run_airflow(tmp_path, "merge", "history", "orders", **environment).returncode == 0
    missing = run_airflow(tmp_path, "merge", "history", "orders")
    assert "/of/the/file/orders is not a Delta table" in missing.stderr


@pytest.mark.long
def test_a_named_connection_has_the_warehouse_and_its_credentials(write_run: Any, tmp_path: Path) -> None:
    """`--store-conn` works in both command lines; the connection has to exist and to be valid."""
    write_run("orders", [{"id": 1}])
    connections = {
        "AIRFLOW_CONN_LAKE": json.dumps({"conn_type": "merge_store", "host": str(tmp_path)}),
        "AIRFLOW_CONN_BROKEN": json.dumps({"conn_type": "merge_store", "extra": {"storage_options": "-"}}),
        "AIRFLOW_HOME": str(tmp_path),
    }
    plain = subprocess.run(
        [
            sys.executable,
            "-m",
            "airflow_merge_provider",
            "--verbose",
            "history",
            "orders",
            "--store-conn=lake",
        ],
        env={**os.environ, **connections},
        capture_output=True,
        text=True,
        check=False,
    )
    in_airflow = run_airflow(tmp_path, "merge", "history", "orders", "--store-conn", "lake", **connections)

    assert plain.returncode == 0, plain.stderr
    assert plain.stdout == in_airflow.stdout
    none = run_airflow(tmp_path, "merge", "history", "orders", "--store-conn", "none", **connections)
    assert none.returncode == 4
    assert none.stderr.startswith("error: connection 'none': does not exist (create it with")
    broken = run_airflow(tmp_path, "merge", "history", "orders", "--store-conn", "broken", **connections)
    assert broken.returncode == 4
    assert "connection 'broken': cannot be used: storage_options: " in broken.stderr


@pytest.mark.parametrize(
    ("host", "extra", "expected_variables"),
    [
        (
            "s3://lake/warehouse",
            {"region": "eu-west-1"},
            {"AWS_ACCESS_KEY_ID": "name", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "eu-west-1"},
        ),
        (
            "abfss://lake@shop.dfs.core.windows.net/warehouse",
            {},
            {"AZURE_STORAGE_ACCOUNT_NAME": "shop", "AZURE_STORAGE_ACCOUNT_KEY": SECRET},
        ),
    ],
)
def test_commands_have_the_credentials_of_the_connection(
    host: str, extra: Any, expected_variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clients of each object store read them from the environment."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_"))]:
        monkeypatch.delenv(name)
    connection = {
        "conn_type": "merge_store",
        "host": host,
        "login": "name",
        "password": SECRET,
        "extra": extra,
    }
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
    options = argparse.Namespace(warehouse=None, store_conn="lake")

    with monkeypatch.context() as patch:
        patch.setattr(os, "environ", {**os.environ})
        apply_settings(options)
        variables = {**os.environ}

    assert variables["AIRFLOW__MERGE__WAREHOUSE"] == host
    assert expected_variables.items() <= variables.items()


@pytest.mark.parametrize(
    ("connection", "state", "value"),
    [
        ({"conn_type": "http", "host": "x"}, "warning", "has type http"),
        (
            {"conn_type": "merge_store", "extra": {"storage_options": "no JSON"}},
            "missing",
            "storage_options: ",
        ),
        (
            {"conn_type": "merge_store", "extra": {"aws_conn_id": "none"}},
            "missing",
            "connection 'none' does not exist",
        ),
        (None, "ok", "does not exist"),
    ],
)
def test_a_connection_that_cannot_be_used_is_not_ok(
    connection: Any, state: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken connection is a check with its reason."""
    if connection is not None:
        monkeypatch.setenv("AIRFLOW_CONN_MERGE_STORE_DEFAULT", json.dumps(connection))

    checks = {check.name: check for check in check_connections()}

    store = checks["connection merge_store_default"]
    assert (store.state, store.value[: len(value)]) == (state, value)


def test_the_key_of_google_cloud_is_named_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check says from which connection the key is, and reads it."""
    extra = {"google_cloud_conn_id": "lake_key"}
    store = {"conn_type": "merge_store", "host": "gs://lake/wh", "extra": extra}
    key = {"conn_type": "google_cloud_platform", "extra": {"keyfile_dict": {"private_key": SECRET}}}
    monkeypatch.setenv("AIRFLOW_CONN_MERGE_STORE_DEFAULT", json.dumps(store))
    monkeypatch.setenv("AIRFLOW_CONN_LAKE_KEY", json.dumps(key))

    checks = {check.name: check for check in check_connections()}

    value = "merge_store: warehouse gs://lake/wh, a Google key is set, keys of connection lake_key"
    assert checks["connection merge_store_default"].value == value


@pytest.mark.parametrize(
    ("connection", "state", "value"),
    [
        ({"conn_type": "spark", "host": "spark://master", "port": 7077}, "ok", "spark: spark://master:7077"),
        ({"conn_type": "spark_connect", "host": "sc://server"}, "ok", "spark_connect: sc://server"),
        ({"conn_type": "http"}, "missing", "type http is not supported"),
        (None, "ok", "does not exist: Spark runs on this machine"),
    ],
)
def test_the_connection_of_spark_says_where_runs_execute(
    connection: Any, state: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check names the master or the server, and a type that is not supported."""
    if connection is not None:
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))

    checks = {check.name: check for check in check_connections()}

    spark = checks["connection spark_default"]
    assert (spark.state, spark.value) == (state, value)


def test_the_group_is_cheap_to_load() -> None:
    """Airflow loads the group for each of its commands: it imports no command and no heavy library."""
    (path,) = get_provider_info()["cli"]
    module, _, function = path.rpartition(".")
    code = (
        "import sys, airflow.cli.cli_config\n"
        f"from {module} import {function}\n{function}()\n"
        "print(*(name for name in sys.modules if 'airflow_merge_provider' in name), sep='\\n')"
    )

    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    modules = {name for name in process.stdout.split() if not name.startswith("airflow_merge_provider.core")}
    assert modules == {
        "airflow_merge_provider",
        "airflow_merge_provider.airflow_cli",
        "airflow_merge_provider.airflow_cli.group",
        "airflow_merge_provider.cli",
        "airflow_merge_provider.cli.main",
        "airflow_merge_provider.cli.output",
        "airflow_merge_provider.cli.registry",
        "airflow_merge_provider.get_provider_info",
    }
