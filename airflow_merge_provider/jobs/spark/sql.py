"""How names and values stand in SQL text: every identifier quoted, every value escaped."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column
from pyspark.sql.functions import col

from airflow_merge_provider.core.dataset import Dataset

_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\0": "\\0"}


def name(*parts: str) -> str:
    """Quote an identifier; several parts give a dotted one.

    >>> name("t", "a.b`c")
    '`t`.`a.b``c`'
    """
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)


def names(columns: Iterable[str]) -> str:
    """Quote a list of columns.

    >>> names(["id", "a b"])
    '`id`, `a b`'
    """
    return ", ".join(name(column) for column in columns)


def column(named: str) -> Column:
    """Refer to a column by its exact name, whatever characters it has."""
    return col(name(named))


def text(value: str) -> str:
    r"""Write a text as a SQL literal.

    >>> text("it's")
    "'it\\'s'"
    """
    return f"'{''.join(_ESCAPES.get(char, char) for char in value)}'"


def table(dataset: Dataset) -> str:
    """Name a dataset in SQL: a catalog table by its parts, a location as a Delta table.

    >>> table(Dataset(id="t", path="/lake/it's `here`"))
    "`delta`.`/lake/it's ``here```"
    """
    if dataset.table is not None:
        return name(*dataset.table.split("."))
    return name("delta", str(dataset.path))
