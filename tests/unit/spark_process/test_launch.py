"""Tests of the checks before a launch, and of what is passed to the child process."""

from __future__ import annotations

import os
import socket
import stat
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.core.errors import JobError, SetupError
from airflow_merge_provider.core.object_store.gcs_settings import KEY_FILE_SETTING, KEY_SETTING
from airflow_merge_provider.core.protocol import JobFailure, JobResult
from airflow_merge_provider.core.spark_conf import properties_text, session_conf
from airflow_merge_provider.spark_process import connect_server, connect_token, launch
from airflow_merge_provider.spark_process.jvm.class_archive import (
    archive_file,
    one_shot,
    replace_when_complete,
)
from airflow_merge_provider.spark_process.jvm.log_store.jar import locate_log_store_jar
from airflow_merge_provider.spark_process.shared.client import build_local_process
from airflow_merge_provider.spark_process.shared.settings import LocalSparkSettings, is_shared
from tests.fakes import build_report
from tests.jobs import probe

# Replacement of spark-submit that records its input for the test and returns a configured answer.
FAKE = """#!{python}
import json, os, pathlib, stat, sys
seen = pathlib.Path({seen!r})
properties = pathlib.Path(sys.argv[sys.argv.index("--properties-file") + 1])
request, result = map(pathlib.Path, sys.argv[-2:])
mode = lambda path: oct(stat.S_IMODE(path.stat().st_mode))
seen.write_text(json.dumps({{
    "argv": sys.argv, "properties": properties.read_text(), "remote": os.environ.get("SPARK_REMOTE"),
    "scratch": os.environ.get("SPARK_LOCAL_DIRS"),
    "modes": [mode(properties), mode(request), mode(request.parent)], "folder": str(request.parent),
}}))
print("WARNING: Using incubator modules: jdk.incubator.vector")
print("org.apache.spark.SparkUserAppException: User application exited with 1\\n\\tat org.x.Main(Main.scala)")
print("working", flush=True)
answer = {answer!r}
if answer:
    result.write_text(answer)
sys.exit({code})
"""


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Create a spark-submit that answers, on a machine with everything it needs."""
    monkeypatch.setattr(launch, "find_java", lambda: Path("/opt/java/bin/java"))
    monkeypatch.setattr(launch, "spark_home", lambda: tmp_path)
    monkeypatch.setattr(launch, "delta_jars", lambda: ("/jars/delta-spark.jar",))

    def make_submit(answer: str, code: int = 0) -> Path:
        import sys

        script = tmp_path / "bin" / "spark-submit"
        script.parent.mkdir(exist_ok=True)
        record_path = str(tmp_path / "seen.json")
        script.write_text(FAKE.format(python=sys.executable, seen=record_path, answer=answer, code=code))
        script.chmod(0o755)
        return script

    return make_submit


def test_a_client_that_fails_to_count_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Spark 4.2, servers are refused, and runs on this machine do not share one."""
    assert launch.supports_connect()
    monkeypatch.setattr(metadata, "version", lambda _: "4.1.3")

    assert not is_shared(LocalSparkSettings())
    refusal = r"fails to count the rows of a run \(install pyspark 4\.2\)"
    with pytest.raises(SetupError, match=refusal):
        launch.run_job(probe.build_request("s", "t"), remote="sc://localhost")
    with pytest.raises(SetupError, match=refusal):
        connect_server.run_connect_server(host="127.0.0.1", port=1, on_ready=print)
    lines: list[str] = []
    job = build_local_process(
        probe.build_request("s", "t"), LocalSparkSettings(), conf={}, on_line=lines.append
    )
    assert isinstance(job, launch.JobProcess)
    assert lines == [f"this run starts a Spark process of its own: {launch.NO_CONNECT}"]


def _read_seen(tmp_path: Path) -> Any:
    import json

    return json.loads((tmp_path / "seen.json").read_text())


