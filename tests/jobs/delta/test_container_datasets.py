"""Test that datasets of Parquet, ORC and Avro files come out with every value, or are refused by name."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pytest
from pyarrow import orc, parquet
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from airflow_merge_provider.core.change_plan.shown_rows import ShownRows, use_shown_rows
from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.jobs.delta.table import pin_dataset, read_dataset
from airflow_merge_provider.jobs.spark.errors import convert_error
from airflow_merge_provider.jobs.spark.files import container_files

CALENDAR = "orc.proleptic.gregorian.default"
OLD, NEW = date(1500, 1, 1), date(2024, 2, 29)
NANOS = pa.timestamp("ns")
NANOS_WITHIN = pa.list_(pa.struct([("d", NANOS), ("m", pa.map_(pa.string(), NANOS))]))
BEFORE_1970 = datetime(1960, 1, 1, 0, 0, 0, 500)  # noqa: DTZ001 - of a column without a zone


def write_parquet(table: pa.Table, **options: Any) -> bytes:
    """Return a Parquet file."""
    file = io.BytesIO()
    parquet.write_table(table, file, **options)
    return file.getvalue()


def write_orc(table: pa.Table) -> bytes:
    """Return an ORC file of pyarrow."""
    sink = pa.BufferOutputStream()
    orc.write_table(table, sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def write_avro(fields: Mapping[str, Any], *rows: dict[str, Any]) -> bytes:
    """Return an Avro file with fields of some types."""
    schema = {"type": "record", "name": "r", "fields": [{"name": key, "type": fields[key]} for key in fields]}
    file = io.BytesIO()
    fastavro.writer(file, fastavro.parse_schema(schema), rows)
    return file.getvalue()


def build_column(value: Any, kind: pa.DataType | None = None, name: str = "v") -> pa.Table:
    """Return a table of one value."""
    return pa.table({name: pa.array([value], kind)})


def build_int96(value: Any, kind: pa.DataType = NANOS) -> bytes:
    """Return a Parquet file with times as INT96, in nanoseconds."""
    return write_parquet(build_column(value, kind), use_deprecated_int96_timestamps=True)


def build_interval() -> bytes:
    """Return a Parquet file of DuckDB with an interval."""
    with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        duckdb.sql(f"COPY (SELECT INTERVAL 3 MONTH AS v) TO '{file.name}' (FORMAT parquet)")
        return Path(file.name).read_bytes()


def write_alias(row: dict[str, Any]) -> bytes:
    """Return an Avro file with the field ``v``, which has the alias ``u``, and with a default."""
    field = {"name": "v", "type": "int", "aliases": ["u"], "default": 7}
    file = io.BytesIO()
    fastavro.writer(file, {"type": "record", "name": "r", "fields": [field]}, [row])
    return file.getvalue()


def build_default() -> bytes:
    """Return an Avro file whose header has the default ``"null"`` of a field that is NULL or a number."""
    field = {"name": "v", "type": ["null", "int"], "default": None, "doc": "12"}
    file = io.BytesIO()
    fastavro.writer(file, {"type": "record", "name": "r", "fields": [field]}, [{"v": 1}])
    # The header has the length of the schema.
    return file.getvalue().replace(b'"doc": "12"', b'"doc": ""').replace(b": null", b': "null"')


UNSIGNED = {
    f"v{bits:02}": pa.array([bits // 16, 2**bits - 1], getattr(pa, f"uint{bits}")())
    for bits in (8, 16, 32, 64)
}
UNSIGNED_WITHIN = pa.struct([("l", pa.list_(pa.uint32())), ("m", pa.map_(pa.string(), pa.uint64()))])
INTERVAL = build_interval()
INVALID_TEXT = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xffx"]).buffers())
INNER = {"type": "record", "name": "s", "fields": [{"name": "n", "type": "int"}]}
NODE = {"type": "record", "name": "node", "fields": [{"name": "next", "type": ["null", "node"]}]}
CODE = {"type": "fixed", "name": "code", "size": 2}
UNION = {"type": "record", "name": "r", "fields": [{"name": "v", "type": ["null", "int", "string"]}]}
OF_V = '{"type": "record", "name": "r", "fields": [{"name": "v", "type": %s}]}'
LETTER = {"type": "enum", "name": "letter", "symbols": ["A", "B"]}
OTHER_CASE = {**INNER, "fields": [{"name": "N", "type": "int"}]}
# The format, the options and the files of a dataset, and its rows.
READ: dict[str, tuple[str, dict[str, str], dict[str, bytes], list[tuple[Any, ...]]]] = {
    "columns of Parquet": ("parquet", {}, {"a": write_parquet(pa.table({"id": [1]})),
                                           "b": write_parquet(pa.table({"id": [2], "v": ["x"]}))},
                           [(1, None), (2, "x")]),
    "order of Parquet": ("parquet", {}, {"a": write_parquet(pa.table({"id": [1], "v": [2]})),
                                         "b": write_parquet(pa.table({"V": [20], "ID": [10]}))},
                         [(1, 2), (10, 20)]),
    "order of ORC": ("orc", {}, {"a": write_orc(pa.table({"v": [1], "w": [2]})),
                                 "b": write_orc(pa.table({"w": [20], "v": [10]}))},
                     [(1, 2), (10, 20)]),
    "columns of Avro": ("avro", {}, {"a": write_avro({"id": "int"}, {"id": 1}),
                                     "b": write_avro({"id": "int", "v": "string"}, {"id": 2, "v": "x"})},
                        [(1, None), (2, "x")]),
    "order of Avro": ("avro", {}, {"a": write_avro({"id": "int", "v": "int"}, {"id": 1, "v": 2}),
                                   "b": write_avro({"V": "int", "ID": "int"}, {"ID": 10, "V": 20})},
                      [(1, 2), (10, 20)]),
    "wider in Avro": ("avro", {}, {"a": write_avro({"id": "int", "v": "double"}, {"id": 1, "v": 0.1}),
                                   "b": write_avro({"id": ["null", "long"], "v": "float"},
                                                   {"id": 2**40, "v": 0.5})},
                      [(1, 0.1), (2**40, 0.5)]),
    "wider decimals": ("parquet", {}, {"a": write_parquet(build_column(Decimal("1.2"), pa.decimal128(5, 1))),
                                       "b": write_parquet(build_column(Decimal("2.2"), pa.decimal128(8, 1)))},
                       [(Decimal("1.2"),), (Decimal("2.2"),)]),
    "unsigned": ("parquet", {}, {"a": write_parquet(pa.table(UNSIGNED))},
                 [(0, 1, 2, 4), (255, 2**16 - 1, 2**32 - 1, Decimal(2**64 - 1))]),
    "unsigned within": ("parquet", {}, {"a": write_parquet(build_column(
                            {"l": [2**32 - 1], "m": [("k", 2**64 - 1)]}, UNSIGNED_WITHIN))},
                        [(([2**32 - 1], {"k": Decimal(2**64 - 1)}),)]),
    "nulls": ("parquet", {}, {"a": write_parquet(pa.table({"id": [1, 2], "v": pa.nulls(2)}))},
              [(1, None), (2, None)]),
    "INT96": ("parquet", {}, {"a": build_int96(1_714_521_600_123_456_000)},
              [(datetime(2024, 5, 1, 0, 0, 0, 123456),)]),  # noqa: DTZ001
    "INT96 within": ("parquet", {}, {"a": build_int96([{"d": 1000, "m": [("k", 0)]}, None], NANOS_WITHIN)},
                     [([(datetime(1970, 1, 1, 0, 0, 0, 1), {"k": datetime(1970, 1, 1)}), None],)]),  # noqa: DTZ001
    "names of Avro": ("avro", {}, {"a": write_avro({"v": LETTER, "w": "letter", "x": INNER, "y": "s"},
                                                   {"v": "A", "w": "B", "x": {"n": 1}, "y": {"n": 2}})},
                      [("A", "B", (1,), (2,))]),
    "fixed of Avro": ("avro", {}, {"a": write_avro({"v": CODE, "w": {"type": "array", "items": "code"}},
                                                   {"v": b"\0\xff", "w": [b"ab", b"\n "]})},
                      [(b"\0\xff", [b"ab", b"\n "])]),
    "aliases of Avro": ("avro", {}, {"a": write_alias({"v": 1}), "b": write_avro({"u": "int"}, {"u": 2})},
                        [(2, None), (None, 1)]),
    "alias of an option": ("avro", {"avroSchema": OF_V % '"int", "aliases": ["u"]'},
                           {"b": write_avro({"u": "int"}, {"u": 2})}, [(2,)]),
    "default of Avro": ("avro", {}, {"a": build_default(), "b": write_avro({"v": "int"}, {"v": 2})},
                        [(1,), (2,)]),
    "calendar": ("orc", {CALENDAR: "true"}, {"a": write_orc(build_column(OLD))}, [(OLD,)]),
    "recent days": ("orc", {}, {"a": write_orc(build_column(NEW))}, [(NEW,)]),
}  # fmt: skip
REFUSED: dict[str, tuple[str, dict[str, bytes], str]] = {
    "old day": ("orc", {"a": write_orc(build_column(OLD))},
                f"/a: column 'v' has a DATE before 1582-10-15.*write Parquet, or set the option {CALENDAR}"),
    "old day within": ("orc", {"a": write_orc(build_column([{"d": OLD}]))}, r"'v\.element\.d' has a DATE"),
    "before 1970": ("orc", {"a": write_orc(build_column(BEFORE_1970))},
                    r"/a: column 'v' has a TIMESTAMP before 1970 with a fraction .*\(write Parquet"),
    "before 1970 within": ("orc", {"a": write_orc(build_column([BEFORE_1970]))}, "'v' has a TIMESTAMP"),
    "before 1677": ("orc", {"a": write_orc(build_column(BEFORE_1970.replace(year=1600)))},
                    "'v' has a TIMESTAMP before 1970"),
    "INT96": ("parquet", {"a": build_int96(1_714_521_600_123_456_789)},
              r"/a: column 'v' has a time with nanoseconds, which .*INT96.*write it with microseconds"),
    "INT96 within": ("parquet", {"a": build_int96([{"d": None, "m": [("k", 1)]}], NANOS_WITHIN)},
                     r"/a: column 'v' has a time with nanoseconds, which .*INT96.*with microseconds"),
    "nanoseconds": ("parquet", {"a": write_parquet(build_column(1, pa.timestamp("ns")))},
                    r"/a: column 'v' has the type timestamp\[ns\].*coerce_timestamps"),
    "nanoseconds within": ("parquet", {"a": write_parquet(build_column([1], pa.list_(pa.timestamp("ns"))))},
                           r"column 'v\.element' has the type timestamp\[ns\]"),
    "time": ("parquet", {"a": write_parquet(build_column(time(1)))}, r"'v' has the type time64\[us\]"),
    "decimal": ("parquet", {"a": write_parquet(build_column(Decimal(1), pa.decimal256(50, 0)))},
                r"'v' has the type decimal256\(50, 0\).*write it as text"),
    "nanoseconds of ORC": ("orc", {"a": write_orc(build_column([1_714_521_600_000_000_001],
                                                               pa.list_(pa.timestamp("ns"))))},
                           r"/a: column 'v' has a time with nanoseconds, which Spark cuts .write Parquet"),
    "large decimal": ("avro", {"a": write_avro({"v": {"type": "bytes", "logicalType": "decimal",
                                                      "precision": 50}}, {"v": Decimal(1)})},
                      "/a: column 'v' has the type decimal of 50 digits, .*write it as text"),
    "uuid": ("parquet", {"a": write_parquet(build_column(b"0" * 16, pa.uuid()))}, "/a: column 'v' .*uuid"),
    "interval": ("parquet", {"a": INTERVAL}, "/a: column 'v' has the type interval, .*write it as text"),
    "half": ("parquet", {"a": write_parquet(build_column(1.0, pa.float16()))}, "'v' has the type halffloat"),
    "duration": ("parquet", {"a": write_parquet(build_column(timedelta(1)))}, r"'v' has the type duration"),
    "text of Parquet": ("parquet", {"a": write_parquet(pa.table({"v": INVALID_TEXT}))},
                        r"/a: column 'v' has a text that is not UTF-8 \(write it as binary\), such as"),
    "text of Avro": ("avro", {"a": write_avro({"v": "string"}, {"v": "QQQ"}).replace(b"QQQ", b"\xffQQ")},
                     "column 'v' has a text that is not UTF-8"),
    "types of Parquet": ("parquet", {"a": write_parquet(build_column(1, pa.int32())),
                                     "b": write_parquet(build_column(2, pa.int64()))},
                         "column 'v' has the type int32 in .*/a, but int64 in .*/b .write the files"),
    "types of ORC": ("orc", {"a": write_orc(build_column(1)), "b": write_orc(build_column("x"))},
                     "column 'v' has the type int64 in .*/a, but string in .*/b"),
    "types of Avro": ("avro", {"a": write_avro({"v": "int"}, {"v": 1}),
                               "b": write_avro({"v": "string"}, {"v": "x"})},
                      "column 'v' has the type INT in .*/a, but STRING in .*/b"),
    "records of Avro": ("avro", {"a": write_avro({"v": INNER}, {"v": {"n": 1}}),
                                 "b": write_avro({"v": "int"}, {"v": 1})}, "column 'v' has the type STRUCT"),
    "time of Avro": ("avro", {"a": write_avro({"v": {"type": "long", "logicalType": "time-micros"}},
                                              {"v": time(1)})},
                     "/a: column 'v' has the type time-micros, which Spark cannot read .write it as text"),
    "union of Avro": ("avro", {"a": write_avro({"v": ["null", "int", "string"]}, {"v": "x"})},
                      "/a: column 'v' has the type union of int and string, .*write one type, or a record"),
    "union with a date": ("avro", {"a": write_avro({"v": [{"type": "int", "logicalType": "date"}, "long"]},
                                                   {"v": 1})},
                          "/a: column 'v' has the type union of date and long, .*write one type"),
    "record in itself": ("avro", {"a": write_avro({"v": NODE}, {"v": {"next": None}})},
                         r"/a: column 'v\.next' has the type record node inside of itself, .*do not contain"),
    "null of Avro": ("avro", {"a": write_avro({"id": "int", "v": "null"}, {"id": 1, "v": None})},
                     "/a: column 'v' has the type null, which Spark cannot read .write it as another type"),
    "nulls beside texts": ("parquet", {"a": write_parquet(pa.table({"v": pa.nulls(1)})),
                                       "b": write_parquet(build_column("x"))},
                           "column 'v' has the type null in .*/a, but string in .*/b .write the files with"),
    "twice": ("parquet", {"a": write_parquet(pa.table([[1], [2]], ["v", "V"]))},
              "the fields 'v' and 'V', whose"),
    "case of Parquet": ("parquet", {"a": write_parquet(build_column({"v": 1}, name="s")),
                                    "b": write_parquet(build_column({"V": 1}, name="s"))},
                        r"the fields 's\.v' and 's\.V', whose names differ in case only"),
    "case of ORC": ("orc", {"a": write_orc(pa.table([[1], [2]], ["v", "V"]))},
                    "the fields 'v' and 'V', whose"),
    "case of Avro": ("avro", {"a": write_avro({"v": "int", "V": "int"}, {"v": 1, "V": 2})},
                     "the fields 'v' and 'V', whose"),
    "case of Avro files": ("avro", {"a": write_avro({"s": INNER}, {"s": {"n": 1}}),
                                    "b": write_avro({"s": OTHER_CASE}, {"s": {"N": 1}})},
                           r"the fields 's\.n' and 's\.N', whose"),
    "damaged": ("orc", {"a": write_orc(build_column(1)), "b": b"ORC?"}, "/b cannot be read as orc"),
}  # fmt: skip


def read_rows(
    spark: SparkSession, folder: Path, kind: str, options: dict[str, str], files: dict[str, bytes]
) -> Any:
    """Write the files of a dataset, and return its rows in their order."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    dataset = resolve_dataset({"dataset": str(folder), "format": kind, "options": options}, None)
    rows = read_dataset(spark, pin_dataset(spark, dataset))
    return sorted(map(tuple, rows.select(sorted(rows.columns, key=str.lower)).collect()), key=repr)


