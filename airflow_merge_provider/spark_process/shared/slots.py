"""Hold one of the slots of a server during a run, so that only as many runs use it as its memory allows."""

from __future__ import annotations

import os

from airflow_merge_provider.spark_process.shared.file_lock import release_lock, try_lock
from airflow_merge_provider.spark_process.shared.server_folder import ServerFolder


class Slot:
    """A slot that this process holds; the kernel releases it if the process dies."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.utime(descriptor)

    def release(self) -> None:
        """Release the slot. Its time of release is when the server was last used."""
        os.utime(self._descriptor)
        release_lock(self._descriptor)


def try_slot(folder: ServerFolder, count: int) -> Slot | None:
    """Return a free slot of the server, or None if all are held."""
    for number in range(count):
        descriptor = try_lock(folder.slot_file(number))
        if descriptor is not None:
            return Slot(descriptor)
    return None
