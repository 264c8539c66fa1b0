"""Tests of detecting literal arguments and of parsing rendered text."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import Asset, task

from airflow_merge_provider.operators._arguments import as_text, is_literal, parse_rendered


@pytest.mark.parametrize(
    ("value", "literal"),
    [
        ("customers", True),
        ("{{ ds }}", False),
        ("{% if x %}a{% endif %}", False),
        ({"dataset": "a", "options": {"sep": "{{ x }}"}}, False),
        ([["eq", "a.x", "b.x"]], True),
        (("a", ["{{ b }}"]), False),
        (None, True),
        (5, True),
    ],
)
def test_a_value_is_literal_when_no_part_is_a_template(value: Any, literal: Any) -> None:
    """A value is literal if no part of it, at any depth, is a template."""
    assert is_literal(value) is literal


def test_the_result_of_another_task_is_not_literal() -> None:
    """The result of another task is not literal, because it is missing while the DAG is parsed."""

    @task
    def list_datasets() -> Any:
        return []

    assert not is_literal([list_datasets()])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("True", True),
        (" false ", False),
        ("None", None),
        ("", None),
        ("12", 12),
        ('["A a", "B b"]', ["A a", "B b"]),
        ("composite", "composite"),
        ("{not json", "{not json"),
    ],
)
def test_rendered_text_becomes_the_value_it_writes(text: Any, value: Any) -> None:
    """Rendered text is parsed for arguments of other types, because Jinja only renders text."""
    assert parse_rendered(text) == value


def test_assets_become_their_datasets_at_any_depth() -> None:
    """Assets are replaced by the text of their datasets at any depth, because the job accepts text only."""
    asset = Asset(name="x", uri="merge://warehouse/crm")

    assert as_text([(asset, "c"), "erp e", {"dataset": asset}]) == ["crm c", "erp e", {"dataset": "crm"}]
