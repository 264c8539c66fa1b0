"""Tests of the hooks that complete pages for the documentation site."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import site_hooks

from tests.unit.test_docs import ROOT

URL = "https://example.org/project"


class SiteFiles:
    """The files of a site, as the hooks see them."""

    def __init__(self, *paths: str) -> None:
        self._paths = paths

    def get_file_from_path(self, path: str) -> str | None:
        """Return a file of the site; None if the site does not have it."""
        return path if path in self._paths else None


def convert_page(markdown: str, path: str = "guides/page.md", extra: Mapping[str, Any] | None = None) -> str:
    config = SimpleNamespace(docs_dir=str(ROOT / "docs"), repo_url=URL, extra=extra or {"repo_ref": "main"})
    page = SimpleNamespace(file=SimpleNamespace(src_uri=path), meta={})
    return site_hooks.on_page_markdown(
        markdown, page=page, config=config, files=SiteFiles("undo.md", "guides/page.md")
    )


SEARCH = """
const fs = require("fs"), vm = require("vm"), listeners = [], answers = [];
const scope = {
  console,
  addEventListener: (_, listen) => listeners.push(listen),
  postMessage: (value) => answers.push(value),
};
scope.self = scope;
vm.runInNewContext(fs.readFileSync(process.argv[1], "utf8"), scope);
const index = JSON.parse(fs.readFileSync(process.argv[2], "utf8"));
async function send(type, data) {
  const event = {data: {type, data}};
  for (const listen of listeners) await listen(event);
  while (!answers.length) await new Promise(setImmediate);
  return answers.shift().data;
}
(async () => {
  await send(0, {...index, options: {suggest: true}});
  const pages = [];
  for (const query of process.argv.slice(3)) pages.push((await send(2, query)).items[0][0].location);
  console.log(JSON.stringify(pages));
})();
"""
# The first page or section of a query.
FIRST_RESULTS = {
    "undo a run": "undo/",
    "how to undo a run": "undo/",
    "csv header": "start/first_run/",
    "quarantine": "operators/merge_source/#quarantine",
    "approve plan": "operators/approve_plan/",
    "command line": "command_line/",
    "change limit": "change_limits/",
    "install": "start/install/",
    "stable id": "operators/merge_source/#stable-ids",
    "scd2": "operators/scd2/",
}


@pytest.mark.skipif(shutil.which("node") is None, reason="the search of the site runs in Node.js")
def test_the_search_of_the_site_answers_with_the_right_page(tmp_path: Path) -> None:
    """The search of the built site ranks titles and headings first, and leaves stop words out."""
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (worker,) = tmp_path.glob("assets/javascripts/workers/search.*.min.js")
    command = ["node", "-e", SEARCH, str(worker), str(tmp_path / "search/search_index.json"), *FIRST_RESULTS]

    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert dict(zip(FIRST_RESULTS, json.loads(output), strict=True)) == FIRST_RESULTS


def test_links_that_leave_the_site_lead_to_the_repository() -> None:
    """Files and folders outside of the site get their address in the repository, with the anchor."""
    assert convert_page("[a](../../dags/example_pipes.py)") == f"[a]({URL}/blob/main/dags/example_pipes.py)"
    assert convert_page("[a](../../dags)", extra={"repo_ref": "v1"}) == f"[a]({URL}/tree/v1/dags)"
    assert convert_page("[a](../decisions)") == f"[a]({URL}/tree/main/docs/decisions)"
    assert convert_page("[a](../CONTRIBUTING.md#habits)", path="README.md") == (
        f"[a]({URL}/blob/main/CONTRIBUTING.md#habits)"
    )


def test_other_links_stay() -> None:
    """Links to pages, anchors and addresses stay, and those to missing files: the build reports them."""
    text = f"[a](../undo.md#files) [b](#part) [c]({URL}) [d](../no_such_page.md) [e](../../../../etc/passwd)"

    assert convert_page(text) == text


def test_words_in_angle_brackets_are_text_except_in_code() -> None:
    """A placeholder is not a tag."""
    text = (
        "<dataset> `<dataset>` <br> <https://example.org>\n```text\n<dataset>\n```\n<!-- generated: <a> -->"
    )

    assert convert_page(text) == text.replace("<dataset>", "&lt;dataset&gt;", 1)


def test_cells_have_the_titles_of_their_columns() -> None:
    """Phones show a row as a list and need the title of each value."""
    head = "<thead><tr><th>option</th><th><code>b</code></th></tr></thead>"
    cells = "<td>1</td><td>2</td>"

    content = site_hooks.on_page_content(f"<p><td></p><table>{head}<tr>{cells}</tr><tr>{cells}</tr></table>")

    assert re.findall(r'<td data-title="(\w*)">(\d)', content) == [
        ("option", "1"), ("b", "2"), ("option", "1"), ("b", "2"),
    ]  # fmt: skip
    assert content.startswith("<p><td></p>")
