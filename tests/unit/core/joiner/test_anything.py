"""Tests that any configuration is either accepted or raises a ConfigError that names properties."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings, strategies as st

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.joiner.config import JoinerConfig
from airflow_merge_provider.core.joiner.plan import preview_join

PIECES = ("a", "b", "a.x", "b.x", "a.x=b.x", "a.x,b.x", "a.x as b", "a=b", ".", "=", " as ", "true", "2", "")
WORDS = st.sampled_from(PIECES)
LEAVES = (
    st.none() | st.booleans() | st.integers(-2, 5) | st.floats(allow_nan=False) | WORDS | st.text(max_size=4)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
FIELDS = [*JoinerConfig.model_fields, "joinKeys", "schema", "nobody"]
RIGHT = {"inputs": {"a": "A", "b": "B"}, "join_keys": "a.x = b.x", "join_type": "innerjoin"}
SCHEMAS = {"a": {"x": "int", "y": "string?"}, "b": {"x": "int", "y": "string?"}}


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4))
def test_nothing_that_is_written_breaks_the_check(changed: dict[str, Any]) -> None:
    """Every value of every property is either parsed or rejected with a ConfigError."""
    raw = {**RIGHT, **changed}

    for refusal in (
        _find_refusal(lambda: JoinerConfig.parse(raw).list_warnings()),
        _find_refusal(lambda: preview_join(raw, SCHEMAS)),
    ):
        assert refusal is None or (refusal and all(refusal))


def _find_refusal(check: Callable[[], object]) -> list[str] | None:
    """Return the error of a configuration check, or None if the configuration is valid."""
    try:
        check()
    except ConfigError as error:
        return [problem.message for problem in error.problems]
    return None
