"""Files of many programs with columns of many types, and their values as Python reads them."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
import struct
import xml.etree.ElementTree as ET
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from pyarrow import csv as arrow_csv
from pyspark.sql import SparkSession

from tests.jobs.merge_record.landing import Landing
from tests.values.catalog import ALL, SIMPLE, Kind, build_table

Result = TypeVar("Result")
ROWS = 40
_SEED = 59
_FEW = 10
# pyarrow reads the times of ORC as nanoseconds, which end in these years.
_NANOS_YEARS = range(1678, 2262)
# ORC cannot tell it from the same microsecond of the next second.
_LAST_MICROSECOND = datetime(1969, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001 - of times with and without


@cache
def build_all() -> pa.Table:
    """Return a table with a column of each type: its awkward values, further ones, and NULL at the end."""
    simple = build_table(SIMPLE, _SEED, ROWS)
    nested = build_table(ALL[len(SIMPLE) :], _SEED, _FEW)
    nested = nested.take([row % (_FEW - 1) for row in range(ROWS - 1)] + [_FEW - 1])
    columns = dict(zip(simple.column_names, simple.columns, strict=True))
    return pa.table(columns | dict(zip(nested.column_names, nested.columns, strict=True)))


@cache
def build_awkward() -> pa.Table:
    """Return a table like that of ``build_all``, of awkward values alone, which no run changes."""
    rows = range(ROWS - 1)
    columns = ([*(items[row % len(items)] for row in rows), None] for items in (kind.values for kind in ALL))
    arrays = [pa.array(column, kind.arrow) for column, kind in zip(columns, ALL, strict=True)]
    return pa.table(arrays, [kind.name for kind in ALL])


def read_texts(kind: str, content: bytes) -> dict[str, list[Any]]:
    """Return the columns of a text file: texts of CSV and XML, and values of JSON with all digits.

    NULL is None: an empty value without quotes in CSV, and a missing element in XML.
    """
    if kind == "csv":
        return _read_csv(content)
    if kind == "xml":
        records = [
            {element.tag: _read_element(element) for element in record}
            for record in ET.fromstring(content.decode())  # noqa: S314 - our own
        ]
    else:
        documents = [content] if kind == "json-array" else filter(None, content.split(b"\n"))
        parsed = [json.loads(document, parse_float=Decimal, parse_int=Decimal) for document in documents]
        records = parsed[0] if kind == "json-array" else parsed
    names = dict.fromkeys(name for record in records for name in record)
    return {name: [record.get(name) for record in records] for name in names}


def _read_element(element: ET.Element) -> Any:
    """Return the text of an element, or those of the elements in it."""
    return {inner.tag: _read_element(inner) for inner in element} if len(element) else element.text or ""


def _read_csv(content: bytes) -> dict[str, list[Any]]:
    names = next(csv.reader(io.StringIO(content.decode(), newline="")))
    table = arrow_csv.read_csv(
        io.BytesIO(content),
        arrow_csv.ReadOptions(block_size=64 << 20),
        arrow_csv.ParseOptions(newlines_in_values=True),
        arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return dict(table.to_pydict())


def parse_value(value: Any, kind: pa.DataType) -> Any:
    """Return the value of a type that a text or a JSON value stands for."""
    if value is None:
        return None
    if pa.types.is_list(kind):
        return [parse_value(item, kind.value_type) for item in value]
    if pa.types.is_map(kind):
        return [
            (parse_value(key, kind.key_type), parse_value(item, kind.item_type))
            for key, item in value.items()
        ]
    if pa.types.is_struct(kind):
        # An element of XML without fields has no text.
        return {one.name: parse_value((value or {}).get(one.name), one.type) for one in kind.fields}
    return _PARSERS[str(kind).partition("(")[0].partition("[")[0]](value, kind)


def _parse_bool(value: Any, _: pa.DataType) -> bool:
    return {"true": True, "false": False}[value] if isinstance(value, str) else bool(value)


def _parse_float(value: Any, kind: pa.DataType) -> float:
    number = float(value)
    if kind == pa.float64() or math.isinf(number):
        return number
    return float(struct.unpack("f", struct.pack("f", number))[0])


def _parse_timestamp(value: Any, kind: pa.DataType) -> datetime:
    moment = datetime.fromisoformat(value)
    return moment.replace(tzinfo=UTC) if kind.tz and moment.tzinfo is None else moment


_PARSERS: dict[str, Callable[[Any, pa.DataType], Any]] = {
    "bool": _parse_bool,
    **dict.fromkeys(("int8", "int16", "int32", "int64"), lambda value, _: int(value)),
    "float": _parse_float,
    "double": _parse_float,
    "decimal128": lambda value, _: Decimal(value),
    "string": lambda value, _: str(value),
    "binary": lambda value, _: base64.b64decode(value, validate=True),
    "date32": lambda value, _: date.fromisoformat(value),
    "timestamp": _parse_timestamp,
}


def normalize(value: Any, *, has_zones: bool = True) -> Any:
    """Return a form that is equal for equal values: NaN as text, and the entries of maps in order.

    :param has_zones: whether a time differs from the same one in UTC.
    """
    form = partial(normalize, has_zones=has_zones)
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value
    if isinstance(value, datetime):
        # Libraries have classes of their own for UTC.
        return value.replace(tzinfo=None), value.utcoffset() if has_zones else None
    if isinstance(value, dict):
        return {name: form(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        items = [form(item) for item in value]
        has_entries = bool(items) and all(isinstance(item, tuple) for item in value)
        return sorted(items, key=lambda entry: repr(entry[0])) if has_entries else items
    return value


def widen_type(kind: pa.DataType) -> pa.DataType:
    """Return the type with which a column of a type comes out: integers of 8 and 16 bits are wider then."""
    if pa.types.is_list(kind):
        return pa.list_(widen_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(widen_type(kind.key_type), widen_type(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(one.name, widen_type(one.type)) for one in kind.fields])
    return pa.int32() if kind in (pa.int8(), pa.int16()) else kind


def shorten_times(table: pa.Table) -> pa.Table:
    """Return a table without the times that pyarrow cannot read in ORC, where it has nanoseconds."""
    columns = [
        pa.array([_shorten_time(value) for value in column.to_pylist()], column.type)
        for column in table.columns
    ]
    return pa.table(columns, table.column_names)


def _shorten_time(value: Any) -> Any:
    if isinstance(value, datetime):
        is_held = value.year in _NANOS_YEARS and value.replace(tzinfo=None) != _LAST_MICROSECOND
        # The first of a month, which each year has; the keys of a map stay different.
        return value if is_held else value.replace(year=2000 + value.year % 100, day=1)
    if isinstance(value, dict):
        return {name: _shorten_time(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_shorten_time(item) for item in value]
    return tuple(map(_shorten_time, value)) if isinstance(value, tuple) else value


def find_plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type without the large forms and the names of items that libraries choose."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(find_plain_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(find_plain_type(kind.key_type), find_plain_type(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(one.name, find_plain_type(one.type)) for one in kind.fields])
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if kind in (pa.large_string(), pa.string_view()):
        return pa.string()
    return pa.binary() if kind in (pa.large_binary(), pa.binary_view()) else kind


def find_kind(name: str) -> Kind:
    """Return the kind with a name."""
    return next(kind for kind in ALL if kind.name == name)


def merge_files(
    files: dict[str, bytes], spark: SparkSession, root: Path, **settings: Any
) -> tuple[dict[str, Path], dict[str, str]]:
    """Merge each file to one of its own; return the merged files, and why others failed, by their names."""
    landing = Landing(root, spark, max_records=1, max_bins="unlimited", **settings)
    for name, content in files.items():
        landing.put_file(name, content)
    landing.run_job(at=1)
    merged = {landing.read_attributes(path)["filename"]: path for path in landing.list_outputs()}
    failed = [line for line in landing.read_ledger() if line["outcome"] == "failed"]
    return merged, {line["sources"][0]["uri"].rpartition("/")[2]: line["reason"] for line in failed}


def build_parameters(cells: Sequence[tuple[Any, str]], short: Collection[str]) -> list[Any]:
    """Return types and uses as parameters of a test, marked as long but for the short formats."""
    return [
        pytest.param(
            kind,
            use,
            marks=() if use.partition(" of ")[0] in short else pytest.mark.long,
            id=f"{getattr(kind, 'name', kind)}-{use}",
        )
        for kind, use in cells
    ]


def run_once(run: Callable[[str], Result]) -> Callable[[str], Result]:
    """Return a function that runs once for each argument, and gives its result or error again."""
    futures: dict[str, Future[Result]] = {}

    def find_result(name: str) -> Result:
        if name not in futures:
            futures[name] = Future()
            try:
                futures[name].set_result(run(name))
            except Exception as error:  # noqa: BLE001 - raised to each caller
                futures[name].set_exception(error)
        return futures[name].result()

    return find_result
