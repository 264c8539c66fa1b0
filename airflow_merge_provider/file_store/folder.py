"""Open folders on a local disk or an object store with fsspec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_merge_provider.core.object_store.clients import refuse_location


def open_folder(location: str, arguments: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """Return the file system of a location and the path of the location within it.

    :param arguments: the address and the credentials of the store, as fsspec takes them.
    :raises SetupError: if no library for this kind of location is installed.
    """
    # The command line imports this module, and most commands open no folder.
    import fsspec  # noqa: PLC0415

    try:
        # Not url_to_fs, which takes :: in a name as a chain of file systems.
        store = fsspec.get_filesystem_class(
            "file" if location.startswith("/") else location.partition("://")[0]
        )
        file_system = store(**{**store._get_kwargs_from_urls(location), **(arguments or {})})  # noqa: SLF001
        return file_system, str(store._strip_protocol(location)).rstrip("/")  # noqa: SLF001
    except (ImportError, ValueError) as error:
        raise refuse_location(location, error) from None


def remove_path(file_system: Any, path: str) -> None:
    """Remove a file, or a folder with its files, also if fsspec would take its name as a pattern."""
    for file in file_system.find(path):
        file_system.rm_file(file)
    # An object store has no folders without files.
    for folder in sorted(file_system.find(path, withdirs=True), reverse=True):
        file_system.rmdir(folder)
