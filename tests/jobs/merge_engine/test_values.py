"""Test that keys and values are equal only if they are the same, for every type, and stay as they are."""

from __future__ import annotations

import datetime as dt
import itertools
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.merge_engine.checks import plan_fold
from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.core.run.columns import describe_text_order
from airflow_merge_provider.jobs.merge_engine.counting import AFTER
from airflow_merge_provider.jobs.merge_engine.records import RECORD_ARRIVAL, RECORD_KIND, RECORD_PROBLEM
from airflow_merge_provider.jobs.merge_engine.row_changes import fold_batch
from airflow_merge_provider.jobs.merge_engine.source_columns import table_columns
from airflow_merge_provider.jobs.spark.staging import create_dataframe
from tests.jobs.merge_engine.stream import Stream

UTC = dt.timezone.utc  # noqa: UP017 - compared with what Arrow returns
MOMENT = dt.datetime(2024, 5, 1, 0, 0, 0, 123456)  # noqa: DTZ001 - of TIMESTAMP_NTZ
# Per key column: its type, a value, and a value that a cast to another type would make equal to it.
KEYS: dict[str, tuple[pa.DataType, Any, Any]] = {
    "k": (pa.string(), "1", "01"),
    "blank": (pa.string(), "a", "a "),
    "long": (pa.int64(), 9007199254740992, 9007199254740993),
    "double": (pa.float64(), 0.3, 0.1 + 0.2),
    "nan": (pa.float64(), float("nan"), float("inf")),
    "scaled": (pa.decimal128(38, 18), Decimal(2), Decimal("2.000000000000000001")),
    "moment": (
        pa.timestamp("us", "UTC"),
        MOMENT.replace(tzinfo=UTC),
        MOMENT.replace(tzinfo=UTC, microsecond=123457),
    ),
    "local": (pa.timestamp("us"), MOMENT, MOMENT.replace(microsecond=123999)),
    "day": (pa.date32(), dt.date(1582, 10, 4), dt.date(1582, 10, 15)),
    "raw": (pa.binary(), b"\x01", b"\x01\x00"),
    "flag": (pa.bool_(), True, False),
}


def build_batch(texts: list[str]) -> dict[str, Any]:
    """Return one row for the first values, and one for each key column with its other value."""
    columns: dict[str, Any] = {}
    for at, (name, (kind, value, other)) in enumerate(KEYS.items()):
        values = [other if row == at + 1 else value for row in range(len(KEYS) + 1)]
        columns[name] = pa.array(values, kind)
    return {**columns, "v": pa.array(texts * (len(KEYS) + 1))}


@pytest.mark.parametrize("function", ["max", "listagg"])
def test_keys_are_equal_only_by_value(lean: SparkSession, tmp_path: Path, function: str) -> None:
    """Nearly equal keys stay apart and find their rows again, in aggregates and in the Python fold."""
    options = {"fields.v.aggregate-function": function}
    stream = Stream(lean, tmp_path, primary_key=list(KEYS), merge_engine="aggregation", options=options)
    stream.write_batch(build_batch(["a"]))
    first = stream.run_job()
    stream.write_batch(build_batch(["b"]))
    examples = stream.run_job(until="transform")["plan"]["examples"]
    second = stream.run_job()

    assert (first["rows"]["inserted"], second["rows"]["inserted"]) == (len(KEYS) + 1, 0)
    assert second["rows"]["updated"] == len(KEYS) + 1
    assert [example["detail"].partition(" (")[2] for example in examples] == [
        "the stored row, record 2 of 2)"
    ] * len(examples)
    expected = pa.table(build_batch(["b" if function == "max" else "a,b"])).to_pylist()
    assert sorted(map(describe_row, stream.read_rows())) == sorted(
        describe_row(tuple(row.values())) for row in expected
    )


def describe_row(row: tuple[Any, ...]) -> str:
    values = (value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value for value in row)
    return repr(tuple(values))


