"""Tests of the arguments of the sensor at parse time."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import Asset, conf

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.sensors.dataset_populated import DatasetPopulatedSensor


def build_sensor(datasets: Any, **arguments: Any) -> Any:
    return DatasetPopulatedSensor(task_id="wait", datasets=datasets, **arguments)


def test_it_waits_in_the_triggerer_by_default() -> None:
    """The sensor defers to the triggerer by default and uses a worker slot on request only."""
    assert build_sensor(["A"]).deferrable
    assert not build_sensor(["A"], deferrable=False).deferrable


@pytest.mark.parametrize("text", ["True", "False"])
def test_the_environment_sets_the_default(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """``[operators] default_deferrable`` of the environment is the default of the argument."""
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", text)

    assert build_sensor(["A"]).deferrable is (text == "True")
    assert build_sensor(["A"], deferrable=True).deferrable


def test_the_file_that_airflow_writes_does_not_set_the_default() -> None:
    """An airflow.cfg that Airflow has written says False, which nobody has chosen."""
    conf.set("operators", "default_deferrable", "False")
    try:
        assert build_sensor(["A"]).deferrable
    finally:
        conf.remove_option("operators", "default_deferrable", remove_default=False)


def test_its_connection_is_a_template() -> None:
    """The connection and the warehouse of the sensor are rendered before it looks."""
    sensor = build_sensor(["A"], warehouse="/lake/{{ ds }}", merge_store_conn_id="store_{{ ds }}")

    sensor.render_template_fields({"ds": "2026-11-24"})

    assert (sensor.warehouse, sensor.merge_store_conn_id) == ("/lake/2026-11-24", "store_2026-11-24")


def test_its_datasets_are_inlets() -> None:
    """The datasets of the sensor are inlets. The asset graph shows them, and their marks can be read."""
    mine = Asset("mine", uri="file:///lake/mine")

    sensor = build_sensor(["A", mine, {"dataset": "days", "format": "json"}, "{{ params.more }}"])

    assert [asset.uri for asset in sensor.inlets] == [
        "merge://warehouse/A",
        "file:///lake/mine",
        "merge://warehouse/days",
    ]
    assert sensor.datasets[1] == "file:///lake/mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"datasets": "A"}, "datasets: must be a list of datasets"),
        ({"datasets": ["A", "b c"]}, r"datasets\[1\]: 'b c' is not a valid dataset"),
        ({"datasets": ["A"], "ignore_non_existent_datasets": "yes"}, "must be a boolean"),
        ({"datasets": ["A"], "mode": "reschedule"}, "mode: 'reschedule' is not supported.*deferrable=True"),
    ],
)
def test_wrong_arguments_are_refused_while_parsing(arguments: Any, message: Any) -> None:
    """Invalid arguments are rejected at parse time with a DAG import error."""
    with pytest.raises(ConfigError, match=message):
        build_sensor(**arguments)
