"""Tests of parsing configurations: strict, frozen, and with all errors at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import pytest
from pydantic import BeforeValidator, Field, ValidationError

from airflow_merge_provider.core.errors import ConfigError, Problem
from airflow_merge_provider.core.model import Config, format_path


def check_even(value: Any) -> int:
    if not isinstance(value, int) or value % 2:
        raise ValueError("must be even")
    return value


class Sample(Config):
    """Configuration with a field of each kind."""

    name: str
    size: Annotated[int, BeforeValidator(check_even)] = 2
    mode: Literal["a", "b"] = "a"
    flag: bool = False
    text: Annotated[str, Field(min_length=1)] = "x"

    @classmethod
    def check_rules(cls, valid_fields: Mapping[str, Any]) -> Iterator[Problem]:
        if valid_fields.get("size") == 4 and valid_fields.get("mode") == "a":
            yield Problem("mode", "both", "must be 'b' when size is 4")


def list_problems(**raw: Any) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        Sample.parse(raw)
    return [str(problem) for problem in refused.value.problems]


def test_what_is_right_is_frozen() -> None:
    """A parsed configuration cannot be changed."""
    sample = Sample.parse({"name": "n"})

    with pytest.raises(ValidationError):
        sample.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("raw", "messages"),
    [
        ({}, ["name: is required"]),
        ({"name": 5}, ["name: must be a string"]),
        ({"name": "n", "size": 3}, ["size: must be even"]),
        ({"name": "n", "mode": "c"}, ["mode: must be 'a' or 'b'"]),
        ({"name": "n", "flag": "true"}, ["flag: must be a boolean"]),
        ({"name": "n", "text": ""}, ["text: must not be empty"]),
        ({"name": "n", "sise": 2}, ["sise: unknown argument 'sise' (did you mean 'size'?)"]),
        ({"name": "n", "zz": 2}, ["zz: unknown argument 'zz' (valid names: name, size, mode, flag, text)"]),
        ({"name": "n", "size": 4}, ["mode: must be 'b' when size is 4"]),
        ({"name": 5, "size": 4}, ["name: must be a string", "mode: must be 'b' when size is 4"]),
        ({"name": 5, "size": 4, "mode": "c"}, ["name: must be a string", "mode: must be 'a' or 'b'"]),
    ],
)
def test_every_problem_is_said(raw: dict[str, Any], messages: list[str]) -> None:
    """Rules between fields are checked for the valid fields, even if other fields are invalid."""
    assert list_problems(**raw) == messages


@pytest.mark.parametrize(
    ("loc", "path"), [((), ""), (("a",), "a"), (("a", 0, 2), "a[0][2]"), (("a", "b", 1, "c"), "a.b[1].c")]
)
def test_a_path_is_written_as_users_do(loc: tuple[int | str, ...], path: str) -> None:
    """Names in a path are separated by dots, and positions are in brackets."""
    assert format_path(loc) == path
