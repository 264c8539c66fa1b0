"""Tests of the sentence that says what a run did."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_merge_provider.core.capabilities import JOBS, list_counts
from airflow_merge_provider.core.report import Report, fill_counts
from airflow_merge_provider.core.run_sentence import summarize_run
from tests import fakes

ROWS = {"inserted": 20, "updated": 0, "deleted": 1, "unchanged": 5}
SOURCES = {name: {"uri": f"/lake/{name}", "version": 1, "rows": None} for name in ("crm", "erp", "shop")}


def build_report(job: str, counts: dict[str, int | None], **changes: Any) -> Report:
    fields = {
        "job": job,
        "run_mode": "initial",
        "run_mode_reason": "no run has written the target yet",
        "sources": SOURCES,
        "details": {},
        "rows": ROWS,
        "counts": {**fill_counts(JOBS[job].counts, {}), **counts},
        **changes,
    }
    return fakes.build_report(**fields)


def summarize(report: Report) -> str:
    return summarize_run(report, JOBS[report.job].describe_run)


AIRPORTS = {"entities": 33_132, "live_rows": 28_532, "merged_rows": 3_199, "outputs": 28_532}
UNREAD = dict.fromkeys(measure.name for measure in JOBS["joiner"].counts)
REJECTED = [
    {
        "name": "paid", "on": "source", "source": "crm", "kind": "condition", "action": "quarantine",
        "condition": "paid", "rows": 9, "failed": 7,
    }
]  # fmt: skip
PLAN = {"kinds": {}, "reasons": {}, "examples": [], "digest": "d"}


@pytest.mark.parametrize(
    ("report", "sentence"),
    [
        (
            build_report("merge_source", AIRPORTS),
            (
                "33,132 entities of 3 sources became 28,532 golden records in golden; "
                "3,199 have several sources; nothing was rejected"
            ),
        ),
        (
            build_report("merge_source", AIRPORTS, dry_run=True, plan=PLAN),
            (
                "33,132 entities of 3 sources would become 28,532 golden records in golden; "
                "3,199 have several sources; nothing would be rejected"
            ),
        ),
        (
            build_report(
                "merge_source",
                {**AIRPORTS, "entities_changed": 1, "deleted_entities": 32},
                run_mode="incremental",
            ),
            (
                "1 changed entity: 20 inserted, 1 deleted in golden; it has 28,532 golden records of "
                "33,100 entities; 3,199 have several sources; nothing was rejected"
            ),
        ),
        (
            build_report("merge_engine", {"records": 9, "keys": 4, "late": 1}),
            (
                "9 records of 4 keys were merged into golden: 20 inserted, 1 deleted; 1 record was late; "
                "nothing was rejected"
            ),
        ),
        (
            build_report("merge_load", {"loaded": 21, "tables": 1}, expectations=REJECTED),
            "21 rows were loaded into golden: 20 inserted, 1 deleted; 7 rows were rejected",
        ),
        (
            build_report("merge_load", {"loaded": 21, "tables": 1}, dry_run=True, expectations=REJECTED * 2),
            "21 rows would be loaded into golden: 20 inserted, 1 deleted; at least 7 rows would be rejected",
        ),
        (
            build_report("merge_load", {"loaded": 3, "opened": 1, "closed": 2, "tables": 1}),
            "3 rows were loaded into golden: 1 version opened, 2 closed; nothing was rejected",
        ),
        (
            build_report(
                "merge_record", {"files": 4, "merged": 1, "outputs": 9, "open_files": 1, "open_bins": 1}
            ),
            "4 files became 1 merged file with 9 records; 1 file waits in 1 open bin; no file failed",
        ),
        (
            build_report(
                "merge_record", {"files": 4, "merged": 1, "failed_files": 1}, dry_run=True, plan=PLAN
            ),
            "4 files would become 1 merged file with 0 records; 1 file would fail",
        ),
        (
            build_report("joiner", {"records_in": 30, "outputs": 10, "unmatched": 2}),
            "30 rows of 3 inputs became 10 joined rows in golden; 2 rows have no match; nothing was rejected",
        ),
        (
            build_report("undo", {"runs": 1}, run_mode="undo", run_mode_reason="the newest run"),
            "1 run of golden was undone: the newest run",
        ),
        (
            build_report(
                "undo",
                {"runs": 2},
                run_mode="undo",
                run_mode_reason="the target is as in version 1",
                dry_run=True,
                rows=dict.fromkeys(ROWS),
            ),
            "2 runs of golden would be undone: the target is as in version 1",
        ),
        (
            build_report("undo", {"runs": 0}, run_mode="undo", details={"restored": [{}, {}]}),
            "several runs of golden were restored: no run has written the target yet",
        ),
        (
            build_report("undo", {"runs": 1}, run_mode="undo", dry_run=True, details={"restored": [{}]}),
            (
                "1 run of golden would be undone; 1 run of golden would be restored: "
                "no run has written the target yet"
            ),
        ),
        (build_report("joiner", {}, run_mode="noop"), "Nothing to do: no run has written the target yet"),
        (
            build_report("joiner", UNREAD, dry_run=True, rows=dict.fromkeys(ROWS)),
            "The configuration suits the tables of golden; no rows were read",
        ),
    ],
)
def test_each_capability_says_what_it_did(report: Any, sentence: str) -> None:
    """Counts of a plan are not facts, and what is known is said in the terms of the operator."""
    assert summarize(report) == sentence


def test_a_check_is_valid() -> None:
    """A check that succeeds has found a valid history."""
    counts = dict.fromkeys((measure.name for measure in JOBS["merge_load"].check_counts), 0)
    report = fakes.build_report(job="merge_load", counts={**counts, "versions": 5, "keys": 2})

    assert summarize(report) == "golden is a valid history: 5 versions of 2 keys"


@pytest.mark.parametrize("number", [None, 0, 1, 2])
def test_every_report_has_a_sentence(number: int | None) -> None:
    """A count may be unknown, zero or one in each capability."""
    for job, measures in list_counts():
        counts = dict.fromkeys((measure.name for measure in measures), number)
        for run_mode, rows in (("full", dict.fromkeys(ROWS, number)), ("incremental", ROWS)):
            report = fakes.build_report(job=job, counts=counts, run_mode=run_mode, rows=rows)
            sentence = summarize(report)
            assert sentence
            assert "None" not in sentence
