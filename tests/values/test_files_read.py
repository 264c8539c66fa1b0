"""Test what merge record makes of each type in the files of many programs: an equal value, or a refusal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from tests.conformance.lean import lean_session
from tests.values.catalog import ALL, SIMPLE, SPARK_ONLY, Kind
from tests.values.file_writers import write_file, write_spark_type
from tests.values.files import (
    build_all,
    build_awkward,
    build_parameters,
    find_kind,
    find_plain_type,
    merge_files,
    normalize,
    read_texts,
    run_once,
    shorten_times,
    widen_type,
)
from tests.values.outcomes import EXACT, REFUSED, read_outcomes

OUTCOMES = read_outcomes("files_read")


def _has_outcome(kind: str, use: str) -> bool:
    row = kind.partition("_")[0]
    return row in OUTCOMES.rows and bool(OUTCOMES.find_outcome(kind, use))


# One text format and one container; the others have the same mechanism.
SHORT = ("csv", "parquet")
# A program does not write the types of empty cells, or writes other values.
CELLS = [(kind.name, use) for use in OUTCOMES.uses for kind in ALL if OUTCOMES.find_outcome(kind.name, use)]
SPARK_CELLS = [(kind, use) for use in OUTCOMES.uses for kind in SPARK_ONLY if _has_outcome(kind.name, use)]
_CONTAINERS = ("avro", "parquet", "orc")

_AS_TIMESTAMP = "as timestamp"
# The types of columns as text, by outcome.
_CHANGES: dict[str, Callable[[Any], str]] = {
    EXACT: str,
    "as int": lambda kind: str(widen_type(kind)),
    _AS_TIMESTAMP: lambda kind: str(kind).replace("timestamp[us]", "timestamp[us, tz=UTC]"),
}

pytestmark = pytest.mark.spark


@dataclass(frozen=True)
class Result:
    """The files of programs in a format, the tables that they became, and why others failed."""

    files: Mapping[str, bytes]
    tables: Mapping[str, pa.Table]
    reasons: Mapping[str, str]


Results = Callable[[str], Result]


def _merge_format(kind: str, spark: SparkSession, root: Path) -> Result:
    files: dict[str, bytes] = {}
    for use in OUTCOMES.uses:
        if _find_format(use) == kind:
            files |= _write_files(use, spark, root)
    reader: dict[str, Any] = {"format": kind}
    if kind == "xml":
        schema = ", ".join(f"{one.name} STRING" for one in SIMPLE)
        reader |= {"schema": schema, "options": {"rowTag": "r"}}
    merged, reasons = merge_files(files, spark, root / "landing", reader=reader, writer="parquet")
    return Result(files, {name: parquet.read_table(path) for name, path in merged.items()}, reasons)


def _write_files(use: str, spark: SparkSession, root: Path) -> dict[str, bytes]:
    """Return a file of all columns that come out, and one of each other column."""
    table = build_source(use)
    columns = {name for name, of in CELLS if of == use}
    refused = {name for name in columns if OUTCOMES.find_outcome(name, use).startswith(REFUSED)}
    names = [name for name in table.column_names if name in columns - refused]
    files = {use: write_file(use, table.select(names), spark, root)}
    files |= {f"{use} {name}": write_file(use, table.select([name]), spark, root) for name in refused}
    kinds = [kind for kind, of in SPARK_CELLS if of == use]
    return files | {f"{use} {kind.name}": write_spark_type(use, kind, spark, root) for kind in kinds}


def _find_format(use: str) -> str:
    return use.partition(" of ")[0]


@cache
def build_source(use: str) -> pa.Table:
    """Return the rows of a file; those of ORC have no times that ORC cannot hold, or pyarrow cannot read."""
    kind = _find_format(use)
    if kind not in _CONTAINERS:
        return build_awkward()
    return shorten_times(build_all()) if kind == "orc" else build_all()


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Return what merge record makes of all files of a format, in one run."""
    # Garbage is collected after every tenth test that asks for Spark itself.
    lean = lean_session(request.getfixturevalue("spark"))
    return run_once(lambda kind: _merge_format(kind, lean, tmp_path_factory.mktemp(kind.replace("-", "_"))))


