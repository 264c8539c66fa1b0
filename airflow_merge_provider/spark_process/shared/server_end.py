"""Describe why a shared server ended during a run, with the setting to change."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from airflow_merge_provider.core.errors import JobError
from airflow_merge_provider.spark_process.shared.server_folder import ServerEnd

OUT_OF_MEMORY, KILLED, STOPPED, FAILED = "out-of-memory", "killed", "stopped", "failed"

# A JVM with -XX:+ExitOnOutOfMemoryError exits with 3; Spark exits with 52 if one of its tasks runs out of
# memory.
_OUT_OF_MEMORY_CODES = (3, 52)
_NO_MEMORY = "java.lang.OutOfMemoryError"
_SIGNALLED = 128


def classify_exit(code: int, lines: Iterable[str]) -> tuple[str, str]:
    """Return the reason and a detail of the end of a server, given its exit code and its last lines."""
    last_lines = [line for line in lines if line.strip()]
    if code in _OUT_OF_MEMORY_CODES or any(_NO_MEMORY in line for line in last_lines):
        return OUT_OF_MEMORY, ""
    if code in {-signal.SIGKILL, _SIGNALLED + signal.SIGKILL}:
        return KILLED, ""
    last_line = last_lines[-1] if last_lines else "no output"
    return FAILED, f"exit code {code}: {last_line}"


def build_end_error(end: ServerEnd | None, memory: str, memory_setting: str) -> JobError:
    """Return the error of a run whose server has ended; None as its end means that nobody recorded it."""
    if end is None:
        return JobError(
            "The shared Spark server and its supervisor were ended during the run: a retry starts a new "
            "server"
        )
    if end.reason == OUT_OF_MEMORY:
        return JobError(
            f"The shared Spark server ran out of memory: raise {memory_setting} (now {memory}), or limit the "
            "number of concurrent runs with an Airflow pool; a retry starts a new server"
        )
    if end.reason == KILLED:
        return JobError(
            "The shared Spark server was killed by signal 9, usually because the machine or the container "
            f"ran out of memory: add memory, or lower {memory_setting} (now {memory}); a retry starts a new "
            "server"
        )
    if end.reason == STOPPED:
        return JobError("The shared Spark server was stopped during the run: a retry starts a new server")
    return JobError(
        f"The shared Spark server ended during the run ({end.detail}): a retry starts a new server"
    )
