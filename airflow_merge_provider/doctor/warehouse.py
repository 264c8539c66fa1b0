"""Check the warehouse: where its location comes from, and whether it can be reached and written."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.core.object_store.clients import (
    complete_arguments,
    find_extra,
    is_s3,
)
from airflow_merge_provider.core.object_store.s3_settings import S3Settings
from airflow_merge_provider.delta_rs import find_table
from airflow_merge_provider.doctor.check import Check
from airflow_merge_provider.doctor.settings import Setting
from airflow_merge_provider.file_store.folder import open_folder

_NAME = "warehouse"
_PROBE = "_airflow_merge_provider_check"
# The libraries of fsspec by the extras that install them.
_LIBRARIES = {"s3": "s3fs", "azure": "adlfs", "gcs": "gcsfs"}
# The variables and files from which every client of S3 reads keys, and what each is.
_KEY_VARIABLES = {
    "AWS_ACCESS_KEY_ID": "keys in environment variables",
    "AWS_PROFILE": "a profile",
    "AWS_WEB_IDENTITY_TOKEN_FILE": "a web identity",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "a role of the container",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": "a role of the container",
}


def check_warehouse(setting: Setting) -> Iterator[Check]:
    """Yield whether the warehouse is set, can be reached and can be written.

    :raises ConfigError: if its location is not valid.
    :raises SetupError: if its object store cannot be reached.
    """
    if not setting.value:
        remedy = "set --warehouse, [merge] warehouse, or the warehouse of the merge_store connection"
        yield Check(_NAME, "warning", "not set: bare dataset IDs cannot be used", remedy)
        return
    path = str(resolve_dataset(_PROBE, setting.value).path).removesuffix(f"/{_PROBE}") or "/"
    origin = f"{path} ({setting.origin})"
    if path.startswith("/"):
        yield _check_folder(Path(path), origin)
        return
    _reach_store(path)
    yield Check(_NAME, "ok", f"{origin}, can be reached")
    if is_s3(path):
        yield _check_s3_keys()
    if extra := find_extra(path):
        yield _check_library(path, extra)


def _reach_store(path: str) -> None:
    """Ask the store for a table that does not exist.

    :raises SetupError: if delta-rs cannot use the location.
    """
    from deltalake.exceptions import DeltaError

    try:
        find_table(f"{path}/{_PROBE}")
    except (DeltaError, OSError) as error:
        reason = str(error).splitlines()[0].split(" Known schemes")[0]
        raise SetupError(f"{path} cannot be reached ({reason}): check its scheme, address and keys") from None


def _check_folder(folder: Path, origin: str) -> Check:
    if not folder.is_dir():
        remedy = f"create it with mkdir -p {shlex.quote(str(folder))}"
        return Check(_NAME, "missing", f"{origin} is not a folder", remedy)
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        remedy = "give this user the right to write, or set another warehouse"
        return Check(_NAME, "missing", f"{origin} cannot be written ({error.strerror})", remedy)
    return Check(_NAME, "ok", f"{origin}, can be written")


def _check_s3_keys() -> Check:
    settings = S3Settings.from_environment()
    address = ", ".join(
        f"{name} {value}"
        for name, value in (("region", settings.region), ("endpoint", settings.endpoint))
        if value
    )
    keys = next((text for name, text in _KEY_VARIABLES.items() if os.environ.get(name)), "")
    if (
        not keys
        and Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")).expanduser().is_file()
    ):
        keys = "a file of credentials"
    remedy = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, unless the machine has a role"
    value = f"{keys or 'none found'}{f'; {address}' if address else ''}"
    return Check("S3 credentials", "ok" if keys else "warning", value, "" if keys else remedy)


def _check_library(path: str, extra: str) -> Check:
    """Return whether the library of fsspec for the store is installed and can write."""
    library = _LIBRARIES[extra]
    if find_spec(library) is None:
        remedy = f"run pip install 'airflow-merge-provider[{extra}]'"
        return Check(library, "missing", "not installed", remedy)
    return _write_probe(path, library)


def _write_probe(path: str, library: str) -> Check:
    """Write and delete an object, as runs do.

    :raises SetupError: if no library for the store is installed.
    """
    files, root = open_folder(path, complete_arguments(path))
    name = f"{root}/{_PROBE}-{uuid4().hex}"
    try:
        files.pipe_file(name, b"")
        files.rm_file(name)
    except OSError as error:
        remedy = "give these credentials the right to put and delete objects"
        return Check(library, "missing", f"{path} cannot be written: {error}", remedy)
    return Check(library, "ok", f"{path} can be written")
