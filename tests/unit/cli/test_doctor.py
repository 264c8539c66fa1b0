"""Tests of ``doctor``: what is missing is found, named with its remedy, and never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.cli import main as cli
from airflow_merge_provider.cli.doctor import check_jars, collect_checks
from airflow_merge_provider.spark_process.jvm.class_archive import OPTIONS_SETTING
from airflow_merge_provider.spark_process.jvm.jars import list_delta_jars
from airflow_merge_provider.spark_process.jvm.log_store.jar import locate_log_store_jar
from airflow_merge_provider.spark_process.launch import submit_conf
from tests.gcs_server import run_gcs
from tests.s3_server import run_s3
from tests.unit.cli.conftest import run_on_terminal

ROOT = Path(__file__).parents[3]
# What the command line needs without Airflow, Spark and delta-rs.
_SMALLEST = (
    "annotated_types", "dateutil", "pendulum", "pydantic", "pydantic_core", "six", "typing_extensions",
    "typing_inspection", "tzdata", "yaml",
)  # fmt: skip


@pytest.fixture(autouse=True)
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set a Java 17 that ends at once, an empty cache, and no settings."""
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text('JAVA_VERSION="17.0.1"\n')
    (home / "bin/java").write_text("#!/bin/sh\necho no such machine; exit 3\n")
    (home / "bin/java").chmod(0o755)
    for name in [name for name in os.environ if name.startswith(("AIRFLOW__MERGE__", "AWS_"))]:
        monkeypatch.delenv(name)
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("AIRFLOW_MERGE_PROVIDER_CACHE", str(tmp_path / "cache"))
    return home


