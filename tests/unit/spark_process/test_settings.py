"""Tests of the settings of Spark on this machine."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.get_provider_info import get_provider_info
from airflow_merge_provider.hooks.spark_job import find_settings
from airflow_merge_provider.spark_process.shared import settings
from airflow_merge_provider.spark_process.shared.settings import (
    LocalSparkSettings,
    count_slots,
    parse_settings,
    read_environment,
)


def test_defaults_are_those_of_the_provider_info() -> None:
    """Airflow's configuration shows the defaults that the package uses."""
    options = get_provider_info()["config"]["merge"]["options"]

    assert {
        name: options[name]["default"] for name in settings._SETTING_DEFAULTS
    } == settings._SETTING_DEFAULTS
    assert parse_settings(lambda _: None) == LocalSparkSettings()


def test_values_come_from_the_environment() -> None:
    """The command line reads the variables that Airflow reads; empty ones count as not set."""
    variables = {
        "AIRFLOW__MERGE__LOCAL_SPARK": "Process",
        "AIRFLOW__MERGE__LOCAL_SPARK_IDLE": "90s",
        "AIRFLOW__MERGE__LOCAL_SPARK_MEMORY": "4G",
        "AIRFLOW__MERGE__LOCAL_SPARK_CORES": " ",
    }

    assert read_environment(variables) == LocalSparkSettings(mode="process", idle_seconds=90.0, memory="4g")
    assert read_environment({"AIRFLOW__MERGE__LOCAL_SPARK_CORES": "3"}).master == "local[3]"
    assert read_environment({}).master == "local[*]"


def test_airflow_reads_its_own_section(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks read section [merge] of Airflow's configuration."""
    monkeypatch.setenv("AIRFLOW__MERGE__LOCAL_SPARK_IDLE", "2h")

    assert find_settings() == LocalSparkSettings(mode="process", idle_seconds=7200.0)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("local_spark", "cluster", r"'cluster' is not valid \(use shared or process\)"),
        ("local_spark_idle", "soon", "'soon' is not valid .* such as 30s, 10m or 2h"),
        ("local_spark_idle", "0m", "'0m' is not valid"),
        ("local_spark_memory", "2 apples", "'2 apples' is not valid .* such as 900m, 2g or 8g"),
        ("local_spark_memory", "100m", "'100m' is not valid .*use at least 512m"),
        ("local_spark_cores", "0", "'0' is not valid .*integer from 1"),
        ("local_spark_cores", "all", "'all' is not valid .*integer from 1"),
        ("local_spark_warm_up", "maybe", "'maybe' is not valid .*true or false"),
    ],
)
def test_an_invalid_value_is_named(name: Any, value: Any, message: Any) -> None:
    """An invalid value is an error with the setting, the value and the valid values."""
    with pytest.raises(ConfigError, match=rf"^\[merge\] {name}: {message}"):
        parse_settings({name: value}.get)


def test_all_invalid_values_are_reported_together() -> None:
    """All invalid values are reported in one error."""
    with pytest.raises(ConfigError) as caught:
        parse_settings(lambda _: "?")

    assert len(caught.value.problems) == 5


@pytest.mark.parametrize(
    ("memory", "cores", "slots"),
    [("512m", 2, 1), ("2g", 2, 4), ("8g", 2, 4), ("8g", 4, 8), ("1024", 8, 2), ("2048mb", 1, 2)],
)
def test_slots_depend_on_memory_and_cores(memory: Any, cores: Any, slots: Any) -> None:
    """A server has two slots per core, but at most one per 512 MB of memory."""
    assert count_slots(memory, cores) == slots
