"""Files of this machine that appear whole or not at all, and leave nothing of a process that is killed."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

# Of Linux, and not of every file system there.
_UNNAMED = getattr(os, "O_TMPFILE", 0)


class NewFile:
    """A file that gets its name once it is written: until then it has none, or one that nobody looks for."""

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
        """Return the file its name; False if another file has it."""
        self.file.flush()
        try:
            self._link_file(self._path)
        except FileExistsError:
            return False
        return True

    def link_replacing(self) -> None:
        """Return the file its name, in place of another file that may have it."""
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
        # Python follows the link to the file only where it is given a folder, which is not used here.
        os.link(f"/proc/self/fd/{number}", path, src_dir_fd=number, follow_symlinks=True)

    def _name_part(self) -> Path:
        # The name itself may be as long as names can be.
        return self._path.with_name(f".part-{uuid.uuid4().hex}")
