"""Dataset references: a bare ID, a catalog table, a location, or an object with a format.

A location is a path of this machine, which begins with a slash, or ``<scheme>://<bucket>/<key>``. Its
characters are literal, as in Hadoop: ``%20`` are three characters of a name. Only a ``file:`` URI is
percent-encoded (RFC 8089). Each client takes a location in a form of its own, which a function returns here.

Source: docs/explanation/datasets.md, Locations; https://openlineage.io/docs/spec/naming for the names that
lineage events have, which are those that other tools give.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from airflow_merge_provider.core.errors import ConfigError, Problem
from airflow_merge_provider.core.file_options import find_missing_options, find_option_problems, read_options

FILE_FORMATS = ("parquet", "json", "csv", "avro", "orc", "xml", "text")
_BARE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-]*\Z")
_TABLE = re.compile(r"[A-Za-z0-9_\-]+(\.[A-Za-z0-9_\-]+){1,2}\Z")
_URI_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://?")
_SAME_STORES = {"s3a": "s3", "s3n": "s3", "abfs": "abfss", "wasb": "wasbs", "gcs": "gs"}
# The stores whose locations begin with a bucket or a container, however many slashes precede it.
_OBJECT_STORES = ("s3", "gs", "abfss", "wasbs")
_FILE_FORMAT = "file"
_THIS_MACHINE = ("", "localhost")
# Spark alone knows the metastore behind a catalog, so its tables have a namespace of this package.
CATALOG = "merge://catalog"
_TABLE_URI = "table:"
# Control characters, and the bytes of names that are not valid UTF-8.
_UNSUPPORTED = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_UNENCODED = re.compile(r"%(?![0-9A-Fa-f]{2})|[?#]")
_PATTERN = re.compile(r"([\\*?\[\]{}])")
# The characters that RFC 3986 allows in a path.
_PATH_CHARACTERS = "/!$&'()*+,;=:@~"

# A dataset as users write it: an ID, a location, or an object with its format and options.
DatasetRef = str | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset as it is read or written: either a location or a catalog table."""

    id: str
    format: str = "delta"
    path: str | None = None
    table: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def uri(self) -> str:
        """The text that names the dataset in assets, reports and offsets."""
        return self.path if self.path is not None else f"{_TABLE_URI}{self.table}"

    def with_suffix(self, suffix: str) -> Dataset:
        """Return the dataset next to this one whose name has the suffix appended."""
        path = None if self.path is None else f"{self.path}{suffix}"
        table = None if self.table is None else f"{self.table}{suffix}"
        return replace(self, id=f"{self.id}{suffix}", path=path, table=table)

    def name_neighbour(self, other: Dataset) -> str:
        """Return a reference to another dataset: its ID if it is in the same folder, which may be moved.

        >>> Dataset("t", path="/lake/t").name_neighbour(Dataset("log", path="/lake/log"))
        'log'
        """
        if other.path is None:
            return other.id
        folder, _, name = other.path.rpartition("/")
        return name if folder == self._folder and is_bare_id(name) else other.uri

    def find_neighbour(self, name: str) -> Dataset:
        """Return the dataset to which ``name_neighbour`` has returned a reference."""
        return resolve_dataset(name, self._folder)

    @property
    def _folder(self) -> str | None:
        return None if self.path is None else self.path.rpartition("/")[0]


class Location(NamedTuple):
    """The parts of a location: the store, the host or bucket (empty if there is none), and the path."""

    store: str
    authority: str
    path: str


def is_location(text: str) -> bool:
    """Return whether a text is meant as a location, not as an ID or a name of a catalog."""
    return text.startswith("/") or _URI_SCHEME.match(text) is not None


def parse_location(text: str, *, at: str = "") -> str:
    """Return the one spelling of a location; ``at`` is the path that errors name.

    No file system is accessed, so the result is the same on every machine: ``..`` is resolved in the text, as
    Hadoop does it. The result is the spelling of itself.

    >>> parse_location("/my%20lake//a/"), parse_location("file:///my%20lake/a")
    ('/my%20lake/a', '/my lake/a')
    >>> parse_location("S3A://lake/x/../my%20lake/")
    's3a://lake/my%20lake'

    :raises ConfigError: if some client cannot use it.
    """
    scheme = _URI_SCHEME.match(text)
    name = scheme[1].lower() if scheme else _FILE_FORMAT
    path = _decode_uri(text, at) if scheme and name == _FILE_FORMAT else text
    if _UNSUPPORTED.search(path):
        message = f"{text!r} has a control character, or is not valid UTF-8"
        raise _refuse_dataset(at, message, "rename the folder")
    if path != path.strip():
        raise _refuse_dataset(at, f"{text!r} begins or ends with a blank", "remove it, or rename the folder")
    location = (
        Location(_FILE_FORMAT, "", _normalize_path(path)) if name == _FILE_FORMAT else _split_uri(name, path)
    )
    if ":" in location.path and (pattern := _PATTERN.search(location.path)):
        message = f"{text!r} has a colon and {pattern[0]!r}, and Hadoop does not support both in one location"
        raise _refuse_dataset(at, message, "rename the folder, without the colon")
    return (
        location.path if name == _FILE_FORMAT else f"{name}://{location.authority}{location.path.rstrip('/')}"
    )


