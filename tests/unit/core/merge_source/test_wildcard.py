"""Tests of patterns with ``*`` and ``?``: what they match, and in bounded time."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, strategies as st

from airflow_merge_provider.core.merge_source.dtl.functions import matches_wildcard


@given(st.text("ab*?.\n", max_size=8), st.text("ab*?.\n", max_size=12))
def test_patterns_match_as_a_regular_expression_does(pattern: str, text: str) -> None:
    """A pattern matches the same texts as a regular expression with ``.*`` for ``*`` and ``.`` for ``?``."""
    replacements = {"*": ".*", "?": "."}
    expected = re.compile(
        "".join(replacements.get(character, re.escape(character)) for character in pattern), re.DOTALL
    )

    assert matches_wildcard(pattern, text) is (expected.fullmatch(text) is not None)


@pytest.mark.parametrize("pattern", ["*a*a*a*a*b", "*?a" * 20 + "b", "*" * 500 + "b", "a?" * 200 + "*b"])
def test_no_text_takes_long(pattern: str) -> None:
    """A text of a hundred thousand characters that nearly matches takes little time."""
    began = time.process_time()

    assert matches_wildcard(pattern, "a" * 100_000) is False
    assert time.process_time() - began < 2
