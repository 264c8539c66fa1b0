"""Test that loads compare values exactly, whatever their type and the time zone of the session."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.merge_load.columns import check_layout
from airflow_merge_provider.core.merge_load.load import SchemaEvolution
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.report import Report
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.merge_load.changes import is_differing
from airflow_merge_provider.jobs.merge_load.columns import content_hash
from airflow_merge_provider.jobs.run.retry import run_attempt
from airflow_merge_provider.jobs.spark.session import override_settings
from tests.jobs.merge_load.conftest import MakeLoads
from tests.jobs.merge_load.loads import MemoryLoads
from tests.jobs.spark.test_exact_text import _NESTED, _VALUES

COLLATED = {"collated text": (["'a' collate UTF8_LCASE"], ["'A' collate UTF8_LCASE"])}
AT = datetime(2024, 5, 1, 0, 0, 0, 123456, UTC)
NAIVE = pa.timestamp("us")
ZONED = pa.timestamp("us", "UTC")
COLUMNS = {
    "id": pa.int64(),
    "log": pa.list_(ZONED),
    "local": pa.struct([("at", NAIVE)]),
    "map": pa.map_(pa.int32(), pa.list_(ZONED)),
    "raw": pa.map_(pa.binary(), pa.binary()),
    "number": pa.list_(pa.float64()),
    "price": pa.list_(pa.decimal128(38, 18)),
}
ROW: dict[str, Any] = {
    "id": 1,
    "log": [AT],
    "local": {"at": datetime.fromisoformat("1500-02-28T01:02:03.456789")},
    "map": [(1, [AT]), (10, [])],
    "raw": [(b"\xff", b"\x00"), (b"\xfe", b"")],
    "number": [0.0, float("nan")],
    "price": [Decimal("2.000000000000000001")],
}
SAME = {"map": [(10, []), (1, [AT])], "raw": ROW["raw"][::-1], "number": [-0.0, float("nan")]}
OTHER: tuple[dict[str, Any], ...] = (
    {"log": [AT + timedelta(microseconds=543)]},
    {"local": {"at": datetime.fromisoformat("1500-02-28T01:02:03.456788")}},
    {"map": [(1, [AT + timedelta(microseconds=1)]), (10, [])]},
    {"map": [(10, [AT]), (1, [])]},
    {"raw": [(b"\xff", b"\x01"), (b"\xfe", b"")]},
    {"number": [0.0, 5e-324]},
    {"price": [Decimal("2.000000000000000002")]},
)
# Values at the ends of each type.
EXTREMES = {
    "tinyint": ["-128Y", "127Y"],
    "smallint": ["-32768S", "32767S"],
    "int": ["int(-2147483648)", "2147483647"],
    "bigint": ["-9223372036854775807L", "9007199254740993L"],
    "float": ["float('1.17549435E-38')", "float('3.4028235E38')", "float('NaN')"],
    "double": ["4.9E-324D", "1.7976931348623157E308D", "double('NaN')"],
    "decimal(3,0)": ["999BD", "-999BD"],
    "decimal(10,4)": ["999999.9999BD", "0.0001BD"],
    "decimal(19,0)": ["9999999999999999999BD"],
    "decimal(38,18)": ["99999999999999999999.999999999999999999BD"],
    "date": ["date'0001-01-01'", "date'9999-12-31'"],
    "timestamp": ["timestamp'0001-01-01T00:00:00.000001Z'"],
    "timestamp_ntz": ["timestamp_ntz'9999-12-31T23:59:59.999999'"],
    "string": ["'a '"],
    "binary": ["X'00'"],
    "boolean": ["true"],
}
LOADS = {
    "upsert": ("upsert", {"primary_key": "id"}),
    "delete-insert": ("delete-insert", {"primary_key": "id"}),
    "groups": ("delete-insert", {"merge_key": "id"}),
    "versions": ("scd2", {}),
    "snapshots": ("scd2", {"natural_key": "id"}),
    "changes": ("scd2", {"natural_key": "id", "mode": "changes", "effective_from": "day"}),
}


def test_columns_differ_exactly_if_their_values_do(spark: SparkSession) -> None:
    """Each value is compared with one other value of its type, alone and nested, and so are their hashes."""
    cases = [
        (f"{name} in {nesting}: {first} and {other}", nesting.format(first), nesting.format(other), is_same)
        for name, ((first, *same), different) in {**_VALUES, **COLLATED}.items()
        for nesting in _NESTED[::2]
        for other_values, is_same in ((same, True), (different[:2], False))
        for other in other_values
    ]
    kinds = spark.sql("SELECT " + ", ".join(f"{case[1]} AS c{n}" for n, case in enumerate(cases))).schema

    def build_row(side: int) -> Any:
        values = (
            f"cast({case[side]} AS {field.dataType.simpleString()}) AS {field.name}"
            for case, field in zip(cases, kinds, strict=True)
        )
        return spark.sql("SELECT " + ", ".join(values))

    left, right = build_row(1), build_row(2)
    pairs = left.alias("s").crossJoin(right.alias("t"))
    differs = pairs.select(*(is_differing([field], "s", "t") for field in kinds)).collect()[0]
    hashes = left.select(*(content_hash([field]) for field in kinds)).unionAll(
        right.select(*(content_hash([field]) for field in kinds))
    )
    first, second = hashes.collect()
    wrong = [
        case[0]
        for case, differ, one, two in zip(cases, differs, first, second, strict=True)
        if (differ, one != two) != (not case[3], not case[3])
    ]

    assert wrong == []


def test_a_cast_to_the_type_of_the_target_keeps_every_value(spark: SparkSession) -> None:
    """For each pair of types: the extreme values of the source are equal after a cast, or it is refused."""
    columns, refused = [], []
    for source, values in EXTREMES.items():
        for target in EXTREMES:
            try:
                check_layout({"v": source}, {"v": target}, (), SchemaEvolution("add", False), "t")
            except DataError as error:
                refused.append(str(error))
                continue
            columns += [
                f"cast(cast({value} AS {target}) AS {source}) <=> {value} AS `{source} {target} {value}`"
                for value in values
            ]
    row = spark.sql(f"SELECT {', '.join(columns)}").collect()[0]

    assert [name for name, is_equal in row.asDict().items() if not is_equal] == []
    assert all("column 'v' has type" in text for text in refused)
    assert len(refused) == 210


class AttemptedLoads(MemoryLoads):
    """Loads that run as the entry of a job runs them: with the settings of every run."""

    def _run_job(self, request: JobRequest) -> Report:
        run = super()._run_job
        return run_attempt(self.spark, request, Progress(out=str), lambda _, planned, __: run(planned))


def build_rows(*rows: Mapping[str, Any], day: pa.DataType) -> pa.Table:
    """Return rows as a source whose column ``day`` is a date or a timestamp."""
    days = pa.array([date(2024, 1, 1)] * len(rows)).cast(NAIVE).cast(day)
    names = [*COLUMNS, "day"]
    columns = [pa.array([row[name] for row in rows], kind) for name, kind in COLUMNS.items()]
    return pa.table([*columns, days], names=names)


@pytest.mark.parametrize("name", LOADS)
def test_loads_change_rows_exactly_if_values_change(lean: SparkSession, tmp_path: Any, name: str) -> None:
    """The same values change nothing in another time zone; a change of any size inside a value is written."""
    strategy, settings = LOADS[name]
    loads = AttemptedLoads(lean, tmp_path, strategy, **settings)
    days = (datetime(2024, 1, 2 + number, tzinfo=UTC) for number in range(3))

    def load_rows(rows: pa.Table, zone: str) -> dict[str, Any]:
        at = {"boundary_timestamp": next(days).isoformat()} if strategy == "scd2" else {}
        with override_settings(lean, {"spark.sql.session.timeZone": zone}):
            return loads.load_rows(rows, **at)

    first = [{**ROW, "id": number} for number in range(len(OTHER))]
    same = [{**row, **SAME} for row in first]
    changed = [{**row, **more} for row, more in zip(first, OTHER, strict=True)]
    load_rows(build_rows(*first, day=ZONED), "UTC")
    report = load_rows(build_rows(*same, day=pa.date32()), "America/Los_Angeles")

    assert not report["changed"]
    report = load_rows(build_rows(*changed, day=pa.date32()), "Asia/Tokyo")
    assert report["changed"]
    written = report["rows"]["inserted"] + report["rows"]["updated"]
    assert written == len(OTHER) * (2 if name in {"versions", "snapshots"} else 1)
    if strategy != "scd2":
        expected = build_rows(*changed, day=ZONED)
        stored = loads.target_table.read_rows().select(expected.column_names).orderBy("id").toArrow()
        # NaN is not equal to itself in Python.
        assert repr(stored.cast(expected.schema).to_pylist()) == repr(expected.to_pylist())


KEYS = {
    "number": pa.array([0.0, float("nan"), 5e-324, 1e308]),
    "bytes": pa.array([b"", b"\xff", b"\xff\x00", b"a"]),
    "price": pa.array(
        [Decimal("2.000000000000000001"), *map(Decimal, (2, "-1e-18", 0))], pa.decimal128(38, 18)
    ),
    "text": pa.array(["", "a", "a ", "\u00e4"]),
    "at": pa.array([AT + timedelta(microseconds=number) for number in range(4)], ZONED),
    "parts": pa.array([{"n": -0.0, "b": b"\x00"}] * 4, pa.struct([("n", pa.float64()), ("b", pa.binary())])),
}


@pytest.mark.parametrize("strategy", ["upsert", "delete-insert", "scd2"])
def test_keys_match_exactly(loads: MakeLoads, memory_loads: MakeLoads, strategy: str) -> None:
    """Awkward values of keys match themselves only: each row is updated once, and none is added."""
    make_loads = loads if strategy == "upsert" else memory_loads
    key = {"natural_key" if strategy == "scd2" else "primary_key": list(KEYS)}
    table = make_loads(strategy, **key, **({"mode": "changes"} if strategy == "scd2" else {}))

    def load_rows(values: list[str], numbers: pa.Array) -> dict[str, Any]:
        at = {"boundary_timestamp": f"2024-01-0{len(values[0])}"} if strategy == "scd2" else {}
        return table.load_rows(pa.table({**KEYS, "number": numbers, "v": values}), **at)

    load_rows(["a"] * 4, KEYS["number"])
    report = load_rows(["bb"] * 4, pa.array([-0.0, float("nan"), 5e-324, 1e308]))

    expected = {"updated": 4, "inserted": 4 if strategy == "scd2" else 0, "deleted": 0}
    assert {name: report["rows"][name] for name in expected} == expected
