"""Test that values come through a merge exactly, in both forms of the target, and that each change counts."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.report import Report
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.merge_source.job import run
from airflow_merge_provider.jobs.run.retry import run_attempt
from airflow_merge_provider.jobs.spark.exact_text import exact_sql
from airflow_merge_provider.jobs.spark.session import override_settings
from tests.jobs.merge_source.conftest import MakePipe
from tests.jobs.merge_source.pipe import Pipe, build_table
from tests.jobs.merge_source.test_changes import format_rows

AT = dt.datetime(2024, 5, 1, 0, 0, 0, 123456)  # noqa: DTZ001 - a time without a zone
UTC_TIME, LOCAL_TIME = pa.timestamp("us", "UTC"), pa.timestamp("us")
JULIAN = dt.date(1500, 2, 28)
INNER = pa.struct({"t": UTC_TIME, "d": pa.decimal128(38, 18), "n": pa.string()})
FINE = Decimal("12345678901234567890.123456789012345678")
# Of each type: awkward values.
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "byte": (pa.int8(), [-128]),
    "long": (pa.int64(), [2**53 + 1, -(2**63)]),
    "decimal": (pa.decimal128(38, 18), [FINE, Decimal("0E-18")]),
    "integral": (pa.decimal128(38, 0), [Decimal("9" * 38)]),
    "fraction": (pa.decimal128(38, 38), [Decimal("1E-38")]),
    "float": (pa.float32(), [0.1, float("nan"), float("-inf")]),
    "double": (pa.float64(), [5e-324, -0.0, float("nan"), float("inf")]),
    "bool": (pa.bool_(), [False]),
    "text": (pa.string(), ["", " a ", 'a"b\n\\', "NaN", "e\u0301"]),
    "binary": (pa.binary(), [b"", b"\x00\xff"]),
    "date": (pa.date32(), [JULIAN, dt.date(9999, 12, 31)]),
    "time": (UTC_TIME, [AT, dt.datetime(1500, 2, 28, 0, 0, 0, 1)]),  # noqa: DTZ001
    "local": (LOCAL_TIME, [AT, dt.datetime(1500, 2, 28, 0, 0, 0, 1)]),  # noqa: DTZ001
    "times": (pa.list_(UTC_TIME), [[AT, None], []]),
    "lists": (pa.list_(pa.list_(pa.float64())), [[[0.1], [], [None]]]),
    "struct": (INNER, [{"t": AT, "d": FINE, "n": ""}, {"t": None, "d": FINE, "n": None}]),
    "structs": (pa.list_(INNER), [[{"t": AT, "d": FINE, "n": "x"}, None]]),
    "map": (pa.map_(pa.string(), pa.decimal128(38, 18)), [[("b", FINE), ("a", None)]]),
}
# VARIANT objects have texts as names.
TYPED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "by_time": (pa.map_(UTC_TIME, pa.float64()), [[(AT, -0.0)]]),
    "by_binary": (pa.map_(pa.binary(), pa.int32()), [[(b"\xff", 1), (b"\xfe", 2)]]),
    "by_struct": (pa.map_(INNER, pa.int32()), [[({"t": AT, "d": FINE, "n": None}, 1)]]),
}


def build_entities(values: dict[str, tuple[pa.DataType, list[Any]]]) -> pa.Table:
    """Build one entity per value; its other columns are NULL."""
    ids = [f"{name}{number}" for name, (_, items) in values.items() for number in range(len(items))]
    columns = {"_id": pa.array(ids)}
    for name, (kind, items) in values.items():
        cells = dict(zip((f"{name}{number}" for number in range(len(items))), items, strict=True))
        columns[name] = pa.array([cells.get(id_) for id_ in ids], kind)
    return pa.table(columns)


def read_value(form: str, name: str, kind: DataType) -> str:
    """Return the value of an output of one member as SQL; columns hold the items of lists."""
    if form == "entity":
        return f"variant_get(entity, '$.{name}', '{kind.simpleString()}')"
    return f"`{name}`" if isinstance(kind, ArrayType) else f"`{name}`[0]"


@pytest.mark.parametrize("form", ["entity", "columns"])
def test_values_come_out_equal(make_pipe: MakePipe, form: str) -> None:
    """Every value of every type is in the target as it is in the dataset, written to and read from Delta."""
    pipe = make_pipe("A", values=form)
    rows = build_entities(VALUES | TYPED if form == "columns" else VALUES)
    pipe.write_rows("A", rows)
    pipe.run_job()

    source = pipe.spark.read.format("delta").load(str(pipe.folder / "A"))
    kinds = {field.name: field.dataType for field in source.schema if field.name != "_id"}
    source_texts = [f"{exact_sql(f'`{name}`', kind)} AS `{name}`" for name, kind in kinds.items()]
    target_texts = [
        f"{exact_sql(read_value(form, name, kind), kind)} AS `{name}`" for name, kind in kinds.items()
    ]
    texts = {row["_id"]: row.asDict() for row in source.selectExpr("_id", *source_texts).collect()}
    rows_read = pipe.target_rows().selectExpr("`$ids`[0] AS _id", *target_texts).collect()
    assert {row["_id"]: row.asDict() for row in rows_read} == texts
    assert len(texts) == rows.num_rows


@pytest.mark.parametrize("form", ["entity", "columns"])
def test_the_smallest_changes_count(make_memory_pipe: MakePipe, form: str) -> None:
    """A change of a microsecond, a digit or a NULL is found and written, an equal value is not."""
    later = AT.replace(microsecond=123999)
    pairs = [("k", AT), ("l", AT)]
    # Of each column: its type, a value, an equal one, and one that differs as little as possible.
    cases: dict[str, tuple[pa.DataType, Any, Any, Any]] = {
        "x": (UTC_TIME, AT, AT, later),
        "y": (pa.list_(UTC_TIME), [AT], [AT], [later]),
        "z": (pa.struct({"t": LOCAL_TIME}), {"t": AT}, {"t": AT}, {"t": later}),
        "m": (pa.map_(pa.string(), UTC_TIME), pairs, pairs[::-1], [("k", AT), ("l", later)]),
        "d": (pa.list_(pa.decimal128(38, 18)), [FINE], [FINE], [FINE + Decimal("1E-18")]),
        "s": (pa.list_(pa.string()), ["a"], ["a"], ["a", None]),
        "f": (pa.list_(pa.float64()), [0.0], [-0.0], [5e-324]),
    }
    pipe = make_memory_pipe("A", values=form)

    def write(variation: int) -> None:
        columns = {
            name: pa.array([values[variation if id_ == name else 0] for id_ in cases], kind)
            for name, (kind, *values) in cases.items()
        }
        pipe.write_rows("A", pa.table({"_id": list(cases), **columns}), "overwrite")

    write(0)
    pipe.run_job()
    write(1)
    assert pipe.run_job()["changed"] is False
    write(2)

    report = pipe.run_job()

    assert report["changed"] is True
    assert report["rows"] == {"inserted": 0, "updated": len(cases), "deleted": 0, "unchanged": 0}
    assert pipe.run_job(full_refresh=True)["changed"] is False


def test_types_of_datasets_are_united_exactly(make_memory_pipe: MakePipe) -> None:
    """Members with different types of a property keep their digits, with every strategy."""
    equality = [["eq", "a.k", f"{name}.k"] for name in "bcde"]
    pipe = make_memory_pipe("ABCDE", equality=equality)
    small = f"0.{'0' * 37}1"
    columns = {
        "A": pa.array([2**53 + 1], pa.int64()),
        "B": pa.array([Decimal("2.000000000000000001")], pa.decimal128(38, 18)),
        "C": pa.array([2.0], pa.float64()),
        # No DECIMAL holds the digits of both.
        "D": pa.array([Decimal(10**37 + 1)], pa.decimal128(38, 0)),
        "E": pa.array([Decimal(small)], pa.decimal128(38, 38)),
    }
    for name, column in columns.items():
        pipe.write_rows(name, pa.table({"_id": [name], "k": [1], "x": column}))
    numbers = f"[9007199254740993,2.000000000000000001,2.0,{10**37 + 1},{small}]"

    def read(of: str) -> str:
        (row,) = pipe.target_rows().selectExpr(f"to_json({of}) AS x").collect()
        return str(row["x"])

    pipe.run_job()
    assert read("variant_get(entity, '$.x', 'variant')") == numbers
    pipe.run_job(strategy="compact")
    assert read("variant_get(entity, '$.x', 'variant')") == numbers
    pipe.run_job(values="columns", reset=True)
    assert read("x") == numbers


@pytest.mark.parametrize(
    ("kind", "value", "named"),
    [
        (pa.map_(pa.binary(), pa.int32()), [(b"\xff", 1)], "MAP<BINARY,INT>"),
        (pa.list_(pa.map_(INNER, pa.int32())), [[({"t": AT}, 1)]], "MAP<STRUCT<"),
    ],
    ids=["binary", "struct"],
)
def test_maps_without_names_are_refused(
    make_memory_pipe: MakePipe, kind: pa.DataType, value: Any, named: str
) -> None:
    """A map whose keys are no names cannot be in an entity: the error has column, type and remedy."""
    pipe = make_memory_pipe("AB")
    rows = pa.table({"_id": ["a1"], "x": pa.array([value], kind)})
    pipe.write_rows("A", rows)
    pipe.write_rows("B", build_table({"_id": ["b1"], "x": ["text"]}))

    with pytest.raises(DataError, match=f"column 'x' contains {named}.*does not support.*drop or cast it"):
        pipe.run_job()
    with pytest.raises(DataError, match=f"'x' is .* and STRING, and VARIANT does not support {named}"):
        pipe.run_job(values="columns")


def test_numbers_that_would_be_rounded_are_refused(make_memory_pipe: MakePipe) -> None:
    """A number in JSON that VARIANT would round is refused with the entity and the number."""
    pipe = make_memory_pipe("A", entity_column="entity")
    numbers = ["1e400", "1.5e-400", f"1.{'2' * 40}", "1" * 39, "12345678901234567891e1"]
    exact = f"[-1e308, 1e-300, {'1' * 38}, 0.{'0' * 37}1, 1{'0' * 40}]"
    text = f'{{"_id": "a0", "s": "{numbers} [{numbers}", "x": {exact}}}'
    pipe.write_json("A", [text])
    pipe.run_job()

    for number in numbers:
        pipe.write_json("A", [text, f'{{"_id": "a1", "x": [{{"y": {number}}}]}}'], "overwrite")
        with pytest.raises(
            DataError, match=f"dataset 'A': entity 'a1' has the number {number}, .*round.*as text"
        ):
            pipe.run_job()


def test_a_text_that_becomes_a_date_is_a_change(make_pipe: MakePipe) -> None:
    """A VARIANT with the same JSON and another type is another value, which a column of that type equals."""
    pipe = make_pipe("AB", equality=[["eq", "a.day", "b.day"]])
    pipe.write_rows("B", pa.table({"_id": ["b1"], "day": pa.array([JULIAN], pa.date32())}))
    entity = "to_variant_object(named_struct('_id', 'a1', 'day', {day})) AS entity"
    for version, (day, expected) in enumerate(
        [("'1500-02-28'", ["+0|a1", "+1|b1"]), ("date'1500-02-28'", ["~0|a1", "~1|b1", "+0|a1|1|b1"])]
    ):
        frame = pipe.spark.sql(f"SELECT {entity.format(day=day)}")
        frame.write.format("delta").mode("overwrite").save(str(pipe.folder / "A"))

        report = pipe.run_job()

        assert report["run_mode"] == ("incremental" if version else "initial")
        assert format_rows(pipe.read_new_rows()) == expected


class ZonedPipe(Pipe):
    """Runs as the operator makes them, in the session's time zone."""

    def _run_request(self, request: JobRequest) -> Report:
        return run_attempt(self.spark, request, Progress(out=self.log_lines.append), run)