@pytest.mark.parametrize("case", READ)
def test_values_of_files_come_out(spark: SparkSession, tmp_path: Path, case: str) -> None:
    """Files of a dataset may differ in their columns and in the order of these."""
    kind, options, files, expected = READ[case]

    assert read_rows(spark, tmp_path / "f", kind, options, files) == expected


@pytest.mark.parametrize("case", REFUSED)
def test_values_that_spark_would_change_are_refused(spark: SparkSession, tmp_path: Path, case: str) -> None:
    """The error names the file, the column, its type and the remedy."""
    kind, files, reason = REFUSED[case]

    with pytest.raises((PySparkException, DataError), match=reason):
        read_rows(spark, tmp_path / "f", kind, {}, files)


def test_a_schema_of_an_option_is_checked_like_one_of_a_file(spark: SparkSession, tmp_path: Path) -> None:
    """A union in it is refused, whether the option has the schema or its file."""
    (tmp_path / "s.avsc").write_text(json.dumps(UNION))
    files = {"a": write_avro({"v": "int"}, {"v": 1})}
    for option in ({"avroSchema": json.dumps(UNION)}, {"avroSchemaUrl": f"file:{tmp_path}/s.avsc"}):
        reason = f"schema of the option {next(iter(option))}: column 'v' has the type union of int and string"
        with pytest.raises(DataError, match=reason):
            read_rows(spark, tmp_path / "f", "avro", option, files)
    for text in ("{", '"nosuch"', '{"type": "record"}'):
        with pytest.raises(DataError, match=r"the option avroSchema is not a schema of Avro: .* \(correct"):
            read_rows(spark, tmp_path / "f", "avro", {"avroSchema": text}, files)


