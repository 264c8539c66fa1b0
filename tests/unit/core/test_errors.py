"""Tests of the texts and the attributes of errors."""

from __future__ import annotations

import pytest

from airflow_merge_provider.core.errors import (
    ConfigError,
    ConflictError,
    DataError,
    JobError,
    MergeError,
    Problem,
    SetupError,
    did_you_mean,
)


def test_a_problem_says_where_what_and_what_to_do() -> None:
    """A problem has a path, a reason and a hint; path and hint are omitted if there is none."""
    assert str(Problem("a[0]", "code", "is wrong", "write b")) == "a[0]: is wrong (write b)"
    assert str(Problem("", "code", "is wrong")) == "is wrong"


def test_an_error_lists_all_its_problems() -> None:
    """The first line of an error has the first problem and the number of problems; the others follow."""
    error = ConfigError.from_problems([Problem("a", "x", "one"), Problem("b", "x", "two")])

    assert error.message.splitlines() == ["a: one [1 of 2 problems]", "- b: two"]
    assert len(error.problems) == 2


def test_an_error_counts_what_it_does_not_list() -> None:
    """Of thousands of problems of one kind, an error lists the first ones and counts the others."""
    error = ConfigError.from_problems([Problem("a", "x", "one"), Problem("b", "x", "two")], 3000)

    assert error.message.splitlines() == ["a: one [1 of 3000 problems, first 2 shown]", "- b: two"]


@pytest.mark.parametrize(
    ("kind", "retryable"),
    [(ConfigError, False), (DataError, False), (SetupError, False), (ConflictError, True), (JobError, True)],
)
def test_only_what_may_pass_is_retried(kind: type[MergeError], retryable: bool) -> None:
    """Errors of rules or data are not retried; a write conflict or a broken process is retried."""
    assert kind("text").retryable is retryable


@pytest.mark.parametrize(("word", "hint"), [("targt", "did you mean 'target'?"), ("zzz", "")])
def test_a_near_word_is_hinted_at(word: str, hint: str) -> None:
    """A hint names the nearest known word, and is empty if none is near."""
    assert did_you_mean(word, ["target", "datasets"]) == hint


def test_an_error_is_bounded() -> None:
    """An error is limited to twenty problems of two thousand characters, each with its hint."""
    error = ConfigError.from_problems([Problem("here", "value", "x" * 10_000, "this helps")] * 30)

    lines = error.message.splitlines()
    assert len(lines) == 20
    assert lines[0].endswith("(this helps) [1 of 30 problems, first 20 shown]")
    assert max(map(len, lines)) < 2100
    assert len(error.problems) == 30
