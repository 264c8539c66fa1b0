"""Random configurations: each is accepted or rejected with a ``ConfigError``.

They are derived from the configurations of the vectors. Values move between configurations, so that accepted
combinations are reached, and some values are replaced by values that no property accepts.
"""

from __future__ import annotations

import datetime as dt
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from airflow_merge_provider.core.capabilities import CAPABILITIES
from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.merge_record.properties import from_properties

VECTORS = Path(__file__).parents[1] / "conformance" / "vectors"
SECONDS_MAX = 2.0
# Texts, numbers and objects that at least one property rejects.
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 10**30, 1.5, float("nan"), float("inf"), "", " ", "x", "a.b", "\ud800",
    "é" * 50, "${x}", "{{ x }}", "1 day", "9" * 5000, "1e999 days", "a=b&c=d", "a as a", "`",
    [], [[]], [None], [1], ["a"], ["a", "a"], [["eq"]], [["eq", "a.x"]],
    {}, {"": ""}, {"a": None}, {"a": {"b": []}}, {"type": "x"},
    b"bytes", dt.date(2024, 1, 1), dt.timedelta(1), (1, 2), {1: 2}, object(), {1}, 3 + 4j,
)  # fmt: skip
_FOLDERS = {
    "source": "landing", "merged": "merged", "failure": "failure", "original": "original",
    "state_path": "state", "reader": {"format": "json"}, "writer": {"format": "json"},
}  # fmt: skip
_LOCATIONS = {"source": "s", "target": "t"}


@dataclass
class Tally:
    """Number of configurations by result; ``failed`` has the seeds of those with another exception."""

    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)


def try_configurations(capability: str, seed: int, count: int, tally: Tally) -> None:
    """Try a number of configurations of a capability; the same seed creates the same ones."""
    rng = random.Random(seed)  # noqa: S311 - repeatable
    for number in range(count):
        raw = build_configuration(rng, capability)
        began = time.process_time()
        try:
            config = CAPABILITIES[capability].config.parse(raw)
            config.list_datasets()
            config.list_warnings()
            tally.accepted[capability] += 1
        except ConfigError as error:
            tally.refused[capability] += 1
            if not error.message.strip() or "Traceback" in error.message:
                tally.failed.append(f"{capability} {seed}/{number}: says {error.message!r} of {raw!r}")
        except Exception as error:  # noqa: BLE001 - any exception is a finding
            tally.failed.append(f"{capability} {seed}/{number}: {error!r} of {raw!r}")
        if time.process_time() - began > SECONDS_MAX:
            tally.failed.append(f"{capability} {seed}/{number}: takes long: {raw!r}")


def build_configuration(rng: random.Random, capability: str) -> dict[str, Any]:
    """Return a configuration of the vectors with one to three changes."""
    configurations = list_known(capability)
    raw = dict(rng.choice(configurations))
    for _ in range(rng.choice((1, 1, 2, 3))):
        other, kind = rng.choice(configurations), rng.random()
        if kind < 0.45 and other:
            name = rng.choice(list(other))
            raw = {**raw, name: other[name]}
        elif kind < 0.6 and raw:
            raw.pop(rng.choice(list(raw)))
        elif kind < 0.9:
            changed = change_value(rng, raw, rng.choice(ODD))
            raw = changed if isinstance(changed, dict) else {"x": changed}
        else:
            raw = {**raw, rng.choice(list(CAPABILITIES[capability].config.model_fields)): rng.choice(ODD)}
    return raw


def change_value(rng: random.Random, value: Any, new: Any) -> Any:
    """Return a value with one random change."""
    return _replace_value(value, rng.choice(list(_list_paths(value))), new)


@cache
def list_known(capability: str) -> list[Mapping[str, Any]]:
    """Return the configurations of a capability's vectors, with locations for their datasets."""
    vectors = json.loads((VECTORS / f"{capability}.json").read_text(encoding="utf-8"))["vectors"]
    return [
        configuration
        for vector in vectors
        if (configuration := _read_configuration(capability, vector)) is not None
    ]


def _read_configuration(capability: str, vector: Mapping[str, Any]) -> dict[str, Any] | None:
    if capability == "merge_engine":
        named = {"primary_key": vector["primary_key"], "merge_engine": vector["engine"]}
        return {**_LOCATIONS, **named, "options": vector["options"]}
    if capability == "merge_load":
        load_options = {**vector["operator"], **vector["loads"][0]}
        properties = {
            name: value for name, value in load_options.items() if name not in {"expectation", "rows"}
        }
        return {**_LOCATIONS, "strategy": vector["strategy"], **properties}
    if capability == "merge_record":
        try:
            return {**_FOLDERS, **from_properties(vector["properties"])}
        except ConfigError:
            return None
    if capability == "joiner":
        inputs = {stage: f"t{number}" for number, stage in enumerate(vector["inputs"])}
        return {**vector["config"], "inputs": inputs, "target": "t"}
    return dict(vector["config"]) if "config" in vector else None


def _list_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        for name, child in value.items():
            yield from _list_paths(child, (*path, name))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _list_paths(child, (*path, index))


def _replace_value(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return a value in which the value at a path is replaced."""
    if not path:
        return new
    changed = dict(value) if isinstance(value, dict) else list(value)
    changed[path[0]] = _replace_value(value[path[0]], path[1:], new)
    return changed
