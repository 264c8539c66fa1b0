"""Hooks of the documentation site: make pages that are written for GitHub, too, complete on the site.

Links to files that the site does not have lead to the repository, and words in angle brackets are text.
Cells of tables carry the title of their column, which phones show. The search ranks pages about other
systems below the others, and leaves stop words of a query out.
"""

from __future__ import annotations

import posixpath
import re
from itertools import cycle
from pathlib import Path
from typing import Any

# Code and comments stay as they are.
_VERBATIM = re.compile(r"(^```.*?^```[ \t]*$|<!--.*?-->|(`+)(?:(?!\2).)+?\2)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)(#[^)]*)?\)")
# Not a tag that a page uses, and not an address.
_ANGLE_BRACKETS = re.compile(r"<(?!br>)(\w+)>")
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_TITLE = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
_CELL, _TAG = re.compile(r"<td\b"), re.compile(r"<[^>]*>")


# Material removes these words from the index only, so that the query "undo a run" matches titles with "a…".
_STOP_WORDS = (
    "a an and are as at by can do does for from how i if in is it my of on or that the this to what when "
    "where which why with"
)
_SEARCH_WORKER = """addEventListener("message", ({data}) => {
  const stopWords = new Set("%s".split(" "));
  const words = data.type === 2 ? data.data.split(/\\s+/) : [];
  const others = words.filter((word) => !stopWords.has(word.toLowerCase()));
  if (others.length) data.data = others.join(" ");
});
"""
# Pages that name everything, compare with other systems, or only list arguments, rarely answer a query.
_SECONDARY_PAGES = (
    "benchmarks.md",
    "coming_from/",
    "errors.md",
    "guides/platforms/",
    "operators/undo.md",
    "report.md",
    "types.md",
)
_SECONDARY_BOOST = 0.3


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Return a page whose links all lead somewhere, and whose words in angle brackets are shown."""
    if page.file.src_uri.startswith(_SECONDARY_PAGES):
        page.meta.setdefault("search", {"boost": _SECONDARY_BOOST})

    def rewrite_link(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), link[1]))
        if files.get_file_from_path(target) is not None:
            return link[0]
        # A link to a file that does not exist stays as it is, so that the strict build reports it.
        url = build_repository_url(Path(config.docs_dir), target, config.repo_url, config.extra["repo_ref"])
        return f"]({url}{link[2] or ''})" if url else link[0]

    text, position = "", 0
    for verbatim in _VERBATIM.finditer(markdown):
        text += _escape_words(markdown[position : verbatim.start()]) + verbatim[0]
        position = verbatim.end()
    return _LINK.sub(rewrite_link, text + _escape_words(markdown[position:]))


def on_page_content(content: str, **_: Any) -> str:
    """Return the HTML of a page in which each cell of a table has the title of its column as an attribute."""
    return _TABLE.sub(_add_titles, content)


def on_post_build(*, config: Any) -> None:
    """Make the search of the site leave stop words of a query out."""
    (worker,) = Path(config.site_dir, "assets/javascripts/workers").glob("search.*.min.js")
    worker.write_text(_SEARCH_WORKER % _STOP_WORDS + worker.read_text(encoding="utf-8"), encoding="utf-8")


def _add_titles(table: re.Match[str]) -> str:
    titles = cycle([_TAG.sub("", title) for title in _TITLE.findall(table[0])])
    return _CELL.sub(lambda _: f'<td data-title="{next(titles)}"', table[0])


def _escape_words(text: str) -> str:
    return _ANGLE_BRACKETS.sub(r"&lt;\1&gt;", text)


def build_repository_url(docs: Path, target: str, repo_url: str, ref: str) -> str | None:
    """Return the address of a file or a folder in the repository; None if it does not exist.

    :param docs: the folder of the pages.
    :param target: the path of the file, relative to that folder.
    :param repo_url: the address of the repository.
    :param ref: the branch or tag of the repository.
    """
    path = (docs / target).resolve()
    root = docs.parent.resolve()
    if not path.exists() or not path.is_relative_to(root):
        return None
    kind = "tree" if path.is_dir() else "blob"
    return f"{repo_url.rstrip('/')}/{kind}/{ref}/{path.relative_to(root).as_posix()}"
