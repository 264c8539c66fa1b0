"""Test what the pages of the Airflow UI say of runs and datasets, with a real Airflow and a browser.

The runs need no Spark: a file says how each of them ends. Without Chromium, the tests are skipped.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from demo.local_airflow import LocalAirflow

from airflow_merge_provider.core.capabilities import JOBS
from airflow_merge_provider.core.errors import DataError, MergeError, Problem, RiskError
from airflow_merge_provider.core.protocol import JobResult
from airflow_merge_provider.core.report import fill_counts
from airflow_merge_provider.jobs.run.entry import build_failure
from tests.e2e.conftest import MakeHome

DAGS = Path(__file__).parent / "pages_dags"
DAG_IDS = ("load", "undo", "check", "golden")
TASKS = {"load": "load", "undo": "undo", "check": "check", "golden": "merge"}
PATIENCE = 120.0
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")

SOURCES = {name: {"uri": f"/lake/{name}", "version": 7, "rows": 9} for name in ("faa", "iata", "world")}
PLAN: dict[str, Any] = {
    "kinds": {"inserted": 20},
    "reasons": {"inserted": 20},
    "examples": [
        {"kind": "inserted", "reason": "inserted", "detail": "", "before": None, "after": {"id": "<b>77</b>"}}
    ],
    "digest": "0123456789abcdef",
    "other_changes": [],
    "saved": None,
}
AIRPORTS = {"entities": 33_132, "live_rows": 28_532, "merged_rows": 3_199, "outputs": 28_532}
RULES = [
    {"rule": "world.lid = us.iata", "pairs": 2959, "sole_evidence": 1150},
    {"rule": "f.code = i.code", "pairs": 12, "sole_evidence": 1},
]


def build_report(job: str = "merge_load", **changes: Any) -> dict[str, Any]:
    counts = {"loaded": 20, "tables": 1} if job == "merge_load" else {}
    return {
        "job": job,
        "run_mode": "incremental",
        "run_mode_reason": "changed since the previous run: new",
        "changed": True,
        "dry_run": False,
        "target": {"dataset": "orders", "uri": "/lake/orders", "version_before": 1, "version": 2},
        "sources": {"new": {"uri": "/lake/new", "version": 7, "rows": 20}},
        "rows": {"inserted": 20, "updated": 1, "deleted": 0, "unchanged": 40},
        "counts": fill_counts(JOBS[job].counts, counts),
        "details": {},
        "seconds": {"import": 1.5, "session": 4.0, "commit": 0.75},
        "warnings": [],
        "populated": True,
        "became_populated": False,
        "approved_by": None,
        "plan": None,
        "expectations": [],
        "truncated": [],
        **changes,
    }


class Pages:
    """An Airflow, the runs of its DAGs, and the texts of the pages about them."""

    def __init__(self, airflow: LocalAirflow, warehouse: Path) -> None:
        self.airflow, self._answer = airflow, warehouse / "answer.json"

    def run_dag(self, dag_id: str, answer: dict[str, Any] | MergeError | None, **conf: Any) -> str:
        """Run a DAG whose task ends with a report, with an error, or killed; return the ID of the run."""
        if answer is None:
            self._answer.unlink(missing_ok=True)
        else:
            result = build_failure(answer) if isinstance(answer, MergeError) else JobResult(report=answer)
            self._answer.write_text(result.model_dump_json(), encoding="utf-8")
        run = self.airflow.trigger_run(dag_id, conf)
        path = f"/dags/{dag_id}/dagRuns/{run}/taskInstances/{TASKS[dag_id]}"
        end = time.monotonic() + PATIENCE
        while self.airflow.get_json(path)["state"] not in ("success", "failed", "awaiting_input"):
            assert time.monotonic() < end, f"the run of {dag_id} does not end"
            time.sleep(0.5)
        return run

    def read_page(self, address: str) -> str:
        """Return the visible text of a page, with a line for each element of a table or of a paragraph."""
        command = [
            str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
            "--virtual-time-budget=20000",
            f"{self.airflow.url}/merge/{address}",
        ]  # fmt: skip
        dom = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout
        body = re.sub(r"<script.*?</script>|<head>.*?</head>", "", dom, flags=re.DOTALL)
        body = re.sub(r"</?(tr|p|h1|h2|section|summary|div|td|th|br)\b[^>]*>", "\n", body)
        text = html.unescape(re.sub(r"<[^>]+>", "", body))
        return "\n".join(line for line in text.split("\n") if line.strip())

    def read_report(self, dag_id: str, run: str) -> str:
        """Return the text of the report of a run."""
        task = f"dag_id={dag_id}&run_id={run.replace('+', '%2B')}&task_id={TASKS[dag_id]}&map_index=-1"
        return self.read_page(f"report.html?{task}")

    def find_status(self, dataset: str = "orders") -> str:
        """Return the line below the name and the location of a dataset: its status."""
        lines = self.read_page("datasets.html").split("\n")
        start = lines.index(dataset)
        return lines[start + 2]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, airflow_home: MakeHome) -> Iterator[Pages]:
    """Return one Airflow for all tests of this module; its start takes most of their time."""
    home = tmp_path_factory.mktemp("pages")
    warehouse = home / "warehouse"
    warehouse.mkdir()
    with LocalAirflow(airflow_home(home), warehouse, dags=DAGS) as airflow:
        airflow.wait_until_ready(DAG_IDS)
        yield Pages(airflow, warehouse)


def test_the_status_of_a_dataset_is_that_of_its_newest_run(pages: Pages) -> None:
    """Neither a check nor a dry run replaces the last load, and a failure is never green."""
    pages.run_dag("load", build_report())
    assert pages.find_status() == "Fresh"
    assert "20 inserted, 1 updated" in pages.read_page("datasets.html")

    checked = {measure.name: 0 for measure in JOBS["merge_load"].check_counts} | {"versions": 61, "keys": 60}
    still = {"changed": False, "rows": {"inserted": 0, "updated": 0, "deleted": 0, "unchanged": 61}}
    run = pages.run_dag("check", build_report(**still, counts=checked, run_mode="full"))
    assert pages.read_report("check", run).startswith("orders\nValid")
    run = pages.run_dag("load", build_report(dry_run=True, changed=False, plan=PLAN), dry_run=True)
    dry_run = pages.read_report("load", run)
    assert "20 rows would be loaded into orders" in dry_run
    assert "1 of 20 rows that would change." in dry_run
    page = pages.read_page("datasets.html")
    assert "Fresh" in page
    assert "20 inserted, 1 updated" in page

    rejected = [{**EXPECTATION, "action": "quarantine", "failed": 5}]
    pages.run_dag("load", build_report(expectations=rejected))
    assert pages.find_status() == "Changed with warnings"

    pages.run_dag("undo", build_report("undo", run_mode="undo", counts={"runs": 1}))
    assert pages.find_status() == "Undone"

    pages.run_dag("load", None)
    assert pages.find_status() == "Failed"

    problem = Problem("max_change_ratio", "approval", "20 rows of 40", "look at them")
    run = pages.run_dag("load", RiskError.from_problem(problem, build_report(plan=PLAN)), on_risk="ask")
    assert pages.find_status() == "Waiting for approval"
    assert "would insert 20" in pages.read_page("datasets.html")
    assert "Approve or reject the changes" in pages.read_report("load", run)


EXPECTATION: dict[str, Any] = {
    "name": "paid",
    "on": "source",
    "source": "new",
    "kind": "condition",
    "action": "fail",
    "condition": "amount > 0",
    "columns": [],
    "rows": 20,
    "failed": 2,
    "newest": None,
    "examples": [{"id": 4711}],
}


def test_a_failed_run_has_its_report(pages: Pages) -> None:
    """The page has the error, its remedy, what became of the target, and the rows that stopped it."""
    hint = "inspect the changes with dry_run=True"
    problem = Problem("max_change_ratio", "risk", "the run would write 20 rows to a target of 40 rows", hint)
    run = pages.run_dag("load", RiskError.from_problem(problem, build_report(plan=PLAN)))
    stopped = pages.read_report("load", run)
    texts = ("Changes that were stopped", "id = <b>77</b>", "Error code risk", "Task log")
    for text in ("Failed", problem.message, hint, "orders is untouched at version 2.", *texts):
        assert text in stopped, stopped

    error = DataError("expect.paid: 2 rows do not meet it", [], {"expectations": [EXPECTATION]})
    run = pages.run_dag("load", error)
    stopped = pages.read_report("load", run)
    for text in ("expect.paid: 2 rows do not meet it", "Expectations that stopped the run", "4711"):
        assert text in stopped, stopped


def test_a_run_that_was_killed_says_what_its_neighbours_know(pages: Pages) -> None:
    """Of a run without any result, the runs before and after it know whether the target has changed."""
    pages.run_dag("load", build_report())
    run = pages.run_dag("load", None)
    target = {"dataset": "orders", "uri": "/lake/orders", "version_before": 2, "version": 3}

    before = pages.read_report("load", run)
    pages.run_dag("load", build_report(target=target))
    after = pages.read_report("load", run)

    assert "The task ended without a report" in before
    assert "untouched" not in before
    assert "orders is untouched: the run before left version 2, and the next run found it." in after


def test_a_report_begins_with_a_sentence(pages: Pages) -> None:
    """The sentence comes first, then rules; seconds and counts are folded."""
    run = pages.run_dag(
        "golden",
        build_report(
            "merge_source",
            run_mode="initial",
            target={"dataset": "airports", "uri": "/lake/airports", "version_before": None, "version": 0},
            sources=SOURCES,
            counts=fill_counts(JOBS["merge_source"].counts, AIRPORTS),
            details={"rules": RULES, "cluster_sizes": {"1": 25_333, "2": 3_199}},
        ),
    )
    text = pages.read_report("golden", run)

    sentence = (
        "33,132 entities of 3 sources became 28,532 golden records in airports; 3,199 have several sources"
    )
    positions = [
        text.index(part) for part in (sentence, "world.lid = us.iata", "Sources (3)", "Time and internals")
    ]
    assert positions == sorted(positions)
    assert json.dumps(RULES) not in text