def find_checks(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run the command, and return its exit code and its checks by name."""
    capsys.readouterr()
    code = cli.main(["doctor", *arguments, "--json"])
    return code, {check.pop("check"): check for check in json.loads(capsys.readouterr().out)["checks"]}


def test_a_complete_machine_is_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each check is one line; files that the first run creates are warnings, so the exit code is 0."""
    assert cli.main(["doctor", "--warehouse", str(tmp_path)]) == 0

    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["CHECK", "STATE", "FOUND", "WHAT", "TO", "DO"]
    states = {line.split("  ")[0]: line[header.index("STATE") :].split(" ")[0] for line in lines}
    assert states["Java"] == states["warehouse"] == states["pyspark"] == "ok"
    assert states["Delta jars"] == states["class archive"] == states["log store jar"] == "warning"
    assert "missing" not in states.values()
    assert lines[-1].startswith("not checked: Airflow's connections")


def test_the_class_archive_is_that_of_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The archive that is checked is the one that runs on this machine use."""
    for jar in [*list_delta_jars(), locate_log_store_jar()]:
        jar.parent.mkdir(exist_ok=True, parents=True)
        jar.touch()
    archive = Path(find_checks(capsys)[1]["class archive"]["value"].removesuffix(" does not exist"))
    archive.parent.mkdir()
    archive.touch()

    assert f"-XX:SharedArchiveFile={archive}" in submit_conf({}, local=True)[OPTIONS_SETTING]
    assert find_checks(capsys)[1]["class archive"]["state"] == "ok"


def test_java_that_is_missing_or_old_is_missing(
    java: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without Java, with Java 11 and with an untested Java, the value and the remedy say so."""
    (java / "release").write_text('JAVA_VERSION="11.0.1"\n')
    code, checks = find_checks(capsys)
    assert (code, checks["Java"]["state"]) == (4, "missing")
    assert checks["Java"]["value"] == "Java 11 is too old for Spark"

    (java / "release").write_text('JAVA_VERSION="25"\n')
    code, checks = find_checks(capsys)
    assert (code, checks["Java"]["state"]) == (0, "warning")

    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    code, checks = find_checks(capsys)
    assert (code, checks["Java"]["value"]) == (4, "Java is missing")
    assert checks["Java"]["remedy"].startswith("install Java 17 or 21")
    assert checks["class archive"]["value"] == "not checked: jars are missing"


def test_nothing_is_installed(tmp_path: Path) -> None:
    """Without pyspark, delta-rs and Airflow, the command prints its table and no traceback."""
    site = tmp_path / "site"
    site.mkdir()
    for name in _SMALLEST:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        origin = Path(spec.origin)
        source = origin if origin.name != "__init__.py" else origin.parent
        (site / source.name).symlink_to(source)
    (site / "airflow_merge_provider").symlink_to(ROOT / "airflow_merge_provider")

    process = subprocess.run(
        [
            sys.executable,
            "-S",
            "-m",
            "airflow_merge_provider",
            "doctor",
            "--warehouse",
            str(tmp_path / "none"),
        ],
        env={**os.environ, "PYTHONPATH": str(site), "JAVA_HOME": "/nowhere"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (process.returncode, process.stderr) == (4, "")
    lines = {line.split("  ")[0]: line for line in process.stdout.splitlines()}
    for name in ("Java", "Spark", "deltalake", "pyspark", "delta-spark", "warehouse"):
        assert " missing " in lines[name], lines[name]
    assert "pip install 'airflow-merge-provider[spark]'" in lines["pyspark"]
    assert " warning " in lines["apache-airflow"]


def test_a_cache_folder_that_cannot_be_used_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cache folder below a file cannot be created."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("AIRFLOW_MERGE_PROVIDER_CACHE", str(tmp_path / "file/cache"))

    code, checks = find_checks(capsys)

    assert (code, checks["cache folder"]["state"]) == (4, "missing")
    assert "cannot be written" in checks["cache folder"]["value"]
    assert "AIRFLOW_MERGE_PROVIDER_CACHE" in checks["cache folder"]["remedy"]


@pytest.mark.parametrize(
    ("location", "text"),
    [
        ("none", "is not a folder"),
        ("file", "is not a folder"),
        ("ftp://host/lake", "Unknown scheme"),
    ],
)
def test_a_warehouse_that_cannot_be_used_is_not_ok(
    tmp_path: Path, location: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A warehouse must be a folder that exists, or a location that can be reached."""
    (tmp_path / "file").touch()
    path = location if ":" in location else str(tmp_path / location)

    code, checks = find_checks(capsys, "--warehouse", path)

    assert code == 4
    assert checks["warehouse"]["state"] == "missing"
    assert text in checks["warehouse"]["value"]


def test_settings_have_their_origin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A value has its origin, an invalid value what is valid, and an unknown name a similar one."""
    monkeypatch.setenv("AIRFLOW__MERGE__LOCAL_SPARK_CORES", "3")
    monkeypatch.setenv("AIRFLOW__MERGE__LOCAL_SPARK_MEMORY", "much")
    monkeypatch.setenv("AIRFLOW__MERGE__SHOW_TASK_TAB", "maybe")
    monkeypatch.setenv("AIRFLOW__MERGE__SHOW_ROWS", "key")
    monkeypatch.setenv("AIRFLOW__MERGE__LOCAL_SPARK_IDEL", "5m")

    code, checks = find_checks(capsys)

    assert code == 4
    assert checks["[merge] local_spark_idle"]["value"] == "10m (default)"
    assert checks["[merge] local_spark_cores"]["value"] == "3 (variable AIRFLOW__MERGE__LOCAL_SPARK_CORES)"
    memory = checks["[merge] local_spark_memory"]
    assert (memory["state"], memory["remedy"]) == ("missing", "use at least 512m, such as 900m, 2g or 8g")
    assert checks["[merge] show_task_tab"]["remedy"] == "use true or false"
    assert checks["[merge] show_rows"]["remedy"] == "did you mean 'keys'?"
    unknown = checks["[merge] local_spark_idel"]
    assert (unknown["state"], unknown["remedy"]) == ("warning", "did you mean 'local_spark_idle'?")


def test_a_warehouse_on_s3_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A warehouse on S3 is written with the credentials of the environment, which are not printed."""
    with run_s3() as server:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key-of-the-test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-test")
        monkeypatch.setenv("AWS_ENDPOINT_URL", str(server.settings.endpoint))
        bucket = server.make_bucket()
        code, checks = find_checks(capsys, "--warehouse", f"{bucket}/lake")
        assert code == 0
        assert checks["warehouse"]["value"] == f"{bucket}/lake (--warehouse), can be reached"
        assert checks["s3fs"] == {"state": "ok", "value": f"{bucket}/lake can be written", "remedy": ""}
        assert checks["credentials"]["value"].startswith("AWS_ACCESS_KEY_ID is set, endpoint http://")
        assert checks["S3 client jars"]["state"] == "warning"

        code, checks = find_checks(capsys, "--warehouse", "s3://no-such-bucket-here/lake")
        assert (code, checks["warehouse"]["remedy"]) == (4, "create it, or correct the location")

        cli.main(["doctor", "--warehouse", f"{bucket}/lake"])
        assert "of-the-test" not in capsys.readouterr().out


def test_a_warehouse_on_google_cloud_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A warehouse on Google Cloud Storage is written with the key file of the environment."""
    with run_gcs(tmp_path) as server:
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(server.key_file))
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
        monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        bucket = server.make_bucket()
        code, checks = find_checks(capsys, "--warehouse", f"{bucket}/lake")
        assert code == 0
        assert checks["warehouse"]["value"] == f"{bucket}/lake (--warehouse), can be reached"
        assert checks["gcsfs"] == {"state": "ok", "value": f"{bucket}/lake can be written", "remedy": ""}
        assert checks["GCS client jars"]["state"] == "warning"


def test_a_spark_whose_hadoop_cannot_write_to_the_store_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client that a run would refuse to download is missing, with the remedy of that refusal."""
    (tmp_path / "spark" / "bin").mkdir(parents=True)
    (tmp_path / "spark" / "bin" / "spark-submit").touch()
    (tmp_path / "spark" / "jars").mkdir()
    for name in ("spark-core_2.13-4.1.1.jar", "hadoop-client-api-3.4.1.jar"):
        (tmp_path / "spark" / "jars" / name).touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))

    check = collect_checks("jars", lambda: check_jars("s3://lake/warehouse"))[-1]

    assert (check.name, check.state) == ("jars", "missing")
    assert "does not have Hadoop 3.5.0 or 3.4.2" in check.value
    assert "allow_single_writer" in check.remedy


def test_a_terminal_shows_states_in_colours() -> None:
    """On a terminal, what is missing is red."""
    code, output = run_on_terminal("doctor", JAVA_HOME="/nowhere")

    assert code == 4
    assert "\x1b[1;31mmissing" in output
