"""How long may it take until a DAG runs again, as far as its schedule tells."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

_FIRES = 50


def longest_pause(timetable: Any) -> timedelta | None:
    """Return the longest time between two runs of a timetable; None when it is not known.

    Of a schedule by assets or time only the time counts: nobody knows when assets come.
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
    """Return whether nothing but an asset's event starts a DAG."""
    return type(timetable).__name__ == "AssetTriggeredTimetable"
