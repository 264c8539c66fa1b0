"""Select the configuration class of a merge load by its strategy, and define the counts in its reports."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Self

from pydantic import TypeAdapter

from airflow_merge_provider.core.errors import ConfigError, Problem, suggest_name
from airflow_merge_provider.core.merge_load.check import Scd2CheckConfig
from airflow_merge_provider.core.merge_load.keyed_loads import DeleteInsertConfig, UpsertConfig
from airflow_merge_provider.core.merge_load.load import LoadConfig
from airflow_merge_provider.core.merge_load.scd2 import Scd2Config
from airflow_merge_provider.core.model import require_plain
from airflow_merge_provider.core.report import Measure

COUNTS = (
    Measure("loaded", "rows", "Source rows that were loaded."),
    Measure("duplicates", "rows", "Source rows that were dropped as duplicates of another row."),
    Measure("opened", "versions", "Versions that were opened (SCD2)."),
    Measure("closed", "versions", "Versions that were closed (SCD2)."),
    Measure("reopened", "versions", "Closed versions that became valid again (SCD2)."),
    Measure("changed", "versions", "Versions whose end or values were updated in place (SCD2)."),
    Measure("removed", "versions", "Versions that a late or repeated load or a purge deleted (SCD2)."),
    Measure("elements_inserted", "rows", "Rows inserted into the tables of nested lists."),
    Measure("elements_deleted", "rows", "Rows deleted from the tables of nested lists."),
    Measure("tables", "tables", "Tables that the rows were dispatched to; 1 without `dispatch_by`."),
    Measure("tables_changed", "tables", "Tables that the run changed."),
)
_Strategy = type[DeleteInsertConfig] | type[UpsertConfig] | type[Scd2Config] | type[Scd2CheckConfig]
STRATEGIES: dict[str, _Strategy] = {
    "delete-insert": DeleteInsertConfig,
    "upsert": UpsertConfig,
    "scd2": Scd2Config,
    "scd2-check": Scd2CheckConfig,
}
AnyLoad = DeleteInsertConfig | UpsertConfig | Scd2Config
AnyConfig = AnyLoad | Scd2CheckConfig


class MergeLoadConfig(LoadConfig):
    """A merge load of any strategy: ``parse`` returns the configuration of the strategy that is set."""

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        return load_config(raw)  # type: ignore[return-value]  # what the strategy asks for

    @classmethod
    def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return TypeAdapter(AnyConfig).json_schema(*args, **kwargs)


def load_config(raw: Mapping[str, Any]) -> AnyConfig:
    """Validate a load or an SCD2 check; the default strategy is delete-insert.

    :raises ConfigError: with every problem.
    """
    require_plain(raw)
    strategy = raw.get("strategy", "delete-insert")
    if not isinstance(strategy, str) or strategy not in STRATEGIES:
        hint = suggest_name(str(strategy), STRATEGIES, "strategies")
        raise ConfigError.from_problems(
            [Problem("strategy", "unknown", f"unknown strategy {strategy!r}", hint)]
        )
    return STRATEGIES[strategy].parse(raw)


def find_recorded_key(state: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the key that the state of a run records, empty if rows have none; None if it records none."""
    config = state.get("config")
    if config is None:
        return None
    return tuple(config.get("primary_key") or config.get("merge_key") or ())


def describe_load(config: LoadConfig, boundary: datetime) -> dict[str, Any]:
    """Return the settings that explain the rows of a run; its commit records them under ``config``.

    :param boundary: the time from which rows without a time of their own are valid.
    """
    settings = config.model_dump(mode="json", exclude={"source", "target"}, exclude_defaults=True)
    if isinstance(config, Scd2Config) and config.time_given is None:
        settings["boundary_timestamp"] = boundary.isoformat()
    return {"strategy": getattr(config, "strategy", None), **settings}


def compute_signature(config: LoadConfig) -> str:
    """Return a text that differs if a run of the same source may have another result."""
    # Operators set the boundary to the time of each run; the same rows at another time change no version.
    content = config.model_dump(mode="json", exclude={"target", "boundary_timestamp", "adopt"})
    for name in ("expect", "hard_delete_when"):
        # A new option that is not set does not change the signature of existing targets.
        if content[name] is None:
            del content[name]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
