"""Compute the longest time between two runs of a DAG from its schedule."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

_FIRES = 50


def longest_pause(timetable: Any) -> timedelta | None:
    """Return the longest time between two runs of a timetable; None when it is not known.

    For a schedule by assets or time only the time is used, because asset events are not predictable.
    """
    timetable = getattr(timetable, "timetable", timetable)
    delta = getattr(timetable, "delta", None)
    if isinstance(delta, timedelta):
        return delta
    expression = getattr(timetable, "expression", None)
    if not isinstance(expression, str):
        return None
    from croniter import croniter  # type: ignore[import-untyped] # noqa: PLC0415 - only for cron

    fires = croniter(expression, datetime(2024, 1, 1, tzinfo=UTC), ret_type=datetime)
    times = [fires.get_next() for _ in range(_FIRES)]
    return max((later - sooner for sooner, later in pairwise(times)), default=None)


def is_by_assets_alone(timetable: Any) -> bool:
    """Return whether only asset events start the DAG."""
    return type(timetable).__name__ == "AssetTriggeredTimetable"
