"""Run several functions that mostly wait for Spark in parallel, so that planning and execution overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pyspark.sql import SparkSession
from pyspark.util import inheritable_thread_target

Item = TypeVar("Item")
Found = TypeVar("Found")

_JOBS_MAX = 8


def run_in_parallel(
    spark: SparkSession, function: Callable[[Item], Found], items: Iterable[Item]
) -> list[Found]:
    """Call a function for every item, some at a time, and return the results in the order of the items.

    The Spark jobs of the function belong to the job group, pool and tags of the caller.

    :raises Exception: the first one that a call raises; calls that have not begun by then do not begin.
    """
    pool = ThreadPoolExecutor(_JOBS_MAX)
    try:
        return list(pool.map(inheritable_thread_target(spark)(function), items))
    except Exception:
        pool.shutdown(cancel_futures=True)
        raise
    finally:
        # A process that gets a termination signal does not wait: its parent cancels the remaining Spark work.
        pool.shutdown(wait=False, cancel_futures=True)
