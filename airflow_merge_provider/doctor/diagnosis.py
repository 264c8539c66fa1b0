"""Run all checks, so that one that fails does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from airflow_merge_provider.doctor.cache import check_archive, check_cache, check_jars
from airflow_merge_provider.doctor.check import Check, collect_checks
from airflow_merge_provider.doctor.machine import check_disk, check_memory, check_servers
from airflow_merge_provider.doctor.runtime import (
    check_java,
    check_packages,
    check_python,
    check_spark,
    check_spark_start,
)
from airflow_merge_provider.doctor.settings import (
    ReadSetting,
    Setting,
    check_settings,
    read_local_spark,
    read_variable,
)
from airflow_merge_provider.doctor.warehouse import check_warehouse


@dataclass(frozen=True, slots=True)
class AirflowSide:
    """What only Airflow knows: the settings of its configuration file, and its connections."""

    read_setting: ReadSetting
    find_warehouse: Callable[[], Setting]
    check_connections: Callable[[], Iterable[Check]]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of all checks, and what was not checked, with the command that does."""

    checks: tuple[Check, ...]
    not_checked: tuple[str, ...]

    @property
    def is_complete(self) -> bool:
        """Whether nothing that runs need is missing."""
        return all(check.state != "missing" for check in self.checks)


def diagnose(
    warehouse: str | None = None, *, starts_spark: bool = False, airflow: AirflowSide | None = None
) -> Diagnosis:
    """Check everything that runs on this machine need.

    :param warehouse: the warehouse to check; None for the one that is set.
    :param starts_spark: whether to start Spark, which takes some seconds and memory.
    :param airflow: how to read Airflow's settings and connections; None without Airflow.
    """
    read_setting = airflow.read_setting if airflow else read_variable
    settings = read_local_spark(read_setting)
    location = _find_warehouse(warehouse, read_setting, airflow)
    folders = {"warehouse": location.value} if Path(location.value or "-").is_dir() else {}
    groups: list[tuple[str, Callable[[], Iterable[Check]]]] = [
        ("Python", check_python),
        ("Java", check_java),
        ("Spark", check_spark),
        ("packages", check_packages),
        ("cache folder", check_cache),
        ("jars", lambda: check_jars(location.value)),
        ("class archive", check_archive),
        ("settings", lambda: check_settings(read_setting)),
        ("warehouse", lambda: check_warehouse(location)),
        ("memory", lambda: check_memory(settings)),
        ("disk", lambda: check_disk(settings, folders)),
        ("shared server", lambda: check_servers(settings)),
    ]
    if airflow is not None:
        groups.append(("connections", airflow.check_connections))
    if starts_spark:
        groups.append(("Spark start", lambda: check_spark_start(settings)))
    checks = [check for name, find_checks in groups for check in collect_checks(name, find_checks)]
    notes = [] if starts_spark else ["the start of Spark (--spark starts it)"]
    notes += (
        [] if airflow else ["Airflow's connections and configuration file (airflow merge doctor reads them)"]
    )
    return Diagnosis(tuple(checks), tuple(notes))


def _find_warehouse(option: str | None, read_setting: ReadSetting, airflow: AirflowSide | None) -> Setting:
    if option:
        return Setting(option, "--warehouse")
    if airflow is not None:
        return airflow.find_warehouse()
    return read_setting("warehouse")
