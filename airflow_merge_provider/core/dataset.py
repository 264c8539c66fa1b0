"""Dataset references: a bare ID, a catalog table, a location, or an object with a format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_merge_provider.core.errors import ConfigError, Problem

FILE_FORMATS = ("parquet", "json", "csv", "avro", "orc", "xml", "text")
_BARE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-]*\Z")
_TABLE = re.compile(r"[A-Za-z0-9_\-]+(\.[A-Za-z0-9_\-]+){1,2}\Z")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://?")


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
        return self.path if self.path is not None else f"table:{self.table}"

    def with_suffix(self, suffix: str) -> Dataset:
        """Return the dataset next to this one whose name has the suffix appended."""
        path = None if self.path is None else f"{self.path}{suffix}"
        table = None if self.table is None else f"{self.table}{suffix}"
        return replace(self, id=f"{self.id}{suffix}", path=path, table=table)


def resolve_dataset(ref: str | Mapping[str, Any], warehouse: str | None, *, at: str = "") -> Dataset:
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
    if _is_location(name):
        return Dataset(id=name, path=_normalize_location(name))
    if _BARE.match(name):
        if not warehouse:
            raise _refuse_dataset(
                at,
                f"dataset {name!r} requires a warehouse",
                "set warehouse=…, the warehouse of the merge_store connection, or [merge] warehouse",
            )
        if not _is_location(warehouse):
            raise _refuse_dataset(
                "warehouse", f"{warehouse!r} is not a valid location", "use an absolute path or a URI"
            )
        return Dataset(id=name, path=f"{_normalize_location(warehouse).rstrip('/')}/{name}")
    if _TABLE.match(name):
        return Dataset(id=name, table=name)
    raise _refuse_dataset(
        at,
        f"{name!r} is not a valid dataset",
        "use a bare ID (letters, digits, _ and -), catalog.schema.table, or a location with / or ://",
    )


def _read_name(ref: Any, at: str) -> str:
    """Return the text of a reference, after checking that it is a text."""
    if not isinstance(ref, str) or not ref.strip():
        raise _refuse_dataset(at, f"a dataset must be a non-empty string, not {ref!r}")
    return ref.strip()


def _is_location(text: str) -> bool:
    return text.startswith("/") or bool(_SCHEME.match(text))


def _normalize_location(text: str) -> str:
    """Remove ``file:`` and trailing slashes, so that each location has one spelling."""
    path = "/" + text.removeprefix("file:").lstrip("/") if text.startswith("file:") else text
    return path.rstrip("/") or "/"


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
    options = {str(key): str(value) for key, value in (ref.get("options") or {}).items()}
    return Dataset(dataset.id, kind, dataset.path, dataset.table, options)


def _refuse_dataset(at: str, message: str, hint: str = "") -> ConfigError:
    return ConfigError.from_problems([Problem(at, "dataset", message, hint)])
