"""Tests that the options and errors on the page of the joiner match the code."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.joiner.config import JoinerConfig
from airflow_merge_provider.core.joiner.plan import preview_join
from tests.unit.test_docs import ROOT, _format_default, read_rows, read_section

PAGE = (ROOT / "docs/operators/joiner.md").read_text(encoding="utf-8")
EXAMPLE = {"inputs": {"a": "A", "b": "B"}, "join_keys": "a.x = b.x"}
SCHEMA = {"x": "int", "y": "string", "m": "map<string,int>"}


def test_the_options_are_the_fields_of_the_configuration() -> None:
    """The page lists all options with the names, defaults and texts of the configuration."""
    fields = JoinerConfig.model_fields
    expected_rows = {
        name: [f"`{name}`", _format_default(field), field.description] for name, field in fields.items()
    }

    assert {row[0].strip("`"): row for row in read_rows(read_section(PAGE, "Options"))} == expected_rows


@pytest.mark.parametrize(
    ("argument", "message"),
    [row for row in read_rows(read_section(PAGE, "Errors")) if row[0].startswith("`{")],
    ids=lambda cell: cell[:40],
)
def test_an_error_of_the_page_is_the_one_that_is_raised(argument: Any, message: Any) -> None:
    """The argument in the first column raises the error in the second column."""
    with pytest.raises(ConfigError) as refused:
        preview_join({**EXAMPLE, **json.loads(argument.strip("`"))}, {"a": SCHEMA, "b": SCHEMA})

    assert message.strip("`") in str(refused.value)


def test_refusals_of_the_page_are_in_the_code() -> None:
    """The errors that depend on tables have the same text in the code as on the page."""
    package = ROOT / "airflow_merge_provider"
    files = [*(package / "jobs/joiner").glob("*.py"), package / "core/joiner/decision.py"]
    code = "".join(path.read_text(encoding="utf-8") for path in files)
    messages = [row[0] for row in read_rows(read_section(PAGE, "Errors")) if not row[0].startswith("`{")]

    assert len(messages) > 3
    assert [text for text in messages if text.strip("`") not in code] == []
