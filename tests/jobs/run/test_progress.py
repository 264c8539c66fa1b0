"""Test the log lines and figures of a run's steps."""

from __future__ import annotations

import re
import time

import pytest

from airflow_merge_provider.core.run.reporter import Progress


def test_a_step_is_one_line_and_one_figure() -> None:
    """A step gives one line in the log and one figure in the report."""
    lines: list[str] = []
    progress = Progress(lines.append)

    with progress.time_step("cluster"):
        pass

    assert re.fullmatch(r"\[merge \+ +\d+\.\ds\] cluster: \d\.\ds", lines[0])
    assert 0 <= progress.seconds["cluster"] < 1


def test_a_name_used_twice_adds_up() -> None:
    """Two passes of one step give one figure, their sum."""
    progress = Progress(lambda _: None)
    progress.seconds["write"] = 5.0

    with progress.time_step("write"):
        pass

    assert progress.seconds["write"] >= 5.0


def test_the_seconds_of_nested_steps_are_counted_once() -> None:
    """The seconds of all steps add up to the duration, also after a nested step that fails."""
    progress = Progress(lambda _: None)

    with progress.time_step("read"):
        with progress.time_step("check"):
            time.sleep(0.05)
        with pytest.raises(ValueError, match="no"), progress.time_step("filter"):
            raise ValueError("no")

    assert progress.seconds["check"] >= 0.05
    assert progress.seconds["read"] < 0.05
    assert sum(progress.list_seconds().values()) < 0.15


def test_a_step_that_fails_is_not_said_to_be_done() -> None:
    """A failed step logs no line that it is done; the error is reported instead."""
    lines: list[str] = []

    with pytest.raises(ValueError, match="no"), Progress(lines.append).time_step("write"):
        raise ValueError("no")

    assert lines == []


def test_lines_go_to_standard_output_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines are flushed to standard output at once, so that a task log shows them while the job runs."""
    Progress().log_line("hello")

    assert capsys.readouterr().out.endswith("] hello\n")
