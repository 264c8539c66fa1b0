"""Test that each sentence of the pages in tests/claims has a row there, with tests that exist."""

from __future__ import annotations

import ast
import csv
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLAIMS = ROOT / "tests/claims"
TABLES = sorted(CLAIMS.rglob("*.csv"))
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_SEPARATOR = re.compile(r"\|[\s|:-]+\|")
_ITEM = re.compile(r"^(?:[*-]|\d+\.) ")
# A sentence ends before a word that can begin one; "e.g." and "i.e." do not end one.
_SENTENCE_END = re.compile(r"(?<=[.?!])(?<!e\.g\.)(?<!i\.e\.)\s+(?=[\"`(\[A-Z])")
# Sentences without a test introduce others, or lead to another page.
_UNTESTED_MAX_SHARE = 0.15


def list_sentences(text: str) -> list[str]:
    """Return the sentences and table rows of a page, without headings, table headers and code blocks."""
    lines = _FENCE.sub("", text).splitlines()
    return [sentence for block in _list_blocks(lines) for sentence in _split_block(block)]


def _split_block(block: str) -> list[str]:
    return [block] if block.startswith("|") else _SENTENCE_END.split(block)


def _list_blocks(lines: list[str]) -> Iterator[str]:
    """Yield each paragraph, list item and table row in one line."""
    block: list[str] = []
    for number, line in enumerate([*lines, ""]):
        content = line.strip()
        is_row = content.startswith("|")
        if block and (not content or content.startswith("#") or is_row or _ITEM.match(content)):
            yield " ".join(block)
            block = []
        following = lines[number + 1].strip() if number + 1 < len(lines) else ""
        if is_row:
            if not _SEPARATOR.fullmatch(content) and not _SEPARATOR.fullmatch(following):
                yield " ".join(content.split())
        elif content and not content.startswith("#"):
            block.append(" ".join(_ITEM.sub("", content, count=1).split()))


def find_page(table: Path) -> Path:
    """Return the page of a table: a page of the documentation, or one beside the README."""
    name = table.relative_to(CLAIMS).with_suffix(".md")
    return next(page for page in (ROOT / "docs" / name, ROOT / name) if page.is_file())


def read_claims(table: Path) -> list[tuple[str, str]]:
    """Return the sentences of a table with the tests that would fail if they were false."""
    with table.open(encoding="utf-8", newline="") as file:
        return [(row["sentence"], row["test"]) for row in csv.DictReader(file)]


@cache
def list_tests(path: str) -> frozenset[str]:
    """Return the names of the tests in a file; none if there is no such file."""
    file = ROOT / path
    if not file.is_file():
        return frozenset()
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


def test_sentences_are_those_of_paragraphs_items_and_rows() -> None:
    """Headings, table headers and code blocks are no sentences, and a line break ends none."""
    page = """# Title

One `a.b`, e.g. this
continues. `Code` begins one.
* An item
  of two *lines*. And more.
1. Last

```sh
No sentence.
```

| a | b |
|---|---|
| c. D | E |
"""
    items = ["One `a.b`, e.g. this continues.", "`Code` begins one.", "An item of two *lines*.", "And more."]

    assert list_sentences(page) == [*items, "Last", "| c. D | E |"]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.stem)
def test_each_sentence_of_a_page_has_a_row(table: Path) -> None:
    """A page and its table have the same sentences, in the same order."""
    page = find_page(table)
    name = page.relative_to(ROOT)
    sentences = list_sentences(page.read_text(encoding="utf-8"))
    rows = [sentence for sentence, _ in read_claims(table)]
    problems = [
        *(
            f"add to {table.relative_to(ROOT)}, with the test that fails if it is false: {sentence}"
            for sentence in sentences
            if sentence not in rows
        ),
        *(
            f"remove from {table.relative_to(ROOT)}, it is no longer in {name}: {sentence}"
            for sentence in rows
            if sentence not in sentences
        ),
    ]

    assert not problems, "\n".join(problems)
    assert rows == sentences


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.stem)
def test_the_tests_of_sentences_exist(table: Path) -> None:
    """Each row names existing tests; few sentences promise nothing that a test could check."""
    claims = read_claims(table)
    named = [(sentence, test) for sentence, tests in claims for test in tests.split()]
    problems = [
        f"{table.relative_to(ROOT)}: there is no test {test}, named for: {sentence}"
        for sentence, test in named
        if test.rpartition("::")[2] not in list_tests(test.partition("::")[0])
    ]
    untested = [sentence for sentence, tests in claims if not tests]

    assert not problems, "\n".join(problems)
    assert len(untested) <= _UNTESTED_MAX_SHARE * len(claims), "\n".join(untested)
