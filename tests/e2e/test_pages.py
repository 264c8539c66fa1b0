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
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar
from urllib.parse import parse_qsl

import pytest
from demo.local_airflow import LocalAirflow

from airflow_merge_provider.core.capabilities import JOBS
from airflow_merge_provider.core.errors import MergeError, Problem
from airflow_merge_provider.core.expectations.result import ExpectationError, FailedExpectations
from airflow_merge_provider.core.protocol import JobResult
from airflow_merge_provider.core.report import Report, fill_counts
from airflow_merge_provider.core.risk import RiskError
from airflow_merge_provider.jobs.run.entry import build_failure
from airflow_merge_provider.plugins import web
from tests.e2e.conftest import MakeHome
from tests.unit.cli.lake import build_lake

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
        self.airflow, self.warehouse = airflow, warehouse
        self._answer = warehouse / "answer.json"

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
        """Return the visible text of a page."""
        return read_page(f"{self.airflow.url}/merge/{address}")

    def read_report(self, dag_id: str, run: str) -> str:
        """Return the text of the report of a run."""
        task = f"dag_id={dag_id}&run_id={run.replace('+', '%2B')}&task_id={TASKS[dag_id]}&map_index=-1"
        return self.read_page(f"report.html?{task}")

    def find_status(self) -> str:
        """Return the status of the dataset of the loads."""
        return find_status(self.read_page("datasets.html"), "orders")


def read_page(address: str) -> str:
    """Return the visible text of a page, with a line for each cell of a table and each paragraph."""
    body = re.sub(r"<script.*?</script>|<head>.*?</head>", "", read_dom(address), flags=re.DOTALL)
    body = re.sub(r"</?(tr|p|h1|h2|section|summary|div|td|th|br)\b[^>]*>", "\n", body)
    text = html.unescape(re.sub(r"<[^>]+>", "", body))
    return "\n".join(line for line in text.split("\n") if line.strip())


def read_dom(address: str) -> str:
    """Return the elements of a page after its scripts have run."""
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
        "--virtual-time-budget=20000",
        address,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout


def find_status(page: str, dataset: str) -> str:
    """Return the status of a dataset: the line below its name and its location."""
    lines = page.split("\n")
    return lines[lines.index(dataset) + 2]


