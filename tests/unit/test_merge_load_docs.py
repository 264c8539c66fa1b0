"""Tests that the options and errors on the pages of the merge loads match the code."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.merge_load.config import DeleteInsertConfig, UpsertConfig
from airflow_merge_provider.core.merge_load.load import LoadConfig
from airflow_merge_provider.core.merge_load.scd2 import Scd2Config
from tests.unit.test_docs import ROOT, _format_default, read_rows, read_section

CONFIGS: dict[str, type[LoadConfig]] = {
    "upsert": UpsertConfig,
    "delete_insert": DeleteInsertConfig,
    "scd2": Scd2Config,
}
PAGES = {name: (ROOT / f"docs/operators/{name}.md").read_text(encoding="utf-8") for name in CONFIGS}
EXAMPLES = {
    "upsert": {"source": "s", "target": "t", "primary_key": "id"},
    "delete_insert": {"source": "s", "target": "t", "primary_key": "id"},
    "scd2": {"source": "s", "target": "t"},
}
ERRORS = [
    (name, *row)
    for name, page in PAGES.items()
    for row in read_rows(read_section(page, "Errors"))
    if row[0][:2] == "`{"
]


@pytest.mark.parametrize("name", CONFIGS)
def test_the_options_are_the_fields_of_the_configuration(name: Any) -> None:
    """The pages list all options with the names, defaults and texts of the configuration."""
    fields = {option: field for option, field in CONFIGS[name].model_fields.items() if field.description}
    expected_rows = {
        option: [f"`{option}`", _format_default(field), field.description] for option, field in fields.items()
    }

    assert {
        row[0].strip("`"): row for row in read_rows(read_section(PAGES[name], "Options"))
    } == expected_rows
    assert set(CONFIGS[name].model_fields) - set(fields) == {"strategy"}


@pytest.mark.parametrize(("name", "argument", "message"), ERRORS, ids=lambda cell: cell[:40])
def test_an_error_of_a_page_is_the_one_that_is_raised(name: Any, argument: Any, message: Any) -> None:
    """The argument in the first column raises the error in the second column."""
    with pytest.raises(ConfigError) as error:
        CONFIGS[name].parse({**EXAMPLES[name], **json.loads(argument.strip("`"))})

    assert message.strip("`") in str(error.value)


@pytest.mark.parametrize("name", CONFIGS)
def test_refusals_of_a_page_are_in_the_code(name: Any) -> None:
    """The errors that depend on data have the same text in the code as on the page."""
    package = ROOT / "airflow_merge_provider"
    folders = ("jobs/merge_load", "core/merge_load", "jobs/delta")
    files = [path for folder in folders for path in (package / folder).rglob("*.py")]
    code = "".join(path.read_text(encoding="utf-8") for path in files)
    messages = [row[0] for row in read_rows(read_section(PAGES[name], "Errors")) if row[0][:2] != "`{"]

    assert len(messages) > 3
    assert [text for text in messages if text.strip("`") not in code] == []


def test_every_case_that_dlt_leaves_open_has_a_line() -> None:
    """A page documents the behaviour of this package for every vector that dlt leaves open or gets wrong."""
    file = ROOT / "tests/conformance/vectors/merge_load.json"
    vectors = json.loads(file.read_text(encoding="utf-8"))["vectors"]
    open_ids = {
        vector["id"] for vector in vectors if vector["operator"]["expectation"] in {"decide", "diverge"}
    }
    documented_ids = {
        name.strip("`")
        for page in PAGES.values()
        for row in read_rows(read_section(page, "Differences from dlt"))
        for name in row[0].split()
    }

    assert documented_ids == open_ids
