"""Tests of the common report fields, and of truncating reports for Airflow."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from airflow_merge_provider.core.capabilities import CAPABILITIES, list_counts
from airflow_merge_provider.core.report import (
    REPORT_MAX_BYTES,
    Measure,
    RowCounts,
    build_report_schema,
    clear_run_counts,
    fill_counts,
    summarize_report,
    truncate_report,
)
from tests.fakes import REPORT, build_report

MEASURES = (Measure("read", "rows", "Rows."), Measure("held", "rows", "Rows.", "target"))
VALIDATOR = jsonschema.Draft202012Validator(build_report_schema(list_counts()))


def _grow_value(value: Any, draw: random.Random, letter: str) -> Any:
    """Return a value with longer texts, and with larger lists and mappings if their size is free."""
    if isinstance(value, str):
        return value + letter * draw.choice((0, 1, 50, 3000))
    if isinstance(value, list):
        return [_grow_value(item, draw, letter) for item in value * draw.choice((1, 40))]
    if isinstance(value, dict):
        return {name: _grow_value(item, draw, letter) for name, item in value.items()}
    return value


def _build_hostile(seed: int) -> dict[str, Any]:
    draw = random.Random(seed)  # noqa: S311 - a workload, not a secret
    letter = draw.choice(("x", '"', "\\", "é", "🦆", "\ud83e", "\x00"))
    free = {
        "target": REPORT["target"],
        "sources": {f"{letter * draw.choice((1, 900))}{n}": REPORT["sources"]["crm"] for n in range(60)},
        "details": {f"part{n}": ["some text"] * 3 for n in range(draw.choice((1, 30)))},
        "warnings": ["a warning"] * 5,
        "run_mode_reason": "because",
        "approved_by": "ada",
        "seconds": {**REPORT["seconds"], **{f"step {letter}{n}": 0.5 for n in range(draw.choice((0, 90)))}},
    }
    return {name: _grow_value(part, draw, letter) for name, part in free.items()}


@pytest.mark.parametrize("seed", range(25))
def test_a_report_is_short_whatever_is_long(seed: Any) -> None:
    """A truncated report has a bounded size, with names of any length and kind.

    It names what was removed.
    """
    long = build_report(**_build_hostile(seed))

    short = truncate_report(long)

    assert len(json.dumps(short.as_json()).encode()) <= REPORT_MAX_BYTES
    assert (short.rows, short.counts, short.target.version) == (long.rows, long.counts, 3)
    assert short.truncated or short == long
    VALIDATOR.validate(short.as_json())
    assert sum(short.seconds.values()) == pytest.approx(sum(long.seconds.values()))
    assert truncate_report(short) == short


def test_a_short_report_stays_as_it_is() -> None:
    """A report below the limit is not changed."""
    assert truncate_report(build_report()) == build_report()


def test_every_capability_has_counts_of_its_own() -> None:
    """Names of counts are unique in every capability, and all have units and descriptions."""
    for job, counts in list_counts():
        assert len({count.name for count in counts}) == len(counts), job
        assert all(count.unit and count.description.endswith(".") for count in counts), job
        assert not {count.name for count in counts} & set(RowCounts.model_fields), job
    assert {job for job, _ in list_counts()} == {*CAPABILITIES, "undo"}


def test_counts_are_all_there_and_none_is_made_up() -> None:
    """Counts that a run does not set are 0, and an unknown name raises an error."""
    assert fill_counts(MEASURES, {"held": 7}) == {"read": 0, "held": 7}
    assert clear_run_counts(MEASURES, {"read": 3, "held": 7}) == {"read": 0, "held": 7}
    assert clear_run_counts(MEASURES, {}) == {"read": 0, "held": None}
    with pytest.raises(ValueError, match="undeclared counts: helt"):
        fill_counts(MEASURES, {"helt": 7})


def test_rows_add_up() -> None:
    """Rows that a run reads and neither updates nor deletes are counted as unchanged."""
    assert RowCounts.for_change(rows_before=10, inserted=1, updated=2, deleted=3).unchanged == 5
    assert RowCounts.for_change(rows_before=None, inserted=1, updated=2, deleted=3).unchanged is None
    assert RowCounts.for_overwrite(rows_before=10, rows_after=4) == RowCounts(
        inserted=4, updated=0, deleted=10, unchanged=0
    )


def test_the_log_says_in_one_line_what_was_done() -> None:
    """The log line has mode, reason, rows, dataset and version.

    For a dry run it states that nothing was written.
    """
    summary = summarize_report(build_report())
    dry_run_summary = summarize_report(build_report(dry_run=True))

    assert summary == (
        "incremental run (changed since the previous run: crm): "
        "wrote 3 rows to golden: 2 inserted, 1 updated; version 3; read crm with 3 rows, erp with 2 rows"
    )
    assert dry_run_summary.startswith(
        "incremental dry run (changed since the previous run: crm): would write 3 rows to golden: 2 inserted"
    )


@pytest.mark.parametrize(
    ("runs", "restored", "line"),
    [
        (2, 0, "undid 2 runs of golden: the target is as in version 1; version 3"),
        (0, 1, "restored 1 run of golden: the target is as in version 1; version 3"),
        (0, 2, "restored several runs of golden: the target is as in version 1; version 3"),
    ],
)
def test_the_log_says_what_an_undo_does(runs: int, restored: int, line: str) -> None:
    """The undo of an undo restores runs."""
    changes = {"counts": {"runs": runs}, "details": {"restored": [{}] * restored}}
    report = build_report(run_mode="undo", run_mode_reason="the target is as in version 1", **changes)

    assert summarize_report(report) == line


def test_seconds_add_up_to_the_time_of_the_run() -> None:
    """The durations of the steps add up to the duration of the run.

    The rest is the launch of the process; clocks that differ cause no negative duration.
    """
    report = build_report(seconds={"read": 1.5, "other": 0.5})

    assert report.add_launch_seconds(5.0).seconds == {"launch": 3.0, "read": 1.5, "other": 0.5}
    assert report.add_launch_seconds(1.0).seconds["launch"] == 0
