"""Run a job on this machine: on the shared server, or in a Spark process of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from airflow_merge_provider.core.errors import JobError
from airflow_merge_provider.core.protocol import JobFailure, JobRequest, JobResult
from airflow_merge_provider.core.spark_conf import format_settings
from airflow_merge_provider.spark_process.launch import (
    LOCAL,
    NO_CONNECT,
    SCRIPT,
    STOPPED_ON_REQUEST,
    JobProcess,
    supports_connect,
)
from airflow_merge_provider.spark_process.shared.identity import (
    build_spec,
    describe_memory_setting,
    split_conf,
)
from airflow_merge_provider.spark_process.shared.server_run import ServerLostError, ServerRun
from airflow_merge_provider.spark_process.shared.server_start import ServerStart
from airflow_merge_provider.spark_process.shared.settings import (
    MEMORY_SETTING,
    SHARED,
    LocalSparkSettings,
    is_shared,
    read_environment,
)

_START_ATTEMPTS_MAX = 2


class SharedSparkProcess:
    """One request on the shared server; ``kill_process`` ends it from a signal handler or another thread."""

    def __init__(
        self,
        request: JobRequest,
        *,
        settings: LocalSparkSettings,
        conf: Mapping[str, str] | None = None,
        script: Path = SCRIPT,
        on_line: Callable[[str], object] = print,
    ) -> None:
        self._request = request
        self._settings = settings
        self._conf = format_settings(conf)
        self._script = script
        self._on_line = on_line
        self._job: JobProcess | None = None
        self._killed = False

    def run(self) -> JobResult | JobFailure:
        """Wait for a server and a slot, and run the request there in a child process without a JVM.

        :raises SetupError: when Java, Spark or a jar is missing; nothing has been started in this case.
        :raises JobError: when the server or the process ended without a result.
        """
        spec = build_spec(self._conf, self._settings)
        start = ServerStart(spec, self._settings, on_line=self._on_line, check_stop=self._check_stop)
        memory_setting = describe_memory_setting(self._conf)
        for attempt in range(1, _START_ATTEMPTS_MAX + 1):
            state, slot = start.acquire_slot()
            run = ServerRun(start.folder, state, self._build_job, self._on_line, memory_setting)
            try:
                return run.run_job()
            except ServerLostError as error:
                self._check_stop()
                if attempt == _START_ATTEMPTS_MAX:
                    raise
                self._on_line(f"{error.message}: trying again")
            finally:
                slot.release()
            if run.is_unresponsive:
                start.replace_server(state)
        raise JobError(STOPPED_ON_REQUEST)

    def kill_process(self) -> None:
        """End the child process; its statements on the server are interrupted."""
        self._killed = True
        if self._job is not None:
            self._job.kill_process()

    def _check_stop(self) -> None:
        if self._killed:
            raise JobError(STOPPED_ON_REQUEST)

    def _build_job(self, url: str, on_line: Callable[[str], object]) -> JobProcess:
        session_conf = split_conf(self._conf)[1]
        self._job = JobProcess(
            self._request, remote=url, conf=session_conf, script=self._script, on_line=on_line
        )
        self._check_stop()
        return self._job


def build_local_process(
    request: JobRequest,
    settings: LocalSparkSettings,
    *,
    conf: Mapping[str, str],
    on_line: Callable[[str], object],
) -> SharedSparkProcess | JobProcess:
    """Return the process of a run on this machine, as the settings determine."""
    if is_shared(settings):
        return SharedSparkProcess(request, settings=settings, conf=conf, on_line=on_line)
    if settings.mode == SHARED and not supports_connect():
        on_line(f"this run starts a Spark process of its own: {NO_CONNECT}")
    process_conf = {MEMORY_SETTING: settings.memory, **format_settings(conf)}
    return JobProcess(request, master=settings.master, conf=process_conf, on_line=on_line)


def run_job(
    request: JobRequest, *, master: str, remote: str | None, **options: Any
) -> JobResult | JobFailure:
    """Run one request of the command line where its options and the environment variables determine.

    :raises ConfigError: if an environment variable is not valid.
    """
    if remote is None and master == LOCAL:
        return build_local_process(request, read_environment(), **options).run()
    return JobProcess(request, master=master, remote=remote, **options).run()