def split_location(text: str) -> Location | None:
    """Return the parts of a location in any spelling; None for a text that is not a location.

    All schemes of a store are one.

    >>> split_location("s3a://lake/x/../customers/")
    Location(store='s3', authority='lake', path='/customers')
    >>> split_location("file:///my%20lake//customers/")
    Location(store='file', authority='', path='/my lake/customers')
    """
    if text.startswith("/"):
        return Location(_FILE_FORMAT, "", _normalize_path(text))
    if (scheme := _URI_SCHEME.match(text)) is None:
        return None
    name = scheme[1].lower()
    if name == _FILE_FORMAT:
        return Location(_FILE_FORMAT, "", _normalize_path(unquote(text[len("file:") :])))
    return _split_uri(name, text)


def parse_hadoop_path(text: str) -> str:
    """Return the location of a path as Spark writes it: ``file:`` and literal characters.

    >>> parse_hadoop_path("file:/my%20lake/a")
    '/my%20lake/a'
    """
    return _normalize_path(text.removeprefix("file:")) if text.startswith("file:") else text


def format_hadoop_path(location: str) -> str:
    """Return the path that Spark takes as a URI with a scheme; Hadoop has its S3 client under ``s3a``.

    >>> format_hadoop_path("/my%20lake"), format_hadoop_path("s3://lake/a")
    ('file:///my%20lake', 's3a://lake/a')
    """
    if location.startswith("/"):
        return f"file://{location}"
    return f"s3a://{location.removeprefix('s3://')}" if location.startswith("s3://") else location


def escape_pattern(path: str) -> str:
    r"""Return a path as Spark's readers of files take it: brackets and stars in it are not a pattern.

    >>> print(escape_pattern("/lake/a[1]/*.csv"))
    /lake/a\[1\]/\*.csv
    """
    return _PATTERN.sub(r"\\\1", path)


def is_skipped_by_spark(name: str) -> bool:
    """Return whether Spark reads no file with this path below a folder, because a part of it is hidden.

    >>> [is_skipped_by_spark(name) for name in ("a/1.json", "_log/0.json", ".1.json", "_day=1/1.json")]
    [False, True, True, False]
    """
    return any(
        part.startswith(".") or part.endswith("._COPYING_") or (part.startswith("_") and "=" not in part)
        for part in name.split("/")
    )


def find_pattern(path: str) -> str | None:
    """Return the first character of a path that a pattern may have, or None.

    >>> find_pattern("/lake/a[1]/b"), find_pattern("/lake/a%20")
    ('[', None)
    """
    pattern = _PATTERN.search(path)
    return None if pattern is None else pattern[0]


def format_table_uri(location: str) -> str:
    """Return a location as delta-rs takes it: a path, or the percent-encoded URI of an object store.

    >>> format_table_uri("/my%20lake/#1"), format_table_uri("s3://lake/#1")
    ('/my%20lake/#1', 's3://lake/%231')
    """
    if location.startswith("/"):
        return location
    scheme, _, address = location.partition("://")
    return f"{scheme}://{quote(address, safe=_PATH_CHARACTERS)}"


def format_file_uri(path: str) -> str:
    """Return the URI of a path of this machine (RFC 8089), which is ASCII.

    >>> format_file_uri("/my lake/a#1")
    'file:///my%20lake/a%231'
    """
    return f"file://{quote(path, safe=_PATH_CHARACTERS)}"


def is_bare_id(text: str) -> bool:
    """Return whether a text is the ID of a dataset in the warehouse."""
    return _BARE.match(text) is not None


def is_table_name(text: str) -> bool:
    """Return whether a text is the name of a catalog table."""
    return _TABLE.match(text) is not None


def split_alias(entry: str) -> tuple[str, str]:
    """Return the dataset and the alias of ``"<dataset> <alias>"``; the alias is empty if there is none.

    The alias of a location is its last word, because a location may contain blanks.

    >>> split_alias("customers c"), split_alias("/my lake/customers c")
    (('customers', 'c'), ('/my lake/customers', 'c'))
    """
    text = entry.strip()
    parts = text.rsplit(maxsplit=1) if is_location(text) else text.split(maxsplit=1)
    return (parts[0] if parts else "", parts[1] if len(parts) > 1 else "")


