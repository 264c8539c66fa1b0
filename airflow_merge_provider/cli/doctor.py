"""Check what runs need on this machine, with the functions that runs call, and print one table."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from airflow_merge_provider.cli.arguments import add_json, add_warehouse
from airflow_merge_provider.cli.output import Column, StyledText, print_json, print_table
from airflow_merge_provider.cli.run_file import choose_warehouse
from airflow_merge_provider.core.change_plan.shown_rows import parse_shown_rows
from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, MergeError, SetupError, suggest_name
from airflow_merge_provider.core.object_store.azure_settings import AzureSettings
from airflow_merge_provider.core.object_store.clients import (
    StoreSettings,
    complete_arguments,
    find_extra,
    is_s3,
    read_environment,
)
from airflow_merge_provider.core.object_store.gcs_settings import GcsSettings
from airflow_merge_provider.delta_rs import find_table
from airflow_merge_provider.file_store.folder import open_folder
from airflow_merge_provider.get_provider_info import get_provider_info
from airflow_merge_provider.spark_process.jvm.jars import (
    AZURE_CLIENT,
    GCS_CLIENT,
    S3_CLIENT,
    cache_folder,
    find_java,
    java_version,
    list_delta_jars,
    spark_home,
)
from airflow_merge_provider.spark_process.jvm.log_store.jar import PACKAGED_JAR, locate_log_store_jar
from airflow_merge_provider.spark_process.launch import find_archive, has_artifact
from airflow_merge_provider.spark_process.shared.settings import SECTION, parse_settings

_CHECK_COLUMNS = (Column("check"), Column("state"), Column("found"), Column("what to do"))
_STYLES = {"ok": "green", "warning": "yellow", "missing": "bold red"}
_MISSING_CODE = 4
# The operators need Airflow, runs need the others.
_PACKAGES = ("apache-airflow", "deltalake", "pyspark", "delta-spark", "pandas", "pyarrow")
_TESTED_JAVA = (17, 21)
_PREPARE = "run airflow_merge_provider prepare"
# The client of Hadoop and the library of fsspec, by the extra of this package for the same store.
_CLIENTS = {"s3": S3_CLIENT, "azure": AZURE_CLIENT, "gcs": GCS_CLIENT}
_LIBRARIES = {"s3": "s3fs", "azure": "adlfs", "gcs": "gcsfs"}
_WAREHOUSE, _PROBE = "warehouse", "_airflow_merge_provider_check"
# The variables that say where the clients of a store find keys.
_KEY_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
# What is valid for a setting of a type.
_VALID = {"boolean": ("true|false", "use true or false"), "float": (r"[\d.]+", "use a number")}
_VARIABLE_PREFIX = f"AIRFLOW__{SECTION.upper()}__"


@dataclass(frozen=True, slots=True)
class Check:
    """What was checked, its state, the value that was found, and what to do about it.

    ``missing`` is what runs need and do not have; ``warning`` is what may be intended.
    """

    name: str
    state: Literal["ok", "warning", "missing"]
    value: str
    remedy: str = ""

    def as_object(self) -> dict[str, str]:
        """Return the check as a JSON object."""
        return {"check": self.name, **{name: text for name, text in asdict(self).items() if name != "name"}}


@dataclass(frozen=True, slots=True)
class Setting:
    """The value of a setting, and where it comes from."""

    value: str
    origin: str


@dataclass(frozen=True, slots=True)
class AirflowSide:
    """What only Airflow knows: the settings of its configuration file, and its connections."""

    read_setting: Callable[[str], Setting]
    warehouse: Setting
    check_connections: Callable[[], Iterable[Check]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``doctor``."""
    add_warehouse(parser)
    parser.set_defaults(airflow=None)
    add_json(parser)


def print_checks(options: argparse.Namespace) -> int:
    """Print the checks; the exit code is 4 if something that runs need is missing."""
    location = choose_warehouse(options.warehouse) if options.warehouse else None
    checks = list_checks(location, options.airflow)
    is_complete = all(check.state != "missing" for check in checks)
    note = "Airflow's connections and configuration file (airflow merge doctor reads them)"
    if options.json:
        objects = [check.as_object() for check in checks]
        print_json(
            {"complete": is_complete, "checks": objects, "not_checked": [] if options.airflow else [note]}
        )
    else:
        rows = [
            (check.name, StyledText(check.state, _STYLES[check.state]), check.value, check.remedy)
            for check in checks
        ]
        print_table(_CHECK_COLUMNS, rows)
        if options.airflow is None:
            print(f"not checked: {note}")
    return 0 if is_complete else _MISSING_CODE


