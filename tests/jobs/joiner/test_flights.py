"""Test joins of real flights with their airlines, planes, airports and weather against DuckDB."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from demo.nyc_flights import read_table
from pyspark.sql import SparkSession

from tests.jobs.joiner.lake import Lake

FIELDS = ("carrier", "tailnum", "origin", "dest", "time_hour")
# Each step has other keys, so each is a join of its own over the result of the previous one.
STEPS = (
    ("INNER", "airlines", {"carrier": "carrier"}, "name", "airline"),
    ("LEFT", "planes", {"tailnum": "tailnum"}, "seats", "seats"),
    ("INNER", "airports", {"origin": "faa"}, "tz", "origin_zone"),
    ("LEFT", "airports", {"dest": "faa"}, "tz", "dest_zone"),
    ("INNER", "weather", {"origin": "origin", "time_hour": "time_hour"}, "temp", "temperature"),
)


@pytest.mark.long
def test_flights_meet_what_duckdb_lets_them_meet(spark: SparkSession, tmp_path: Path) -> None:
    """All 336,776 flights have as many rows and matches after every step as in DuckDB.

    Nulls match nothing in both.
    """
    lake = Lake(spark, tmp_path)
    flights = read_table("flights")[list(FIELDS)]
    tables = {"step0": pa.Table.from_pandas(flights, preserve_index=False)}
    for name in ("airlines", "planes", "airports", "weather"):
        tables[name] = pa.Table.from_pandas(read_table(name), preserve_index=False)
    base = duckdb.connect()
    for name, rows in tables.items():
        lake.write_rows(name, rows)
        base.register(name, rows)
    columns = list(FIELDS)
    for number, (kind, other, keys, field, name) in enumerate(STEPS):
        report = lake.run_job(
            inputs={"left": f"step{number}", "right": other},
            join_keys=[{"left": mine, "right": theirs} for mine, theirs in keys.items()],
            required_inputs="left" if kind == "LEFT" else "left,right",
            join_null_keys=False,
            selected_fields=[*(f"left.{column}" for column in columns), f"right.{field} as {name}"],
            target=f"step{number + 1}",
        )
        matches = " AND ".join(f"l.{mine} = r.{theirs}" for mine, theirs in keys.items())
        base.execute(
            f"CREATE TABLE step{number + 1} AS SELECT l.*, r.{field} AS {name}"
            f" FROM step{number} l {kind} JOIN {other} r ON {matches}"
        )
        expected = base.execute(f"SELECT count(*), count({name}) FROM step{number + 1}").fetchone()
        columns.append(name)

        written = spark.read.format("delta").load(str(tmp_path / f"step{number + 1}"))
        assert (report["counts"]["outputs"], written.where(f"{name} IS NOT NULL").count()) == expected
