"""Test real flights replayed as changes, out of order and repeated: the table has their final state.

``MERGE_FLIGHTS_DAYS=365`` replays the whole year.
"""

from __future__ import annotations

import os
import random

import pandas as pd
import pyarrow as pa
import pytest
from demo.nyc_flights import read_table

from tests.jobs.merge_engine.conftest import MakeStream

DAYS = int(os.environ.get("MERGE_FLIGHTS_DAYS", "3"))
SCHEDULED = ["carrier", "origin", "dest", "sched_dep_time", "distance"]
DEPARTED = ["dep_time", "dep_delay"]
ARRIVED = ["arr_time", "arr_delay", "air_time"]
COLUMNS = ["id", *SCHEDULED, *DEPARTED, *ARRIVED]
GROUPS = {
    "fields.scheduled_at.sequence-group": ",".join(SCHEDULED),
    "fields.departed_at.sequence-group": ",".join(DEPARTED),
    "fields.arrived_at.sequence-group": ",".join(ARRIVED),
}


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    """Return the numbered flights of the year's first days."""
    every = read_table("flights")
    day = pd.to_datetime(every[["year", "month", "day"]]).dt.dayofyear
    days = every[day <= DAYS].reset_index(drop=True)
    return days.rename_axis("id").reset_index()[COLUMNS]


def columns_of(rows: pd.DataFrame) -> dict[str, pa.Array]:
    content = pa.Table.from_pandas(rows, preserve_index=False).combine_chunks()
    return {name: content[name].chunk(0) for name in content.column_names}


def build_events(flights: pd.DataFrame) -> list[pd.DataFrame]:
    """Build three events per flight, of different times; earlier estimates are wrong on purpose."""
    stamps = ["scheduled_at", "departed_at", "arrived_at"]
    events = []
    for stamp, columns in zip(stamps, (SCHEDULED, DEPARTED, ARRIVED), strict=True):
        for version in (1, 2):
            event = flights[["id", *columns]].copy()
            if version == 1:
                event[columns[-1]] = -1.0 if event[columns[-1]].dtype == float else -1
            event[stamp] = version
            events.append(event)
    all_columns = [*COLUMNS, *stamps]
    kinds = {**flights.dtypes.to_dict(), **dict.fromkeys(stamps, "Int64")}
    full = [event.reindex(columns=all_columns) for event in events]
    return [event.astype({name: _to_nullable(kind) for name, kind in kinds.items()}) for event in full]


def _to_nullable(kind: object) -> object:
    return "Int64" if kind == "int64" else kind


@pytest.mark.long
def test_late_and_repeated_events_end_as_the_flights_were(
    make_stream: MakeStream, flights: pd.DataFrame
) -> None:
    """With six events per flight in any order, some repeated, every column has its newest value."""
    stream = make_stream(primary_key=["id"], merge_engine="partial-update", options=GROUPS)
    draw = random.Random(7)  # noqa: S311 - an order, no secret
    parts = [part for event in build_events(flights) for part in (event.iloc[::2], event.iloc[1::2])]
    draw.shuffle(parts)
    for batch in (parts[:5], parts[3:9], parts[9:], parts[:2]):
        stream.write_batch(columns_of(pd.concat(batch)))
        stream.run_job()

    state = stream.spark.read.format("delta").load(str(stream.folder / "state")).select(*COLUMNS).toPandas()

    state = pd.DataFrame(state).sort_values("id").reset_index(drop=True)
    pd.testing.assert_frame_equal(state, flights, check_dtype=False)


@pytest.mark.long
def test_totals_of_carriers_are_those_of_a_group_by(make_stream: MakeStream, flights: pd.DataFrame) -> None:
    """Sums, counts and maxima over three batches equal a GROUP BY over all flights at once."""
    functions = {"distance": "sum", "arr_time": "count", "arr_delay": "max", "air_time": "min"}
    options = {f"fields.{name}.aggregate-function": function for name, function in functions.items()}
    stream = make_stream(primary_key=["carrier"], merge_engine="aggregation", options=options)
    columns = flights[["carrier", *functions]].astype({"arr_time": "Int64"})
    for start in range(3):
        stream.write_batch(columns_of(columns.iloc[start::3]))
        stream.run_job()

    state = stream.spark.read.format("delta").load(str(stream.folder / "state")).toPandas()

    expected = columns.groupby("carrier").agg(functions).reset_index()
    state = pd.DataFrame(state).sort_values("carrier").reset_index(drop=True)
    pd.testing.assert_frame_equal(state, expected, check_dtype=False)
