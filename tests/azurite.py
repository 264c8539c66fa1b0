"""Azurite, the emulator of Azure Blob Storage, as a process of this machine."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import adlfs
import pytest

from airflow_merge_provider.core.object_store.azure_settings import AzureSettings
from airflow_merge_provider.spark_process.jvm.jars import cache_folder

# Later versions require a newer Node.js than Debian 12 has.
_VERSION = "3.35.0"
_HOST = "127.0.0.1"
_START_SECONDS = 60.0
# The account and the key that every emulator of Azure has; they are public.
ACCOUNT = "devstoreaccount1.dfs.core.windows.net"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass(frozen=True)
class Azurite:
    """The emulator as clients reach it."""

    endpoint: str

    @property
    def settings(self) -> AzureSettings:
        """The settings of clients."""
        return AzureSettings(ACCOUNT, KEY, self.endpoint)

    def open_files(self) -> Any:
        """Return the file system."""
        return adlfs.AzureBlobFileSystem(**self.settings.as_fsspec(), skip_instance_cache=True)

    def make_container(self) -> str:
        """Create a container with a name of its own, and return its location."""
        name = f"lake-{uuid.uuid4().hex[:12]}"
        self.open_files().mkdir(name)
        # Without TLS: Hadoop accepts only https for abfss.
        return f"abfs://{name}@{ACCOUNT}"


@contextmanager
def run_azurite() -> Iterator[Azurite]:
    """Start the emulator, which keeps nothing, and end it afterwards."""
    program = _find_program()
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port = probe.getsockname()[1]
    options = ["--blobHost", _HOST, "--blobPort", str(port), "--inMemoryPersistence", "--skipApiVersionCheck"]
    process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + _START_SECONDS
        while not _is_open(port):
            assert time.monotonic() < end, "Azurite does not start"
            time.sleep(0.1)
        yield Azurite(f"http://{_HOST}:{port}")
    finally:
        # It keeps nothing, and a graceful end waits two minutes for open connections.
        process.kill()
        process.wait()


def _find_program() -> Path:
    """Return the program; npm installs it once. Where npm cannot, the test is skipped."""
    if installed := shutil.which("azurite-blob"):
        return Path(installed)
    folder = cache_folder() / f"azurite-{_VERSION}"
    program = folder / "node_modules/.bin/azurite-blob"
    if not program.is_file():
        if shutil.which("npm") is None:
            pytest.skip("Azurite needs Node.js: install npm")
        options = ["--prefix", str(folder), "--no-audit", "--no-fund"]
        installation = subprocess.run(["npm", "install", *options, f"azurite@{_VERSION}"], check=False)
        if installation.returncode:
            pytest.skip("Azurite cannot be installed: npm has failed")
    return program


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((_HOST, port)) == 0
