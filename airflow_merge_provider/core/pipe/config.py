"""The configuration of a pipe: its source, its sink, and what starts it.

Source: docs/semantics/merge_source.md, Pipes; Signalling.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import ErrorDetails

from airflow_merge_provider.core.errors import Problem, suggest_name
from airflow_merge_provider.core.merge_source.config import INTERVAL_MIN_SECONDS, is_signalling
from airflow_merge_provider.core.model import Config
from airflow_merge_provider.core.population import Offset

SOURCE_JOBS = {
    "merge": "merge_source",
    "merge_engine": "merge_engine",
    "scd2": "scd2",
    "delete_insert": "delete_insert",
    "upsert": "upsert",
    "merge_record": "merge_record",
    "joiner": "joiner",
}

LOADS = {"scd2": "scd2", "delete_insert": "delete-insert", "upsert": "upsert"}
_OF_THE_PIPE = ("type", "comment", "supports_signalling")
_PIPE_ID = re.compile(r"[A-Za-z0-9_.\-]{1,250}\Z")
_TEMPLATE_WORDS = ("{{", "{%")
_CRON_FIELDS = 5
_INTERVAL_MAX = 10 * 366 * 86_400


def is_dag_id(name: str) -> bool:
    """Return whether a name is a valid DAG ID."""
    return bool(_PIPE_ID.match(name))


def _check_id(value: Any) -> Any:
    if isinstance(value, str) and not is_dag_id(value):
        raise ValueError(
            "must contain only letters, digits, _, - and ., at most 250, because it is the DAG ID"
        )
    return value


def _check_interval(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (is_number and 0 < value <= _INTERVAL_MAX):
        raise ValueError("must be a number of seconds above 0, at most ten years")
    return value


def _check_cron(value: Any) -> Any:
    if isinstance(value, str) and not value.startswith("@") and len(value.split()) != _CRON_FIELDS:
        raise ValueError(
            'must have five fields, for example "0 * * * *", or be a preset, for example "@hourly"'
        )
    return value


class Pump(Config):
    """The schedule of a pipe."""

    unknown_word: ClassVar[str] = "unknown property"

    type: Literal["datasync"] = "datasync"
    schedule_interval: Annotated[float | None, BeforeValidator(_check_interval)] = None
    cron_expression: Annotated[str | None, BeforeValidator(_check_cron)] = None
    mode: Literal["scheduled", "manual", "off"] = "scheduled"
    comment: Any = None


class Sink(Config):
    """The dataset that a pipe writes; by default the dataset with the pipe's name."""

    unknown_word: ClassVar[str] = "unknown property"

    type: Literal["dataset"] = "dataset"
    dataset: str | None = None
    set_initial_offset: Offset = "if-source-populated"
    comment: Any = None


class PipeConfig(Config):
    """A pipe: one source, one sink, and the pump between them."""

    unknown_word: ClassVar[str] = "unknown property"

    id: Annotated[str, BeforeValidator(_check_id)] = Field(alias="_id")
    type: Literal["pipe"] = "pipe"
    source: dict[str, Any]
    sink: Sink = Sink()
    pump: Pump = Pump()
    description: str | None = None
    comment: Any = None
    metadata: Any = None

    @property
    def kind(self) -> str:
        """The module of the operator that runs the source."""
        return SOURCE_JOBS[self.source.get("type", "merge")]

    @property
    def target(self) -> str:
        """The dataset that is written."""
        return self.sink.dataset or self.id

    def build_job(self) -> tuple[str, dict[str, Any]]:
        """Return the name and the configuration of the job that runs the source.

        >>> PipeConfig.parse({"_id": "t", "source": {"type": "upsert", "source": "s"}}).build_job()
        ('merge_load', {'source': 's', 'target': 't', 'strategy': 'upsert'})
        """
        if self.kind == "merge_source":
            return self.kind, {**self.source, "target": self.target}
        output = "merged" if self.kind == "merge_record" else "target"
        arguments = {name: value for name, value in self.source.items() if name not in _OF_THE_PIPE}
        config = {**arguments, output: self.target}
        if self.kind in LOADS:
            return "merge_load", {**config, "strategy": LOADS[self.kind]}
        return self.kind, config

    @classmethod
    def check_rules(cls, fields: Mapping[str, Any]) -> Iterator[Problem]:
        kind = fields.get("source", {}).get("type", "merge")
        if not isinstance(kind, str) or kind not in SOURCE_JOBS:
            hint = suggest_name(str(kind), SOURCE_JOBS, "types")
            yield Problem("source.type", "unknown", f"unknown source type {kind!r}", hint)
        pump = fields.get("pump")
        if pump is not None and pump.cron_expression and pump.schedule_interval:
            way_out = "keep one of them"
            yield Problem("pump", "both", "schedule_interval and cron_expression cannot be combined", way_out)
        for path, value in _list_texts(fields.get("source", {}), "source"):
            if any(word in value for word in _TEMPLATE_WORDS):
                yield Problem(
                    path, "template", "templates are not supported in pipes", "write the value itself"
                )

    @classmethod
    def _build_problem(cls, detail: ErrorDetails) -> Problem:
        if detail["type"] == "extra_forbidden" and detail["loc"] == ("transform",):
            hint = "put the transformation in a separate pipe, before or after the merge"
            return Problem("transform", "unsupported", "is not supported in a merge pipe", hint)
        return _find_inner_problem(detail) or super()._build_problem(detail)


def _find_inner_problem(detail: ErrorDetails) -> Problem | None:
    """Return a problem with the known properties of the pump or the sink, instead of those of the pipe."""
    parts: dict[str, type[Config]] = {"pump": Pump, "sink": Sink}
    part = parts.get(str(detail["loc"][0])) if detail["loc"] else None
    if part is None or detail["type"] != "extra_forbidden":
        return None
    name = str(detail["loc"][-1])
    hint = suggest_name(name, part.model_fields, "properties")
    return Problem(f"{detail['loc'][0]}.{name}", "unknown", f"unknown property {name!r}", hint)


def _list_texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _list_texts(item, f"{path}.{name}")
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from _list_texts(item, f"{path}[{position}]")


@dataclass(frozen=True, slots=True)
class Schedule:
    """``interval`` in seconds, ``cron``, or neither; if ``signalled``, a change of any input starts runs."""

    interval: float | None = None
    cron: str | None = None
    signalled: bool = False


def plan_schedule(
    pump: Pump,
    *,
    supports_signalling: bool | None,
    use_signalling_internally: bool = False,
    signalling_min_interval: float = INTERVAL_MIN_SECONDS,
) -> Schedule:
    """Return the schedule of a pipe; a pipe that is started manually has none.

    >>> plan_schedule(Pump(schedule_interval=300), supports_signalling=True)
    Schedule(interval=300.0, cron=None, signalled=True)
    """
    if pump.mode != "scheduled":
        return Schedule()
    cron = pump.cron_expression
    by_time: dict[str, Any] | None = {"cron": cron} if cron else None
    if pump.schedule_interval is not None:
        by_time = {"interval": pump.schedule_interval}
    signalled = is_signalling(
        supports_signalling,
        by_time,
        use_signalling_internally=use_signalling_internally,
        shortest_interval=signalling_min_interval,
    )
    return Schedule(pump.schedule_interval, cron, signalled)
