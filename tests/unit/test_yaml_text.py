"""Tests of the accepted subset of YAML, and of rejected and harmful input."""

from __future__ import annotations

import itertools
import time

import pytest

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.yaml_text import parse_yaml

# Nine aliases, each of nine aliases, and so on, which expand exponentially.
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in itertools.pairwise("abcdefghi")
)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("a: 2024-01-01", {"a": "2024-01-01"}),
        ("a: 2024-01-01 10:00:00.5Z", {"a": "2024-01-01T10:00:00.500000+00:00"}),
        ("a: &x [1]\nb: *x", {"a": [1], "b": [1]}),
        ("base: &x {a: 1, b: 2}\nc: {<<: *x, b: 3}", {"base": {"a": 1, "b": 2}, "c": {"a": 1, "b": 3}}),
        ("[a, 1, 1.5, true, null]", ["a", 1, 1.5, True, None]),
        ("", None),
    ],
)
def test_yaml_means_what_json_can_say(text: str, meaning: object) -> None:
    """YAML is read as what JSON can express: dates are texts, and aliases and merge keys are expanded."""
    assert parse_yaml(text) == meaning


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2", "the key 'a' occurs twice in one object"),
        ("true: 1", "the key True is not a string: put it in quotes"),
        ("a: 2024-13-01", "'2024-13-01' is not a valid date"),
        ("a: !!binary aGk=", "line 1: a value of type 'binary' is not supported"),
        ("a: !!set {x}", "type 'set'"),
        ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("a: [", "while parsing"),
        ("[" * 50_000, "nested more than 100 levels deep"),
        ("- " * 50_000 + "x", "nested more than 100 levels deep"),
        (BOMB, "more than 100000 values|more than 100 aliases"),
        ("&a [*a]", "nested more than 100 levels deep"),
        ("&a {x: *a}", "recursive"),
        ("a: &x 1\nb: [" + "*x, " * 200 + "]", "more than 100 aliases"),
        ('a: "\\ud800"', "unpaired surrogate|invalid Unicode"),
        ("? [1, 2]\n: x", "is not a string"),
    ],
)
def test_what_a_program_cannot_take_is_refused_at_once(text: str, message: str) -> None:
    """Unsupported input is rejected quickly.

    No part of a text is dropped silently or executed, or takes long to read.
    """
    began = time.process_time()

    with pytest.raises((ValueError, ConfigError), match=message):
        parse_yaml(text)
    assert time.process_time() - began < 2
