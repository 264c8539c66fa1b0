"""Many columns in one expression, as a tree of little depth.

Spark walks expressions by recursion, and so do the messages of Spark Connect: a chain of some hundred
operators, one for each column of a wide table, overflows the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pyspark.sql import Column, functions as F


def every(conditions: Iterable[Column]) -> Column:
    """Tell whether all conditions hold; true where there are none."""
    return combined(Column.__and__, conditions, F.lit(True))


def some(conditions: Iterable[Column]) -> Column:
    """Tell whether one of the conditions holds; false where there are none."""
    return combined(Column.__or__, conditions, F.lit(False))


def listed(parts: Iterable[tuple[Column, Sequence[Column]]], none: Column) -> Column:
    """Make an array of the items whose condition holds; ``none`` is an array without any.

    Spark compiles this. It compiles no function that takes a lambda, as ``array_compact`` does inside, nor
    what such a function is given.
    """
    return F.concat(none, *(F.when(there, F.array(*items)).otherwise(F.array()) for there, items in parts))


def combined(
    operation: Callable[[Column, Column], Column], columns: Iterable[Column], none: Column
) -> Column:
    """Combine columns by an operation that may group them as it likes; ``none`` where there are none."""
    found = list(columns) or [none]
    while len(found) > 1:
        pairs = [operation(one, other) for one, other in zip(found[::2], found[1::2], strict=False)]
        found = [*pairs, *found[len(pairs) * 2 :]]
    return found[0]
