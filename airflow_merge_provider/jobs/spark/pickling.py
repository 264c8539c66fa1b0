"""Ship functions of this package to Python workers that may not have it installed."""

from __future__ import annotations

from types import ModuleType

from pyspark import cloudpickle


def pickle_by_value(*modules: ModuleType) -> None:
    """Pickle the functions of these modules by value instead of by name."""
    for module in modules:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # a copy inside pyspark
