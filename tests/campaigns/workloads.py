"""Random workloads of every capability: a configuration, and sources that change with each step.

The same seed and step write the same rows, so that a disturbed run can be compared with an undisturbed one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from airflow_merge_provider.core.merge_record.landing import SIDECAR
from airflow_merge_provider.core.protocol import JobRequest, RunToken

SECOND = 1_000_000
# A valid file for every landing folder, and the content of invalid files.
REUSED = "2-0.json"
BAD = "{bad"
# The share of workloads that leave out rows which do not meet an expectation.
_EXPECTING_SHARE = 0.15
# 2024-01-01, in seconds: the time of step 0.
EPOCH = 1_704_067_200

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Workload:
    """Configuration of a capability, and the function that writes its sources.

    ``write(folder, random, step)`` adds the rows of a step to the sources below a folder.
    """

    capability: str
    seed: int
    config: Mapping[str, Any]
    write: Callable[[Path, Random, int], None]

    def write_sources(self, folder: Path, step: int) -> None:
        """Write the rows of a step, the same in every call."""
        self.write(folder, _create_random(f"{self.seed}/{step}"), step)

    def build_request(
        self, folder: Path | str, step: int, run_id: str | None = None, **more: Any
    ) -> JobRequest:
        """Return the request of the run for a step."""
        return JobRequest(
            job=self.capability,
            config=dict(self.config),
            run=RunToken(dag_id="campaign", run_id=run_id or f"run-{step}", task_id=self.capability),
            warehouse=str(folder),
            started_at=(EPOCH + step * 86_400) * SECOND,
            **more,
        )


def build_workload(capability: str, seed: int) -> Workload:
    """Return the workload of a seed."""
    random = _create_random(f"{capability}/{seed}")
    config, write = _BUILDERS[capability](random)
    return Workload(capability, seed, config, write)


def _create_random(seed: str) -> Random:
    return Random(seed)  # noqa: S311 - repeatable


def _append_rows(folder: Path, name: str, rows: Rows, schema: pa.Schema, mode: str = "append") -> None:
    table = pa.Table.from_pylist(rows, schema)
    # The table may have additional columns from user actions.
    write_deltalake(str(folder / name), table, mode=mode, schema_mode="merge")


# Merge source: versions of persons that share values.

_PERSON = pa.schema(
    {
        "_id": pa.string(), "_updated": pa.int64(), "_deleted": pa.bool_(),
        "email": pa.string(), "phone": pa.string(), "name": pa.string(),
    }
)  # fmt: skip
_DECISION = pa.schema([(name, pa.string()) for name in ("kind", "left", "right")])


def _build_merge_source(random: Random) -> tuple[dict[str, Any], Any]:
    aliases = "abc"[: random.choice((2, 3))]
    config: dict[str, Any] = {
        "version": 2,
        "target": "golden",
        "datasets": [f"{alias.upper()} {alias}" for alias in aliases],
        "equality": [["eq", "a.email", "b.email"]]
        + [["eq", "b.phone", f"{alias}.phone"] for alias in aliases[2:]]
        + ([["eq", "a.phone", "a.phone"]] if random.random() < 0.3 else []),
        "strategy": random.choice(("default", "compact", "list")),
        "identity": random.choice(("composite", "composite", "first")),
    }
    if random.random() < 0.4:
        config |= {"stable_id": True, "replaced_by": True}
    if random.random() < 0.4:
        config["metrics"] = "metrics"
    if random.random() < 0.3:
        config["overrides"] = "decisions"
    if random.random() < 0.3:
        config |= {"max_key_fanout": 4, "on_over_merge": "quarantine"}

    def write_step(folder: Path, random: Random, step: int) -> None:
        for index, alias in enumerate(aliases):
            rows = [
                {
                    "_id": f"{alias}{random.randrange(12)}",
                    "_updated": 1000 * step + number,
                    "_deleted": random.random() < 0.15,
                    "email": random.choice(("x", "y", "z", "u", "v", None)),
                    "phone": random.choice(("1", "2", "3", "4", None)),
                    "name": random.choice(("Ann", "Bob", "Cid")),
                }
                for number in range(random.choice((3, 8)))
            ]
            if rows and (index == 0 or random.random() < 0.8 or step == 1):
                _append_rows(folder, alias.upper(), rows, _PERSON)
        if "overrides" in config and step == 1:
            decision = {"kind": "different", "left": "A/a0", "right": "B/b0"}
            _append_rows(folder, "decisions", [decision], _DECISION)

    return config, write_step


# Merge engine: changes of few keys.

_CHANGE = pa.schema(
    [("k", pa.int64()), ("op", pa.string()), ("s", pa.int64()), ("v", pa.int64()), ("w", pa.string())]
)
_ENGINES: tuple[dict[str, Any], ...] = (
    {"merge_engine": "deduplicate", "options": {"sequence.field": "s"}, "tombstone_retention": 7},
    {"merge_engine": "deduplicate", "options": {}},
    {
        "merge_engine": "aggregation",
        "options": {
            "fields.v.aggregate-function": "sum",
            "fields.w.aggregate-function": "last_value",
            "sequence.field": "s",
            "aggregation.remove-record-on-delete": "true",
        },
        "tombstone_retention": 7,
    },
    {
        "merge_engine": "partial-update",
        "options": {"fields.s.sequence-group": "v,w", "ignore-delete": "true"},
    },
    {"merge_engine": "first-row", "options": {"ignore-delete": "true"}},
)


def _build_merge_engine(random: Random) -> tuple[dict[str, Any], Any]:
    engine = random.choice(_ENGINES)
    config = {
        "source": "changes",
        "target": "state",
        "primary_key": ["k"],
        "row_kind_column": "op",
        **engine,
    }
    if random.random() < 0.6:
        config["changelog"] = "log"
    if random.random() < _EXPECTING_SHARE:
        config["expect"] = {"small": {"condition": "v < 4", "action": "quarantine"}}
    # Of ten keys, few changes make a compaction due.
    if random.random() < 0.4:
        config["compact_ratio"] = 0.1

    def write_step(folder: Path, random: Random, step: int) -> None:
        for commit in range(random.choice((1, 2))):
            rows = [
                {
                    "k": random.randrange(10),
                    "op": random.choice(("+I", "+I", "+U", "-D")),
                    "s": 1000 * step + 100 * commit + number,
                    "v": random.randrange(5),
                    "w": random.choice("xyz"),
                }
                for number in range(random.choice((2, 6)))
            ]
            _append_rows(folder, "changes", rows, _CHANGE)

    return config, write_step


# Merge load: loads by key, replaced groups, histories, lists in their own tables.

_LOAD = pa.schema(
    {
        "id": pa.int64(), "g": pa.string(), "v": pa.int64(), "s": pa.int64(), "gone": pa.bool_(),
        "at": pa.timestamp("us", "UTC"), "items": pa.list_(pa.struct([("n", pa.int64())])),
    }
)  # fmt: skip
_LOADS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"strategy": "upsert", "primary_key": "id", "sequence_by": "s", "hard_delete": "gone"}, "sgv"),
    ({"strategy": "upsert", "primary_key": "id", "nested": "tables"}, "v+"),
    ({"strategy": "upsert", "primary_key": "id", "dispatch_by": "g"}, "gv"),
    ({"strategy": "upsert", "primary_key": "id", "variant": "cdc", "hard_delete": "gone"}, "v"),
    ({"strategy": "delete-insert", "primary_key": "id"}, "gv"),
    ({"strategy": "delete-insert", "merge_key": "g"}, "gv"),
    ({"strategy": "delete-insert", "primary_key": "id", "merge_key": "g", "nested": "tables"}, "gv+"),
    ({"strategy": "scd2", "natural_key": "id"}, "gv"),
    ({"strategy": "scd2", "natural_key": "id", "nested": "tables"}, "v+"),
    ({"strategy": "scd2"}, "gv"),
    (
        {
            "strategy": "scd2", "natural_key": "id", "mode": "changes", "effective_from": "at",
            "sequence_by": "s", "hard_delete": "gone", "on_late": "repair",
        },
        "@sv",
    ),
)  # fmt: skip
_COLUMNS = {"@": ("at",), "+": ("items",)}


def _deletes_absent_rows(strategy: Mapping[str, Any]) -> bool:
    """Return whether a load deletes or closes rows that it does not contain."""
    is_snapshot = strategy["strategy"] == "scd2" and strategy.get("mode") != "changes"
    return is_snapshot or "merge_key" in strategy or strategy.get("variant") == "cdc"


def _build_merge_load(random: Random) -> tuple[dict[str, Any], Any]:
    strategy, letters = random.choice(_LOADS)
    config = {"source": "rows", "target": "table", **strategy}
    names = ["id", *(name for letter in letters for name in _COLUMNS.get(letter, (letter,)))]
    if random.random() < _EXPECTING_SHARE and "v" in names and not _deletes_absent_rows(strategy):
        config["expect"] = {"small": {"condition": "v < 3", "action": "quarantine"}}
    flag = strategy.get("hard_delete")
    schema = pa.schema([_LOAD.field(name) for name in (*names, *([flag] if flag else []))])

    def write_step(folder: Path, random: Random, step: int) -> None:
        keys = random.sample(range(10), random.choice((3, 7)))
        rows = [
            {
                "id": key,
                "g": random.choice("pq"),
                "v": random.randrange(4),
                "s": 100 * step + random.randrange(-150, 100),
                "gone": random.random() < 0.2,
                "at": datetime(2024, 1, 1, tzinfo=UTC) + timedelta(days=random.randrange(5 * step)),
                "items": [{"n": random.randrange(3)} for _ in range(random.randrange(3))],
            }
            for key in keys
        ]
        _append_rows(folder, "rows", rows, schema, "overwrite")

    return config, write_step


# Joiner: tables.

_LEFT = pa.schema([("id", pa.int64()), ("name", pa.string())])
_RIGHT = pa.schema([("purchase", pa.int64()), ("customer", pa.int64())])
_JOINS: tuple[dict[str, Any], ...] = (
    {"unmatched": "unmatched"},
    {"write_mode": "append"},
    {"required_inputs": "customers,purchases", "indicator": "found_in"},
)


def _build_joiner(random: Random) -> tuple[dict[str, Any], Any]:
    config = {
        "inputs": {"customers": "customers", "purchases": "purchases"},
        "join_keys": "customers.id = purchases.customer",
        "required_inputs": "customers",
        "selected_fields": "customers.id, customers.name, purchases.purchase",
        "target": "joined",
        **random.choice(_JOINS),
    }

    def write_step(folder: Path, random: Random, step: int) -> None:
        left = [{"id": key, "name": f"n{step}"} for key in random.sample(range(9), 5)]
        right = [{"purchase": 100 * step + n, "customer": random.randrange(9)} for n in range(6)]
        _append_rows(folder, "customers", left, _LEFT, "overwrite")
        _append_rows(folder, "purchases", right, _RIGHT)

    return config, write_step


# MergeRecord: files of JSON lines, some of them invalid.


def _build_merge_record(random: Random) -> tuple[dict[str, Any], Any]:
    action = random.choice(("move", "delete", "keep"))
    config = {
        "source": "in",
        "state_path": "state",
        "merged": "merged",
        "failure": "failure",
        "reader": "json",
        "original_action": action,
        **({"original": "original"} if action == "move" else {}),
        "min_records": 2,
        "max_records": random.choice((2, 3, 4)),
        "correlation_attribute_name": "k",
        "attribute_sources": ["sidecar"],
        "failure_scope": random.choice(("bin", "flowfile")),
    }

    def write_step(folder: Path, random: Random, step: int) -> None:
        for number in range(random.choice((3, 6))):
            content = "".join(
                json.dumps({"id": f"{step}-{number}-{index}"}) + "\n"
                for index in range(random.choice((1, 2)))
            )
            is_bad = number > 0 and random.random() < 0.15
            write_file(folder, f"{step}-{number}.json", BAD if is_bad else content, random.choice("12"))

    return config, write_step


def write_file(folder: Path, name: str, content: str, group: str) -> None:
    """Write a file and its sidecar atomically, as a writer that never exposes partial files."""
    path = folder / "in" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(f"{name}{SIDECAR}").write_text(json.dumps({"k": group}), encoding="utf-8")
    new = path.with_name(f".{name}.tmp")
    new.write_text(content, encoding="utf-8")
    os.utime(new, (EPOCH, EPOCH))
    new.replace(path)


_BUILDERS = {
    "joiner": _build_joiner,
    "merge_engine": _build_merge_engine,
    "merge_load": _build_merge_load,
    "merge_record": _build_merge_record,
    "merge_source": _build_merge_source,
}
