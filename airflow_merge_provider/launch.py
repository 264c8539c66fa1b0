"""How does a job run: a child process with Spark in it, a request file in, a result file out."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from airflow_merge_provider.core.child import die_with_parent
from airflow_merge_provider.core.errors import JobError
from airflow_merge_provider.core.protocol import JobFailure, JobRequest, JobResult, read_result
from airflow_merge_provider.core.spark_conf import connect_conf, properties_text, session_conf
from airflow_merge_provider.jars import delta_jars, java, spark_home

SCRIPT = Path(__file__).with_name("jobs") / "submit" / "main.py"
LOCAL = "local[*]"

_GRACE = 10.0
_NOISE = ("WARNING: Using incubator modules",)


def run_job(
    request: JobRequest,
    *,
    master: str = LOCAL,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    submit: Path | None = None,
    on_line: Callable[[str], object] = print,
) -> JobResult | JobFailure:
    """Run one request in a child process and give its answer.

    ``remote`` names a Spark Connect server; without it spark-submit starts Spark on ``master``.

    :raises SetupError: when Java, Spark or a jar is missing; nothing has been started then.
    :raises JobError: when the process ended without an answer.
    """
    job = JobProcess(request, master=master, remote=remote, conf=conf, submit=submit, on_line=on_line)
    return job.run()


class JobProcess:
    """One request in a child process; ``kill`` ends it from a signal handler or another thread."""

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
        self._conf = dict(conf or {})
        self._submit = submit
        self._script = script
        self._on_line = on_line
        self._child: subprocess.Popen[str] | None = None
        self._killed = False

    def run(self) -> JobResult | JobFailure:
        """Start the child, hand its lines on, wait for its end and read its answer."""
        work = Path(tempfile.mkdtemp(prefix="merge-"))
        try:
            command, env = self._command(work)
            last = self._follow(command, env)
            result = work / "result.json"
            if result.is_file():
                return read_result(result)
            raise JobError(self._no_answer(last))
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def kill(self) -> None:
        """End the child and everything below it: first asked, after ten seconds forced."""
        self._killed = True
        child = self._child
        if child is None or child.poll() is not None:
            return
        _signal_group(child.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE)
        _signal_group(child.pid, signal.SIGKILL)

    def _command(self, work: Path) -> tuple[list[str], dict[str, str]]:
        files = [str(work / "request.json"), str(work / "result.json")]
        if self._remote:
            settings = work / "session.json"
            write_private(settings, json.dumps(connect_conf(self._conf)))
            command = [sys.executable, str(self._script), *files, str(settings)]
            env = {**os.environ, "SPARK_REMOTE": self._remote}
        else:
            command, env = self._submit_command(work, files)
        write_private(work / "request.json", self._request.model_dump_json())
        return command, {**env, "PYTHONUNBUFFERED": "1"}

    def _submit_command(self, work: Path, files: list[str]) -> tuple[list[str], dict[str, str]]:
        java()
        local = self._master.startswith("local")
        submit = self._submit or spark_home() / "bin" / "spark-submit"
        run = self._request.run
        conf = session_conf(local=local, jars=jars_for(self._conf), user=self._conf)
        conf.setdefault("spark.app.name", f"{run.dag_id}.{run.task_id}")
        # In a file of mode 0600, not as --conf: settings may hold keys, and command lines are public.
        write_private(work / "spark.properties", properties_text(conf))
        command = [
            str(submit),
            *("--master", self._master),
            *("--load-spark-defaults", "--properties-file", str(work / "spark.properties")),
            str(self._script),
            *files,
        ]
        env = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}
        env.setdefault("SPARK_HOME", str(submit.parent.parent))
        env.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        if local:
            env.setdefault("PYSPARK_PYTHON", sys.executable)
            env.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        return command, env

    def _follow(self, command: list[str], env: dict[str, str]) -> list[str]:
        last: deque[str] = deque(maxlen=20)
        self._child = subprocess.Popen(  # noqa: S603 - our own command, no shell
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - nothing but one system call
        )
        try:
            for line in self._child.stdout or ():
                if line.startswith(_NOISE):
                    continue
                last.append(line.rstrip())
                self._on_line(line.rstrip())
            self._child.wait()
        except BaseException:
            self.kill()
            raise
        return list(last)

    def _no_answer(self, last: list[str]) -> str:
        if self._killed:
            return "The Spark process was ended on request"
        code = self._child.returncode if self._child else None
        said = next((line for line in reversed(last) if line.strip()), "it said nothing")
        lines = "\n".join(last)
        return f"The Spark process ended without an answer (exit code {code}): {said}\n{lines}"


def jars_for(conf: Mapping[str, str]) -> tuple[str, ...]:
    """Leave the jars out where the user's settings or Spark's own folder bring them."""
    named = (conf.get("spark.jars", ""), conf.get("spark.jars.packages", ""))
    if any("delta-spark" in each for each in named) or list(spark_home().glob("jars/delta-spark_*.jar")):
        return ()
    return delta_jars()


def write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
