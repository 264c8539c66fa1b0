"""The columns of a Delta table, as its log has them in Spark's JSON form, and warnings about their types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_merge_provider.core.run.table_log import Fields, PinnedDataset
from airflow_merge_provider.core.schema.key_types import show_identifier

# Returns the fields of a table at its version.
ReadFields = Callable[[PinnedDataset], Fields]

_SIMPLE = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}


def list_types(fields: Fields) -> dict[str, str]:
    """Return the type of each column by its name, as Spark's errors write types.

    >>> list_types(
    ...     [{"name": "k", "type": "long"}, {"name": "a", "type": {"type": "array", "elementType": "byte"}}]
    ... )
    {'k': 'bigint', 'a': 'array<tinyint>'}
    """
    return {field["name"]: format_type(field["type"]) for field in fields}


def format_type(kind: Any) -> str:
    """Return a type as Spark's errors write it.

    >>> format_type({"type": "struct", "fields": [{"name": "a", "type": "integer"}]})
    'struct<a:int>'
    """
    if not isinstance(kind, Mapping):
        return _SIMPLE.get(kind, str(kind))
    if kind["type"] == "array":
        return f"array<{format_type(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{format_type(kind['keyType'])},{format_type(kind['valueType'])}>"
    fields = ",".join(f"{field['name']}:{format_type(field['type'])}" for field in kind["fields"])
    return f"struct<{fields}>"


def describe_text_order(path: str, *names: str) -> str:
    """Return the warning for a text column, or a field inside of it, that orders records by an option.

    >>> print(describe_text_order("options.sequence.field", "version"))
    options.sequence.field: column 'version' is text, so '9' is newer than '10' (cast it upstream, e.g. \
CAST(version AS BIGINT), or CAST(version AS TIMESTAMP); texts of one length such as ISO dates are in order)
    """
    cast = ".".join(map(show_identifier, names))
    return (
        f"{path}: column {'.'.join(names)!r} is text, so '9' is newer than '10' (cast it upstream, e.g. "
        f"CAST({cast} AS BIGINT), or CAST({cast} AS TIMESTAMP); texts of one length such as ISO dates "
        "are in order)"
    )
