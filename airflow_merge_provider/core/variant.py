"""Values of VARIANT columns: the binary encoding of the Parquet format, decoded to plain values."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any
from uuid import UUID

from airflow_merge_provider.core.value_text import DistantTime, Float32, read_day, read_micros

_SHORT_STRING, _OBJECT, _VARIANT_ARRAY = 1, 2, 3
_CONSTANTS = {0: None, 1: True, 2: False}
_FLOAT = 14
_NUMBER_FORMATS = {3: "<b", 4: "<h", 5: "<i", 6: "<q", 7: "<d", _FLOAT: "<f"}
_DECIMAL_BYTES = {8: 4, 9: 8, 10: 16}
_VARIANT_DATE, _TIMESTAMP, _TIMESTAMP_NTZ, _VARIANT_BINARY, _STRING, _VARIANT_UUID = 11, 12, 13, 15, 16, 20
_FIELDS = {"metadata", "value"}


def decode_variants(value: Any) -> Any:
    r"""Return a value in which each VARIANT, which delta-rs reads as its binary parts, has its plain value.

    >>> decode_variants([{"metadata": b"\x01\x01\x00\x01a", "value": b"\x02\x01\x00\x00\x02\x0c\x01"}])
    [{'a': 1}]
    """
    if isinstance(value, Mapping):
        if set(value) == _FIELDS and all(isinstance(part, bytes) for part in value.values()):
            return _decode_variant(value)
        return {name: decode_variants(item) for name, item in value.items()}
    if isinstance(value, list):
        return [decode_variants(item) for item in value]
    return tuple(decode_variants(item) for item in value) if isinstance(value, tuple) else value


def _decode_variant(parts: Mapping[str, bytes]) -> Any:
    """Return the plain value; a struct of bytes that is not a VARIANT stays as it is."""
    try:
        return _decode_value(parts["value"], 0, _decode_names(parts["metadata"]))
    except (IndexError, ValueError, KeyError, OverflowError, struct.error):
        return dict(parts)


def _decode_names(metadata: bytes) -> list[str]:
    """Return the dictionary of field names."""
    size = (metadata[0] >> 6) + 1
    count = _read_number(metadata, 1, size)
    offsets = [_read_number(metadata, 1 + size * (position + 1), size) for position in range(count + 1)]
    start = 1 + size * (count + 2)
    return [metadata[start + begin : start + end].decode() for begin, end in pairwise(offsets)]


def _decode_value(content: bytes, at: int, names: list[str]) -> Any:
    basic_type, header = content[at] & 3, content[at] >> 2
    if basic_type == _SHORT_STRING:
        return content[at + 1 : at + 1 + header].decode()
    if basic_type == _OBJECT:
        return _decode_object(content, at, names)
    if basic_type == _VARIANT_ARRAY:
        return _decode_array(content, at, names)
    return _decode_primitive(content, at + 1, header)


def _decode_object(content: bytes, at: int, names: list[str]) -> dict[str, Any]:
    header = content[at] >> 2
    offset_size, id_size, count_size = (header & 3) + 1, (header >> 2 & 3) + 1, 4 if header >> 4 & 1 else 1
    count = _read_number(content, at + 1, count_size)
    ids = at + 1 + count_size
    offsets = ids + count * id_size
    values = offsets + (count + 1) * offset_size
    return {
        names[_read_number(content, ids + position * id_size, id_size)]: _decode_value(
            content, values + _read_number(content, offsets + position * offset_size, offset_size), names
        )
        for position in range(count)
    }


def _decode_array(content: bytes, at: int, names: list[str]) -> list[Any]:
    header = content[at] >> 2
    offset_size, count_size = (header & 3) + 1, 4 if header >> 2 & 1 else 1
    count = _read_number(content, at + 1, count_size)
    offsets = at + 1 + count_size
    values = offsets + (count + 1) * offset_size
    return [
        _decode_value(
            content, values + _read_number(content, offsets + position * offset_size, offset_size), names
        )
        for position in range(count)
    ]


def _decode_primitive(content: bytes, at: int, kind: int) -> Any:
    if kind in _CONSTANTS:
        return _CONSTANTS[kind]
    if kind in _NUMBER_FORMATS:
        number = struct.unpack_from(_NUMBER_FORMATS[kind], content, at)[0]
        return Float32(number) if kind == _FLOAT else number
    if kind in _DECIMAL_BYTES:
        digits = int.from_bytes(content[at + 1 : at + 1 + _DECIMAL_BYTES[kind]], "little", signed=True)
        return Decimal(digits).scaleb(-content[at])
    if kind in {_VARIANT_BINARY, _STRING}:
        data = content[at + 4 : at + 4 + _read_number(content, at, 4)]
        return data if kind == _VARIANT_BINARY else data.decode()
    if kind == _VARIANT_UUID:
        return str(UUID(bytes=content[at : at + 16]))
    return _decode_time(content, at, kind)


def _decode_time(content: bytes, at: int, kind: int) -> date | datetime | DistantTime:
    if kind == _VARIANT_DATE:
        return read_day(struct.unpack_from("<i", content, at)[0])
    if kind not in {_TIMESTAMP, _TIMESTAMP_NTZ}:
        raise ValueError(f"unknown type {kind}")
    return read_micros(struct.unpack_from("<q", content, at)[0], in_utc=kind == _TIMESTAMP)


def _read_number(content: bytes, at: int, size: int) -> int:
    if at + size > len(content):
        raise IndexError(at)
    return int.from_bytes(content[at : at + size], "little")
