"""Times in files of programs other than Spark, which Spark takes for others: old days of ORC, and INT96.

Source: docs/semantics/merge_record.md, Types of files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc

# ORC's Java library, and so Spark, takes earlier days in files of others for those of the Julian calendar.
GREGORIAN_START = date(1582, 10, 15)
_NANOS_MAX = 2**63 - 1
_NANOS_PER_SECOND = 10**9
ODD_NANOS = "a time with nanoseconds, which Spark cuts"
_WRITTEN_BY_SPARK = b"org.apache.spark.version"


def is_written_by_spark(metadata: Mapping[bytes, bytes] | None) -> bool:
    """Return whether the metadata of a Parquet or ORC file is that of Spark."""
    return _WRITTEN_BY_SPARK in (metadata or {})


def find_odd_nanos(columns: Iterable[str], read: Callable[[str, str], pa.ChunkedArray]) -> str | None:
    """Return a column of INT96 with a time, also inside a value, whose nanoseconds Spark cuts; or None.

    :param read: returns the times of a column with a unit, as pyarrow reads them.
    """
    for name in columns:
        pairs = zip(_list_times(read(name, "ns")), _list_times(read(name, "us")), strict=True)
        if any(nanos.type != micros.type and _is_odd(nanos, micros) for nanos, micros in pairs):
            return name
    return None


def _is_odd(nanos: pa.ChunkedArray, micros: pa.ChunkedArray) -> bool:
    nanos, micros = nanos.cast(pa.int64()), micros.cast(pa.int64())
    # Times beyond the years that nanoseconds hold come out as others.
    is_held = pc.less(pc.abs(micros), _NANOS_MAX // 1000)
    is_odd = pc.not_equal(nanos, pc.multiply(pc.if_else(is_held, micros, 0), 1000))
    return bool(pc.any(pc.and_(is_held, is_odd)).as_py())


def find_lost_time(values: pa.ChunkedArray) -> str | None:
    """Return what is wrong with a time of an ORC file of another program, also inside a value; or None."""
    for times in _list_times(values):
        nanos = times.cast(pa.int64())
        is_fraction = pc.and_(pc.less(nanos, 0), _is_between(nanos, _NANOS_PER_SECOND))
        if pc.any(is_fraction).as_py():
            return "a TIMESTAMP before 1970 with a fraction of a second, which Spark cannot read in this file"
        if pc.any(_is_between(nanos, 1000)).as_py():
            return ODD_NANOS
    return None


def _list_times(values: pa.ChunkedArray) -> Iterator[pa.ChunkedArray]:
    """Yield the times in the values of a column."""
    kind = values.type
    parts: list[pa.ChunkedArray] = []
    if pa.types.is_timestamp(kind):
        yield values
    elif pa.types.is_struct(kind):
        parts = [pc.struct_field(values, [field.name]) for field in kind]
    elif pa.types.is_map(kind):
        parts = [pa.chunked_array([part]) for one in values.chunks for part in (one.keys, one.items)]
    elif pa.types.is_list(kind):
        parts = [pc.list_flatten(values)]
    for part in parts:
        yield from _list_times(part)


def _is_between(nanos: pa.ChunkedArray, unit: int) -> pa.ChunkedArray:
    """Return which times are not a whole number of units."""
    return pc.not_equal(nanos, pc.multiply(pc.divide(nanos, unit), unit))
