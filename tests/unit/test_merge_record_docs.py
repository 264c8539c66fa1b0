"""Tests that options, errors and reasons on the page of MergeRecordOperator match the code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.merge_record import bins
from airflow_merge_provider.core.merge_record.config import FORMATS, MergeRecordConfig
from airflow_merge_provider.core.merge_record.stored import to_json
from tests.unit.test_docs import read_rows, read_section

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/operators/merge_record.md").read_text(encoding="utf-8")
FOLDERS = {"source": "/data/landing", "merged": "/m", "failure": "/f", "original": "/o", "state_path": "/s"}


def test_the_options_are_the_fields_of_the_configuration() -> None:
    """The page lists all options with the names, defaults and texts of the configuration."""
    fields = MergeRecordConfig.model_fields.items()
    expected_rows = [
        [f"`{name}`", _format_default(field.default), field.description] for name, field in fields
    ]

    assert read_rows(read_section(PAGE, "Options")) == expected_rows


def _format_default(value: Any) -> str:
    return "" if value is None else f"`{json.dumps(to_json(value))}`"


@pytest.mark.parametrize(
    ("argument", "message"),
    [row for row in read_rows(read_section(PAGE, "Errors")) if row[0].startswith("`{")],
    ids=lambda cell: cell[:40],
)
def test_an_error_of_the_page_is_the_one_that_is_raised(argument: Any, message: Any) -> None:
    """The argument in the first column raises the error in the second column."""
    with pytest.raises(ConfigError) as error:
        MergeRecordConfig.parse({**FOLDERS, **json.loads(argument.strip("`"))})

    assert message.strip("`") in str(error.value)


def test_messages_of_runs_are_in_the_code() -> None:
    """The messages of runs have the same text in the code as on the page."""
    files = (ROOT / "airflow_merge_provider").rglob("*.py")
    code = "".join(path.read_text(encoding="utf-8") for path in files)
    messages = [
        row[0].strip("`") for row in read_rows(read_section(PAGE, "Errors")) if not row[0].startswith("`{")
    ]

    assert len(messages) > 3
    assert [text for text in messages if text not in code] == []


def test_the_reasons_are_those_of_the_code() -> None:
    """The page lists the reasons of the code with their texts and codes."""
    expected_reasons = [bins.FULL, bins.FULL_ENOUGH, bins.AGE, bins.age_on_arrival("30 secs")]
    expected_reasons += [bins.EVICTED, bins.FLUSH]

    rows = read_rows(read_section(PAGE, "Binning"))
    assert [row[1].strip("`") for row in rows] == [reason.code for reason in expected_reasons]
    assert all(
        row[0].startswith(f"`{reason.text}`") for row, reason in zip(rows, expected_reasons, strict=True)
    )


def test_every_format_is_named() -> None:
    """The page lists exactly the supported formats."""
    line = read_section(PAGE, "Files").split("* ")[1]

    assert [word for word in FORMATS if f"`{word}`" not in line] == []