def test_texts_with_a_length_are_folded_again(lean: SparkSession, tmp_path: Path) -> None:
    """A target of CHAR and VARCHAR columns takes the batches of its source in every run."""
    stream = Stream(lean, tmp_path, merge_engine="partial-update")
    stream.run_sql("CREATE TABLE {source} (k CHAR(3), v VARCHAR(5), n ARRAY<VARCHAR(5)>) USING delta")
    stream.run_sql("INSERT INTO {source} VALUES ('a', 'x', array('y')), ('abc', 'x', NULL)")
    stream.run_job()
    stream.run_sql("INSERT INTO {source} VALUES ('a', 'z', NULL)")
    stream.run_job()

    assert stream.read_rows() == [("a  ", "z", ["y"]), ("abc", "x", None)]


@pytest.mark.parametrize("function", ["merge_map", "last_value"])
def test_times_inside_maps_change_with_every_microsecond(
    lean: SparkSession, tmp_path: Path, function: str
) -> None:
    """A time that changes below a millisecond is a change; an equal map in another order is none."""
    options = {"fields.log.aggregate-function": function}
    stream = Stream(lean, tmp_path, merge_engine="aggregation", options=options)
    kind = pa.map_(pa.string(), pa.list_(pa.timestamp("us", "UTC")))

    def run_job(*entries: tuple[str, int]) -> bool:
        log = [(name, [MOMENT.replace(tzinfo=UTC, microsecond=number)]) for name, number in entries]
        stream.write_batch({"k": [1], "log": pa.array([log], kind)})
        return bool(stream.run_job()["rows"]["updated"])

    run_job(("a", 123456), ("b", 1))
    assert run_job(("a", 123999), ("b", 1))
    assert not run_job(("b", 1), ("a", 123999))
    ((_, log),) = stream.read_rows()
    assert log == {name: [MOMENT.replace(microsecond=at)] for name, at in (("a", 123999), ("b", 1))}


def test_a_text_that_orders_records_is_reported(lean: SparkSession, tmp_path: Path) -> None:
    """The report of a run and of a plan warns that '9' is newer than '10', and names the cast."""
    stream = Stream(lean, tmp_path, options={"sequence.field": "s"})
    stream.write_batch({"k": [1, 1], "s": ["9", "10"], "v": ["nine", "ten"]})

    warnings = [stream.run_job(until=until)["warnings"] for until in ("transform", "commit")]

    assert warnings[0] == warnings[1] == [describe_text_order("options.sequence.field", "s")]
    assert stream.read_rows() == [(1, "9", "nine")]


def test_an_empty_text_in_a_partition_is_refused(lean: SparkSession, tmp_path: Path) -> None:
    """Delta would store NULL, and each run would insert the key again; new and old targets refuse it."""
    stream = Stream(lean, tmp_path, primary_key=["site", "sku"], partition_by=["site"])
    stream.write_batch({"site": [""], "sku": [1], "v": ["a"]})
    message = """state: no partition can hold the value of column 'site' in the row {"site":"","sku":1"""
    with pytest.raises(DataError, match=re.escape(message)):
        stream.run_job()
    assert not DeltaTable.is_deltatable(str(tmp_path / "state"))
    stream.write_batch({"site": ["x"], "sku": [1], "v": ["a"]}, mode="overwrite")
    stream.run_job(full_refresh=True)
    stream.write_batch({"site": ["x", "__HIVE_DEFAULT_PARTITION__"], "sku": [1, 2], "v": ["b", "c"]})
    with pytest.raises(DataError, match="'site' in the row"):
        stream.run_job()
    assert stream.read_rows(order=["sku"]) == [("x", 1, "a")]


def test_columns_may_have_any_names(lean: SparkSession, tmp_path: Path) -> None:
    """Names with backticks and dots are quoted wherever SQL has them."""
    names = ("e`f", "a.b", "`q`")
    options = {f"fields.{name}.aggregate-function": "max" for name in names}
    stream = Stream(lean, tmp_path, merge_engine="aggregation", options=options)
    for text in ("a", "b"):
        stream.write_batch({"k": [1], **{name: [text] for name in names}})
        stream.run_job()

    assert stream.read_rows() == [(1, *["b"] * len(names))]