class Results(BaseHTTPRequestHandler):
    """The pages with a replacement of Airflow's API, which has results and no task instances."""

    reports: ClassVar[list[dict[str, Any]]] = []

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if path.startswith("/merge/"):
            file = Path(web.__file__).with_name("static") / path.removeprefix("/merge/")
            kind = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}[file.suffix]
            return self.send_content(file.read_bytes(), kind)
        params = dict(parse_qsl(query))
        if not path.endswith("/xcomEntries"):
            named = re.search(r"/dagRuns/(\d+)/.*/xcomEntries/merge_(report|plan)$", path)
            if named is None:
                return self.send_json({"task_instances": []})
            report = self.reports[int(named[1])]
            return self.send_json({"value": report if named[2] == "report" else report["plan"]})
        numbers = range(len(self.reports) if params["xcom_key"] == "merge_report" else 0)
        page = numbers[int(params["offset"]) :][: int(params["limit"])]
        return self.send_json({"xcom_entries": [self.build_entry(number) for number in page]})

    def do_POST(self) -> None:
        self.send_json({"task_instances": []})

    def build_entry(self, number: int) -> dict[str, Any]:
        at = datetime(2026, 11, 30, tzinfo=UTC) - timedelta(minutes=number)
        # All results are of two tasks: one that has run often, and one whose only run was before.
        task = "rare" if number == len(self.reports) - 1 else "often"
        names = {"dag_id": task, "task_id": task, "dag_display_name": task, "task_display_name": task}
        return {**names, "run_id": str(number), "map_index": -1, "timestamp": at.isoformat()}

    def send_json(self, value: Any) -> None:
        self.send_content(json.dumps(value).encode(), "application/json")

    def send_content(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


class OneRun(Results):
    """The pages with one failed task instance and its XComs, and with a page that runs a script."""

    xcoms: ClassVar[dict[str, Any]] = {}
    script: ClassVar[str] = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        key = path.rpartition("/")[2]
        if key == "script.html":
            content = f"<body><p></p><script type='module'>{self.script}</script></body>"
            return self.send_content(content.encode(), "text/html")
        if "/xcomEntries/" in path:
            return self.send_json({"value": self.xcoms.get(key)})
        if path.endswith("/taskInstances/t"):
            return self.send_json({"state": "failed", "operator_name": "UpsertOperator"})
        return super().do_GET()


@pytest.fixture
def read_one_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that returns the text of a page, given XComs of a failed run, or a script."""
    with ThreadingHTTPServer(("127.0.0.1", 0), OneRun) as server:
        Thread(target=server.serve_forever, daemon=True).start()

        def read(page: str = "report.html", script: str = "", **xcoms: Any) -> str:
            monkeypatch.setattr(OneRun, "xcoms", xcoms)
            monkeypatch.setattr(OneRun, "script", script)
            task = "dag_id=d&run_id=r&task_id=t&map_index=-1"
            return read_page(f"http://127.0.0.1:{server.server_port}/merge/{page}?{task}")

        yield read
        server.shutdown()


# Results of runs, newest first, and the status of their dataset.
STATUS_SCRIPT = """
import { datasetStatus } from "./status.js";
const load = { job: "merge_load", run_mode: "full", changed: true, rows: {}, counts: {}, populated: true };
const undo = { ...load, job: "undo", run_mode: "undo", counts: { runs: 1 }, populated: null };
const redo = { ...undo, counts: { runs: 0 }, details: { restored: [{}] } };
const idle = { ...undo, run_mode: "noop", changed: false };
const done = (task_id, report, map_index = -1) => ({ dag_id: "d", task_id, map_index, report });
const failed = (task_id) => ({ ...done(task_id), failure: { dry_run: false } });
const mapped = Array.from({ length: 30 }, (_, index) => done("a", load, index));
const cases = [
  [done("b", load), failed("a")],
  [...mapped, failed("a")],
  [done("b", load), done("a", { ...load, plan: {} })],
  [done("a", load), failed("a")],
  [...Array(12).fill(done("b", load)), failed("a")],
  [done("u", undo), failed("a")],
  [done("u", idle), done("u", undo), done("a", load)],
  [done("u", redo), done("u", undo), done("a", load)],
];
document.querySelector("p").append(cases.map((runs) => datasetStatus(runs).text).join(", "));
"""


def test_no_task_hides_the_failure_of_another(read_one_run: Any) -> None:
    """A task that fails is not fresh because another task has written the dataset since."""
    statuses = ["Failed", "Failed", "Waiting for approval", "Fresh", "Fresh", "Undone", "Undone", "Fresh"]

    assert read_one_run("script.html", STATUS_SCRIPT) == ", ".join(statuses)


def test_a_failed_task_has_the_report_of_its_run(read_one_run: Any) -> None:
    """A task may fail after its run, or be marked as failed: that its run has committed is not hidden."""
    page = read_one_run(merge_report=build_report())
    assert "This run has committed version 2 of orders." in page
    assert "ended without a report" not in page

    assert "The run changed no rows of orders." in read_one_run(merge_report=build_report(changed=False))
    assert "It is not known" in read_one_run(merge_report=build_report(plan=PLAN))


def test_the_page_of_a_failure_has_all_of_it(read_one_run: Any) -> None:
    """The message may say more than its problem; values have all digits; an address is never a script."""
    row = {"id": 9_007_199_254_740_993, "price": 1.001, "zero": -0.0}
    example = {**PLAN["examples"][0], "kind": "updated", "before": row, "after": {**row, "price": 1.002}}
    problem = {"path": "max_change_ratio", "code": "risk", "message": "20 rows of 40", "hint": "look at them"}
    message = "orders: 20 rows of 40. Nothing was written: start a new DAG run"
    failure = {
        "job": "merge_load", "dataset": "orders", "code": "risk", "message": message, "problems": [problem],
        "retryable": False, "dry_run": False, "version": 2, "outcome": "orders is untouched at version 2",
        "page": "javascript:document.body.append('script')", "expectations": [], "truncated": [],
    }  # fmt: skip
    page = read_one_run(merge_failure=failure, merge_plan={**PLAN, "examples": [example]})

    assert message in page
    assert "look at them" not in page
    for text in ("id = 9007199254740993", "zero = -0", "price = 1.001", "1.002", "Errors and remedies"):
        assert text in page
    failure["message"] = "max_change_ratio: 20 rows of 40 (look at them)"
    assert "What to do: look at them" in read_one_run(merge_failure=failure)
    script = """
    import { outerLink } from "./page.js";
    document.body.append(outerLink("javascript:x", "y").outerHTML);
    """
    assert read_one_run("script.html", script) == "<span>y</span>"


def test_the_pages_read_all_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset whose only run was before 250 others is listed; one that is not complete is not fresh."""
    rare = {"dataset": "rare", "uri": "/lake/rare", "version_before": None, "version": 0}
    reports = [*[build_report(dry_run=True, changed=False)] * 20, *[build_report()] * 239]
    monkeypatch.setattr(Results, "reports", [*reports, build_report(target=rare, populated=False)])
    with ThreadingHTTPServer(("127.0.0.1", 0), Results) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        page = read_page(f"http://127.0.0.1:{server.server_port}/merge/datasets.html")
        server.shutdown()

    assert "2 datasets, from 260 runs" in page
    assert find_status(page, "rare") == "Never populated"
    assert find_status(page, "orders") == "Fresh", "the last load is found behind the dry runs"


def test_the_list_is_searched_sorted_and_paged(read_one_run: Any) -> None:
    """Of 1,000 datasets a hundred are shown at once; a title sorts by its column, and once more reversed."""
    script = """
    import { list } from "./datasets.js";
    const run = { dag_id: "d", run_id: "r", task_id: "t", map_index: -1, timestamp: "2026-11-30" };
    const statuses = [{ kind: "good", text: "Fresh" }, { kind: "bad", text: "Failed" }];
    const entries = [...Array(1000).keys()].map((number) => ({
      dataset: `d${number}`, uri: `/lake/d${number}`, version: number % 7,
      runs: [{ ...run, report: null, keys: [] }],
      status: { ...statuses[Number(number % 500 === 3)], load: null, run },
    }));
    const start = performance.now();
    document.body.append(...list(entries));
    const seconds = (performance.now() - start) / 1000;
    const [search, status] = document.querySelectorAll("input, select");
    const names = () => [...document.querySelectorAll("tbody b")].map((name) => name.textContent);
    const lines = [names().length, names()[0]];
    const title = (name) => [...document.querySelectorAll("th")].find((one) => one.textContent === name);
    const click = (name) => { title(name).querySelector("button").click(); return names()[0]; };
    lines.push(click("Version"), title("Version").ariaSort, click("Version"));
    lines.push(click("Status"), click("Dataset"));
    document.querySelector("section ~ button").click();
    lines.push(names().length);
    search.value = "LAKE/D99";
    search.dispatchEvent(new Event("input"));
    lines.push(names().length, document.querySelector("p.quiet").textContent);
    status.value = "Failed";
    status.dispatchEvent(new Event("change"));
    lines.push(names().length, seconds < 1);
    document.body.replaceChildren(JSON.stringify(lines));
    """

    shown = json.loads(read_one_run("script.html", script))

    sorted_names = ["d6", "descending", "d0", "d3", "d0"]
    assert shown == [100, "d0", *sorted_names, 200, 11, "11 of 1,000 datasets", 0, True]


def test_a_switch_shows_internal_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of a plan have the columns of the business; a switch shows internal columns, too."""
    row = {"_hash": "h", "_deleted": True, "city": "Oslo"}
    example = {"kind": "inserted", "reason": "new", "detail": "", "before": None, "after": row}
    plan = {**PLAN, "examples": [example], "internal_columns": ["_hash", "_deleted"]}
    monkeypatch.setattr(Results, "reports", [build_report(plan=plan, dry_run=True)])
    with ThreadingHTTPServer(("127.0.0.1", 0), Results) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        task = "dag_id=often&run_id=0&task_id=often&map_index=-1"
        dom = read_dom(f"http://127.0.0.1:{server.server_port}/merge/report.html?{task}")
        server.shutdown()

    cells = re.findall(r'<div class="(gained[^"]*)"><span>(\w+) = ', dom)
    assert cells == [("gained", "_deleted"), ("gained", "city"), ("gained internal", "_hash")]
    assert '<input type="checkbox"> all columns</label>' in dom


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
    run = pages.run_dag(
        "load", RiskError.from_problem(problem, Report.model_validate(build_report(plan=PLAN))), on_risk="ask"
    )
    assert pages.find_status() == "Waiting for approval"
    assert "would insert 20" in pages.read_page("datasets.html")

    build_lake(pages.warehouse)
    dataset = pages.read_page("dataset.html?dag_id=load&task_id=load")
    texts = (
        "0 rows were loaded into orders: 1 inserted, 1 updated",
        "The task ended without a report.",
        "shop · orders",
    )
    assert not [text for text in texts if text not in dataset], dataset
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
    run = pages.run_dag(
        "load", RiskError.from_problem(problem, Report.model_validate(build_report(plan=PLAN)))
    )
    stopped = pages.read_report("load", run)
    texts = ("Changes that were stopped", "id = <b>77</b>", "Error code risk", "Task log")
    for text in ("Failed", problem.message, hint, "orders is untouched at version 2.", *texts):
        assert text in stopped, stopped

    failed = FailedExpectations.model_validate({"expectations": [EXPECTATION]})
    error = ExpectationError("expect.paid: 2 rows do not meet it", [], failed)
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
