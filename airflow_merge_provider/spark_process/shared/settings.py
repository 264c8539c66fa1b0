"""Read the settings of Spark on this machine: section ``[merge]`` of Airflow, or environment variables."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from airflow_merge_provider.core.errors import ConfigError, Problem
from airflow_merge_provider.core.spark_conf import count_cores
from airflow_merge_provider.spark_process.launch import supports_connect

SECTION = "merge"
SHARED, PROCESS = "shared", "process"
# Airflow sets this variable in a pod of the Kubernetes executor, which lives for one task.
POD_VARIABLE = "AIRFLOW_IS_K8S_EXECUTOR_POD"
MEMORY_SETTING = "spark.driver.memory"

_SETTING_DEFAULTS = {
    "local_spark": SHARED,
    "local_spark_idle": "10m",
    "local_spark_memory": "2g",
    "local_spark_cores": "",
    "local_spark_warm_up": "True",
}
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_UNIT_BYTES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
# Each concurrent run needs about this much of the heap for its plans, its session and Delta's snapshots.
_SLOT_BYTES = 512 << 20
_SLOTS_PER_CORE = 2


@dataclass(frozen=True, slots=True)
class LocalSparkSettings:
    """How Spark runs on this machine; ``cores`` is None for all cores of this process."""

    mode: str = SHARED
    idle_seconds: float = 600.0
    memory: str = "2g"
    cores: int | None = None
    warm_up: bool = True

    @property
    def core_count(self) -> int:
        """The number of cores that Spark uses."""
        return self.cores or count_cores()

    @property
    def master(self) -> str:
        """The Spark master of a process for one run."""
        return f"local[{self.cores or '*'}]"


def parse_settings(get_value: Callable[[str], str | None]) -> LocalSparkSettings:
    """Parse the settings; ``get_value`` returns the value of a name, or None for its default.

    :raises ConfigError: with every invalid value.
    """
    values = {name: (get_value(name) or default).strip() for name, default in _SETTING_DEFAULTS.items()}
    problems: list[Problem] = []

    def parse_value(name: str, parse: Callable[[str], object | None], valid: str) -> object | None:
        try:
            return parse(values[name])
        except ValueError:
            path = f"[{SECTION}] {name}"
            problems.append(Problem(path, "value", f"{values[name]!r} is not valid", valid))
            return None

    mode = parse_value("local_spark", _parse_mode, "use shared or process")
    idle = parse_value("local_spark_idle", parse_seconds, "use a number and a unit, such as 30s, 10m or 2h")
    memory = parse_value("local_spark_memory", _parse_memory, "use at least 512m, such as 900m, 2g or 8g")
    cores = parse_value("local_spark_cores", _parse_cores, "use an integer from 1, or leave it empty")
    warm_up = parse_value("local_spark_warm_up", _parse_flag, "use true or false")
    if problems:
        raise ConfigError.from_problems(problems)
    return LocalSparkSettings(
        mode=str(mode),
        idle_seconds=float(str(idle)),
        memory=str(memory),
        cores=None if cores is None else int(str(cores)),
        warm_up=bool(warm_up),
    )


def read_environment(environment: Mapping[str, str] | None = None) -> LocalSparkSettings:
    """Return the settings of the command line, from the environment variables that Airflow also reads."""
    variables = os.environ if environment is None else environment
    return parse_settings(lambda name: variables.get(f"AIRFLOW__{SECTION.upper()}__{name.upper()}"))


def is_shared(settings: LocalSparkSettings) -> bool:
    """Return whether local runs share a server: not in a pod that lives for one task, or before Spark 4.2."""
    return settings.mode == SHARED and not os.environ.get(POD_VARIABLE) and supports_connect()


def count_slots(memory: str, cores: int) -> int:
    """Return how many runs may use a server at the same time.

    >>> count_slots("2g", 2), count_slots("2g", 16), count_slots("600m", 4)
    (4, 4, 1)
    """
    return max(1, min(_SLOTS_PER_CORE * cores, parse_bytes(memory) // _SLOT_BYTES))


def parse_seconds(text: str) -> float:
    """Return the seconds of a duration.

    >>> parse_seconds("10m"), parse_seconds("1.5h"), parse_seconds("45")
    (600.0, 5400.0, 45.0)

    :raises ValueError: if it is not a duration above zero.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.lower())
    if match is None or float(match[1]) == 0:
        raise ValueError
    return float(match[1]) * _SECONDS.get(match[2], 1)


def parse_bytes(text: str) -> int:
    """Return the bytes of an amount of memory as Spark reads it: without a unit, mebibytes.

    :raises ValueError: if it is not an amount of memory.
    """
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)b?", text.lower())
    if match is None:
        raise ValueError
    return int(match[1]) * _UNIT_BYTES[match[2] or "m"]


def _parse_mode(text: str) -> str:
    if text.lower() not in {SHARED, PROCESS}:
        raise ValueError
    return text.lower()


def _parse_memory(text: str) -> str:
    if parse_bytes(text) < _SLOT_BYTES:
        raise ValueError
    return text.lower()


def _parse_flag(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError
    return text.lower() == "true"


def _parse_cores(text: str) -> int | None:
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError
    return int(text)
