"""Test that each type of other programs' files comes out equal, or that its file fails alone and by name."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyarrow import orc, parquet
from pyspark.sql import SparkSession

from airflow_merge_provider.core.change_plan.shown_rows import ShownRows, use_shown_rows
from airflow_merge_provider.jobs.merge_record.readers.containers import orc_footer, parquet_footer
from airflow_merge_provider.jobs.spark.files.file_problem import UnreadableError
from tests.jobs.merge_record.landing import Landing

_AT = datetime(2024, 5, 1, 0, 0, 0, 123456)  # noqa: DTZ001 - without a time zone on purpose
_OLD = datetime(1500, 2, 28, 23, 59, 59, 999999)  # noqa: DTZ001 - as above
_PAIR = {"type": "record", "name": "p", "fields": [{"name": "x", "type": "int"}]}
_MICROS = {"type": "long", "logicalType": "local-timestamp-micros"}
_DATE = {"type": "int", "logicalType": "date"}
_DIGITS = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 18}
# A record in a namespace, whose types have names that others have outside of it.
_NAMED = {"type": "record", "name": "s.q", "fields": [
    {"name": "y", "type": {"type": "enum", "name": "e", "symbols": ["C", "D"]}},
    {"name": "z", "type": {**_PAIR, "name": "p"}},
]}  # fmt: skip
_AVRO: dict[str, tuple[Any, list[Any]]] = {
    "enum": ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, ["A", "B"]),
    "fixed": ({"type": "fixed", "name": "f", "size": 2}, [b"ab"]),
    "nullable": (["null", "long"], [None, 9007199254740993]),
    "widened": (["int", "long"], [1, 2]),
    "map": ({"type": "map", "values": ["null", "double"]}, [{"a": 0.1, "b": None}]),
    "decimal": (_DIGITS, [Decimal("1.000000000000000001")]),
    "local": (_MICROS, [_AT, _OLD]),
    "date": (_DATE, [date(1500, 2, 28)]),
    "lists": ({"type": "array", "items": _PAIR}, [[{"x": 1}]]),
    # Types that are defined before, by their names.
    "pair": ("p", [{"x": 2}]),
    "pairs": ({"type": "map", "values": ["null", "p"]}, [{"a": {"x": 3}, "b": None}]),
    "letter": (["null", "e"], ["B", None]),
    "bytes": ("f", [b"\x00\xff"]),
    "named": (_NAMED, [{"y": "C", "z": {"x": 4}}]),
    "names": ({"type": "array", "items": "s.q"}, [[{"y": "D", "z": {"x": 5}}]]),
    "of namespace": ("s.e", ["C"]),
}
_NODE = {"type": "record", "name": "n", "fields": [{"name": "next", "type": ["null", "n"]}]}
_AVRO_REFUSED: dict[str, tuple[Any, list[Any], str]] = {
    "union": (["null", "int", "string"], [1, "x"], "column 'c' has the type union of int and string"),
    "union with a date": ([_DATE, "long"], [1], "column 'c' has the type union of date and long"),
    "union of records": ([_PAIR, {**_PAIR, "name": "q"}], [], "column 'c' has the type union of record and"),
    "time": ({"type": "long", "logicalType": "time-micros"}, [], "column 'c' has the type time-micros"),
    "nanos": ({"type": "long", "logicalType": "timestamp-nanos"}, [], "the type timestamp-nanos"),
    "digits": ({**_DIGITS, "precision": 40}, [], "column 'c' has the type decimal of 40 digits"),
    "no fields": (
        {"type": "map", "values": ["null", {"type": "record", "name": "w", "fields": []}]},
        [{"a": {}}],
        "field 'c.value' is a record without fields (leave it out, or",
    ),
    "recursive": (_NODE, [], "column 'c.next' has the type record n inside of itself"),
}


def build_arrays() -> dict[str, pa.Array]:
    """Return a column of each type that pyarrow writes."""
    nanos = [1714521600123456000, None]
    return {
        "nanoseconds": pa.array(nanos, pa.timestamp("ns")),
        "nanoseconds utc": pa.array(nanos, pa.timestamp("ns", "UTC")),
        "microseconds": pa.array([_AT, _OLD, None]),
        "microseconds utc": pa.array([_AT, _OLD], pa.timestamp("us", "UTC")),
        "milliseconds": pa.array([1714521600123], pa.timestamp("ms")),
        "date": pa.array([date(1500, 2, 28), date(9999, 12, 31)]),
        "uint8": pa.array([255], pa.uint8()),
        "uint16": pa.array([65535], pa.uint16()),
        "uint32": pa.array([2**32 - 1], pa.uint32()),
        "uint64": pa.array([2**64 - 1], pa.uint64()),
        "int8": pa.array([-128], pa.int8()),
        "float": pa.array([0.1, float("inf"), -0.0], pa.float32()),
        "double": pa.array([5e-324, 0.1, float("-inf")]),
        "decimal": pa.array([Decimal("0.000000000000000001")], pa.decimal128(38, 18)),
        "narrow decimal256": pa.array([Decimal("1.5")], pa.decimal256(20, 2)),
        "nulls": pa.nulls(2),
        "map by number": pa.array([[(1, "a"), (2, None)]], pa.map_(pa.int32(), pa.string())),
        "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        "large text": pa.array(["x\n", ""], pa.large_string()),
        "bytes": pa.array([b"\x00\xff", b""]),
        "fixed bytes": pa.array([b"xy"], pa.binary(2)),
        "lists": pa.array([[{"a": [1, None]}], []]),
        "dictionary": pa.array(["x"]).dictionary_encode(),
        "boolean": pa.array([True, None]),
        "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}'])),
    }


def build_refused() -> dict[str, tuple[pa.Array, str]]:
    """Return a column of each type that Spark cannot read, and what the reason says."""
    nested = pa.list_(pa.struct([("t", pa.time32("ms"))]))
    return {
        "decimal256": (pa.array([Decimal("1.5")], pa.decimal256(50, 2)), "the type decimal256(50, 2)"),
        "time": (pa.array([1], pa.time64("us")), "column 'c' has the type time64[us], which Spark cannot"),
        "float16": (pa.array([1.5], pa.float16()), "column 'c' has the type halffloat"),
        "duration": (pa.array([1], pa.duration("us")), "column 'c' has the type duration[us]"),
        "nested time": (pa.array([[{"t": None}]], nested), "column 'c.element.t'"),
        "odd nanoseconds": (pa.array([10**18 + 1], pa.timestamp("ns")), "column 'c' has a time with nano"),
        "invalid text": (build_invalid_text(), "column 'c' has a text that is not UTF-8"),
        "nested invalid text": (
            pa.MapArray.from_arrays([0, 1], pa.array(["k"]), build_invalid_text()),
            "column 'c.value' has a text that is not UTF-8",
        ),
    }


def build_invalid_text() -> pa.Array:
    offsets = pa.array([0, 1], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff")])


def write_avro(fields: list[dict[str, Any]], rows: list[dict[str, Any]]) -> bytes:
    """Return an Avro file with some fields."""
    content = io.BytesIO()
    fastavro.writer(content, fastavro.parse_schema({"type": "record", "name": "r", "fields": fields}), rows)
    return content.getvalue()


def read_values(landing: Landing, suffix: str) -> dict[str, dict[str, list[Any]]]:
    """Return the columns of each merged file of Parquet, by the name of its first source."""
    values = {}
    for path in landing.list_outputs():
        (line,) = [line for line in landing.read_ledger() if path.name in json.dumps(line)]
        name = line["sources"][0]["uri"].rpartition("/")[2].removesuffix(suffix)
        values[name] = parquet.read_table(path).to_pydict()
    return values


def list_reasons(landing: Landing, suffix: str) -> dict[str, str]:
    """Return why files have failed, by their names."""
    lines = [line for line in landing.read_ledger() if line["outcome"] == "failed"]
    return {
        line["sources"][0]["uri"].rpartition("/")[2].removesuffix(suffix): line["reason"] for line in lines
    }


def build_table(arrays: dict[str, pa.Array]) -> pa.Table:
    """Return a table with a column of each array, whose values are repeated to three rows."""
    return pa.table(
        {name: array.take([row % len(array) for row in range(3)]) for name, array in arrays.items()}
    )


def test_parquet_files_of_pyarrow(lean: SparkSession, tmp_path: Path) -> None:
    """Every type comes out equal, also times in nanoseconds, unless a time has nanoseconds."""
    landing = Landing(tmp_path, lean, reader="parquet", max_records=3, max_bins="unlimited")
    good, refused = build_table(build_arrays()), build_refused()
    tables = {name: pa.table({"c": array}) for name, (array, _) in refused.items()} | {"good": good}
    tables["repeated"] = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["c", "c"])
    refused["repeated"] = (pa.array([1]), "it has the field 'c' more than once")
    tables["odd int96"], refused["odd int96"] = tables["odd nanoseconds"], refused["odd nanoseconds"]
    times = pa.array([[{"t": 10**18}], None], pa.list_(pa.struct([("t", pa.timestamp("ns"))])))
    tables["int96"] = build_table({"t": good["nanoseconds"], "within": times})
    for name, table in tables.items():
        sink = pa.BufferOutputStream()
        parquet.write_table(table, sink, use_deprecated_int96_timestamps="int96" in name)
        landing.put_file(f"{name}.parquet", bytes(sink.getvalue()))

    landing.run_job(at=1)

    utc = pa.timestamp("us", "UTC")
    kinds = {"nanoseconds": pa.timestamp("us"), "nanoseconds utc": utc, "t": utc}
    kinds["within"] = pa.list_(pa.struct([("t", utc)]))
    assert read_values(landing, ".parquet") == {
        name: {
            column: (values.cast(kinds[column]) if column in kinds else values).to_pylist()
            for column, values in zip(tables[name].column_names, tables[name], strict=True)
        }
        for name in ("good", "int96")
    }
    reasons = list_reasons(landing, ".parquet")
    assert reasons.keys() == refused.keys()
    for name, (_, reason) in refused.items():
        assert reason in reasons[name]


def test_int96_is_a_timestamp_wherever_it_is() -> None:
    """Also inside values and in a column with a dot, beside other times; one with nanoseconds is refused."""
    nanos = pa.timestamp("ns")
    kinds = {
        "event.time": nanos,
        "event": pa.struct([("time", nanos)]),
        "m": pa.map_(pa.string(), pa.list_(nanos)),
        "n": pa.int32(),
    }
    values = {"event.time": 1000, "event": {"time": 1000}, "m": [("k", [1000])], "n": 1}
    columns = {name: pa.array([values[name]], kind) for name, kind in kinds.items()}
    parquet.write_table(pa.table(columns), sink := io.BytesIO(), use_deprecated_int96_timestamps=True)

    fields = parquet_footer(sink)[0].fields
    assert [field["type"] for field in fields] == [
        "timestamp",
        {"fields": [{"name": "time", "type": "timestamp", "nullable": True}]},
        {"map": {"array": "timestamp"}},
        "int",
    ]

    columns["m"] = pa.array([[("k", [1001])]], kinds["m"])
    parquet.write_table(pa.table(columns), sink := io.BytesIO(), use_deprecated_int96_timestamps=True)
    with pytest.raises(UnreadableError, match="column 'm' has a time with nanoseconds"):
        parquet_footer(sink)


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        (pa.list_(pa.date32()), [date(2024, 5, 1), date(1582, 10, 14)], "'c.element' has a date"),
        (pa.struct([("n", pa.int32()), ("d", pa.date32())]), {"n": 1, "d": date(1, 1, 1)},
         "'c.d' has a date"),
        (pa.map_(pa.date32(), pa.int32()), [(date(1500, 2, 28), 1)], "'c.key' has a date"),
        (pa.map_(pa.string(), pa.list_(pa.struct([("d", pa.date32())]))), [("k", [{"d": date(1, 1, 1)}])],
         "'c.value.element.d' has a date"),
        (pa.timestamp("us"), _OLD, "'c' has a time"),
        (pa.list_(pa.timestamp("us", "UTC")), [datetime(1582, 10, 14, 23, 59, 59, tzinfo=UTC)],
         "'c' has a time"),
    ],
    ids=["list", "struct", "key", "twice", "time", "list of times"],
)  # fmt: skip
def test_old_days_in_orc_files_are_refused(kind: pa.DataType, value: Any, problem: str) -> None:
    """Spark takes them for other days, however deep they are; later days and NULLs are read."""
    sink = io.BytesIO()
    orc.write_table(pa.table({"c": pa.array([None, value], kind)}), sink)

    with pytest.raises(UnreadableError, match=f"column {problem} before 1582-10-15"):
        orc_footer(sink)

    later = io.BytesIO()
    orc.write_table(
        pa.table({"c": pa.array([None, [date(1582, 10, 15), None], []], pa.list_(pa.date32()))}), later
    )
    assert orc_footer(later)[1] == 3
    times = [datetime(1582, 10, 15), datetime(9999, 12, 31), None]  # noqa: DTZ001
    orc.write_table(pa.table({"c": pa.array(times, pa.timestamp("us"))}), later := io.BytesIO())
    assert orc_footer(later)[1] == 3


def test_orc_files(lean: SparkSession, tmp_path: Path) -> None:
    """Files of Spark and of pyarrow."""
    landing = Landing(tmp_path, lean, reader="orc", writer="parquet", max_records=3, max_bins="unlimited")
    chosen = ("double", "decimal", "map by number", "lists", "bytes")
    arrays = {name: array for name, array in build_arrays().items() if name in chosen}
    times = pa.array([1714521600123456000], pa.timestamp("ns", "UTC"))
    tables = {"good": build_table({**arrays, "times": times})}
    tables["old"] = pa.table({"c": pa.array([date(1582, 10, 14), None])})
    for name, table in tables.items():
        sink = pa.BufferOutputStream()
        orc.write_table(table, sink)
        landing.put_file(f"{name}.orc", bytes(sink.getvalue()))
    old = "'1500-02-28T23:59:59.999999'"
    lean.sql(f"SELECT TIMESTAMP{old} AS t, TIMESTAMP_NTZ{old} AS n").coalesce(1).write.orc(
        str(tmp_path / "f")
    )
    (part,) = (tmp_path / "f").glob("part-*.orc")
    landing.put_file("spark.orc", part.read_bytes())

    landing.run_job(at=1)

    values = read_values(landing, ".orc")
    assert values.pop("spark") == {"t": [_OLD.replace(tzinfo=UTC)], "n": [_OLD]}
    micros = build_table({**arrays, "times": times.cast(pa.timestamp("us", "UTC"))})
    assert values == {"good": micros.to_pydict()}
    assert list_reasons(landing, ".orc").keys() == {"old"}


def test_avro_files(lean: SparkSession, tmp_path: Path) -> None:
    """Named types, unions and logical types come out equal; an alias names the field that it is united with.

    A field that a file lacks is NULL, whatever its default in another file.
    """
    landing = Landing(
        tmp_path, lean, reader="avro", writer="parquet", max_bins="unlimited", schema_merge="union",
        correlation_attribute_name="k",
    )  # fmt: skip
    rows = [{name: items[row % len(items)] for name, (_, items) in _AVRO.items()} for row in range(2)]
    good = [{"name": name, "type": kind} for name, (kind, _) in _AVRO.items()]
    landing.put_file("good.avro", write_avro(good, rows), k="good")
    for name, (kind, items, _) in _AVRO_REFUSED.items():
        content = write_avro([{"name": "c", "type": kind}], [{"c": item} for item in items])
        landing.put_file(f"{name}.avro", content, k=name)
    renamed = {"name": "b", "type": "long", "aliases": ["a"], "default": 5}
    added = {"name": "d", "type": "int", "default": 7}
    landing.put_file("new.avro", write_avro([renamed, added], [{"b": 2**40, "d": 1}]), k="aliases")
    landing.put_file("old.avro", write_avro([{"name": "a", "type": "int"}], [{"a": 3}]), at=1, k="aliases")

    landing.run_job(at=2)

    values = read_values(landing, ".avro")
    for name in ("map", "pairs"):
        values["good"][name] = [dict(entries) for entries in values["good"][name]]
    assert values == {
        "good": {name: [row[name] for row in rows] for name in _AVRO},
        "new": {"b": [2**40, 3], "d": [1, None]},
    }
    reasons = list_reasons(landing, ".avro")
    assert reasons.keys() == _AVRO_REFUSED.keys()
    for name, (_, _, reason) in _AVRO_REFUSED.items():
        assert reason in reasons[name]


@pytest.mark.parametrize("kind", ["json", "json-array", "csv", "xml", "avro", "parquet", "orc"])
def test_times_keep_their_microseconds(lean: SparkSession, tmp_path: Path, kind: str) -> None:
    """Times come out of each format as they went in, also nested ones where the format has them."""
    ddl = "t TIMESTAMP, n TIMESTAMP_NTZ, d DATE, s STRUCT<t: TIMESTAMP>"
    record: dict[str, Any] = {
        "t": "2024-05-01T00:00:00.123456Z",
        "n": "1500-02-28T23:59:59.999999",
        # An earlier day is refused in ORC.
        "d": "1582-10-15" if kind == "orc" else "1500-02-28",
    }
    old = "1582-10-15T00:00:00.000001Z" if kind == "orc" else "1500-02-28T23:59:59.000001Z"
    record |= {} if kind == "csv" else {"s": {"t": old}}
    ddl = ddl.rpartition(",")[0] if kind == "csv" else ddl
    options = {"rowTag": "r"} if kind == "xml" else {}
    landing = Landing(
        tmp_path, lean, reader={"format": "json", "schema": ddl}, writer={"format": kind, "options": options}
    )
    landing.put_records("a.json", record)
    landing.run_job(at=1)
    (output,) = landing.list_outputs()
    again = Landing(
        tmp_path / "again", lean, reader={"format": kind, "schema": ddl, "options": options}, writer="json"
    )
    again.put_file(output.name, output.read_bytes())

    again.run_job(at=1)

    (output,) = again.list_outputs()
    assert json.loads(output.read_text()) == record


def test_a_union_of_records_holds_every_value(lean: SparkSession, tmp_path: Path) -> None:
    """Records, lists and maps of records with other fields share a file; numbers widen if they stay equal."""
    first = {"n": 1, "y": {"q": 1}, "l": [{"q": 1}], "t": 1}
    second = {"n": 1.5, "y": {"q": 3, "r": "z"}, "l": [{"r": {"s": 2}}, None], "t": "x"}
    landing = Landing(tmp_path, lean, schema_merge="union", max_records=2, min_records=2)
    landing.put_records("a.json", first)
    landing.put_records("b.json", second, at=1)

    landing.run_job(at=2)

    (content,) = landing.read_merged()
    assert [json.loads(line) for line in content.splitlines()] == [
        {"n": 1.0, "y": {"q": 1, "r": None}, "l": [{"q": 1, "r": None}], "t": "1"},
        {"n": 1.5, "y": {"q": 3, "r": "z"}, "l": [{"q": None, "r": {"s": 2}}, None], "t": "x"},
    ]


@pytest.mark.parametrize("scope", ["bin", "flowfile"])
def test_a_value_that_the_union_cannot_hold_fails_its_bin(
    lean: SparkSession, tmp_path: Path, scope: str
) -> None:
    """The bin fails, or the file alone, with field, value and both types; the other bins are published."""
    landing = Landing(
        tmp_path, lean, schema_merge="union", min_records=2, max_records=2,
        correlation_attribute_name="k", failure_scope=scope,
    )  # fmt: skip
    landing.put_records("a.json", {"id": 1, "n": {"x": [9007199254740993]}}, k="1")
    landing.put_records("b.json", {"id": 2, "n": {"x": [1.5]}}, k="1", at=1)
    landing.put_records("c.json", {"id": 3, "n": {"x": [1]}}, k="2", at=2)
    landing.put_records("d.json", {"id": 4, "n": {"x": [2.5]}}, k="2", at=3)

    with use_shown_rows(ShownRows(rows="all" if scope == "bin" else "keys")):
        report = landing.run_job(at=4)

    assert landing.read_merged() == ['{"id":3,"n":{"x":[1.0]}}\n{"id":4,"n":{"x":[2.5]}}\n']
    assert landing.list_names("failure") == (["a.json", "b.json"] if scope == "bin" else ["a.json"])
    (failed,) = report["details"]["failed"]
    assert failed["code"] == "VALUE_LOST"
    number = "9007199254740993" if scope == "bin" else "***"
    assert failed["reason"] == (
        f"A value of a.json cannot be merged: field 'n.x.element': the BIGINT '{number}' is not a value "
        "of DOUBLE (set the field to STRING in the schema of the writer)"
    )


def test_a_schema_of_the_writer_loses_no_value(lean: SparkSession, tmp_path: Path) -> None:
    """A value of another type has all its digits in the type of the writer, or its file fails by name."""
    schema = "n DECIMAL(10,2), d DOUBLE, f FLOAT, i INT, t TIMESTAMP, y DATE, s STRING, b BOOLEAN, l BIGINT"
    landing = Landing(
        tmp_path, lean, max_records=1, max_bins="unlimited", writer={"format": "json", "schema": schema}
    )
    good = {
        "n": "1.2300", "d": "1e3", "f": 0.1, "i": 7, "t": "2024-05-01T00:00:00.123456Z", "y": "2024-05-01",
        "s": {"x": 1}, "b": "true", "l": 9.0,
    }  # fmt: skip
    bad = {
        "n": ("1.239", "the STRING '1.239' is not a value of DECIMAL(10,2)"),
        "d": ("0.1234567890123456789", "is not a value of DOUBLE"),
        "f": (1e300, "the DOUBLE '1.0E300' is not a value of FLOAT"),
        "i": (1.5, "the DOUBLE '1.5' is not a value of INT"),
        "t": ("2024-05-01T00:00:00.1234567Z", "is not a value of TIMESTAMP"),
        "y": ("2024-05-01 10:00:00", "is not a value of DATE"),
        "l": (2.0**63, "is not a value of BIGINT"),
        "b": ([True], "the ARRAY<BOOLEAN> '[true]' is not a value of BOOLEAN"),
    }
    landing.put_records("good.json", good, dict.fromkeys(good))
    for name, (value, _) in bad.items():
        landing.put_records(f"{name}.json", {name: value})
    # Texts that Spark would complete or trim.
    values: list[tuple[str, Any]] = [
        ("t", "10:00:00"),
        ("b", "yes"),
        ("i", " 12 "),
        ("d", "1 "),
        ("t", " 2024-05-01"),
    ]
    # Numbers that Spark would take for times and booleans, and the reverse, or make 0.
    values += [
        ("t", 5),
        ("t", 1.5),
        ("b", 1),
        ("b", 0.5),
        ("i", True),
        ("n", True),
        ("f", 1e-50),
        ("d", 2**63 - 1),
    ]
    for number, (name, value) in enumerate(values):
        landing.put_records(f"{name} {number}.json", {name: value})
        text = str(value).lower() if isinstance(value, bool) else str(value).replace("1e-50", "1.0E-50")
        bad[f"{name} {number}"] = (value, f" '{text}' is not a value of")

    landing.run_job(at=1)

    (content,) = landing.read_merged()
    expected = {**good, "n": Decimal("1.23"), "d": 1000, "s": '{"x": 1}', "b": True}
    first, second = (json.loads(line, parse_float=Decimal) for line in content.splitlines())
    assert (first.pop("f"), expected.pop("f")) == (Decimal("0.1"), 0.1)
    assert first == expected
    assert set(second.values()) == {None}
    reasons = list_reasons(landing, ".json")
    assert reasons.keys() == bad.keys()
    for name, (_, reason) in bad.items():
        assert f"field {name.partition(' ')[0]!r}: " in reasons[name]
        assert reason in reasons[name]


@pytest.mark.parametrize("kind", ["json", "json-array"])
def test_numbers_of_json_keep_their_digits(lean: SparkSession, tmp_path: Path, kind: str) -> None:
    """Numbers become doubles if these are equal, else decimals; a file with a number of no type fails."""
    landing = Landing(tmp_path, lean, reader=kind, max_records=1, max_bins="unlimited")
    files = {
        "ids": '{"id": 9007199254740993}, {"id": 1.5}',
        "digits": '{"d": 123456789.123456789012, "e": 0.1}',
        "doubles": '{"d": 0.30000000000000004, "e": 1.7976931348623157e308}',
        "ids and doubles": '{"id": 9007199254740993, "x": 1e3, "l": [{"y": 0.25}]}',
        "large": '{"n": 12345678901234567890123456789}',
        "names in two cases": '{"V": 2, "s": {"A": 2, "a": 1}, "v": 1}',
        "a name of Spark": '{"_corrupt_record": "x", "n": 1}',
        "no type": '{"x": 1e400, "y": 1}',
        "no type together": '{"x": [9007199254740993, 1e3]}',
        "no type for digits": '{"x": {"y": 0.12345678901234567890123456789012345678901}}',
    }
    for name, records in files.items():
        lines = records.replace("}, {", "}\n{") + "\n"
        landing.put_file(f"{name}.json", lines if kind == "json" else f"[{records}]")

    landing.run_job(at=1)

    merged = {}
    for path in landing.list_outputs():
        text = path.read_text()
        documents = [text] if kind == "json-array" else text.splitlines()
        parsed = [json.loads(document, parse_float=Decimal) for document in documents]
        merged[landing.read_attributes(path)["filename"].removesuffix(".json")] = (
            parsed[0] if kind == "json-array" else parsed
        )
    assert merged == {
        name: json.loads(f"[{records}]", parse_float=Decimal)
        for name, records in files.items()
        if not name.startswith("no type")
    }
    reasons = list_reasons(landing, ".json")
    assert sorted(reasons) == ["no type", "no type for digits", "no type together"]
    assert "field 'x': no number type holds 1e400 and the other values (set a schema" in reasons["no type"]
    assert "field 'x[]'" in reasons["no type together"]
    assert "field 'x.y'" in reasons["no type for digits"]
