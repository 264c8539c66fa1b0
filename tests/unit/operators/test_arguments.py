"""Tests of detecting literal arguments and of parsing rendered text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset, task

from airflow_merge_provider.core.protocol import JobResult
from airflow_merge_provider.operators import _spark_job
from airflow_merge_provider.operators._arguments import as_text, is_literal, parse_rendered
from airflow_merge_provider.operators.joiner import JoinerOperator
from airflow_merge_provider.operators.upsert import UpsertOperator
from tests.architecture.test_names import OPERATORS
from tests.fakes import FakeSparkJobHook, build_report


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


@pytest.mark.parametrize("operator", OPERATORS)
def test_connections_and_settings_are_templates_of_every_operator(operator: Any) -> None:
    """The warehouse, the connections and the Spark settings may differ by run."""
    names = {"warehouse", "spark_conn_id", "merge_store_conn_id", "conf"}

    assert names <= set(operator.template_fields)


def test_conditions_and_collections_are_shown_as_such() -> None:
    """The configuration says which arguments are SQL, and which may be lists or objects."""
    renderers = {**UpsertOperator.template_fields_renderers, **JoinerOperator.template_fields_renderers}
    shown = {
        name: renderers.get(name) for name in ("source_filter", "primary_key", "join_keys", "conf", "variant")
    }

    assert shown == {
        "source_filter": "sql", "primary_key": "json", "join_keys": "json", "conf": "json", "variant": None,
    }  # fmt: skip


def test_rendered_connections_and_settings_reach_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates in connections stay text, and those in the Spark settings are rendered inside the mapping."""
    fake = FakeSparkJobHook.create_fake(JobResult(report=build_report()))
    monkeypatch.setattr(_spark_job, "SparkJobHook", fake)
    operator = UpsertOperator(
        task_id="load", source="s", target="t", primary_key="id", warehouse="/lake/{{ env }}",
        spark_conn_id="{{ number }}", conf={"spark.executor.memory": "{{ env }}g"},
    )  # fmt: skip
    values: Any = {"env": "7", "number": "12"}
    operator.render_template_fields(values)
    instance: Any = SimpleNamespace(
        dag_id="d", run_id="r", task_id="load", map_index=-1, xcom_push=lambda **_: None,
        task=SimpleNamespace(outlets=[]),
    )  # fmt: skip

    operator.execute({"ti": instance, "run_id": "r"})

    assert fake.init_arguments == [("12", {"spark.executor.memory": "7g"})]
    assert fake.requests[0].warehouse == "/lake/7"
