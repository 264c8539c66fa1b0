"""Tests that the tables on the page of the merge engine match the code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.core.merge_engine.functions import FUNCTIONS
from airflow_merge_provider.core.merge_engine.options import OPTIONS, WITHOUT_EFFECT
from tests.unit.test_docs import _format_default, read_rows, read_section

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/operators/merge_engine.md").read_text(encoding="utf-8")
ERRORS = read_rows(read_section(PAGE, "Errors"))


def test_the_options_are_the_fields_of_the_configuration() -> None:
    """The page lists all options with the names, defaults and texts of the configuration."""
    fields = MergeEngineConfig.model_fields
    expected_rows = {
        name: [f"`{name}`", _format_default(field), field.description] for name, field in fields.items()
    }

    assert {row[0].strip("`"): row for row in read_rows(read_section(PAGE, "Options"))} == expected_rows


def test_the_table_options_are_those_that_are_read() -> None:
    """The page lists every table option that is parsed, and marks those without effect."""
    section = read_section(PAGE, "Options")
    (idle,) = [part for part in section.split("**") if part.startswith(" `bucket`")]

    assert [option for option in OPTIONS if f"`{option}`" not in section] == []
    assert [option for option in WITHOUT_EFFECT if f"`{option}`" not in idle] == []


def test_the_functions_are_those_that_work() -> None:
    """The page lists exactly the supported functions, and which of them can be retracted."""
    expected_rows = [
        [f"`{name}`", function.takes, "yes" if function.retracts else "no"]
        for name, function in FUNCTIONS.items()
        if not function.unavailable
    ]

    assert read_rows(read_section(PAGE, "Functions")) == expected_rows


@pytest.mark.parametrize(
    ("argument", "message"), [row for row in ERRORS if row[0].startswith("`{")], ids=lambda cell: cell[:50]
)
def test_an_error_of_the_page_is_the_one_that_is_raised(argument: Any, message: Any) -> None:
    """The argument in the first column raises the error in the second column."""
    with pytest.raises(ConfigError) as error:
        MergeEngineConfig.parse({"primary_key": ["k"], **json.loads(argument.strip("`"))})

    assert message.strip("`") in str(error.value)


def test_refusals_of_the_page_are_in_the_code() -> None:
    """The errors that depend on records have the same text in the code as on the page."""
    files = (ROOT / "airflow_merge_provider").rglob("*.py")
    code = "".join(path.read_text(encoding="utf-8") for path in files)
    messages = [row[0].strip("`") for row in ERRORS if not row[0].startswith("`{")]

    assert len(messages) > 5
    assert [text for text in messages if text not in code] == []
