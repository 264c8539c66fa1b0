"""Read the files of a folder on a local disk or an object store."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.object_store.clients import complete_arguments
from airflow_merge_provider.file_store.folder import open_folder


class Folder:
    """A folder of small files, such as a ledger; names are relative to it.

    :raises SetupError: if no library for this kind of location is installed.
    """

    def __init__(self, location: str) -> None:
        self.location = location.rstrip("/")
        self._files, self._root = open_folder(self.location, complete_arguments(self.location))

    def list_names(self, folder: str = "") -> list[str]:
        """Return the names of the files and folders in a subfolder; an empty list if it does not exist."""
        path = f"{self._root}/{folder}".rstrip("/")
        try:
            entries = self._files.ls(path, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(str(entry).rstrip("/").rpartition("/")[2] for entry in entries)

    def read_file(self, name: str) -> bytes:
        """Return the content of a file."""
        content: bytes = self._files.cat_file(f"{self._root}/{name}")
        return content

    def get_modification_time(self, name: str) -> datetime:
        """Return the time at which a file was written, in UTC."""
        at: datetime = self._files.modified(f"{self._root}/{name}")
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)

    def refuse_file(self, name: str, error: Exception) -> DataError:
        """Return the error of a file whose content is not what was written."""
        return DataError(f"{self.location}/{name} is damaged: restore it from a backup ({error})")