def test_infinite_results_of_finite_values_are_refused(lean: SparkSession) -> None:
    """Sums, products and retractions of FLOAT and DOUBLE do not overflow in silence, in any order of rows.

    An infinity among the values stays one.
    """
    big, bigger, infinite = 3e38, 1.7e308, float("inf")
    values: list[tuple[str, list[float], list[float]]] = [
        ("float", [big, big], [1.0]),
        ("float retracted", [-big, big], [1.0]),
        ("double", [1.0], [bigger, bigger]),
        ("exact", [big, -big, big], [bigger, bigger, -bigger]),
        ("infinite", [infinite, big, big], [-infinite, bigger, 1.0]),
        ("no sum", [infinite, -infinite], [float("nan"), bigger, bigger]),
    ]
    rows = [
        (key, at, f, d, "-U" if key == "float retracted" and not at else "+I")
        for key, floats, doubles in values
        for at, (f, d) in enumerate(itertools.zip_longest(floats, doubles))
    ]
    kinds = [pa.string(), pa.int32(), pa.float32(), pa.float64(), pa.string()]
    batch = create_dataframe(
        lean,
        pa.table(
            [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)],
            names=["k", RECORD_ARRIVAL, "f", "d", RECORD_KIND],
        ),
    )
    options = {f"fields.{name}.aggregate-function": "sum" for name in ("f", "d")}
    config = MergeEngineConfig.parse(
        {"primary_key": ["k"], "merge_engine": "aggregation", "options": options}
    )

    folded = fold_batch(plan_fold(config, table_columns(batch.schema)), batch, None)

    results = {row["k"]: row for row in folded.select("k", f"`{AFTER}`.*", f"`{RECORD_PROBLEM}`").collect()}
    message = "overflow: sum of column {!r} is infinite, out of range for {}"
    assert {key: row[RECORD_PROBLEM] for key, row in results.items() if row[RECORD_PROBLEM]} == {
        "float": message.format("f", "FLOAT"),
        "float retracted": message.format("f", "FLOAT"),
        "double": message.format("d", "DOUBLE"),
    }
    assert [results["exact"][name] for name in ("f", "d")] == [pytest.approx(big), bigger]
    assert [results["infinite"][name] for name in ("f", "d")] == [infinite, -infinite]
    assert [str(results["no sum"][name]) for name in ("f", "d")] == ["nan", "nan"]


def test_a_plan_names_the_records_of_nested_values(lean: SparkSession, tmp_path: Path) -> None:
    """Maps and nested tables have their records in a plan; a source may lack a column with odd names."""
    rows = pa.list_(pa.struct([("id", pa.int32()), ("at", pa.timestamp("us", "UTC"))]))
    entries = pa.map_(pa.timestamp("us", "UTC"), pa.int32())
    options = {
        "fields.m.aggregate-function": "merge_map",
        "fields.r.aggregate-function": "nested_partial_update",
        "fields.r.nested-key": "id",
    }
    stream = Stream(lean, tmp_path, merge_engine="aggregation", options=options, incremental=False)
    moment = MOMENT.replace(tzinfo=UTC)
    nested = {"m": pa.array([[(moment, 1)]], entries), "r": pa.array([[{"id": 1, "at": moment}]], rows)}
    odd = pa.array([{"a b": 1, "c-d": 2}], pa.struct([("a b", pa.int32()), ("c-d", pa.int32())]))
    stream.write_batch({"k": [1], "odd": odd, **nested})
    stream.run_job()
    later = {"m": pa.array([[(MOMENT.replace(microsecond=1, tzinfo=UTC), 2)]], entries)}
    stream.write_batch({"k": [1], **nested, **later}, source="others")

    (example,) = stream.run_job(source="others", until="transform")["plan"]["examples"]

    assert example["detail"] == "m: merge_map over 2 records (the stored row, record 2 of 2)"
    assert example["after"]["odd"] == {"a b": 1, "c-d": 2}
