"""What the sensor makes of its arguments while a DAG is parsed."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import Asset

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.sensors.dataset_populated import DatasetPopulatedSensor


def build_sensor(datasets: Any, **arguments: Any) -> Any:
    return DatasetPopulatedSensor(task_id="wait", datasets=datasets, **arguments)


def test_it_waits_in_the_triggerer_by_default() -> None:
    """Waiting takes no slot unless that is asked for."""
    assert build_sensor(["A"]).deferrable
    assert not build_sensor(["A"], deferrable=False).deferrable


def test_its_datasets_are_inlets() -> None:
    """They show in the graph of assets, and their marks can be read."""
    mine = Asset("mine", uri="file:///lake/mine")

    made = build_sensor(["A", mine, {"dataset": "days", "format": "json"}, "{{ params.more }}"])

    assert [asset.uri for asset in made.inlets] == [
        "merge://warehouse/A",
        "file:///lake/mine",
        "merge://warehouse/days",
    ]
    assert made.datasets[1] == "file:///lake/mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"datasets": "A"}, "datasets: must be a list of datasets"),
        ({"datasets": ["A", "b c"]}, r"datasets\[1\]: 'b c' names no dataset"),
        ({"datasets": ["A"], "ignore_non_existent_datasets": "yes"}, "must be a boolean"),
        ({"datasets": ["A"], "mode": "reschedule"}, "mode: 'reschedule' can fail a sensor .*deferrable=True"),
    ],
)
def test_wrong_arguments_are_refused_while_parsing(arguments: Any, message: Any) -> None:
    """A DAG import error says what is wrong."""
    with pytest.raises(ConfigError, match=message):
        build_sensor(**arguments)
