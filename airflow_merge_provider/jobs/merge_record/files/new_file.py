"""Atomic creation of local files, without leftovers of a killed process where the system supports it."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

# Only Linux has this flag, and not all of its file systems support it.
_UNNAMED = getattr(os, "O_TMPFILE", 0)


class NewFile:
    """A file that gets its name after it is written; until then it has no name, or a hidden one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part: Path | None = None

    def __enter__(self) -> Self:
        try:
            self.file = self._open_file()
        except FileNotFoundError:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self.file = self._open_file()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.file.close()
        if self._part is not None:
            self._part.unlink(missing_ok=True)

    def link_new(self) -> bool:
        """Link the file to its name; return False if a file with this name exists."""
        self.file.flush()
        try:
            self._link_file(self._path)
        except FileExistsError:
            return False
        return True

    def link_replacing(self) -> None:
        """Link the file to its name, and replace an existing file with this name."""
        if self._part is None and self.link_new():
            return
        self.file.flush()
        part = self._part or self._name_part()
        if self._part is None:
            self._link_file(part)
            self._part = part
        part.replace(self._path)

    def _open_file(self) -> BinaryIO:
        if _UNNAMED:
            with contextlib.suppress(OSError):
                return os.fdopen(os.open(self._path.parent, os.O_WRONLY | _UNNAMED, 0o666), "wb")
        part = self._name_part()
        file = part.open("xb")
        self._part = part
        return file

    def _link_file(self, path: Path) -> None:
        if self._part is not None:
            os.link(self._part, path)
            return
        number = self.file.fileno()
        # Python follows the symbolic link only if a directory descriptor is given; linkat ignores it here,
        # because the path is absolute.
        os.link(f"/proc/self/fd/{number}", path, src_dir_fd=number, follow_symlinks=True)

    def _name_part(self) -> Path:
        # This name does not include the final name, which may already have the maximum length.
        return self._path.with_name(f".part-{uuid.uuid4().hex}")
