"""Compute unions of serialized bitmaps and sketches, and write them in portable binary formats.

Spark computes unions of sketches, and writes them in its own formats; Apache DataSketches converts these to
the compact formats that other engines write. CRoaring computes unions of bitmaps; its portable format is
common to all libraries.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

from pyspark.sql import Column, functions as F
from pyspark.sql.types import BinaryType

from airflow_merge_provider.jobs import merge_engine
from airflow_merge_provider.jobs.spark.pickling import pickle_once

_LONGS_WITH_COUNT = 2
_SAMPLING = slice(12, 16)


def unite_bitmaps(values: Column) -> Column:
    """Return the union of a list of rbm32 bitmaps; NULL if the list is empty or a bitmap is broken."""
    return F.udf(pickle_once(_unite_bitmaps_in_python, merge_engine), BinaryType(), useArrow=True)(values)


def compact_sketch(function: str, value: Column) -> Column:
    """Return a sketch in the compact format that other engines write."""
    return F.udf(pickle_once(_COMPACT[function], merge_engine), BinaryType(), useArrow=True)(value)


def _unite_bitmaps_in_python(values: list[bytes] | None) -> bytes | None:
    from pyroaring import BitMap  # noqa: PLC0415 - on workers, and only where bitmaps are

    if not values:
        return None
    try:
        return bytes(BitMap.union(*map(BitMap.deserialize, values)).serialize())
    except (ValueError, IndexError):
        return None


def _compact_hll(value: bytes | None) -> bytes | None:
    from datasketches import hll_sketch, hll_union, tgt_hll_type  # noqa: PLC0415 - as above

    if value is None:
        return None
    sketch = hll_sketch.deserialize(bytes(value))
    union = hll_union(sketch.lg_config_k)
    union.update(sketch)
    return bytes(union.get_result(tgt_hll_type.HLL_4).serialize_compact())


def _compact_theta(value: bytes | None) -> bytes | None:
    from datasketches import compact_theta_sketch  # noqa: PLC0415 - as above

    if value is None:
        return None
    written = bytearray(compact_theta_sketch.deserialize(bytes(value)).serialize())
    if written[0] >= _LONGS_WITH_COUNT:
        # The sampling probability: the C++ library omits it, the Java library writes it.
        written[_SAMPLING] = struct.pack("<f", 1.0)
    return bytes(written)


_COMPACT: Mapping[str, Callable[[bytes | None], bytes | None]] = {
    "hll_sketch": _compact_hll,
    "theta_sketch": _compact_theta,
}
