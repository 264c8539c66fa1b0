"""Several things at once that mostly wait for Spark: planning of one goes on while another runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pyspark.sql import SparkSession
from pyspark.util import inheritable_thread_target

Item = TypeVar("Item")
Found = TypeVar("Found")

_AT_ONCE = 8


def run_in_parallel(
    spark: SparkSession, function: Callable[[Item], Found], items: Iterable[Item]
) -> list[Found]:
    """Call a function for every item, some at a time, and give what it gave in the order of the items.

    What Spark does in it belongs to the job group, pool and tags of the caller.

    :raises Exception: the first one that a call raises; what has not begun by then does not begin.
    """
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        return list(pool.map(inheritable_thread_target(spark)(function), items))
    except Exception:
        pool.shutdown(cancel_futures=True)
        raise
    finally:
        # A process that is told to end does not wait: whoever started it ends what Spark still does.
        pool.shutdown(wait=False, cancel_futures=True)
