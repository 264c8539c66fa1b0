"""Read what Spark itself reads here: spark-defaults.conf, files of Hadoop and Hive; what follows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, Problem, SetupError
from airflow_merge_provider.spark_process.jvm.jars import spark_home

_DEFAULTS_FILE = "spark-defaults.conf"
_BLANKS = " \t\f"
# What Spark trims from a value.
_TRIMMED = "".join(map(chr, range(ord(" ") + 1)))
# A name in a Java properties file ends at the first blank, equals sign or colon without a backslash.
_ENTRY_PATTERN = re.compile(rf"((?:\\.|[^\\{_BLANKS}=:])*)[{_BLANKS}]*[=:]?[{_BLANKS}]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROL = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}
_ODD_BACKSLASHES = re.compile(r"(?<!\\)(?:\\\\)*\\$")


def read_spark_defaults() -> dict[str, str]:
    """Return the settings of spark-defaults.conf in ``SPARK_CONF_DIR`` or in the folder of Spark.

    :raises SetupError: when Spark is not found.
    """
    folder_name = os.environ.get("SPARK_CONF_DIR")
    folder = Path(folder_name) if folder_name else spark_home() / "conf"
    try:
        text = (folder / _DEFAULTS_FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        # Spark starts without the file, too.
        return {}
    return parse_properties(text)


def parse_properties(text: str) -> dict[str, str]:
    r"""Return the entries of a Java properties file.

    >>> parse_properties("# my cluster\nspark.jars  /a.jar,\\\n  /b.jar\nspark.master=yarn")
    {'spark.jars': '/a.jar,/b.jar', 'spark.master': 'yarn'}
    """
    entries = (_ENTRY_PATTERN.fullmatch(line) for line in _join_lines(text))
    return {
        _replace_escapes(entry[1]): _replace_escapes(entry[2]).strip(_TRIMMED)
        for entry in entries
        if entry and entry[1]
    }


def _join_lines(text: str) -> Iterator[str]:
    """Yield the lines with entries; a backslash at the end of a line continues it."""
    entry = ""
    for line in re.split(r"\r\n|\r|\n", text):
        part = line.lstrip(_BLANKS)
        if not entry and part.startswith(("#", "!")):
            continue
        entry += part
        if _ODD_BACKSLASHES.search(entry):
            entry = entry[:-1]
            continue
        if entry:
            yield entry
        entry = ""
    if entry:
        yield entry


def _replace_escapes(text: str) -> str:
    plain = _ESCAPE.sub(lambda match: _read_escape(match[1]), text)
    # Java writes a character beyond 16 bits as two escapes.
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _read_escape(character: str) -> str:
    if len(character) > 1:
        return chr(int(character[1:], 16))
    return _CONTROL.get(character, character)


_FOLDER_VARIABLES = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")


def read_settings() -> dict[str, str]:
    """Return the settings of spark-defaults.conf; none without Spark, which no run starts then."""
    with suppress(SetupError):
        return read_spark_defaults()
    return {}


def find_site_file(name: str) -> Path | None:
    """Return the file of Hadoop's or Hive's settings that Spark reads: the first one of its class path."""
    return next((folder / name for folder in _list_folders() if (folder / name).is_file()), None)


def _list_folders() -> Iterator[Path]:
    if folder_name := os.environ.get("SPARK_CONF_DIR"):
        yield Path(folder_name)
    else:
        with suppress(SetupError):
            yield spark_home() / "conf"
    yield from (Path(folder) for name in _FOLDER_VARIABLES if (folder := os.environ.get(name)))


_FILE_SYSTEM_SETTINGS = ("fs.defaultFS", "fs.default.name")
_HADOOP_PREFIX = "spark.hadoop."
_CORE_SITE = "core-site.xml"
_LOCAL = "file:"


def has_local_paths(conf: Mapping[str, str]) -> bool:
    """Return whether absolute paths are files of this machine; ``conf`` has the Spark settings of the run.

    Else they are in the default file system of Hadoop, which the settings, ``spark-defaults.conf`` or
    ``core-site.xml`` name, such as ``hdfs://node:8020``.
    """
    return _find_default(conf).strip().lower().startswith(_LOCAL)


def _find_default(conf: Mapping[str, str]) -> str:
    for settings in (conf, read_settings()):
        for name in _FILE_SYSTEM_SETTINGS:
            if value := settings.get(f"{_HADOOP_PREFIX}{name}"):
                return value
    file = find_site_file(_CORE_SITE)
    return _LOCAL if file is None else _read_site(file)


def _read_site(file: Path) -> str:
    """Return the default file system of a file; an empty text if only Hadoop can read it."""
    try:
        properties = ET.parse(file).getroot()  # noqa: S314 - Hadoop reads the same file
    except (OSError, ET.ParseError):
        return ""
    values = {
        (item.findtext("name") or "").strip(): (item.findtext("value") or "").strip()
        for item in properties.iter("property")
    }
    default = next((values[name] for name in _FILE_SYSTEM_SETTINGS if name in values), _LOCAL)
    # Hadoop also takes settings from other files, which it includes here.
    is_complete = properties.find("{http://www.w3.org/2001/XInclude}include") is None
    return default if is_complete or default != _LOCAL else ""


_CATALOG = "spark.sql.catalog."
_SESSION_CATALOG = "spark_catalog"
# The class that this package sets: it adds Delta to Spark's own catalog.
_DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
# Where Hive has its metastore; without one, it is a database in the folder of the Spark process.
_METASTORES = (
    "spark.hadoop.hive.metastore.uris",
    "spark.hive.metastore.uris",
    "spark.hadoop.javax.jdo.option.ConnectionURL",
)
_METASTORE_HINT = (
    "use a location or a bare ID, set a metastore or spark.sql.catalog.<name> in the Spark settings, or run "
    "on a cluster or a Spark Connect server that has a catalog"
)


def find_catalog_problems(
    references: Iterable[tuple[str, Any]], warehouse: str | None, conf: Mapping[str, str]
) -> list[Problem]:
    """Return a problem for every catalog table that ends with a Spark on this machine.

    Such a table is registered in the memory of Spark, and its files are in a temporary folder.

    :param references: the path that errors name, and the dataset, of each reference.
    :param conf: the Spark settings of the run; those of this machine are added.
    """
    settings: Mapping[str, str] | None = None
    problems = []
    for path, ref in references:
        table = _find_table(ref, warehouse)
        if table is None:
            continue
        settings = settings or {**read_settings(), **conf}
        if not _keeps_tables(table, settings):
            message = (
                f"{table!r} is a catalog table, and the catalog of Spark on this machine ends with Spark"
            )
            problems.append(Problem(path, "catalog", message, _METASTORE_HINT))
    return problems


def _find_table(ref: Any, warehouse: str | None) -> str | None:
    try:
        return resolve_dataset(ref, warehouse).table
    except ConfigError:
        # Another check reports the error with its path.
        return None


def _keeps_tables(table: str, settings: Mapping[str, str]) -> bool:
    first, *parts = table.split(".")
    default = settings.get("spark.sql.defaultCatalog", _SESSION_CATALOG)
    names_catalog = len(parts) > 1 or f"{_CATALOG}{first}" in settings
    catalog = first if names_catalog else default
    if catalog.lower() == _SESSION_CATALOG:
        catalog = _SESSION_CATALOG
    implementation = settings.get(f"{_CATALOG}{catalog}", _DELTA_CATALOG)
    if implementation != _DELTA_CATALOG:
        return True
    return catalog == _SESSION_CATALOG and _has_metastore(settings)


def _has_metastore(settings: Mapping[str, str]) -> bool:
    if settings.get("spark.sql.catalogImplementation", "").lower() != "hive":
        return False
    return any(settings.get(name) for name in _METASTORES) or find_site_file("hive-site.xml") is not None
