"""Write the output of a server to a file of bounded size."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from pathlib import Path

_FILE_MAX_BYTES = 1 << 20
_LAST_LINES = 50
_LINE_MAX_CHARACTERS = 2000


class ServerLog:
    """A log file and its last lines; beyond its maximum size the file is renamed and a new one begins."""

    def __init__(self, file: Path, max_bytes: int = _FILE_MAX_BYTES) -> None:
        self._file = file
        self._max_bytes = max_bytes
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)

    def copy_lines(self, lines: Iterable[str]) -> None:
        """Write all lines until there are no more."""
        for line in lines:
            self.write_line(line)

    def write_line(self, line: str) -> None:
        """Write one line, shortened if it is too long."""
        line = line[:_LINE_MAX_CHARACTERS]
        self.last_lines.append(line)
        # The folder is removed when the server ends, possibly before its last lines arrive.
        try:
            descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except FileNotFoundError:
            return
        with os.fdopen(descriptor, "a", encoding="utf-8", errors="replace") as stream:
            stream.write(f"{line}\n")
            is_full = stream.tell() > self._max_bytes
        if is_full:
            self._file.replace(self._file.with_suffix(".log.1"))