@pytest.mark.parametrize(("kind", "use"), build_parameters(CELLS, SHORT))
def test_a_value_of_a_file_comes_out_or_is_refused(results: Results, kind: str, use: str) -> None:
    """A merged file has the values of its source with the type of the table, or the file failed by name."""
    outcome, result = OUTCOMES.find_outcome(kind, use), results(_find_format(use))
    if outcome.startswith(REFUSED):
        assert outcome.removeprefix(REFUSED) in result.reasons[f"{use} {kind}"]
        assert kind in result.reasons[f"{use} {kind}"]
        return
    column, format_name = result.tables[use][kind], _find_format(use)
    if format_name in _CONTAINERS:
        expected = find_kind(kind).arrow
        assert str(find_plain_type(column.type)) == _CHANGES[outcome](expected)
        has_zones = outcome != _AS_TIMESTAMP
        values = build_source(use)[kind].to_pylist()
        assert normalize(column.to_pylist(), has_zones=has_zones) == normalize(values, has_zones=has_zones)
        return
    assert _name_type(column.type) == outcome
    texts = _read_texts(format_name, result.files[use])[kind]
    assert len(texts) == len(column)
    for value, text in zip(column.to_pylist(), texts, strict=True):
        assert is_same(value, text), (value, text)


@pytest.mark.parametrize(("kind", "use"), build_parameters(SPARK_CELLS, SHORT))
def test_a_type_of_spark_comes_out_or_is_refused(results: Results, kind: Kind, use: str) -> None:
    """A text with a collation comes out; what files have as numbers or bytes is refused by name."""
    name, outcome = f"{use} {kind.name}", OUTCOMES.find_outcome(kind.name, use)
    result = results(_find_format(use))
    if outcome == EXACT:
        texts = [str(value).strip("'") for value in kind.values]
        assert result.tables[name][kind.name].to_pylist() == [*texts, None]
    else:
        assert outcome.removeprefix(REFUSED) in result.reasons[name]
        assert repr(kind.name) in result.reasons[name]


_read_texts = cache(read_texts)


def _name_type(kind: pa.DataType) -> str:
    """Return the outcome for a type that was inferred."""
    if pa.types.is_list(kind):
        return "as array"
    if pa.types.is_struct(kind):
        return "as struct"
    names = {pa.string(): "string", pa.int64(): "bigint", pa.int32(): "int", pa.float64(): "double"}
    return f"as {names.get(kind) or ('boolean' if kind == pa.bool_() else 'decimal')}"


def is_same(value: Any, text: Any) -> bool:
    """Return whether a value is the one that a text file has: with the same digits, and the same text."""
    if isinstance(value, dict) and isinstance(text, dict):
        return (
            all(is_same(item, text.get(name)) for name, item in value.items()) and text.keys() <= value.keys()
        )
    if isinstance(value, list) and isinstance(text, list):
        return len(value) == len(text) and all(map(is_same, value, text))
    if value is None or text is None or isinstance(value, bool):
        return value is text or (isinstance(value, bool) and str(value).lower() == text)
    if isinstance(value, str):
        return _is_same_text(value, text)
    return _is_same_number(Decimal(repr(value) if isinstance(value, float) else value), Decimal(text))


def _is_same_number(value: Decimal, text: Decimal) -> bool:
    """Return whether two numbers have the same digits, which programs choose for the smallest ones."""
    is_small = 0 < abs(float(value)) < sys.float_info.min
    return float(value) == float(text) if is_small else value == text


def _is_same_text(value: str, text: Any) -> bool:
    """Return whether a text is the one of a file, or the JSON of a value in a field of several types."""
    if isinstance(text, str):
        return value == text
    parsed = json.loads(value, parse_float=Decimal, parse_int=Decimal)
    return _is_same_number(parsed, text) if isinstance(text, Decimal) else bool(parsed == text)
