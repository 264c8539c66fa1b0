"""Test parallel calls: their order, the effect of an error on the other calls, and exit without waiting."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from airflow_merge_provider.jobs.spark.parallel import run_in_parallel


def test_calls_wait_for_each_other_and_answer_in_order(spark: SparkSession) -> None:
    """Calls run in parallel, and results have the order of the items, although the last call ends first."""
    here = threading.Barrier(4)
    later = [threading.Event() for _ in range(5)]
    later[4].set()

    def wait_and_square(number: int) -> int:
        here.wait(30)
        assert later[number + 1].wait(30)
        later[number].set()
        return number * number

    assert run_in_parallel(spark, wait_and_square, range(4)) == [0, 1, 4, 9]
    assert run_in_parallel(spark, wait_and_square, []) == []


def test_the_first_error_ends_all(spark: SparkSession) -> None:
    """The first error is raised unchanged after the running calls have ended; no further call starts."""
    begun: list[int] = []
    ended: list[int] = []
    failed = threading.Event()

    def note_and_fail(number: int) -> None:
        begun.append(number)
        if number == 0:
            failed.set()
            raise ValueError("zero")
        assert failed.wait(30)
        threading.Event().wait(0.05)
        ended.append(number)

    with pytest.raises(ValueError, match="zero"):
        run_in_parallel(spark, note_and_fail, range(1000))

    assert len(begun) < 1000
    assert sorted(ended) == sorted(set(begun) - {0})


def test_a_process_that_is_told_to_end_does_not_wait(spark: SparkSession) -> None:
    """An exit is raised while a call is running, because Spark must be stopped without waiting for it."""
    going_on, call_ended = threading.Event(), threading.Event()

    def wait_slowly(_: int) -> None:
        assert going_on.wait(30)
        call_ended.set()

    def yield_and_exit() -> Iterator[int]:
        yield 1
        raise SystemExit(143)

    with pytest.raises(SystemExit):
        run_in_parallel(spark, wait_slowly, yield_and_exit())

    assert not call_ended.is_set()
    going_on.set()
    assert call_ended.wait(30)


@pytest.mark.classic
def test_calls_belong_to_the_callers_job_group(spark: SparkSession) -> None:
    """All calls belong to the caller's job group, so that its jobs can be cancelled and counted."""
    context = spark.sparkContext
    context.setJobGroup("side by side", "some jobs")
    try:
        counts = run_in_parallel(spark, lambda rows: spark.range(rows).rdd.count(), [1, 2, 3])
    finally:
        for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            context.setLocalProperty(name, None)

    assert counts == [1, 2, 3]
    assert len(context.statusTracker().getJobIdsForGroup("side by side")) == 3
