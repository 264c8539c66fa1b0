"""What counts as literal, and what rendered text means."""

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
    """Templates are found at any depth."""
    assert is_literal(value) is literal


def test_the_result_of_another_task_is_not_literal() -> None:
    """Its value is not there while the DAG is parsed."""

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
    """Jinja renders text only; arguments of other types are read from it."""
    assert parse_rendered(text) == value


def test_assets_become_their_datasets_at_any_depth() -> None:
    """The job only knows text."""
    asset = Asset(name="x", uri="merge://warehouse/crm")

    assert as_text([(asset, "c"), "erp e", {"dataset": asset}]) == ["crm c", "erp e", {"dataset": "crm"}]
