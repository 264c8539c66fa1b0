"""Tell whether two processes see the same files."""

from __future__ import annotations

from functools import cache
from pathlib import Path

# The setting of a Spark server that says which files it sees.
FILESYSTEM_SETTING = "spark.airflow.merge.filesystem"


@cache
def get_filesystem_id() -> str | None:
    """Return an ID that processes share if they see the same files; None if this system has none.

    It names the boot of the machine and the mount namespace, which differs from container to container.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = Path("/proc/self/ns/mnt").stat().st_ino
    except OSError:
        return None
    return f"{boot}/{namespace}"
