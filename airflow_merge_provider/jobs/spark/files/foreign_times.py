"""Times in files of programs other than Spark, which Spark takes for others: old days of ORC, and INT96.

Source: docs/semantics/merge_record.md, Types of files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc

# ORC's Java library, and so Spark, takes earlier days in files of others for those of the Julian calendar.
GREGORIAN_START = date(1582, 10, 15)
_NANOS_MAX = 2**63 - 1
_NANOS_PER_SECOND = 10**9
_WRITTEN_BY_SPARK = b"org.apache.spark.version"


def is_written_by_spark(metadata: Mapping[bytes, bytes] | None) -> bool:
    """Return whether the metadata of a Parquet or ORC file is that of Spark."""
    return _WRITTEN_BY_SPARK in (metadata or {})


def find_odd_nanos(columns: Iterable[str], read: Callable[[str, str], pa.ChunkedArray]) -> str | None:
    """Return a column of INT96 that has a time with nanoseconds, which Spark cuts, or None.

    :param read: returns the times of a column with a unit, as pyarrow reads them.
    """
    for name in columns:
        nanos, micros = (read(name, unit).cast(pa.int64()) for unit in ("ns", "us"))
        # Times beyond the years that nanoseconds hold come out as others.
        is_held = pc.less(pc.abs(micros), _NANOS_MAX // 1000)
        is_odd = pc.not_equal(nanos, pc.multiply(pc.if_else(is_held, micros, 0), 1000))
        if pc.any(pc.and_(is_held, is_odd)).as_py():
            return name
    return None


def has_fraction_before_1970(values: pa.ChunkedArray) -> bool:
    """Return whether values have a time before 1970 that is not a whole second: Spark fails at it in ORC."""
    kind = values.type
    if pa.types.is_timestamp(kind):
        nanos = values.cast(pa.int64())
        seconds = pc.multiply(pc.divide(nanos, _NANOS_PER_SECOND), _NANOS_PER_SECOND)
        return bool(pc.any(pc.and_(pc.less(nanos, 0), pc.not_equal(nanos, seconds))).as_py())
    if pa.types.is_struct(kind):
        return any(has_fraction_before_1970(pc.struct_field(values, [field.name])) for field in kind)
    if pa.types.is_map(kind):
        parts = [part for chunk in values.chunks for part in (chunk.keys, chunk.items)]
        return any(has_fraction_before_1970(pa.chunked_array([part])) for part in parts)
    return pa.types.is_list(kind) and has_fraction_before_1970(pc.list_flatten(values))
