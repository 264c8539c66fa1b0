"""What the page of the merge engine says is so: its tables are those of the code."""

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
    """Names, defaults and texts are those of the code, and no option is missing."""
    fields = MergeEngineConfig.model_fields
    wanted = {
        name: [f"`{name}`", _format_default(field), field.description] for name, field in fields.items()
    }

    assert {row[0].strip("`"): row for row in read_rows(read_section(PAGE, "Options"))} == wanted


def test_the_table_options_are_those_that_are_read() -> None:
    """Every option that has a meaning is named, and those without one are said to have none."""
    told = read_section(PAGE, "Options")
    (idle,) = [part for part in told.split("**") if part.startswith(" `bucket`")]

    assert [option for option in OPTIONS if f"`{option}`" not in told] == []
    assert [option for option in WITHOUT_EFFECT if f"`{option}`" not in idle] == []


def test_the_functions_are_those_that_work() -> None:
    """None is missing, none is promised in vain, and what can be taken back is told right."""
    wanted = [
        [f"`{name}`", each.takes, "yes" if each.retracts else "no"]
        for name, each in FUNCTIONS.items()
        if not each.unavailable
    ]

    assert read_rows(read_section(PAGE, "Functions")) == wanted


@pytest.mark.parametrize(
    ("argument", "message"), [row for row in ERRORS if row[0].startswith("`{")], ids=lambda cell: cell[:50]
)
def test_an_error_of_the_page_is_the_one_that_is_raised(argument: Any, message: Any) -> None:
    """The argument of the first column gives the text of the second."""
    with pytest.raises(ConfigError) as error:
        MergeEngineConfig.parse({"primary_key": ["k"], **json.loads(argument.strip("`"))})

    assert message.strip("`") in str(error.value)


def test_refusals_of_the_page_are_in_the_code() -> None:
    """What the records can show is said in the words of the page."""
    files = (ROOT / "airflow_merge_provider").rglob("*.py")
    code = "".join(path.read_text(encoding="utf-8") for path in files)
    told = [row[0].strip("`") for row in ERRORS if not row[0].startswith("`{")]

    assert len(told) > 5
    assert [text for text in told if text not in code] == []