def list_checks(location: str | None = None, airflow: AirflowSide | None = None) -> list[Check]:
    """Check everything that runs on this machine need.

    :param location: the warehouse to check; None for the one that is set.
    :param airflow: Airflow's settings and connections; None without Airflow.
    """
    read_setting = airflow.read_setting if airflow else read_variable
    warehouse = airflow.warehouse if airflow else read_variable(_WAREHOUSE)
    if location:
        warehouse = Setting(location, "--warehouse")
    groups: dict[str, Callable[[], Iterable[Check]]] = {
        "Java": check_java,
        "Spark": lambda: [Check("Spark", "ok", str(spark_home()))],
        "packages": check_packages,
        "cache folder": check_cache,
        "jars": lambda: check_jars(warehouse.value),
        "class archive": check_archive,
        "settings": lambda: check_settings(read_setting),
        _WAREHOUSE: lambda: check_warehouse(warehouse),
    }
    if airflow is not None:
        groups["connections"] = airflow.check_connections
    return [check for name, find_checks in groups.items() for check in collect_checks(name, find_checks)]


def collect_checks(name: str, find_checks: Callable[[], Iterable[Check]]) -> list[Check]:
    """Return the checks that a function finds; an error of the function is the result of a check, too.

    :param name: the name of the check that an error results in.
    """
    checks: list[Check] = []
    try:
        for check in find_checks():
            checks.append(check)  # noqa: PERF402 - the checks before an error count, too
    except MergeError as error:
        checks.append(_describe_error(name, error))
    except Exception as error:  # noqa: BLE001 - a broken installation, which this command is for, raises anything
        text = next(iter(str(error).splitlines()), "")
        checks.append(Check(name, "warning", f"cannot be checked: {type(error).__name__}: {text}"))
    return checks


def _describe_error(name: str, error: MergeError) -> Check:
    """Return the check of something that is missing, with the remedy that the error names."""
    if error.problems:
        problem = error.problems[0]
        path = f"{problem.path}: " if problem.path else ""
        return Check(name, "missing", f"{path}{problem.message}", problem.hint)
    first_line = error.message.splitlines()[0]
    value, _, remedy = first_line.rpartition(": ")
    return Check(name, "missing", value or first_line, remedy if value else "")


def check_java() -> Iterator[Check]:
    """Yield the Java program that Spark starts.

    :raises SetupError: if Java is missing or too old.
    """
    program = find_java()
    version = java_version(program)
    is_tested = version in _TESTED_JAVA
    value = f"{version or 'unknown version'}{'' if is_tested else ', not tested'} ({program})"
    yield Check("Java", "ok", value) if is_tested else Check("Java", "warning", value, "use Java 17 or 21")


def check_packages() -> Iterator[Check]:
    """Yield the version of each package that runs use; pip compares them with what this package supports."""
    for name in _PACKAGES:
        try:
            yield Check(name, "ok", metadata.version(name))
        except metadata.PackageNotFoundError:
            if name == "apache-airflow":
                yield Check(name, "warning", "not installed", "operators need it; the command line does not")
            else:
                remedy = "run pip install 'airflow-merge-provider[spark]'"
                yield Check(name, "missing", "not installed", remedy)


def check_cache() -> Iterator[Check]:
    """Yield the cache folder, which the first run creates if it can."""
    folder = cache_folder()
    remedy = "set AIRFLOW_MERGE_PROVIDER_CACHE to a writable folder"
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    yield _check_writable("cache folder", existing, str(folder), remedy)


def check_jars(warehouse: str) -> Iterator[Check]:
    """Yield the jars of Delta, of the log store, and of the client of the warehouse's object store.

    :raises SetupError: if Spark is missing, or has a Hadoop that the client does not work with.
    """
    if has_artifact("delta-spark", {}):
        yield Check("Delta jars", "ok", "Spark has its own")
    else:
        yield _check_files("Delta jars", list_delta_jars(), f"Maven Central is needed: {_PREPARE}")
    yield _check_files("log store jar", [locate_log_store_jar()])
    client = _CLIENTS.get(find_extra(warehouse) or "")
    if client is not None and not has_artifact(client.artifact, {}):
        client.require_hadoop()
        remedy = "the first run that needs them downloads them"
        yield _check_files(f"{client.store} client jars", [client.folder], remedy)


def check_archive() -> Iterator[Check]:
    """Yield the class archive, without which Spark starts more slowly.

    :raises SetupError: if Java or Spark is missing.
    """
    jars = [] if has_artifact("delta-spark", {}) else list_delta_jars()
    if all(jar.is_file() for jar in [*jars, locate_log_store_jar()]):
        yield _check_files("class archive", [find_archive({})], f"{_PREPARE}, so that Spark starts faster")
    else:  # A run would download them.
        yield Check("class archive", "warning", "not checked: jars are missing", _PREPARE)


def _check_files(name: str, files: list[Path], remedy: str = _PREPARE) -> Check:
    absent = [file for file in files if not file.exists()]
    if absent:
        return Check(name, "warning", f"{absent[0]} does not exist", remedy)
    return Check(name, "ok", "in the package" if files == [PACKAGED_JAR] else str(files[0]))


