"""Test runs that die at any commit, and concurrent runs: each record counts once in every table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_merge_provider.core.errors import ConflictError
from airflow_merge_provider.jobs.delta import side_table
from airflow_merge_provider.jobs.delta.transaction import commit_once
from airflow_merge_provider.jobs.delta.writer import upsert_rows
from airflow_merge_provider.jobs.merge_engine import target
from airflow_merge_provider.jobs.run import retry
from tests.jobs.merge_engine.conftest import MakeStream
from tests.jobs.merge_engine.stream import Stream

SETTINGS: dict[str, Any] = {
    "merge_engine": "aggregation",
    "options": {
        "fields.v.aggregate-function": "sum",
        "sequence.field": "s",
        "aggregation.remove-record-on-delete": "true",
    },
    "row_kind_column": "op",
    "tombstone_retention": 7,
    "changelog": "log",
}
# The commits of a run in order: the change log, the removed keys, the target.
COMMITS = 3


class KilledError(BaseException):
    """An exception that stands for the end of the process: handlers of the job must not catch it."""


def build_killing_commit(commit: Callable[..., Any], position: int, *, before: bool) -> Callable[..., Any]:
    """Build a commit function that ends the process before the nth commit or after it."""
    calls = []

    def commit_and_kill(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments)
        if len(calls) == position and before:
            raise KilledError
        landed = commit(*arguments, **named)
        if len(calls) == position:
            raise KilledError
        return landed

    return commit_and_kill


def write_batch(stream: Stream, number: int) -> None:
    """Write one more batch: key 0 is incremented, key ``number`` is added and the previous key is deleted."""
    keys = [0, number, number - 1] if number > 1 else [0, 1]
    stream.write_batch(
        {"k": keys, "op": ["+I", "+I", "-D"][: len(keys)], "s": [number] * len(keys), "v": [1] * len(keys)}
    )


# More than 20 seconds: nine runs write three tables each.
@pytest.mark.long
def test_a_run_that_dies_at_a_commit_is_made_up_for(
    make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run killed before or after any commit and retried leaves the tables of an undisturbed run."""
    stream = make_stream(**SETTINGS)
    write_batch(stream, 1)
    stream.run_job()
    # After one commit is the same as before the next.
    positions = [*((at, True) for at in range(1, COMMITS + 1)), (COMMITS, False)]
    for number, (position, before) in enumerate(positions, 2):
        write_batch(stream, number)
        with monkeypatch.context() as deadly:
            dying = build_killing_commit(commit_once, position, before=before)
            deadly.setattr(side_table, "commit_once", dying)
            deadly.setattr(retry, "commit_once", dying)
            with pytest.raises(KilledError):
                stream.run_job(f"run {number}")

        assert stream.run_job(f"run {number}")["changed"] is True

        assert stream.read_rows() == [(0, number, number), (number, number, 1)]
        changed = [row[:2] for row in stream.read_rows("log", ("k", "_kind")) if row[-1] == number]
        assert changed == [("+U", 0), ("-U", 0), ("-D", number - 1), ("+I", number)]
        assert [row[0] for row in stream.read_rows("state__removed")] == list(range(1, number))


def test_the_second_of_two_runs_at_once_loses(
    make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two concurrent runs writes nothing and can be retried; the retry has nothing to do."""
    stream = make_stream(merge_engine="aggregation", options={"fields.v.aggregate-function": "sum"})
    stream.write_batch({"k": [1], "v": [1]})
    stream.run_job()
    stream.write_batch({"k": [1], "v": [5]})
    write = upsert_rows

    def commit_second(*arguments: Any) -> None:
        monkeypatch.setattr(target, "upsert_rows", write)
        stream.run_job("first")
        write(*arguments)

    monkeypatch.setattr(target, "upsert_rows", commit_second)

    with pytest.raises(ConflictError) as lost:
        stream.run_job("second")

    assert lost.value.retryable
    assert stream.read_rows() == [(1, 6)]
    assert stream.run_job("second")["changed"] is False
