"""An ID of the file system that a process uses, to detect whether two processes share it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

# The setting of a Spark server that holds the ID of the file system that it uses.
FILESYSTEM_SETTING = "spark.airflow.merge.filesystem"


@cache
def get_filesystem_id() -> str | None:
    """Return an ID that is equal for processes that use the same files; None if the system has no such ID.

    It combines the boot ID of the machine and the mount namespace, which differs between containers.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = Path("/proc/self/ns/mnt").stat().st_ino
    except OSError:
        return None
    return f"{boot}/{namespace}"
