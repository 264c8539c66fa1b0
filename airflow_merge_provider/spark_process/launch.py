"""Run a job in a child process with Spark: a request file as input, a result file as output."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from airflow_merge_provider.core.child_process import (
    build_child_environment,
    die_with_parent,
    make_work_folder,
)
from airflow_merge_provider.core.errors import JobError, SetupError
from airflow_merge_provider.core.object_store.clients import (
    has_azure_client,
    has_gcs_client,
    has_log_store,
    has_s3_client,
)
from airflow_merge_provider.core.object_store.gcs_settings import (
    AUTH_TYPE_SETTING,
    KEY_FILE_SETTING,
    KEY_SETTING,
)
from airflow_merge_provider.core.protocol import JobFailure, JobRequest, JobResult, parse_result
from airflow_merge_provider.core.spark_conf import (
    connect_conf,
    format_settings,
    inherit_settings,
    names_artifact,
    properties_text,
    session_conf,
)
from airflow_merge_provider.spark_process.connect_token import (
    ServerWatch,
    add_token,
    parse_address,
    require_server,
)
from airflow_merge_provider.spark_process.jvm.class_archive import (
    archive_file,
    one_shot,
)
from airflow_merge_provider.spark_process.jvm.jars import (
    AZURE_CLIENT,
    GCS_CLIENT,
    S3_CLIENT,
    HadoopClient,
    delta_jars,
    find_java,
    spark_home,
)
from airflow_merge_provider.spark_process.jvm.log_store.jar import find_log_store_jar
from airflow_merge_provider.spark_process.jvm.spark_defaults import read_spark_defaults

SCRIPT = Path(__file__).parents[1] / "jobs" / "submit" / "main.py"
LOCAL = "local[*]"

STOPPED_ON_REQUEST = "The Spark process was stopped on request"
NO_CONNECT = "the client of Spark 4.1 fails to count the rows of a run"

_GRACE_SECONDS = 10.0
# Spark exits with 52 when one of its threads runs out of memory. The kernel kills a process with SIGKILL; for
# the Python process, Spark returns 128 plus the signal number.
_OUT_OF_MEMORY, _KILLED = (52,), (-signal.SIGKILL, 128 + signal.SIGKILL)
MEMORY_EXIT_CODES = (*_OUT_OF_MEMORY, *_KILLED)
_NO_MEMORY = "java.lang.OutOfMemoryError"
# Without it, a JVM whose job has ended waits for threads of libraries, such as Hadoop's client of Azure.
_END_OF_JVM = "spark.submit.callSystemExitOnMainExit"
_NOISE = ("WARNING: Using incubator modules", "Calling System.exit()")
# With that setting, the JVM prints where it learned that a job has failed; the job has reported why.
_FAILED_JOB, _JAVA_STACK_LINE = "org.apache.spark.SparkUserAppException", "\tat "
_SCRATCH = "spark.local.dir"
_CLIENT_PACKAGES = ("pyspark", "pyspark-client")


def run_job(
    request: JobRequest,
    *,
    master: str = LOCAL,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    submit: Path | None = None,
    on_line: Callable[[str], object] = print,
) -> JobResult | JobFailure:
    """Run one request in a child process and return its result.

    ``remote`` is the URL of a Spark Connect server; without it spark-submit starts Spark on ``master``.

    :raises SetupError: when Java, Spark or a jar is missing; nothing has been started in this case.
    :raises JobError: when the process ended without writing a result.
    """
    job = JobProcess(request, master=master, remote=remote, conf=conf, submit=submit, on_line=on_line)
    return job.run()


class JobProcess:
    """One request in a child process; ``kill_process`` ends it from a signal handler or another thread."""

    def __init__(
        self,
        request: JobRequest,
        *,
        master: str = LOCAL,
        remote: str | None = None,
        conf: Mapping[str, str] | None = None,
        submit: Path | None = None,
        script: Path = SCRIPT,
        on_line: Callable[[str], object] = print,
    ) -> None:
        self._request = request
        self._master = master
        self._remote = remote
        self._conf = format_settings(conf)
        self._submit = submit
        self._script = script
        self._on_line = on_line
        self._child: subprocess.Popen[str] | None = None
        self._killed = False
        self._watch: ServerWatch | None = None

    def run(self) -> JobResult | JobFailure:
        """Start the child, forward its output lines, wait until it ends and read its result."""
        start = time.monotonic()
        with make_work_folder() as work:
            command, env = self._build_command(work)
            with self._watch.watch_server() if self._watch else contextlib.nullcontext():
                last_lines = self._follow_child(command, env)
            result = work / "result.json"
            if result.is_file():
                return parse_result(result.read_text(encoding="utf-8"), time.monotonic() - start)
            raise self._build_error(last_lines)

    def kill_process(self, grace_seconds: float = _GRACE_SECONDS) -> None:
        """End the child and its descendants with SIGTERM, and with SIGKILL after the grace period."""
        self._killed = True
        self._end_child(grace_seconds)

    def _end_child(self, grace_seconds: float = 0.0) -> None:
        child = self._child
        if child is None or child.poll() is not None:
            return
        if grace_seconds > 0:
            signal_group(child.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(grace_seconds)
        signal_group(child.pid, signal.SIGKILL)

    def _build_command(self, work: Path) -> tuple[list[str], dict[str, str]]:
        if self._remote and not supports_connect():
            raise SetupError(f"Spark Connect: {NO_CONNECT} (install pyspark 4.2)")
        files = [str(work / "request.json"), str(work / "result.json")]
        write_private(work / "request.json", self._request.model_dump_json())
        if self._remote:
            address = parse_address(self._remote)
            require_server(*address)
            self._watch = ServerWatch(*address, on_loss=self._end_child)
            settings = work / "session.json"
            write_private(settings, json.dumps(connect_conf(self._conf)))
            url, token = add_token(self._remote)
            env = build_child_environment(SPARK_REMOTE=url, PYTHONUNBUFFERED="1", **token)
            return [sys.executable, str(self._script), *files, str(settings)], env
        run = self._request.run
        conf = submit_conf(self._conf, local=is_local(self._master))
        conf.setdefault("spark.app.name", f"{run.dag_id}.{run.task_id}")
        application = [str(self._script), *files]
        return build_submit_command(application, conf, work, master=self._master, submit=self._submit)

    def _follow_child(self, command: list[str], env: dict[str, str]) -> list[str]:
        last_lines: deque[str] = deque(maxlen=20)
        self._child = start_child(command, env)
        try:
            if self._killed:
                # Killed before there was a child.
                self._end_child()
            for line in read_lines(self._child):
                last_lines.append(line)
                self._on_line(line)
            self._child.wait()
        except BaseException:
            self.kill_process()
            raise
        return list(last_lines)

    def _build_error(self, last_lines: list[str]) -> JobError:
        if self._killed:
            return JobError(STOPPED_ON_REQUEST)
        if self._watch is not None and self._watch.is_lost:
            return self._watch.build_error()
        return JobError(describe_exit(self._child.returncode if self._child else None, last_lines))


def submit_conf(user: Mapping[str, str], *, local: bool) -> dict[str, str]:
    """Return the settings of a spark-submit process that runs one job.

    :raises SetupError: when Java, Spark or a jar is missing, or a cluster cannot have the key of the store.
    """
    if KEY_SETTING in user and not local:
        raise SetupError(
            "the content of a Google key file (keyfile_dict) reaches Spark only on this machine: use "
            f"key_path and a file on every node, or {AUTH_TYPE_SETTING} in conf for those of the cluster"
        )
    program = find_java()
    jars = list_jars(user, local=local)
    own = {_END_OF_JVM: "true", **inherit_settings(read_spark_defaults(), user)}
    conf = session_conf(local=local, jars=jars, user=own)
    return one_shot(conf, archive_file(program, spark_home(), jars)) if local else conf


def find_archive(conf: Mapping[str, str]) -> Path:
    """Return the path of the class archive of runs with these settings, whether it exists or not.

    :raises SetupError: when Java, Spark or a jar is missing.
    """
    return archive_file(find_java(), spark_home(), list_jars(conf))


def list_jars(conf: Mapping[str, str], *, local: bool = True) -> tuple[str, ...]:
    """Return the jars to add: of Delta, the log stores, and on this machine the clients of object stores.

    Jars that the user's settings, spark-defaults.conf or Spark's jars folder provide are not added.

    :raises SetupError: when a jar is missing and cannot be downloaded.
    """
    conf = inherit_settings(read_spark_defaults(), conf)
    jars = () if has_artifact("delta-spark", conf) else delta_jars()
    clients: list[HadoopClient] = []
    # To a cluster whose image has Delta, perhaps nothing can be uploaded.
    if jars or local or has_log_store(conf):
        jars += (str(find_log_store_jar()),)
    if has_s3_client(conf):
        clients.append(S3_CLIENT)
    if has_azure_client(conf):
        clients.append(AZURE_CLIENT)
    if has_gcs_client(conf):
        clients.append(GCS_CLIENT)
    # A cluster has the clients that suit its Hadoop.
    for client in clients if local else ():
        jars += () if has_artifact(client.artifact, conf) else client.find_jars()
    return jars


def has_artifact(artifact: str, conf: Mapping[str, str]) -> bool:
    """Return whether settings or Spark's jars folder contain an artifact."""
    return names_artifact(artifact, conf) or bool(list(spark_home().glob(f"jars/{artifact}[-_]*.jar")))


