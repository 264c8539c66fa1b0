"""Choose the versions to test together, and find the programs of those that this machine has."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from airflow_merge_provider.spark_process.jvm.jars import SPARK_VERSIONS, find_java, java_version

PYTHON_VERSIONS = ("3.11", "3.12", "3.13")
JAVA_VERSIONS = ("17", "21")
# Where distributions of Linux install Java.
_JAVA_FOLDERS = Path("/usr/lib/jvm")


@dataclass(frozen=True)
class Combination:
    """Versions that are tested together."""

    python: str
    java: str
    spark: str
    # The tests without Spark depend on Python alone.
    quick: bool = False

    @property
    def folder_name(self) -> str:
        """The name of the environment; those that differ in Java alone share one."""
        return f"python-{self.python}-spark-{self.spark}"


def list_combinations(
    pythons: Sequence[str], javas: Sequence[str], sparks: Sequence[str]
) -> Iterator[Combination]:
    """Yield the first version of each, then every other version with the first ones of the others.

    :param pythons: versions such as "3.12"; with each of them the tests without Spark are run too.
    :param javas: major versions such as "17".
    :param sparks: versions such as "4.1".
    """
    first = Combination(pythons[0], javas[0], sparks[0], quick=True)
    yield first
    yield from (replace(first, python=version) for version in pythons[1:])
    yield from (replace(first, spark=version, quick=False) for version in sparks[1:])
    yield from (replace(first, java=version, quick=False) for version in javas[1:])


def find_python(version: str) -> str | None:
    """Return the first program on the PATH that is a Python of this version; None if there is none."""
    check = f"import sys; sys.exit('{version}' != '%d.%d' % sys.version_info[:2])"
    for folder in os.get_exec_path():
        program = shutil.which(f"python{version}", path=folder)
        command = [program or "", "-c", check]
        # Some programs of that name are links to a version that is not installed.
        if program and subprocess.run(command, check=False, capture_output=True).returncode == 0:
            return program
    return None


def find_java_homes() -> dict[str, str]:
    """Return the folder of each major version of Java; that of the tests comes first."""
    own = find_java().parent.parent
    homes: dict[str, str] = {}
    for home in [own, *sorted(_JAVA_FOLDERS.glob("*"))]:
        version = java_version(home / "bin" / "java")
        if version is not None and (home / "bin" / "java").is_file():
            homes.setdefault(str(version), str(home))
    return homes


def list_spark_versions() -> tuple[str, ...]:
    """Return the supported versions of Spark, newest first."""
    return SPARK_VERSIONS
