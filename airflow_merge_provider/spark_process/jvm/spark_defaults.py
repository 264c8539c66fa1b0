"""Read what Spark itself reads on this machine: spark-defaults.conf, and the files of Hadoop and Hive."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from airflow_merge_provider.core.errors import SetupError
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