def describe_exit(code: int | None, last_lines: Sequence[str] = ()) -> str:
    """Return why a Spark process ended without a result, given its exit code and its last output lines."""
    lines = "".join(f"\n{line}" for line in last_lines)
    if code in _OUT_OF_MEMORY or any(_NO_MEMORY in line for line in last_lines):
        return f"Spark ran out of memory: raise spark.driver.memory (exit code {code}){lines}"
    if code in _KILLED:
        return (
            "The Spark process was killed by signal 9, usually because the machine or the container ran out "
            f"of memory: add memory, or lower spark.driver.memory so that the process fits{lines}"
        )
    last_line = next((line for line in reversed(last_lines) if line.strip()), "no output")
    return f"The Spark process ended without a result (exit code {code}): {last_line}{lines}"


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def write_properties(conf: Mapping[str, str], file: Path) -> None:
    """Write Spark settings into a file that only this user can read.

    Settings may contain keys, and command lines, the place of ``--conf``, are public. The key of a Google
    service account gets a file of its own beside the settings.
    """
    settings = dict(conf)
    if key := settings.pop(KEY_SETTING, None):
        key_file = file.with_name("gcs_key.json")
        write_private(key_file, key)
        settings[KEY_FILE_SETTING] = str(key_file)
    write_private(file, properties_text(settings))


