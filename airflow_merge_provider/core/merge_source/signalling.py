"""Does a change of an input start a run, or only the schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SHORTEST_INTERVAL = 120


def is_signalling(
    supports_signalling: bool | None,  # noqa: FBT001 - three values: yes, no, not said
    schedule: Mapping[str, Any] | None,
    *,
    use_signalling_internally: bool = False,
    shortest_interval: float = SHORTEST_INTERVAL,
) -> bool:
    """Decide by the source's own word, else by the global setting and the schedule.

    ``schedule`` is ``{"interval": seconds}``, ``{"cron": text}`` or None. A cron expression or a short
    interval switches signalling off unless the source asks for it.

    >>> is_signalling(None, {"interval": 3600}, use_signalling_internally=True)
    True
    """
    if supports_signalling is not None:
        return supports_signalling
    if not use_signalling_internally:
        return False
    if schedule is None:  # nothing else would run it
        return True
    return "cron" not in schedule and schedule["interval"] >= shortest_interval
