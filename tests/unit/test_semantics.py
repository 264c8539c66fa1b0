"""Tests that citations of docs/semantics have existing headings, and its pages existing vectors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SEMANTICS = ROOT / "docs/semantics"
PAGES = sorted(SEMANTICS.glob("*.md"))
FOLDERS = ("airflow_merge_provider", "tests", "benchmarks", "dags", "docs")
# Headings of one page are separated by semicolons: "docs/semantics/joiner.md, Hints; Conditions."
_CITATION = re.compile(r"docs/semantics/(\w+)\.md, ([^.)]+)[.)]")
_SECTION_SIGN = "\N{SECTION SIGN}"


def list_citations(text: str) -> Iterator[tuple[str, str]]:
    """Yield page and heading of each citation, also across lines of text or of a comment."""
    for page, headings in _CITATION.findall(re.sub(r"\s+(# )?", " ", text)):
        for heading in headings.split(";"):
            yield page, heading.strip()


def list_headings(page: Path) -> list[str]:
    return re.findall(r"^##+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)


def list_vector_ids(value: Any) -> Iterator[str]:
    """Yield every vector ID in a file."""
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, dict | list):
            yield from list_vector_ids(item)
    if isinstance(value, dict) and isinstance(value.get("id"), str):
        yield value["id"]


def list_named_vectors(page: Path) -> set[str]:
    """Return the IDs after "Vector" or "Vectors"."""
    text = " ".join(page.read_text(encoding="utf-8").split())
    named = re.findall(r"\bVectors? (`[^`]+`(?: and `[^`]+`)*)", text)
    return {vector for ids in named for vector in re.findall(r"`([^`]+)`", ids)}


def test_citations_span_lines() -> None:
    """A citation may continue on the next line and have several headings of one page."""
    text = "# Source: docs/semantics/joiner.md, Join\n# keys; Types. More."

    assert list(list_citations(text)) == [("joiner", "Join keys"), ("joiner", "Types")]


def test_citations_name_headings() -> None:
    """Every page and heading that code cites exists."""
    headings = {page.stem: list_headings(page) for page in PAGES}
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if path != Path(__file__)]
    citations = [
        (str(path.relative_to(ROOT)), page, heading)
        for path in files
        for page, heading in list_citations(path.read_text(encoding="utf-8"))
    ]

    assert {page for _, page, _ in citations} == set(headings)
    assert [citation for citation in citations if citation[2] not in headings.get(citation[1], [])] == []


def test_code_cites_documents_of_the_repository_only() -> None:
    """Code cites only documents that are in the repository."""
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]

    assert [str(path) for path in files if _SECTION_SIGN in path.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_headings_can_be_cited(page: Path) -> None:
    """Headings are unique and contain no character that ends a citation or separates headings."""
    headings = list_headings(page)

    assert len(set(headings)) == len(headings)
    assert [heading for heading in headings if re.search(r"[.;)]", heading)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_vectors_of_pages_exist(page: Path) -> None:
    """Each page has examples, and each example has the ID of an existing vector."""
    content = json.loads((ROOT / f"tests/conformance/vectors/{page.stem}.json").read_text(encoding="utf-8"))
    named = list_named_vectors(page)

    assert len(named) > 1
    assert named - set(list_vector_ids(content)) == set()
