"""Test the log lines and figures of a run's steps."""

from __future__ import annotations

import re

import pytest

from airflow_merge_provider.core.run.progress import Progress


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
