"""Check that expectations suit the sources of a run, and the columns of the rows that they are checked on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_merge_provider.core.errors import DataError, Problem, suggest_name
from airflow_merge_provider.core.expectations.config import Expectation


def require_columns(columns: Sequence[str], expectations: Iterable[Expectation], where: str) -> None:
    """Check the columns that expectations name; only Spark can check those of SQL conditions.

    :param columns: the columns of the rows that the expectations are checked on.
    :param where: what the rows belong to, for messages.
    :raises DataError: with every column that the rows do not have.
    """
    problems = [
        problem
        for item in expectations
        for problem in find_unknown_columns(item.columns, columns, f"{item.path}.{item.kind}", where)
    ]
    if problems:
        raise DataError.from_problems(problems)


def require_sources(names: Sequence[str], expectations: Iterable[Expectation]) -> None:
    """Check that the run has the sources that expectations name; otherwise they would apply to nothing.

    :param names: the names of the sources of the run.
    :raises DataError: with every other name.
    """
    problems = [
        Problem(
            f"{item.path}.source", "unknown", f"unknown source {name!r}", suggest_name(name, names, "sources")
        )
        for item in expectations
        for name in item.sources
        if name not in names
    ]
    if problems:
        raise DataError.from_problems(problems)


def find_unknown_columns(
    names: Iterable[str], columns: Sequence[str], path: str, where: str
) -> list[Problem]:
    """Return a problem for each name that is not a column; case is ignored, as in Spark."""
    folded_names = {column.casefold() for column in columns}
    return [
        Problem(
            path, "unknown-column", f"{where} has no column {name!r}", suggest_name(name, columns, "columns")
        )
        for name in names
        if name.casefold() not in folded_names
    ]
