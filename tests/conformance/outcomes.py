"""Run the vectors of all selected tests of a module, two at a time, before the first test needs one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import local
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.conformance.lean import lean_session

# Keyed by the name of the test and its parameter.
Outcomes = dict[tuple[str, Any], Future[Any]]
Run = Callable[[SparkSession, Any], Any]


@contextmanager
def run_selected(
    spark: SparkSession, request: pytest.FixtureRequest, runs: dict[str, Run], **conf: str
) -> Iterator[Outcomes]:
    """Start the run of every selected case, each thread in its own lean session with ``conf``.

    ``runs`` maps the name of a test to the function that runs its one parameter.
    """
    selected = [
        (str(item.originalname), next(iter(item.callspec.params.values())))
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.module is request.module and item.originalname in runs
    ]
    mine = local()

    def run_case(test: str, case: Any) -> Any:
        if not hasattr(mine, "session"):
            mine.session = lean_session(spark)
            for name, value in conf.items():
                mine.session.conf.set(name, value)
        return runs[test](mine.session, case)

    pool = ThreadPoolExecutor(max_workers=2)
    try:
        yield {(test, case): pool.submit(run_case, test, case) for test, case in selected}
    finally:
        pool.shutdown(cancel_futures=True)