def signal_group(group: int, number: signal.Signals) -> None:
    """Send a signal to a process group, if it still exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def is_local(master: str) -> bool:
    """Return whether a Spark master runs in the process that starts it."""
    return master == "local" or master.startswith("local[")


def build_submit_command(
    application: list[str], conf: Mapping[str, str], work: Path, *, master: str, submit: Path | None = None
) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment of a spark-submit process."""
    find_java()
    program = submit or spark_home() / "bin" / "spark-submit"
    write_properties(conf, work / "spark.properties")
    command = [str(program), "--master", master]
    command += ["--load-spark-defaults", "--properties-file", str(work / "spark.properties"), *application]
    env = build_child_environment(PYTHONUNBUFFERED="1")
    env.setdefault("SPARK_HOME", str(program.parent.parent))
    env.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_local(master):
        env.setdefault("PYSPARK_PYTHON", sys.executable)
        env.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        if _SCRATCH not in conf and _SCRATCH not in read_spark_defaults():
            # A JVM that is killed leaves what it has spilled; a later run removes it with the work folder.
            env.setdefault("SPARK_LOCAL_DIRS", str(work / "scratch"))
    return command, env


def start_child(command: list[str], env: dict[str, str]) -> subprocess.Popen[str]:
    """Start a process in its own session that ends with this process; its output is one pipe."""
    return subprocess.Popen(  # noqa: S603 - our own command, no shell
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - runs only one system call
    )


def read_lines(child: subprocess.Popen[str]) -> Iterator[str]:
    """Yield the output lines of the child, without the lines that every JVM prints."""
    is_stack = False
    with child.stdout or contextlib.nullcontext(()) as output:
        for line in output:
            is_stack = line.startswith(_FAILED_JOB) or (is_stack and line.startswith(_JAVA_STACK_LINE))
            if not is_stack and not line.startswith(_NOISE):
                yield line.rstrip()


def supports_connect() -> bool:
    """Return whether runs can use the Spark Connect client of this Python."""
    versions = []
    for package in _CLIENT_PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions.append(metadata.version(package))
    return not any(version.startswith("4.1.") for version in versions)
