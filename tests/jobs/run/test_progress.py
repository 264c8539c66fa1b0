"""What a run prints and keeps of its steps."""

from __future__ import annotations

import re

import pytest

from airflow_merge_provider.jobs.run.progress import Progress


def test_a_step_is_one_line_and_one_figure() -> None:
    """The line is for people, the figure for the report."""
    lines: list[str] = []
    progress = Progress(lines.append)

    with progress.time_step("cluster"):
        pass

    assert re.fullmatch(r"\[merge \+ +\d+\.\ds\] cluster: \d\.\ds", lines[0])
    assert 0 <= progress.seconds["cluster"] < 1


def test_a_name_used_twice_adds_up() -> None:
    """Two passes of one step are one figure."""
    progress = Progress(lambda _: None)
    progress.seconds["write"] = 5.0

    with progress.time_step("write"):
        pass

    assert progress.seconds["write"] >= 5.0


def test_a_step_that_fails_is_not_said_to_be_done() -> None:
    """The error speaks for itself."""
    lines: list[str] = []

    with pytest.raises(ValueError, match="no"), Progress(lines.append).time_step("write"):
        raise ValueError("no")

    assert lines == []


def test_lines_go_to_standard_output_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A task log shows them while the job works."""
    Progress().log_line("hello")

    assert capsys.readouterr().out.endswith("] hello\n")