def resolve_dataset(ref: DatasetRef, warehouse: str | None, *, at: str = "") -> Dataset:
    """Resolve a dataset reference; ``at`` is the path that errors name.

    >>> resolve_dataset("customers", "/lake").uri
    '/lake/customers'
    >>> resolve_dataset("lake.crm.customers", None).uri
    'table:lake.crm.customers'
    >>> resolve_dataset("s3://lake/customers/", None).uri
    's3://lake/customers'

    :raises ConfigError: if the reference is not valid, or requires a warehouse and there is none.
    """
    if isinstance(ref, Mapping):
        return _from_object(ref, warehouse, at)
    name = _read_name(ref, at)
    if is_location(name):
        # A blank may belong to the name of a folder: it is not removed in silence.
        return Dataset(id=name, path=parse_location(str(ref), at=at))
    if is_bare_id(name):
        if not warehouse:
            raise _refuse_dataset(
                at,
                f"dataset {name!r} requires a warehouse",
                "set warehouse (or --warehouse), the merge_store connection, or [merge] warehouse",
            )
        if not is_location(warehouse):
            raise _refuse_dataset(
                "warehouse", f"{warehouse!r} is not a valid location", "use an absolute path or a URI"
            )
        return Dataset(id=name, path=f"{parse_location(warehouse, at='warehouse').rstrip('/')}/{name}")
    if is_table_name(name):
        return Dataset(id=name, table=name)
    raise _refuse_dataset(
        at,
        f"{name!r} is not a valid dataset",
        "use a bare ID (letters, digits, _ and -), catalog.schema.table, or a location with / or ://",
    )


class DatasetName(NamedTuple):
    """The namespace and the name of a dataset."""

    namespace: str
    name: str


def name_dataset(uri: str) -> DatasetName:
    """Return the name of a dataset, given its URI as reports show it.

    Symbolic links are not resolved: other tools do not resolve them either, and the file may be on another
    machine.

    >>> name_dataset("s3a://lake/crm/customers/"), name_dataset("file:///lake/customers")
    (DatasetName(namespace='s3://lake', name='crm/customers'), DatasetName(namespace='file', name='/lake/customers'))
    """  # noqa: E501 - the output of the example
    if uri.startswith(_TABLE_URI):
        # Spark resolves table names case-insensitively.
        return DatasetName(CATALOG, uri.removeprefix(_TABLE_URI).lower())
    location = split_location(uri)
    if location is None:
        return DatasetName(_FILE_FORMAT, uri)
    store, authority, path = location
    namespace = f"{store}://{authority}" if authority else store
    return DatasetName(namespace, path.strip("/") or "/" if store in _OBJECT_STORES else path)


def _read_name(ref: Any, at: str) -> str:
    """Return the text of a reference, after checking that it is a text."""
    if not isinstance(ref, str) or not ref.strip():
        raise _refuse_dataset(at, f"a dataset must be a non-empty string, not {ref!r}")
    return ref.strip()


def _from_object(ref: Mapping[str, Any], warehouse: str | None, at: str) -> Dataset:
    unknown = sorted(set(ref) - {"dataset", "format", "options"})
    if unknown or "dataset" not in ref:
        message = f"unknown key {unknown[0]!r}" if unknown else "key 'dataset' is missing"
        raise _refuse_dataset(at, f"{message} in {dict(ref)!r}", "valid keys: dataset, format, options")
    dataset = resolve_dataset(ref["dataset"], warehouse, at=at)
    kind = str(ref.get("format", "delta")).lower()
    if kind != "delta" and kind not in FILE_FORMATS:
        valid_formats = ", ".join(("delta", *FILE_FORMATS))
        raise _refuse_dataset(at, f"unknown format {ref['format']!r}", f"valid formats: {valid_formats}")
    options = read_options(ref.get("options") or {})
    problems = [] if kind == "delta" else [*find_option_problems(kind, options, at)]
    problems += [] if dataset.path is None else [*find_missing_options(kind, options, at)]
    if problems:
        raise ConfigError.from_problems(problems)
    return Dataset(dataset.id, kind, dataset.path, dataset.table, options)


def _decode_uri(text: str, at: str) -> str:
    """Return the path of a ``file:`` URI.

    :raises ConfigError: if it names another machine, or is not percent-encoded.
    """
    address = text[len("file:") :]
    if address.startswith("//"):
        host, _, path = address[2:].partition("/")
        if host.lower() not in _THIS_MACHINE:
            message = f"{text!r} names the machine {host!r}"
            raise _refuse_dataset(at, message, f"for a folder of this machine, use file:///{host}/{path}")
        address = f"/{path}"
    if wrong := _UNENCODED.search(address):
        message = f"{text!r} is not a valid URI, because {wrong[0]!r} is not percent-encoded"
        hint = f"write {quote(wrong[0])} instead of {wrong[0]}, or the path without file:"
        raise _refuse_dataset(at, message, hint)
    return unquote(address, errors="surrogateescape")


def _split_uri(name: str, text: str) -> Location:
    store = _SAME_STORES.get(name, name)
    address = text[len(name) + 1 :]
    authority, key = "", address
    if store in _OBJECT_STORES or (address.startswith("//") and not address.startswith("///")):
        authority, _, key = address.lstrip("/").partition("/")
    return Location(store, authority, _normalize_path(key))


def _normalize_path(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/"))


def _refuse_dataset(at: str, message: str, hint: str = "") -> ConfigError:
    return ConfigError.from_problems([Problem(at, "dataset", message, hint)])
