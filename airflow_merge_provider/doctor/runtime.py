"""Check the programs and packages that runs use: Python, Java, Spark, and whether Spark starts."""

from __future__ import annotations

import platform
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from importlib import metadata

from airflow_merge_provider.connect_server import ConnectServer
from airflow_merge_provider.connect_token import LOOPBACK, generate_token
from airflow_merge_provider.core.child_process import make_work_folder
from airflow_merge_provider.doctor.check import Check
from airflow_merge_provider.jvm.jars import find_java, java_version, spark_home
from airflow_merge_provider.launch import describe_exit
from airflow_merge_provider.local_spark.settings import MEMORY_SETTING, LocalSparkSettings

_PACKAGE = "airflow-merge-provider"
_EXTRAS = ("", "spark", "s3")
_TESTED_JAVA = (17, 21)
# Packages whose versions decide whether runs work; runs need those of the second group for Spark.
_ALWAYS, _FOR_SPARK = ("deltalake", "pydantic"), ("pyspark", "delta-spark", "pandas", "pyarrow")
_START_SECONDS = 120.0
_REMEDY = "run pip install '{}'"


def check_python() -> Iterator[Check]:
    """Yield the version of Python, and that of Airflow."""
    version = platform.python_version()
    required = ", ".join(_read_metadata().get_all("Requires-Python") or ())
    is_supported = _is_within(version, required)
    hint = "" if is_supported else f"use Python {required}"
    yield Check("Python", "ok" if is_supported else "warning", version, hint)
    airflow = _find_version("apache-airflow")
    if airflow is None:
        yield Check("Airflow", "warning", "not installed", "operators need it; the command line does not")
        return
    yield _check_version("Airflow", "apache-airflow", airflow)


def check_java() -> Iterator[Check]:
    """Yield the Java program that Spark starts.

    :raises SetupError: if Java is missing or too old.
    """
    program = find_java()
    version = java_version(program)
    valid = " or ".join(map(str, _TESTED_JAVA))
    if version in _TESTED_JAVA:
        yield Check("Java", "ok", f"{version} ({program})")
    elif version is None:
        yield Check("Java", "warning", f"unknown version ({program})", f"use Java {valid}")
    else:
        yield Check("Java", "warning", f"{version}, not tested ({program})", f"use Java {valid}")


def check_spark() -> Iterator[Check]:
    """Yield the Spark that runs on this machine start.

    :raises SetupError: if Spark is missing or has an unsupported version.
    """
    yield Check("Spark", "ok", str(spark_home()))


def check_packages(names: tuple[str, ...] = (*_ALWAYS, *_FOR_SPARK)) -> Iterator[Check]:
    """Yield the version of each package that runs use, compared with what this package supports."""
    for name in names:
        version = _find_version(name)
        if version is None:
            hint = _REMEDY.format(f"{_PACKAGE}[spark]" if name in _FOR_SPARK else name)
            yield Check(name, "missing", "not installed", hint)
        else:
            yield _check_version(name, name, version)


def check_spark_start(settings: LocalSparkSettings) -> Iterator[Check]:
    """Start a Spark server with the settings of this machine, yield how long it took, and end the server.

    :raises SetupError: if Java, Spark or a jar is missing.
    """
    start = time.monotonic()
    conf = {MEMORY_SETTING: settings.memory}
    server = ConnectServer(host=LOOPBACK[0], master=settings.master, conf=conf)
    ready = threading.Event()
    last_lines: deque[str] = deque(maxlen=20)
    with make_work_folder() as work:
        server.start(work, generate_token())
        reader = threading.Thread(target=lambda: last_lines.extend(server.read_lines()), daemon=True)
        waiter = threading.Thread(target=lambda: server.call_when_ready(ready.set), daemon=True)
        try:
            reader.start()
            waiter.start()
            waiter.join(_START_SECONDS)
        finally:
            code = server.exit_code
            server.stop(1.0)
            reader.join()
    seconds = time.monotonic() - start
    if ready.is_set():
        yield Check("Spark start", "ok", f"started in {seconds:.1f}s with {settings.memory} of memory")
        return
    value = f"not ready after {seconds:.0f}s"
    if code is not None:
        value = describe_exit(code, list(last_lines)).splitlines()[0]
    yield Check(
        "Spark start", "missing", value, "run airflow_merge_provider connect-server to see its output"
    )


def _check_version(title: str, name: str, version: str) -> Check:
    required = _read_requirements().get(name, "")
    if _is_within(version, required):
        return Check(title, "ok", version)
    hint = _REMEDY.format(f"{name}{required}")
    return Check(title, "warning", f"{version}, supported: {required}", hint)


def _read_requirements() -> Mapping[str, str]:
    """Return the versions that this package supports, by the name of each package that it requires."""
    try:
        from packaging.requirements import Requirement  # noqa: PLC0415 - may be missing
    except ImportError:
        return {}
    specifiers: dict[str, str] = {}
    for line in _read_metadata().get_all("Requires-Dist") or ():
        requirement = Requirement(line)
        if requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in _EXTRAS
        ):
            specifiers[requirement.name.lower()] = str(requirement.specifier)
    return specifiers


def _read_metadata() -> metadata.PackageMetadata:
    """Return the metadata of this package; without any fields if it is not installed."""
    try:
        return metadata.metadata(_PACKAGE)
    except metadata.PackageNotFoundError:
        from email.message import Message  # noqa: PLC0415 - next to never needed

        return Message()  # type: ignore[return-value]


def _is_within(version: str, required: str) -> bool:
    """Return whether a version is in a range; True if the range is unknown."""
    try:
        from packaging.specifiers import SpecifierSet  # noqa: PLC0415 - may be missing
    except ImportError:
        return True
    return SpecifierSet(required).contains(version, prereleases=True)


def _find_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
