"""Calls side by side: their order, what an error of one means for the others, and who does not wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from airflow_merge_provider.jobs.side_by_side import side_by_side


def test_calls_wait_for_each_other_and_answer_in_order() -> None:
    """Every call waits until all have begun, and the last ends first: the answers keep the items' order."""
    here = threading.Barrier(4)
    later = [threading.Event() for _ in range(5)]
    later[4].set()

    def waiting(number: int) -> int:
        here.wait(30)
        assert later[number + 1].wait(30)
        later[number].set()
        return number * number

    assert side_by_side(waiting, range(4)) == [0, 1, 4, 9]
    assert side_by_side(waiting, []) == []


def test_the_first_error_ends_all() -> None:
    """The error comes out as it was raised, after the calls that had begun, and the rest never begins."""
    begun: list[int] = []
    ended: list[int] = []
    failed = threading.Event()

    def failing(number: int) -> None:
        begun.append(number)
        if number == 0:
            failed.set()
            raise ValueError("zero")
        assert failed.wait(30)
        threading.Event().wait(0.05)
        ended.append(number)

    with pytest.raises(ValueError, match="zero"):
        side_by_side(failing, range(1000))

    assert len(begun) < 1000
    assert sorted(ended) == sorted(set(begun) - {0})


def test_a_process_that_is_told_to_end_does_not_wait() -> None:
    """The exit comes out while a call goes on: nobody waits for Spark before telling it to stop."""
    going_on, done = threading.Event(), threading.Event()

    def slow(_: int) -> None:
        assert going_on.wait(30)
        done.set()

    def told_to_end() -> Iterator[int]:
        yield 1
        raise SystemExit(143)

    with pytest.raises(SystemExit):
        side_by_side(slow, told_to_end())

    assert not done.is_set()
    going_on.set()
    assert done.wait(30)
