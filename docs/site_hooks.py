"""Hooks of the documentation site: links to files that the site does not have lead to the repository."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

_FENCE = re.compile(r"^(```.*?^```[ \t]*$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Return a page in which each link to a file outside of the site leads to the repository."""

    def rewrite_link(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), link[1]))
        if files.get_file_from_path(target) is not None:
            return link[0]
        # A link to a file that does not exist stays as it is, so that the strict build reports it.
        url = build_repository_url(Path(config.docs_dir), target, config.repo_url, config.extra["repo_ref"])
        return f"]({url}{link[2] or ''})" if url else link[0]

    parts = _FENCE.split(markdown)
    return "".join(part if part.startswith("```") else _LINK.sub(rewrite_link, part) for part in parts)


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
