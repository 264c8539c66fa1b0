"""Tests of DAGs in which two tasks write one target: rejected unless the tasks are ordered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.operators.joiner import JoinerOperator
from airflow_merge_provider.operators.merge_record import MergeRecordOperator
from airflow_merge_provider.operators.scd2 import Scd2CheckOperator
from airflow_merge_provider.operators.upsert import UpsertOperator


def build_operator(name: str, target: str = "t", **more: object) -> UpsertOperator:
    return UpsertOperator(task_id=name, source="s", target=target, primary_key="id", **more)


def check_dag(dag: DAG) -> list[str]:
    """Check a complete DAG as Airflow does after parsing it, and return the error."""
    try:
        dag.resolve_template_files()  # type: ignore[no-untyped-call]
    except ConfigError as error:
        return [str(error)]
    return []


def test_unordered_writers_of_one_target_are_refused() -> None:
    """Unordered writers of one target are rejected.

    This includes different operators, and different notations of the location.
    """
    with DAG("d", schedule=None) as dag:
        build_operator("a", "/lake/t")
        JoinerOperator(
            task_id="b", inputs={"x": "x", "y": "y"}, join_keys="x.i = y.i", target="file:///lake/../lake/t/"
        )

    (message,) = check_dag(dag)
    assert message.startswith("task 'b': target: task 'a' also writes /lake/t")
    assert "order them: a >> b, or set allow_concurrent_writes=True" in message


def test_writers_in_order_are_right() -> None:
    """Writers that depend on each other, directly or over other tasks, are accepted.

    Readers are not writers.
    """
    with DAG("d", schedule=None) as dag:
        a, b, c = build_operator("a"), build_operator("b", "other"), build_operator("c")
        a >> b >> c >> Scd2CheckOperator(task_id="check", target="t")
        Scd2CheckOperator(task_id="unordered", target="t")

    assert check_dag(dag) == []


@pytest.mark.parametrize("says", ["a", "b"])
def test_writers_that_say_so_are_right(says: Any) -> None:
    """One of two writers can allow the other with an argument."""
    with DAG("d", schedule=None) as dag:
        for name in "ab":
            build_operator(name, allow_concurrent_writes=name == says)

    assert check_dag(dag) == []


def test_what_is_not_known_yet_is_not_refused() -> None:
    """Targets that are not known at parse time are not rejected.

    A template may have any value, other DAGs are not checked, and folders of merged files accept several
    writers.
    """
    folders = {"merged": "m", "failure": "f", "original": "o", "reader": "json"}
    with DAG("d", schedule=None) as dag:
        build_operator("a", "{{ ds }}")
        build_operator("b", "{{ ds }}")
        build_operator("c", emit_asset=False)
        MergeRecordOperator(task_id="e", source="x", state_path="sx", **folders)
        MergeRecordOperator(task_id="f", source="y", state_path="sy", **folders)
    with DAG("d2", schedule=None) as other:
        build_operator("d")

    assert check_dag(dag) == []
    assert check_dag(other) == []


def test_the_import_of_a_file_says_it(tmp_path: Path) -> None:
    """The list of import errors in Airflow shows the error."""
    from airflow.dag_processing.dagbag import DagBag

    (tmp_path / "two.py").write_text(
        "from airflow.sdk import DAG\n"
        "from airflow_merge_provider.operators.upsert import UpsertOperator\n"
        "with DAG('two', schedule=None):\n"
        "    for name in 'ab':\n"
        "        UpsertOperator(task_id=name, source='s', target='t', primary_key='id', emit_asset=False)\n"
    )

    bag = DagBag(str(tmp_path))

    (error,) = bag.import_errors.values()
    assert "task 'b': target: task 'a' also writes merge://warehouse/t" in error
