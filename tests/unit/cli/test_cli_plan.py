"""Tests of the commands that plan a run and apply a saved plan."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_merge_provider.cli import main as cli
from airflow_merge_provider.core.change_plan.saved_plan import PlanChoice
from airflow_merge_provider.core.protocol import JobResult
from tests.fakes import build_report

PIPE = {"_id": "golden", "type": "pipe", "source": {"type": "merge", "version": 2, "datasets": ["a a"]}}


def test_a_plan_is_printed_as_a_diff(
    lake: str, file: Any, job_run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The changes are a text for people: kinds, reasons, rows, and of updated rows what differs."""
    changes = {
        "kinds": {"inserted": 1, "updated": 1, "deleted": 1, "kept": 1, "failed": 1},
        "reasons": {"opened": 1, "closed": 1},
        "examples": [
            {"kind": "inserted", "reason": "opened", "after": {"id": 2, "v": "b"}},
            {
                "kind": "updated", "reason": "closed", "detail": "by load 3",
                "before": {"id": 1, "v": "a\x1b[2J"},
                "after": {"id": 1, "v": "a\x1b[2J", "valid_to": "2024-01-02"},
            },
            {"kind": "deleted", "reason": "removed", "before": {"id": 3}},
            {"kind": "kept", "reason": "members", "before": {"id": 4}, "after": {"id": 4}},
            {"kind": "failed", "reason": "FAILED", "after": {"id": 5}},
        ],
        "digest": "d", "saved": None, "other_changes": ["adds column 'w' (int)"],
    }  # fmt: skip
    job_run["answer"] = JobResult(report=build_report(dry_run=True, plan=changes))

    assert cli.main(["plan", file(PIPE), "--warehouse", lake, "--save"]) == 0

    request = job_run["request"]
    assert (request.until, request.save_plan, request.full_refresh) == ("transform", True, False)
    assert capsys.readouterr().out.splitlines() == [
        "5 rows would change: 1 inserted, 1 updated, 1 deleted, 1 kept, 1 failed",
        "* adds column 'w' (int)",
        "reasons: 1 opened, 1 closed",
        '+ id = 2, v = "b"  [opened]',
        '~ id = 1, v = "a\\u001b[2J"  [closed: by load 3]',
        '    valid_to: NULL -> "2024-01-02"',
        "- id = 3  [removed]",
        "= id = 4  [members]",
        "! id = 5  [FAILED]",
    ]


def test_internal_columns_are_shown_if_asked_for(
    lake: str, file: Any, job_run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text has the columns of the business, and a flag that is set; `--all-columns` shows the others."""
    stored = {"_id": "0|c2", "_ts": 1, "_deleted": False, "city": "Oslo"}
    updated = {**stored, "_ts": 2, "city": "Bergen"}
    changes = {
        "kinds": {"updated": 1, "kept": 1}, "reasons": {"content": 1, "members": 1}, "digest": "d",
        "examples": [
            {"kind": "updated", "reason": "content", "before": stored, "after": updated},
            {"kind": "kept", "reason": "members", "before": {"id": 3}, "after": {"id": 3, "_deleted": True}},
        ],
        "internal_columns": ["_ts", "_deleted"],
    }  # fmt: skip
    job_run["answer"] = JobResult(report=build_report(dry_run=True, plan=changes))

    assert cli.main(["plan", file(PIPE), "--warehouse", lake]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert cli.main(["plan", file(PIPE), "--warehouse", lake, "--all-columns"]) == 0

    assert lines[2:] == [
        '~ _id = "0|c2"  [content]', '    city: "Oslo" -> "Bergen"',
        "= id = 3  [members]", "    _deleted: NULL -> true",
    ]  # fmt: skip
    assert capsys.readouterr().out.splitlines()[2:5] == [
        '~ _id = "0|c2", _deleted = false  [content]', "    _ts: 1 -> 2", '    city: "Oslo" -> "Bergen"',
    ]  # fmt: skip


def test_a_plan_without_rows_says_so(
    lake: str, file: Any, job_run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that has nothing to do prints its report."""
    assert cli.main(["plan", file(PIPE), "--warehouse", lake]) == 0

    assert json.loads(capsys.readouterr().out) == build_report().as_json()


@pytest.mark.parametrize(
    ("action", "result"),
    [
        ({"original": "done"}, "moved to done"),
        ({"original_action": "keep"}, "left where they are"),
        ({"original_action": "delete"}, "deleted"),
    ],
)
def test_a_plan_of_a_merge_record_names_what_happens_to_its_files(
    action: Any, result: str, lake: str, file: Any, job_run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files of merges and of failed bins leave the source folder, which the rows of a plan do not show."""
    folders = {name: name for name in ("source", "merged", "failure", "state_path")}
    changes: Any = {"kinds": {"inserted": 1}, "reasons": {}, "examples": [], "digest": "d", "saved": None}
    counts = {"files": 50, "failed_files": 1}
    job_run["answer"] = JobResult(report=build_report(counts=counts, plan=changes))

    assert cli.main(["plan", file({"job": "merge_record", **folders, **action}), "--warehouse", lake]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [f"50 files would be {result}", "1 file would be moved to failure"]


def test_a_saved_plan_is_applied(lake: str, file: Any, job_run: Any) -> None:
    """The job finds the newest plan of the target."""
    assert cli.main(["run", file(PIPE), "--warehouse", lake, "--apply-plan"]) == 0

    assert job_run["request"].apply_plan == PlanChoice()


def test_a_plan_reads_nothing(lake: str, file: Any, job_run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """`plan --no-rows` shows the steps without reading data, even if an earlier run has committed."""
    config = {"job": "joiner", "inputs": ["a", "b"], "joinKeys": "a.x=b.x", "target": "t"}

    assert cli.main(["plan", file(config), "--warehouse", lake, "--no-rows"]) == 0
    assert (job_run["request"].until, job_run["request"].full_refresh) == ("plan", True)
    assert job_run["request"].config == {"inputs": ["a", "b"], "joinKeys": "a.x=b.x", "target": "t"}
