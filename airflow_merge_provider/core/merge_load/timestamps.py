"""Parsing of timestamps: text with or without a time, a number of seconds, a date, or a datetime."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pendulum

from airflow_merge_provider.core.value_text import has_cut_digits

_ONE_MICROSECOND = Decimal("0.000001")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP_FORMS = (
    "use ISO 8601, e.g. 2026-11-24T10:00:00Z (UTC if there is no offset), or seconds since 1970"
)
_MICROSECOND_HINT = "use microseconds, such as 9999-12-31T23:59:59.999999Z"


class CutDigitsError(ValueError):
    """A timestamp has digits below a microsecond."""


def parse_timestamp(value: Any) -> datetime:
    """Parse a timestamp; without an offset it is UTC. Source: docs/semantics/merge_load.md, Timestamps.

    >>> parse_timestamp("2024-03-03T10:00:00+02:00").isoformat(), parse_timestamp(0).isoformat()
    ('2024-03-03T08:00:00+00:00', '1970-01-01T00:00:00+00:00')

    :raises CutDigitsError: if it has digits below a microsecond, which would be cut.
    :raises ValueError: if it is not a timestamp.
    """
    try:
        timestamp = _read_timestamp(value)
    except (ValueError, OverflowError):
        timestamp = None
    if timestamp is None:
        raise ValueError(f"{value!r} is not a valid timestamp: {_TIMESTAMP_FORMS}")
    if _has_cut_digits(value):
        raise CutDigitsError(f"{value!r} has more than six digits of a second: {_MICROSECOND_HINT}")
    return timestamp


def to_microseconds(at: datetime) -> int:
    """Return the microseconds since 1970, without the rounding of floats.

    >>> to_microseconds(parse_timestamp("9999-12-31T23:59:59.999999"))
    253402300799999999
    """
    return (at - EPOCH) // timedelta(microseconds=1)


def from_micros(count: int) -> datetime:
    """Return the timestamp of a number of microseconds since 1970."""
    return EPOCH + timedelta(microseconds=count)


def _has_cut_digits(value: Any) -> bool:
    if isinstance(value, int | float):
        # The digits that distinguish the number from others are those that people write.
        return Decimal(repr(value)) % _ONE_MICROSECOND != 0
    # A timestamp of pandas has nanoseconds.
    return has_cut_digits(value) if isinstance(value, str) else bool(getattr(value, "nanosecond", 0))


def _read_timestamp(value: Any) -> datetime | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return EPOCH + timedelta(seconds=value)
    if isinstance(value, str):
        # Without exact, a time alone would get the date of today, and a retry would differ from its run.
        value = pendulum.parse(value.strip(), exact=True)
    if isinstance(value, datetime):
        plain = datetime.combine(value.date(), value.time(), tzinfo=value.tzinfo or UTC)
        return plain.astimezone(UTC)
    if isinstance(value, date):
        return datetime.combine(date(value.year, value.month, value.day), time(), tzinfo=UTC)
    return None
