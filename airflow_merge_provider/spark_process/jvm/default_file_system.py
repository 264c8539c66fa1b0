"""Find the file system of absolute paths, as a Spark that starts on this machine finds it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

from airflow_merge_provider.spark_process.jvm.spark_defaults import find_site_file, read_settings

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
