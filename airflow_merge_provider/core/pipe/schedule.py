"""The schedule of a pipe: by time, by changes of its inputs, or by both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_merge_provider.core.merge_source.signalling import INTERVAL_MIN_SECONDS, is_signalling
from airflow_merge_provider.core.pipe.config import Pump


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
