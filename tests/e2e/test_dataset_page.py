"""Tests of the page of a dataset in a browser; they are skipped without Chromium."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar
from urllib.parse import parse_qsl

import pytest

from airflow_merge_provider.core.merge_source.explanation import explain_row
from airflow_merge_provider.explain.dispatch import explain_target
from airflow_merge_provider.explain.model.commits import CommitRef
from airflow_merge_provider.explain.model.joins import InputRows, JoinExplanation
from airflow_merge_provider.explain.query_process import answer_query
from airflow_merge_provider.plugins import web
from tests.e2e.test_pages import CHROMIUM, PLAN, Results, build_report, read_dom, read_page
from tests.unit.cli.conftest import write_run  # noqa: F401 - a fixture
from tests.unit.cli.lake import build_lake, write_rejected
from tests.unit.cli.test_timeline import write_history as write_versions
from tests.unit.explain.test_merge_source import build_member

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


class OneDataset(Results):
    """The page of a dataset, with the answers of its API to a table, and one failed task instance."""

    folder: ClassVar[Path]
    script: ClassVar[str] = ""

    def do_GET(self) -> None:  # noqa: N802 - the name of the base class
        path, _, query = self.path.partition("?")
        if path == "/merge/script.html":
            return self.send_content(
                f"<body><script type='module'>{self.script}</script></body>".encode(), "text/html"
            )
        if not path.startswith("/merge/api/datasets"):
            return super().do_GET()
        facts = {"asset_id": 7, "name": "warehouse.orders", "uri": "merge://warehouse/orders"}
        facts["tasks"] = [{"dag_id": "shop", "task_id": "orders"}]
        name = path.removeprefix("/merge/api/datasets").removeprefix("/7").strip("/")
        if path == "/merge/api/datasets":
            return self.send_json([facts])
        texts = dict(parse_qsl(query))
        arguments = {
            key: int(text) if text.isdigit() and key != "key" else text for key, text in texts.items()
        }
        arguments.pop("all_columns", None)
        request = {"target": "orders", "warehouse": str(self.folder), "settings": {"show_rows": "all"}}
        answer = answer_query({**request, "name": name or "about", "arguments": arguments})
        content = answer["answer"] if name else {**facts, **answer["answer"]}
        for source in [] if name else content["sources"]:
            source["asset_id"] = 8
        return self.send_json(content)

    def build_entry(self, number: int) -> dict[str, Any]:
        return {**super().build_entry(number), "dag_id": "shop", "task_id": "orders"}

    def do_POST(self) -> None:  # noqa: N802 - the name of the base class
        at = "2030-01-01T00:00:00Z"
        names = {"dag_id": "shop", "task_id": "orders", "map_index": -1, "operator_name": "UpsertOperator"}
        states = {"r9": "failed", "0": "awaiting_input"}
        instances = [
            {**names, "dag_run_id": run, "state": state, "end_date": at} for run, state in states.items()
        ]
        self.send_json({"task_instances": instances})

    def end_headers(self) -> None:
        # The page works under the policy with which Airflow serves it.
        if not self.path.startswith("/merge/script.html"):
            self.send_header("Content-Security-Policy", web._HEADERS["Content-Security-Policy"])
        super().end_headers()


# Opens each tab in a frame as narrow as a phone, and shows the text of each, and whether it fits.
TABS_SCRIPT = """
const tabs = ["runs", "changes", "find", "waiting", "about", "undo"];
const frames = tabs.map((tab) => {
  const frame = document.createElement("iframe");
  frame.width = 360;
  frame.src = `dataset.html?dag_id=shop&task_id=orders&key=7#${tab}`;
  document.body.append(frame);
  return frame;
});
const text = ({ contentDocument: page }) => page?.getElementById("panel")?.innerText ?? "";
const isBusy = (frame) => !text(frame) || /^(Loading|Comparing|Reading) /m.test(text(frame));
while (frames.some(isBusy)) await new Promise((resolve) => { setTimeout(resolve, 100); });
const pages = frames.map(({ contentDocument }) => contentDocument);
const widths = pages.map((page) => page.documentElement.scrollWidth);
const lines = frames.map((frame, index) => [tabs[index], text(frame), widths[index]]);
const drawn = [...pages[0].querySelectorAll("svg a")].map((mark) => mark.getAttribute("aria-label"));
const [first] = pages[0].querySelectorAll('[role="tab"]');
first.dispatchEvent(new frames[0].contentWindow.KeyboardEvent("keydown", { key: "End" }));
const chosen = pages[0].querySelector('[aria-selected="true"]').textContent;
const links = [...pages[4].querySelectorAll("a")].map((anchor) => anchor.getAttribute("href"));
pages[5].querySelector("#panel button").click();
while (isBusy(frames[5])) await new Promise((resolve) => { setTimeout(resolve, 100); });
const undone = text(frames[5]);
const answer = document.createElement("pre");
answer.append(JSON.stringify({ lines, drawn, chosen, links, undone }));
document.body.replaceChildren(answer);
"""
EXPLAIN_SCRIPT = """
import { explain } from "./dataset_find.js";
document.body.append(...ANSWERS.flatMap((answer) => [explain(answer)].flat(Infinity)).filter(Boolean));
"""


@contextmanager
def serve_dataset(folder: Path, script: str) -> Iterator[str]:
    """Serve the page of the dataset ``orders`` in a folder; yield the address of a page with a script."""
    with (
        pytest.MonkeyPatch.context() as patch,
        ThreadingHTTPServer(("127.0.0.1", 0), OneDataset) as server,
    ):
        patch.setattr(OneDataset, "folder", folder, raising=False)
        patch.setattr(OneDataset, "script", script)
        patch.setattr(OneDataset, "reports", [build_report(plan=PLAN)])
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/merge/script.html"
        server.shutdown()


def test_each_kind_of_explanation_has_its_form(tmp_path: Path, write_run: Any) -> None:  # noqa: F811 - a fixture
    """A golden record is a drawing with its links; a history, a join, a fold and a file are tables."""
    build_lake(tmp_path)
    write_versions(write_run)
    members = [
        build_member("crm", "c1", ("r", "left", "s:<b>")),
        build_member("shop", "s1", ("r", "right", "s:<b>")),
    ]
    source = InputRows("b", "/lake/b", 3, {"k": 1}, (), is_required=True)
    commit = CommitRef(4, datetime(2026, 11, 30, tzinfo=UTC), "WRITE")
    join = JoinExplanation({"k": 1}, commit, (), (source,), ("the required input 'b' has no row with k = 1",))
    record = {
        "number": 1,
        "source": "/lake/log",
        "version": 2,
        "row": 0,
        "kind": "+I",
        "did": "set the columns",
    }
    fold = {
        "key": {"id": 1}, "row": True, "records": [record],
        "columns": {"city": {"value": "Oslo", "why": "the newest record", "records": [1]}},
    }  # fmt: skip
    sources = [
        InputRows("crm/c1", "/lake/crm", 1, {}, ({"_id": "c1", "born": "1901"},)).as_object(),
        InputRows("shop/s1", "/lake/shop", 1, {}, missing="it is gone").as_object(),
    ]
    answers = [
        {**explain_row({"_id": "crm:c1", "_members": members}).as_object(), "inputs": sources},
        join.as_object(), fold,
        explain_target("t", "7", warehouse=str(tmp_path)).as_object(),
        explain_target("readings_state", "a.json", warehouse=str(tmp_path)).as_object(),
    ]  # fmt: skip

    with serve_dataset(tmp_path, EXPLAIN_SCRIPT.replace("ANSWERS", json.dumps(answers))) as address:
        dom = read_dom(address)

    text = html.unescape(re.sub(r"<[^>]+>", "\n", dom))
    expected = (
        "Golden record crm:c1", "crm/c1", "shop/s1", 'r: "<b>"',
        "Where the values come from, as the newest run has read them", "born", "1901", "shop/s1: it is gone",
        "No joined row", "b (required)", "no row",
        "Winner of each column", "the newest record", "set the columns", "Versions of the key",
        "What runs did with the file", "Bin is full",
    )  # fmt: skip
    assert not [part for part in expected if part not in text], text
    assert 'aria-label="2 members and 1 links"' in dom
    assert 'aria-label="2 versions on a time axis"' in dom


def test_the_page_of_a_dataset(tmp_path: Path) -> None:
    """Each tab answers from the table, and fits a phone; the tabs are moved by keys."""
    build_lake(tmp_path)
    write_rejected(tmp_path / "orders", [{"id": 1, "status": "<b>broken</b>"}])
    with serve_dataset(tmp_path, TABS_SCRIPT) as address:
        answer = json.loads(read_page(address))

    texts = {tab: text for tab, text, _ in answer["lines"]}
    expected = {
        "runs": (
            "0 rows were loaded into orders: 1 inserted, 1 updated",
            "shop · orders",
            "Failed",
            "Waits for approval",
            "would insert 20",
            "Live rows",
        ),
        "changes": ("1 inserted, 1 updated.", "status = new", "shipped", "Rows 1 to 2 of 2"),
        "find": ("Timeline, newest first", "status = new → shipped", "new_orders version 1"),
        "waiting": (
            "Approvals (1)",
            "would insert 20",
            "Rejected rows (1)",
            "<b>broken</b>",
            f"{tmp_path}/orders__rejected",
        ),
        "about": ("primary_key", "QueryBuilder", "spark.read", "import duckdb", "key"),
        "undo": ("run 2, version 1", f"airflow_merge_provider undo '{tmp_path}/orders' --dry-run"),
    }
    missing = [(tab, part) for tab, parts in expected.items() for part in parts if part not in texts[tab]]
    assert not missing, texts[missing[0][0]]
    assert len(answer["drawn"]) == 4, "two plots of two runs"
    assert answer["drawn"][0].startswith("version 0, ")
    assert answer["chosen"] == "Undo"
    assert "dataset.html?asset_id=8" in answer["links"]
    assert all(width <= 400 for _, _, width in answer["lines"]), answer["lines"]
    # The rows that an undo takes back, from the newest version to the one before the run.
    assert all(part in answer["undone"] for part in ("1 updated, 1 deleted.", "status = shipped", "new")), (
        answer["undone"]
    )


def test_the_pages_lead_to_the_page_of_a_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of datasets and the report of a run name the task, by which the dataset is found."""
    monkeypatch.setattr(Results, "reports", [build_report()])
    with ThreadingHTTPServer(("127.0.0.1", 0), Results) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/merge"
        doms = [
            read_dom(f"{address}/datasets.html"),
            read_dom(f"{address}/report.html?dag_id=rare&run_id=0&task_id=rare&map_index=-1"),
        ]
        server.shutdown()

    assert all('href="dataset.html?dag_id=rare&amp;task_id=rare"' in dom for dom in doms)