def _check_writable(name: str, folder: Path, value: str, remedy: str) -> Check:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return Check(name, "ok", f"{value}, can be written")
    except OSError as error:
        return Check(name, "missing", f"{value} cannot be written ({error.strerror})", remedy)


def list_options() -> Mapping[str, Mapping[str, Any]]:
    """Return the description of each setting by its name."""
    options: Mapping[str, Mapping[str, Any]] = get_provider_info()["config"][SECTION]["options"]
    return options


def name_variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"{_VARIABLE_PREFIX}{name.upper()}"


def read_variable(name: str) -> Setting:
    """Return a setting as the command line reads it: from the environment variable."""
    variable = name_variable(name)
    if os.environ.get(variable):
        return Setting(os.environ[variable], f"variable {variable}")
    return Setting(str(list_options()[name].get("default") or ""), "default")


def check_settings(read_setting: Callable[[str], Setting]) -> Iterator[Check]:
    """Yield each setting with its value and origin, and the variables that name no setting."""
    hints: dict[str, str] = {}
    for parse in (parse_settings, parse_shown_rows):
        try:
            parse(lambda name: read_setting(name).value)
        except ConfigError as error:
            hints |= {problem.path: problem.hint for problem in error.problems}
    options = list_options()
    for name, option in options.items():
        setting, path = read_setting(name), f"[{SECTION}] {name}"
        pattern, valid_hint = _VALID.get(option["type"], ("(?s).*", ""))
        if not re.fullmatch(pattern, setting.value, re.IGNORECASE):
            hints[path] = valid_hint
        if hint := hints.get(path):
            yield Check(path, "missing", f"{setting.value!r} is not valid ({setting.origin})", hint)
        else:
            yield Check(path, "ok", f"{setting.value} ({setting.origin})" if setting.value else "not set")
    for variable in sorted(os.environ):
        name = variable.removeprefix(_VARIABLE_PREFIX).lower()
        if variable.startswith(_VARIABLE_PREFIX) and name not in options:
            hint = suggest_name(name, options, "settings")
            yield Check(f"[{SECTION}] {name}", "warning", f"unknown setting (variable {variable})", hint)


def check_warehouse(setting: Setting) -> Iterator[Check]:
    """Yield whether the warehouse is set, can be reached and can be written.

    :raises ConfigError: if its location is not valid.
    :raises SetupError: if its object store cannot be reached.
    """
    if not setting.value:
        remedy = "set --warehouse, [merge] warehouse, or the warehouse of the merge_store connection"
        yield Check(_WAREHOUSE, "warning", "not set: bare dataset IDs cannot be used", remedy)
        return
    path = str(resolve_dataset(_PROBE, setting.value).path).removesuffix(f"/{_PROBE}") or "/"
    value = f"{path} ({setting.origin})"
    if path.startswith("/"):
        remedy = "give this user the right to write, or set another warehouse"
        if Path(path).is_dir():
            yield _check_writable(_WAREHOUSE, Path(path), value, remedy)
        else:
            remedy = f"create it with mkdir -p {shlex.quote(path)}"
            yield Check(_WAREHOUSE, "missing", f"{value} is not a folder", remedy)
        return
    _reach_store(path)
    yield Check(_WAREHOUSE, "ok", f"{value}, can be reached")
    parts = [f"{name} is set" for name in _KEY_VARIABLES if is_s3(path) and os.environ.get(name)]
    parts += describe_credentials(read_environment(path))
    yield Check("credentials", "ok", ", ".join(parts) or "none in variables: those of a file or a role")
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


def describe_credentials(settings: StoreSettings) -> list[str]:
    """Return which credentials the settings of a store have, and its address; never their values."""
    if isinstance(settings, GcsSettings):
        has_key = settings.key_file or settings.key
        return ["a Google key is set" if has_key else "Application Default Credentials"]
    if isinstance(settings, AzureSettings):
        return ["an account key is set"] if settings.account_key else []
    parts = ["S3 keys are set"] if settings.access_key else []
    addresses = {"region": settings.region, "endpoint": settings.endpoint}
    return parts + [f"{option} {value}" for option, value in addresses.items() if value]


def _check_library(path: str, extra: str) -> Check:
    """Write and delete an object, as runs do.

    :raises SetupError: if no library for the store is installed.
    """
    library = _LIBRARIES[extra]
    if find_spec(library) is None:
        remedy = f"run pip install 'airflow-merge-provider[{extra}]'"
        return Check(library, "missing", "not installed", remedy)
    files, root = open_folder(path, complete_arguments(path))
    name = f"{root}/{_PROBE}-{uuid4().hex}"
    try:
        files.pipe_file(name, b"")
        files.rm_file(name)
    except OSError as error:
        remedy = "give these credentials the right to put and delete objects"
        return Check(library, "missing", f"{path} cannot be written: {error}", remedy)
    return Check(library, "ok", f"{path} can be written")
