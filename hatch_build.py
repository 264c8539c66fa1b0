"""Build the metadata that depends on the address of the repository: project URLs and the long description.

The address is a setting of the build, like that of the documentation site (mkdocs.yml): REPO_URL, and
REPO_REF for a tag or branch other than that of the version. A build without REPO_URL has no URLs, and leaves
the links of the README as they are; make release-check refuses it. An sdist contains the result, so that
every wheel that is built from it has the same metadata.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# The label and the target of a link or picture whose target is neither an address nor an anchor.
_RELATIVE_LINK = re.compile(r"(!?\[[^\]]*\])\((?![a-z]+:|#)([^)\s]+)\)")
_LABELS = {
    "Repository": "",
    "Documentation": "/tree/{ref}/docs",
    "Changelog": "/blob/{ref}/CHANGELOG.md",
    "Issues": "/issues",
    "Security": "/security",
}


class ProjectMetadataHook(MetadataHookInterface):
    """Add the project URLs and the long description to the metadata of a distribution."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Set ``readme`` and ``urls``; the tag of the version is the default of REPO_REF."""
        url = os.environ.get("REPO_URL", "").rstrip("/")
        ref = os.environ.get("REPO_REF") or f"v{metadata['version']}"
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": make_links_absolute(text, Path(self.root), url, ref) if url else text,
        }
        metadata["urls"] = build_project_urls(url, ref) if url else {}


def build_project_urls(url: str, ref: str) -> dict[str, str]:
    """Return the project URLs by their label.

    :param url: the address of the repository, without a slash at its end.
    :param ref: the tag or branch that pages and files are taken from.
    """
    return {label: url + path.format(ref=ref) for label, path in _LABELS.items()}


def make_links_absolute(text: str, root: Path, url: str, ref: str) -> str:
    """Return a Markdown text whose relative links and pictures have their addresses in the repository.

    :param text: the text of a page in the root folder of the repository.
    :param root: the root folder, in which folders are told from files.
    :param url: the address of the repository, without a slash at its end.
    :param ref: the tag or branch that pages and files are taken from.
    """

    def replace_link(link: re.Match[str]) -> str:
        label, target = link.groups()
        kind = "raw" if label.startswith("!") else "tree" if (root / target).is_dir() else "blob"
        return f"{label}({url}/{kind}/{ref}/{target})"

    return _RELATIVE_LINK.sub(replace_link, text)