def test_the_time_zone_of_a_session_changes_nothing(lean: SparkSession, tmp_path: Path) -> None:
    """Runs in different time zones link the same entities and write the same rows."""
    rules = [["eq", "a.x", "b.x"], ["eq", "a.y", "b.y"], ["eq", ["string", "a.z"], "b.z"]]
    pipe = ZonedPipe(lean, tmp_path, datasets=["A a", "B b"], equality=rules)
    zones = ["America/Los_Angeles", "UTC", "Asia/Kathmandu"]
    ids = ["x", "y", "z"]

    def write(name: str, kinds: list[pa.DataType], values: list[Any]) -> None:
        columns = {
            column: pa.array([value if id_ == column else None for id_ in ids], kind)
            for column, kind, value in zip(ids, kinds, values, strict=True)
        }
        pipe.write_rows(
            name, pa.table({"_id": [f"{name.lower()}-{id_}" for id_ in ids], **columns}), "overwrite"
        )

    write("A", [UTC_TIME, pa.list_(UTC_TIME), UTC_TIME], [AT, [AT], AT])
    write("B", [LOCAL_TIME, UTC_TIME, pa.string()], [AT, AT, "2024-05-01T00:00:00.123456Z"])
    reports = []
    for zone in zones:
        with override_settings(lean, {"spark.sql.session.timeZone": zone}):
            reports.append(pipe.run_job(full_refresh=True))

    assert [report["changed"] for report in reports] == [True, False, False]
    assert format_rows(pipe.read_rows()) == [f"+0|a-{id_}|1|b-{id_}" for id_ in ids]


def test_numbers_in_json_are_equal_by_value(make_memory_pipe: MakePipe) -> None:
    """VARIANT writes `1.0` as `1`; a DOUBLE and a text are other values."""
    pipe = make_memory_pipe("A", entity_column="entity")
    changed = []
    for number in ("1", "1.0", "1e0", '"1"'):
        pipe.write_json("A", [f'{{"_id": "a1", "x": {number}}}'])
        changed.append(pipe.run_job()["changed"])

    assert changed == [True, False, True, True]
