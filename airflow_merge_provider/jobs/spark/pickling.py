"""Ship functions of this package to Python workers that may not have it installed."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from pyspark import cloudpickle


class PickledFunction:
    """A function in the form in which it is sent to workers, which receive the function itself."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__name__ = function.__name__
        self._function = function
        self._pickled: bytes = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]  # a copy inside pyspark

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        return self._function(*args)

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        """Return how a worker makes the function."""
        return cloudpickle.loads, (self._pickled,)


def pickle_once(function: Callable[..., Any], *modules: ModuleType) -> PickledFunction:
    """Pickle a function for a user-defined function, with the functions of the given modules by value.

    A client of Spark Connect pickles a plain function each time that it sends a plan with it, also to learn
    the columns of a DataFrame. A type that is text costs a request to the server each time, too.
    """
    for module in modules:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return PickledFunction(function)
