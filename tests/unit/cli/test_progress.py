"""Tests of the progress of runs: one line that changes on a terminal, lines elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.cli import main as cli, runs
from airflow_merge_provider.cli.output import show_progress
from airflow_merge_provider.core.protocol import JobResult
from tests.fakes import build_report
from tests.unit.cli.conftest import run_on_terminal

LINES = [
    "[merge +  0.1s] scan [bold]keys: 0.1s",
    "[merge +  0.2s] warning: slow",
    "[merge +  9.0s] wrote 3 rows",
]
_CODE = """
import sys, time
from airflow_merge_provider.cli.output import show_progress
with show_progress() as on_line:
    for line in sys.argv[1:]:
        on_line(line)
        time.sleep(0.3)
"""


def test_a_terminal_shows_steps_in_one_line() -> None:
    """Steps replace each other and vanish at the end; warnings and the result stay."""
    code, output = run_on_terminal(*LINES, program=["-c", _CODE])

    assert code == 0
    assert "finished scan [bold]keys in 0.1s" in output
    shown = [line.rpartition("\x1b[2K")[2] for line in output.split("\r\n")]
    assert [line for line in shown if line.startswith("[merge")] == LINES[1:]
    assert output.rstrip("\r").endswith("\x1b[2K")


@pytest.mark.parametrize("variable", ["NO_COLOR", "TERM"])
def test_a_terminal_without_styles_has_lines(variable: str) -> None:
    """Plain lines are printed if no styles are wanted."""
    code, output = run_on_terminal(*LINES, program=["-c", _CODE], **{variable: "dumb"})

    assert (code, output.splitlines()) == (0, LINES)


def test_other_streams_have_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Elsewhere each line is printed to standard error, so that a log shows every step."""
    with show_progress() as on_line:
        for line in LINES:
            on_line(line)

    assert capsys.readouterr().err.splitlines() == LINES


@pytest.mark.parametrize(
    ("arguments", "fields", "lines"),
    [
        ([], {}, ["rows    2 inserted, 1 updated, 0 deleted, 0 unchanged"]),
        (
            [],
            {"dry_run": True, "details": {"undone": [{"number": 4, "run_id": "r4"}]}},
            [
                "rows    2 inserted, 1 updated, 0 deleted, 0 unchanged (nothing was written)",
                "undone  run 4: r4",
            ],
        ),
        (["--json"], {}, None),
    ],
)
def test_a_terminal_shows_the_result_in_a_few_lines(
    arguments: Any,
    fields: Any,
    lines: Any,
    job_run: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The whole report is printed with --json and in a pipe."""
    report = build_report(**{"details": {}, **fields})
    job_run["answer"] = JobResult(report=report)
    monkeypatch.setattr(runs, "find_result", lambda *_args, **_named: None)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)

    assert cli.main(["undo", "t", "--warehouse", "/lake", *arguments]) == 0

    output = capsys.readouterr().out
    if lines is None:
        assert json.loads(output) == report.as_json()
        return
    expected = ["target  /lake/golden, version 3", *lines, "--json prints the whole report"]
    assert output.splitlines() == expected


def test_a_run_on_a_terminal_ends_with_its_error(tmp_path: Path, file: Any) -> None:
    """A run that cannot succeed removes its line and prints the error in red."""
    config = {"job": "upsert", "source": "none", "target": "t", "primary_key": "id"}

    code, output = run_on_terminal("run", file(json.dumps(config)), "--warehouse", str(tmp_path))

    assert code == 3
    assert "\x1b[1;31merror:\x1b[0m" in output
    assert f"{tmp_path}/none does not exist" in output
    assert cli.main(["run", file(json.dumps(config)), "--warehouse", str(tmp_path)]) == 3
