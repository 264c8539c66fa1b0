"""Check the machine: its memory and disk for the configured Spark memory, and the shared server."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from airflow_merge_provider.doctor.check import Check
from airflow_merge_provider.local_spark.administration import list_servers
from airflow_merge_provider.local_spark.settings import LocalSparkSettings, is_shared, parse_bytes

_GIB = 1 << 30
# A JVM needs this share of its heap in addition, for code, threads and buffers.
_OVERHEAD = 0.25
_CGROUP = Path("/sys/fs/cgroup")


def check_memory(settings: LocalSparkSettings) -> Iterator[Check]:
    """Yield the available memory, compared with what Spark may use."""
    available = read_available_memory()
    if available is None:
        yield Check("memory", "ok", "not checked: this system does not show the available memory")
        return
    required = parse_bytes(settings.memory) * (1 + _OVERHEAD)
    value = f"{_format_bytes(available)} available, Spark may use {_format_bytes(required)}"
    remedy = f"free memory, or lower [merge] local_spark_memory (now {settings.memory})"
    is_enough = available >= required
    yield Check("memory", "ok" if is_enough else "warning", value, "" if is_enough else remedy)


def check_disk(settings: LocalSparkSettings, folders: dict[str, str]) -> Iterator[Check]:
    """Yield the free space of the folder for temporary files, which Spark spills to, and of other folders.

    :param folders: the path of each other folder that exists, by the name of its check.
    """
    required = parse_bytes(settings.memory)
    for name, path in {"temporary files": tempfile.gettempdir(), **folders}.items():
        free = shutil.disk_usage(path).free
        value, remedy = f"{_format_bytes(free)} free in {path}", f"free at least {_format_bytes(required)}"
        is_enough = free >= required
        yield Check(f"disk: {name}", "ok" if is_enough else "warning", value, "" if is_enough else remedy)


def check_servers(settings: LocalSparkSettings) -> Iterator[Check]:
    """Yield the shared servers of this user.

    :raises SetupError: if their folder is not a private folder of this user.
    """
    if not is_shared(settings):
        yield Check("shared server", "ok", "not used: each run starts its own Spark process")
        return
    lines = [server.format_line() for server in list_servers()]
    if not lines:
        yield Check("shared server", "ok", "not running: the first run starts it")
    yield from (Check("shared server", "ok", " ".join(line.split())) for line in lines)


def read_available_memory() -> int | None:
    """Return the memory in bytes that a new process may use; None where the system does not tell.

    A limit of the container counts if it is lower than what the machine has.
    """
    amounts: list[int] = []
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable:"))
        amounts.append(int(line.split()[1]) * 1024)
    with suppress(OSError, ValueError):
        limit = int((_CGROUP / "memory.max").read_text(encoding="ascii"))
        amounts.append(limit - int((_CGROUP / "memory.current").read_text(encoding="ascii")))
    return min(amounts, default=None)


def _format_bytes(number: float) -> str:
    return f"{number / _GIB:.1f} GiB"
