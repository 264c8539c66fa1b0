"""Spark's names of file formats, and the options with which values survive reading and writing.

Source: docs/values.md, Files.
"""

from __future__ import annotations

import codecs
import contextlib
from collections.abc import Mapping

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from airflow_merge_provider.core.file_options import find_option, normalize_name
from airflow_merge_provider.jobs.spark.exact_text import JSON_OPTIONS

_SPARK_FORMATS = {"json-array": "json"}
# Spark's short name first; the wheel of PySpark contains the class but does not register the short name.
_AVRO = ("avro", "org.apache.spark.sql.avro.AvroFileFormat")
# CSV as in RFC 4180: quotes in values are doubled, values may have line breaks, and blanks belong to them.
# By default, Spark escapes quotes by a backslash, ends records at any line break, and trims values.
_CSV = {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
# The column for the text of records that cannot be read.
CORRUPT = "__merge_bad"
# A file that cannot be read is an error, whatever the settings of the session say.
EACH_FILE = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
# A record that cannot be read is an error; by default, Spark takes its values for NULL.
_FAILFAST = {"mode": "FAILFAST"}
# Otherwise, a field with Spark's own name of this column would be NULL, and a value have quotes of CSV.
_EXACT = {"columnNameOfCorruptRecord": CORRUPT, "unescapedQuoteHandling": "RAISE_ERROR"}
_READING = {
    # An unquoted empty value is read as nullValue, which then becomes NULL, and a quoted one as emptyValue.
    "csv": {**_CSV, **_FAILFAST, "multiLine": "true", "nullValue": "\0", "emptyValue": ""},
    "json": _FAILFAST,
    "json-array": {**_FAILFAST, "multiLine": "true"},
    # By default, columns that one file lacks are left out of all.
    "parquet": {"mergeSchema": "true"},
    "orc": {"mergeSchema": "true"},
    # Spark infers numbers from texts such as 007, and trims texts.
    "xml": {**_FAILFAST, "inferSchema": "false", "ignoreSurroundingSpaces": "false"},
}
_WRITE_JSON = {"ignoreNullFields": "false", **JSON_OPTIONS}
_WRITING = {
    "csv": {**_CSV, "nullValue": "", "emptyValue": '""', **JSON_OPTIONS},
    "json": _WRITE_JSON,
    "json-array": _WRITE_JSON,
    "xml": JSON_OPTIONS,
}
# Characters that an encoding lacks, for which Spark writes a question mark.
LACKING = {"US-ASCII": r"[^\u0000-\u007f]", "ISO-8859-1": r"[^\u0000-\u00ff]"}
# Spark's names of encodings, by those of Python.
_ENCODINGS = {
    "ascii": "US-ASCII",
    "iso8859-1": "ISO-8859-1",
    "utf-8": "UTF-8",
    "utf-8-sig": "UTF-8",
    "utf-16": "UTF-16",
    "utf-16-be": "UTF-16BE",
    "utf-16-le": "UTF-16LE",
    "utf-32": "UTF-32",
}


def spark_format(spark: SparkSession, kind: str) -> str:
    """Return Spark's name of a format; for Avro the class name if its short name is not registered."""
    if kind != "avro":
        return _SPARK_FORMATS.get(kind, kind)
    short, long = _AVRO
    try:
        spark.read.format(short).schema("x int").load([]).schema  # noqa: B018 - resolves the source
    except AnalysisException as error:
        return long if "avro" in str(error).lower() else short
    return short


def build_reader_options(kind: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options to read files of a format: the given ones, and those with which values survive.

    >>> options = build_reader_options("json-array", {"MULTILINE": "false"})
    >>> options["mode"], options["MULTILINE"], "multiLine" in options
    ('FAILFAST', 'false', False)
    """
    defaults = EACH_FILE | _READING.get(kind, {}) | _double_quotes(kind, options)
    if kind == "json" and find_option(options, "encoding"):
        # Spark finds the ends of lines in UTF-8 only. Values of JSON have no line breaks.
        defaults["lineSep"] = "\n"
    chosen = complete_options(defaults, _name_encoding(options))
    is_strict = find_option(chosen, "mode").upper() == "FAILFAST"
    return complete_options(_EXACT if is_strict else {}, chosen)


def build_writer_options(kind: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options to write files of a format: the given ones, and those with which values survive."""
    named = _name_encoding(options)
    defaults = _WRITING.get(kind, {}) | _double_quotes(kind, options)
    encoding = find_option(named, "encoding")
    if encoding and kind == "xml":
        defaults["declaration"] = f'version="1.0" encoding="{encoding}" standalone="yes"'
    if encoding in LACKING and kind in ("json", "json-array"):
        defaults["writeNonAsciiCharacterAsCodePoint"] = "true"
    return complete_options(defaults, named)


def complete_options(defaults: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
    """Return options with those of the defaults that they do not set, in whatever case."""
    names = {normalize_name(name) for name in options}
    missing = {name: value for name, value in defaults.items() if normalize_name(name) not in names}
    return {**missing, **options}


def _double_quotes(kind: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the option by which a quote in a value of CSV is doubled, whatever the character is."""
    return {"escape": find_option(options, "quote") or '"'} if kind == "csv" else {}


def _name_encoding(options: Mapping[str, str]) -> dict[str, str]:
    """Return options with Spark's name of the encoding, such as ``ISO-8859-1`` for ``latin-1``.

    Spark refuses an encoding that it does not know.
    """
    named = dict(options)
    for name in options:
        if normalize_name(name) == "encoding":
            with contextlib.suppress(LookupError):
                named[name] = _ENCODINGS.get(codecs.lookup(options[name]).name, options[name])
    return named
