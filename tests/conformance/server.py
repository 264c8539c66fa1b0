"""Run a server as long as another process shares the lock of a file, however those processes end.

The arguments are that file, the file with the server's address, which is removed first, and the command.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path


def main(users: str, address: str, *command: str) -> None:
    """Start the server, wait until the kernel grants the lock, and end the server."""
    with Path(users).open("w") as file:
        server = subprocess.Popen(command)
        fcntl.flock(file, fcntl.LOCK_EX)
        Path(address).unlink(missing_ok=True)
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