def test_an_answer_is_read_and_nothing_is_left(submit: Any, tmp_path: Path) -> None:
    """The answer is read, output lines are forwarded as they arrive, and the folder is deleted afterwards."""
    lines: list[str] = []
    answer = JobResult(report=build_report())

    result = launch.run_job(
        probe.build_request("s", "t"), submit=submit(answer.model_dump_json()), on_line=lines.append
    )

    assert result.report == build_report(seconds=result.report.seconds)
    assert lines == ["working"]
    assert not Path(_read_seen(tmp_path)["folder"]).exists()


def test_secrets_are_in_files_that_only_the_user_reads(
    submit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings are in a properties file that only the user can read, never on the command line."""
    monkeypatch.setenv("SPARK_REMOTE", "sc://elsewhere")
    conf = {"spark.hadoop.fs.s3a.secret.key": "hush: #1\\"}

    launch.run_job(
        probe.build_request("s", "t"),
        conf=conf,
        submit=submit(JobResult(report=build_report()).model_dump_json()),
        on_line=lambda _: None,
    )

    record = _read_seen(tmp_path)
    assert not any("hush" in argument for argument in record["argv"])
    assert "spark.hadoop.fs.s3a.secret.key=hush: #1\\\\\n" in record["properties"]
    assert record["modes"] == ["0o600", "0o600", "0o700"]
    # What a killed JVM leaves goes with the folder.
    assert record["scratch"] == f"{record['folder']}/scratch"
    assert record["remote"] is None


def test_a_failure_counts_even_when_the_process_ended_badly(submit: Any) -> None:
    """The failure in the result file takes precedence over the exit code, which has no reason."""
    failure = JobFailure(code="data", message="no", retryable=False)

    result = launch.run_job(
        probe.build_request("s", "t"), submit=submit(failure.model_dump_json(), 1), on_line=lambda _: None
    )

    assert result == failure


def test_an_end_without_an_answer_tells_the_last_lines(submit: Any) -> None:
    """Without a result, the error has the last lines of the process."""
    with pytest.raises(JobError, match=r"ended without a result \(exit code 3\): working"):
        launch.run_job(probe.build_request("s", "t"), submit=submit("", 3), on_line=lambda _: None)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (52, "Spark ran out of memory: raise spark.driver.memory"),
        (137, "was killed by signal 9, usually because .* ran out of memory"),
    ],
)
def test_an_end_for_lack_of_memory_names_the_setting(submit: Any, code: Any, message: Any) -> None:
    """Out of memory is detected by the exit code, and the error has the setting.

    The code is Spark's own, or that of a process that the kernel has killed.
    """
    with pytest.raises(JobError, match=message) as ended:
        launch.run_job(probe.build_request("s", "t"), submit=submit("", code), on_line=lambda _: None)

    assert "spark.driver.memory" in str(ended.value).splitlines()[0]


def test_exhausted_memory_in_the_last_lines_is_said() -> None:
    """Out of memory in the last lines is detected with any exit code."""
    last = ["java.lang.OutOfMemoryError: Java heap space", "\tat org.apache.spark"]

    assert launch.describe_exit(1, last).startswith("Spark ran out of memory: raise spark.driver.memory")


def test_a_missing_java_is_said_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If Java is missing, the first line has the fix and nothing is started."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(SetupError, match=r"^Java is missing: install Java 17 or 21, or set JAVA_HOME"):
        launch.run_job(probe.build_request("s", "t"))


def test_a_server_that_does_not_listen_is_said_at_once() -> None:
    """A server that does not listen is an error at once, without the token in the URL.

    Its client would try for ten minutes.
    """
    with socket.socket() as bound_socket:
        bound_socket.bind(("127.0.0.1", 0))
        url = f"sc://127.0.0.1:{bound_socket.getsockname()[1]}/;token=hush"

        with pytest.raises(JobError, match="cannot be reached, nothing was started") as caught:
            launch.run_job(probe.build_request("s", "t"), remote=url)

    # It may be about to start again.
    assert caught.value.retryable
    assert "hush" not in str(caught.value)


def test_an_address_of_another_kind_is_no_server() -> None:
    """The address of a Spark master is rejected as the address of a Spark Connect server."""
    with pytest.raises(SetupError, match="is not valid: use the form sc://host:15002"):
        launch.run_job(probe.build_request("s", "t"), remote="spark://master:7077")


def test_a_server_does_not_start_on_a_taken_port(submit: Any) -> None:
    """A server does not start on a used port. The first line has the port, before a JVM starts."""
    with socket.create_server(("127.0.0.1", 0)) as bound_socket:
        port = bound_socket.getsockname()[1]

        with pytest.raises(SetupError, match=f"Port {port} on 127.0.0.1 is already in use"):
            connect_server.run_connect_server(host="127.0.0.1", port=port, on_ready=print)


def test_a_server_that_is_lost_ends_its_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run whose server does not listen any more ends, although its process waits for an answer."""
    monkeypatch.setattr(connect_token, "_LOST_SECONDS", 0.5)
    monkeypatch.setattr(connect_token, "_WATCH_SECONDS", 0.1)
    script = tmp_path / "job.py"
    script.write_text("import time\nprint('begun', flush=True)\ntime.sleep(60)\n")
    server = socket.create_server(("127.0.0.1", 0))
    url = f"sc://localhost:{server.getsockname()[1]}/;token=hush"
    job = launch.JobProcess(
        probe.build_request("s", "t"), remote=url, script=script, on_line=lambda _: server.close()
    )
    begin = time.monotonic()

    with pytest.raises(JobError, match="was lost during the run: start it again") as caught:
        job.run()

    assert time.monotonic() - begin < 15
    assert "hush" not in caught.value.message


def test_a_run_that_is_killed_before_its_process_exists_ends(submit: Any, tmp_path: Path) -> None:
    """A run that is stopped while it prepares its process does not run."""
    program = submit("")
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    job = launch.JobProcess(probe.build_request("s", "t"), submit=program, on_line=print)
    job.kill_process()

    with pytest.raises(JobError, match=launch.STOPPED_ON_REQUEST):
        job.run()


@pytest.mark.parametrize(
    ("conf", "jars"),
    [
        ({}, ("/jars/delta-spark.jar",)),
        ({"spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0"}, ()),
        ({"spark.jars": "/mine/delta-spark_4.2_2.13-4.4.0.jar"}, ()),
        ({"spark.jars": "/mine/other.jar"}, ("/jars/delta-spark.jar",)),
    ],
)
def test_jars_are_left_out_where_the_user_brings_them(submit: Any, conf: Any, jars: Any) -> None:
    """Jars are not added if the user adds them, because two copies of Delta on the class path conflict."""
    log_store = str(locate_log_store_jar())

    assert launch.list_jars(conf) == (*jars, log_store)
    assert launch.list_jars(conf, local=False) == ((*jars, log_store) if jars else ())


def test_the_log_store_is_where_delta_is() -> None:
    """Classes on the class path of the driver do not see the Delta that the user has in spark.jars."""
    conf_of_user = session_conf(
        local=True, jars=["/log_store.jar"], user={"spark.jars": "/mine/delta-spark_4.2.jar"}
    )
    default_conf = session_conf(
        local=True, jars=["/delta.jar", "/log_store.jar"], user={"spark.jars": "/mine/a.jar"}
    )

    assert conf_of_user["spark.jars"] == "/log_store.jar,/mine/delta-spark_4.2.jar"
    assert "spark.hadoop.fs.file.impl" not in conf_of_user
    assert default_conf["spark.driver.extraClassPath"] == f"/delta.jar{os.pathsep}/log_store.jar"
    assert default_conf["spark.hadoop.fs.file.impl"] == "airflow_merge_provider.LocalFiles"
    for conf in (conf_of_user, default_conf):
        assert conf["spark.delta.logStore.file.impl"] == "airflow_merge_provider.HardLinkLogStore"


def test_a_log_store_of_the_user_is_the_only_one() -> None:
    """Delta refuses one for all schemes beside one for a scheme."""
    conf = session_conf(local=True, jars=[], user={"spark.delta.logStore.class": "org.example.Mine"})

    assert [name for name in conf if "logStore" in name] == ["spark.delta.logStore.class"]


def test_the_users_settings_win_and_lists_grow() -> None:
    """Settings of the user take precedence. List settings are extended, so that Delta's extension is kept."""
    user = {"spark.sql.ansi.enabled": "false", "spark.sql.extensions": "org.example.Mine"}

    conf = session_conf(local=True, jars=["/a.jar", "/b.jar"], user=user)

    assert conf["spark.sql.ansi.enabled"] == "false"
    assert conf["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension,org.example.Mine"
    assert conf["spark.driver.extraClassPath"] == f"/a.jar{os.pathsep}/b.jar"
    assert "spark.jars" not in conf


def test_executors_elsewhere_get_the_jars_too() -> None:
    """A remote master gets the jars too and copies them to its executors."""
    conf = session_conf(local=False, jars=["/a.jar", "/b.jar"], user={})

    assert conf["spark.jars"] == "/a.jar,/b.jar"
    assert "spark.driver.extraClassPath" not in conf


def test_a_line_break_in_a_setting_stays_in_its_line() -> None:
    """A line break in a setting does not end its line in the properties file."""
    assert properties_text({"spark.a": "x\ny"}) == "spark.a=x\\ny\n"


def test_a_one_shot_jvm_leaves_the_users_options_the_last_word(tmp_path: Path) -> None:
    """The options of the user for a one-shot JVM come last.

    With two garbage collectors the JVM would not start.
    """
    conf = {"spark.driver.extraJavaOptions": "-XX:+UseG1GC -XX:TieredStopAtLevel=4"}
    archive = tmp_path / "a.jsa"
    archive.touch()

    options = one_shot(conf, archive)["spark.driver.extraJavaOptions"]

    assert "ParallelGC" not in options
    assert options.index("TieredStopAtLevel=1") < options.index("TieredStopAtLevel=4")
    assert f"-XX:SharedArchiveFile={archive}" in options
    assert "SharedArchiveFile" not in one_shot(conf, tmp_path / "none.jsa")["spark.driver.extraJavaOptions"]


def test_an_archive_belongs_to_a_java_a_spark_and_jars(tmp_path: Path) -> None:
    """The class data archive belongs to one version of Java, Spark and the jars."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    names = {archive_file(java, tmp_path, ("a",)), archive_file(java, tmp_path, ("b",))}
    (java.parent.parent / "release").write_text('JAVA_VERSION="21.0.1"')
    names.add(archive_file(java, tmp_path, ("a",)))

    assert len(names) == 3


def test_an_archive_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    """An archive is written atomically: an aborted run leaves no partial file for a JVM to read."""
    archive = tmp_path / "classes" / "a.jsa"

    def make_half() -> None:
        with replace_when_complete(archive) as part:
            part.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        make_half()
    assert not list(archive.parent.iterdir())

    with replace_when_complete(archive) as part:
        part.write_text("whole")

    assert archive.read_text() == "whole"
    assert stat.S_ISREG(archive.stat().st_mode)


def test_the_key_of_google_cloud_gets_a_private_file(tmp_path: Path) -> None:
    """Hadoop's client reads the key from a file of mode 0600; the settings have its path and not the key."""
    key = '{"private_key": "s3cr3t"}'
    launch.write_properties({"a": "b", KEY_SETTING: key}, tmp_path / "spark.properties")

    key_file = tmp_path / "gcs_key.json"
    assert (tmp_path / "spark.properties").read_text() == f"a=b\n{KEY_FILE_SETTING}={key_file}\n"
    assert key_file.read_text() == key
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600


def test_a_cluster_cannot_have_the_content_of_a_key_file() -> None:
    """The private file is on this machine, so a run on a cluster is refused before it starts."""
    with pytest.raises(SetupError, match="reaches Spark only on this machine: use key_path") as refused:
        launch.submit_conf({KEY_SETTING: "s3cr3t"}, local=False)

    assert "s3cr3t" not in str(refused.value)
