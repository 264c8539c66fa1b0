"""Quote identifiers and escape values in SQL text."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column
from pyspark.sql.functions import col

from airflow_merge_provider.core.dataset import Dataset

_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\0": "\\0"}


def quote_name(*parts: str) -> str:
    """Quote an identifier; several parts are joined with dots.

    >>> quote_name("t", "a.b`c")
    '`t`.`a.b``c`'
    """
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)


def quote_names(columns: Iterable[str]) -> str:
    """Quote a list of columns.

    >>> quote_names(["id", "a b"])
    '`id`, `a b`'
    """
    return ", ".join(quote_name(column) for column in columns)


def quote_column(name: str) -> Column:
    """Return the column with an exact name, whatever characters the name has."""
    return col(quote_name(name))


def quote_text(value: str) -> str:
    r"""Return a text as a SQL literal.

    >>> quote_text("it's")
    "'it\\'s'"
    """
    return f"'{''.join(_ESCAPES.get(char, char) for char in value)}'"


def quote_table(dataset: Dataset) -> str:
    """Return a dataset as a name in SQL: a catalog table by its parts, a location as a Delta table.

    >>> quote_table(Dataset(id="t", path="/lake/it's `here`"))
    "`delta`.`/lake/it's ``here```"
    """
    if dataset.table is not None:
        return quote_name(*dataset.table.split("."))
    return quote_name("delta", str(dataset.path))