def test_old_days_of_spark_come_out(spark: SparkSession, tmp_path: Path) -> None:
    """ORC files of Spark are read as they are, also beside those of programs whose days are checked."""
    old = "SELECT DATE'1500-01-01' AS v, TIMESTAMP'1500-01-01 00:00:00.5' AS w"
    spark.sql(old).coalesce(1).write.orc(str(tmp_path / "my+f%20"))
    folder = tmp_path / "my+f%20"

    assert len(read_rows(spark, folder, "orc", {}, {})) == 1
    assert len(read_rows(spark, folder, "orc", {}, {"b+c.orc": write_orc(build_column(NEW))})) == 2
    with pytest.raises(PySparkException, match=r"/b\+c\.orc: column 'v' has a DATE before"):
        read_rows(spark, folder, "orc", {}, {"b+c.orc": write_orc(build_column(OLD))})


def test_files_that_only_spark_sees_are_read_or_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark finds the columns of Avro files; old days of ORC files need the option for their calendar."""
    monkeypatch.setattr(container_files, "is_local", lambda _: False)
    spark.sql("SELECT DATE'1500-01-01' AS v").coalesce(1).write.orc(str(tmp_path / "orc"))
    _, options, files, expected = READ["columns of Avro"]

    assert read_rows(spark, tmp_path / "avro", "avro", options, files) == expected
    assert read_rows(spark, tmp_path / "orc", "orc", {CALENDAR: "false"}, {}) == [(OLD,)]
    with pytest.raises(PySparkException, match="column 'v' has a DATE before") as raised:
        read_rows(spark, tmp_path / "orc", "orc", {}, {})
    with use_shown_rows(ShownRows(rows="keys")):
        shown = str(convert_error(raised.value))
    assert ".orc: column 'v' has a DATE before 1582-10-15, which Spark reads as '***': the file" in shown
