"""Check the settings of section ``[merge]``: their values, where each comes from, and unknown names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_merge_provider.core.change_plan.shown_rows import parse_shown_rows
from airflow_merge_provider.core.errors import ConfigError, suggest_name
from airflow_merge_provider.doctor.check import Check
from airflow_merge_provider.get_provider_info import get_provider_info
from airflow_merge_provider.local_spark.settings import SECTION, LocalSparkSettings, parse_settings

_PREFIX = f"AIRFLOW__{SECTION.upper()}__"
_FLAGS = ("true", "false")


@dataclass(frozen=True, slots=True)
class Setting:
    """The value of a setting, and where it comes from."""

    value: str
    origin: str


ReadSetting = Callable[[str], Setting]


def list_options() -> Mapping[str, Mapping[str, Any]]:
    """Return the description of each setting by its name."""
    options: Mapping[str, Mapping[str, Any]] = get_provider_info()["config"][SECTION]["options"]
    return options


def name_variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"{_PREFIX}{name.upper()}"


def read_variable(name: str) -> Setting:
    """Return a setting as the command line reads it: from the environment variable."""
    variable = name_variable(name)
    if os.environ.get(variable):
        return Setting(os.environ[variable], f"variable {variable}")
    return Setting(str(list_options()[name].get("default") or ""), "default")


def read_local_spark(read_setting: ReadSetting) -> LocalSparkSettings:
    """Return the settings of Spark on this machine; the defaults if one of them is not valid."""
    try:
        return parse_settings(lambda name: read_setting(name).value)
    except ConfigError:
        return LocalSparkSettings()


def check_settings(read_setting: ReadSetting) -> Iterator[Check]:
    """Yield each setting with its value and origin, and the variables that name no setting."""
    hints = _find_hints(read_setting)
    options = list_options()
    for name, option in options.items():
        setting, path = read_setting(name), f"[{SECTION}] {name}"
        hint = hints.get(path) or _check_type(setting.value, str(option["type"]))
        value = f"{setting.value} ({setting.origin})" if setting.value else "not set"
        if hint:
            yield Check(path, "missing", f"{setting.value!r} is not valid ({setting.origin})", hint)
        else:
            yield Check(path, "ok", value)
    for variable in sorted(os.environ):
        name = variable.removeprefix(_PREFIX).lower()
        if variable.startswith(_PREFIX) and name not in options:
            hint = suggest_name(name, options, "settings")
            yield Check(f"[{SECTION}] {name}", "warning", f"unknown setting (variable {variable})", hint)


def _find_hints(read_setting: ReadSetting) -> dict[str, str]:
    """Return what is valid for each setting whose value is not, as the code that reads it says."""
    hints: dict[str, str] = {}
    for parse in (parse_settings, parse_shown_rows):
        try:
            parse(lambda name: read_setting(name).value)
        except ConfigError as error:
            hints |= {problem.path: problem.hint for problem in error.problems}
    return hints


def _check_type(value: str, kind: str) -> str:
    """Return what is valid instead of a value of another type; an empty string for a valid value."""
    if kind == "boolean" and value.lower() not in _FLAGS:
        return "use true or false"
    if kind == "float":
        try:
            float(value)
        except ValueError:
            return "use a number"
    return ""
