"""Test what a merge engine makes of each type: as key, sequence and payload, by Spark and by Python."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.explain.merge_engine import KeyExplanation, explain_key
from airflow_merge_provider.jobs.merge_engine.side_tables import KIND_COLUMN, RUN_COLUMN
from airflow_merge_provider.jobs.undo.job import run as run_undo
from tests.jobs.merge_engine.stream import Stream
from tests.values.catalog import ALL, SIMPLE, Kind
from tests.values.merging import (
    BY_NAME,
    PAYLOAD_ROWS,
    READERS,
    build_neighbours,
    build_payload,
    find_refusal,
    fold_value,
    list_cells,
    list_values,
    read_with_delta_rs,
    require_exact,
    sort_value,
    take_rows,
)
from tests.values.neighbours import (
    ID,
    Neighbours,
    check_images,
    list_expected,
    list_values as list_columns,
    name_row,
    read_table,
    write_plain,
    write_shown,
)
from tests.values.outcomes import REFUSED, read_outcomes

pytestmark = pytest.mark.spark
OUTCOMES = read_outcomes("merge_engine")
# Rows with a number from here on only have a sequence.
FIRST_SEQUENCE = 1000


def write_key(value: Any) -> str | None:
    """Return a value of a key as people write it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


class Rows:
    """The rows of a source: keys that differ in one column, records of one key, and a payload."""

    def __init__(self) -> None:
        self.payload = build_payload()
        self.keys, self.cases = build_neighbours("key_")
        sequences = [(kind, value) for kind in SIMPLE for value in reversed(kind.values)]
        self.sequences = dict(enumerate(sequences, FIRST_SEQUENCE))

    @property
    def count(self) -> int:
        """The number of rows without a sequence."""
        return len(self.cases)

    def build_batch(self, shift: int) -> pa.Table:
        """Return a row of each key, with the payload that follows the row's own one by ``shift``."""
        numbers = list(range(self.count))
        batch = self.keys.append_column("n", pa.array(numbers, pa.int64()))
        for kind in SIMPLE:
            batch = batch.append_column(f"s_{kind.name}", pa.nulls(self.count, kind.arrow))
        return self._add_payload(batch, [self.find_payload(number, shift) for number in numbers])

    def build_sequences(self) -> pa.Table:
        """Return the records of one key for each type, which differ in the value of its sequence column."""
        size = len(self.sequences)
        batch = take_rows(self.keys, [0] * size)
        names = [f"sequence {kind.name}" for kind, _ in self.sequences.values()]
        batch = batch.set_column(batch.schema.get_field_index("key_string"), "key_string", pa.array(names))
        batch = batch.append_column("n", pa.array(self.sequences, pa.int64()))
        for kind in SIMPLE:
            values = [value if owner is kind else None for owner, value in self.sequences.values()]
            batch = batch.append_column(f"s_{kind.name}", pa.array(values, kind.arrow))
        return self._add_payload(batch, [None] * size)

    def find_payload(self, number: int, shift: int) -> int:
        """Return the row of the payload that a row has."""
        return (number + shift) % PAYLOAD_ROWS

    def list_payload(self, name: str, shift: int) -> list[str]:
        """Return the values of a payload column, in the order of the rows."""
        values = [fold_value(value) for value in self.payload[name].to_pylist()]
        return [values[self.find_payload(number, shift)] for number in range(self.count)]

    def _add_payload(self, batch: pa.Table, positions: list[int | None]) -> pa.Table:
        payload = take_rows(self.payload, positions)
        for name in payload.column_names:
            batch = batch.append_column(name, payload[name])
        return batch


@dataclass(frozen=True)
class Stored:
    """A target after two runs: ``first`` has its rows after the first one, by reader."""

    rows: Rows
    stream: Stream
    first: dict[str, pa.Table]
    report: dict[str, Any]
    target: pa.Table
    changes: pa.Table

    @property
    def folder(self) -> Path:
        """The folder of the target."""
        return self.stream.folder / "state"

    def explain(self, number: int) -> KeyExplanation:
        """Explain a row by its key, given as text."""
        key = {name: write_key(self.rows.keys[name][number].as_py()) for name in self.rows.keys.column_names}
        return explain_key("state", json.dumps(key), warehouse=str(self.stream.folder))


def mark_rows(table: pa.Table) -> list[bool]:
    """Return which rows have no sequence."""
    return [number < FIRST_SEQUENCE for number in table["n"].to_pylist()]


def open_stream(spark: SparkSession, folder: Path) -> tuple[Rows, Stream]:
    rows = Rows()
    sequence = ",".join(f"s_{kind.name}" for kind in SIMPLE)
    options = {"sequence.field": sequence}
    key = rows.keys.column_names
    return rows, Stream(spark, folder, primary_key=key, options=options, changelog="log")


def write_batch(stream: Stream, *batches: pa.Table) -> None:
    table = pa.concat_tables(batches).combine_chunks()
    stream.write_batch({name: table[name].combine_chunks() for name in table.column_names})


@pytest.fixture(scope="module")
def stored(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """Return the rows of a target that was written, and of which each row was updated then."""
    rows, stream = open_stream(spark, tmp_path_factory.mktemp("engine"))
    write_batch(stream, rows.build_batch(0), rows.build_sequences())
    stream.run_job()
    first = {name: read(stream.folder / "state") for name, read in READERS.items()}
    write_batch(stream, rows.build_batch(1))
    report = stream.run_job()
    target, changes = (read_with_delta_rs(stream.folder / name) for name in ("state", "log"))
    return Stored(rows, stream, first, report, target, changes)


@pytest.mark.parametrize(("name", "use"), list_cells(OUTCOMES, SIMPLE, "key"))
def test_keys_that_differ_stay_apart(stored: Stored, name: str, use: str) -> None:
    """Neighbours of a type are two keys, and each finds its row again."""
    require_exact(OUTCOMES, name, use)
    kind, count = BY_NAME[name], stored.rows.count
    changes = {"inserted": 0, "updated": count, "deleted": 0, "unchanged": len(SIMPLE)}
    assert stored.report["rows"] == changes
    actual = list_values(stored.target, f"key_{name}", kind.arrow, "n", mark_rows(stored.target))
    assert actual == list_values(stored.rows.build_batch(0), f"key_{name}", kind.arrow, "n")


@pytest.mark.parametrize(("name", "use"), list_cells(OUTCOMES, SIMPLE, "sequence"))
def test_the_largest_sequence_wins(stored: Stored, name: str, use: str) -> None:
    """The record with the largest value is the newest one."""
    require_exact(OUTCOMES, name, use)
    sequences = stored.rows.sequences.items()
    numbers = {number: value for number, (kind, value) in sequences if kind.name == name}
    newest = max(numbers, key=lambda number: sort_value(numbers[number]))
    rows = {row["key_string"]: row["n"] for row in stored.target.select(["key_string", "n"]).to_pylist()}
    assert rows[f"sequence {name}"] == newest


@pytest.mark.parametrize(("name", "use"), list_cells(OUTCOMES, ALL, "payload", "change log", "read back"))
def test_values_are_stored_as_they_are(stored: Stored, name: str, use: str) -> None:
    """New and changed rows have the values of the records, in the target and in its change log."""
    require_exact(OUTCOMES, name, use)
    arrow, expected = BY_NAME[name].arrow, [stored.rows.list_payload(name, shift) for shift in (0, 1)]
    if use == "payload":
        assert list_values(stored.target, name, arrow, "n", mark_rows(stored.target)) == expected[1]
    elif use == "read back":
        actual = {
            reader: list_values(rows, name, arrow, "n", mark_rows(rows))
            for reader, rows in stored.first.items()
        }
        assert actual == dict.fromkeys(READERS, expected[0])
    else:
        kinds = zip(
            stored.changes[RUN_COLUMN].to_pylist(), stored.changes[KIND_COLUMN].to_pylist(), strict=True
        )
        marks = list(zip(kinds, mark_rows(stored.changes), strict=True))
        shifts = {(1, "+I"): 0, (2, "-U"): 0, (2, "+U"): 1}
        for kind, shift in shifts.items():
            counted = [mark == (kind, True) for mark in marks]
            assert list_values(stored.changes, name, arrow, "n", counted) == expected[shift]


@pytest.mark.parametrize(("name", "use"), list_cells(OUTCOMES, ALL, "explain"))
def test_rows_are_explained_by_a_key_as_text(
    stored: Stored, explained: list[KeyExplanation], name: str, use: str
) -> None:
    """A key of each type finds the records of its row, and the explanation has their values."""
    require_exact(OUTCOMES, name, use)
    expected = stored.rows.list_payload(name, 1)
    assert [fold_value(one.trace.values[name].value) for one in explained] == expected[: len(explained)]
    if BY_NAME[name] in SIMPLE:
        number = next(at for at, (kind, _) in enumerate(stored.rows.cases) if kind == name)
        explanation = stored.explain(number)
        assert [record.version for record in explanation.read] == [0, 1]
        assert explanation.trace.values["n"].value == number
        assert fold_value(explanation.key[f"key_{name}"]) == fold_value(stored.rows.cases[number][1])


@pytest.fixture(scope="module")
def explained(stored: Stored) -> list[KeyExplanation]:
    """Return the explanations of some rows."""
    return [stored.explain(number) for number in range(4)]


def describe_type(kind: Kind) -> Any:
    """Return the type of a column in Spark's JSON."""
    return from_arrow_schema(pa.schema([("v", kind.arrow)])).jsonValue()["fields"][0]["type"]


@pytest.mark.parametrize(("name", "use"), list_cells(OUTCOMES, ALL, *OUTCOMES.uses, refused=True))
def test_types_are_refused_by_name(name: str, use: str) -> None:
    """A type that cannot have a use is refused before data is read, with the column and the type."""
    refusal = find_refusal(use, describe_type(BY_NAME[name]))

    assert OUTCOMES.find_outcome(name, use).removeprefix(REFUSED) in refusal
    assert "column 'v'" in refusal


NEIGHBOURS = Neighbours(ALL)


@dataclass(frozen=True)
class Planned:
    """The plan of a second run with its saved rows, and rows after the run and after an undo.

    ``repeated`` is the plan of a third run, of equal records.
    """

    report: dict[str, Any]
    saved: dict[str, list[Any]]
    written: dict[str, list[Any]]
    repeated: dict[str, Any]
    undone: dict[str, list[Any]]


@pytest.fixture(scope="module")
def planned(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Planned:
    """Return the plan of a second run, and what an undo of it leaves."""
    stream = Stream(spark, tmp_path_factory.mktemp("planned"), primary_key=[ID])
    write_batch(stream, NEIGHBOURS.before)
    stream.run_job()
    write_batch(stream, NEIGHBOURS.after)
    report = stream.run_job(until="transform", save_plan=True)
    saved = read_table(stream.folder / "state__plan", by="after")
    stream.run_job()
    written = read_table(stream.folder / "state")
    write_batch(stream, NEIGHBOURS.equal)
    repeated = stream.run_job(until="transform")
    run = RunToken(dag_id="tests", run_id="undo", task_id="undo")
    request = JobRequest(
        job="undo", config={"target": "state"}, run=run, warehouse=str(stream.folder), started_at=9
    )
    run_undo(spark, request, Progress(out=str))
    # The explanation of a row has the records of the first run only.
    explanation = explain_key("state", name_row(*NEIGHBOURS.ids[0]), warehouse=str(stream.folder))
    assert [record.version for record in explanation.read] == [0]
    return Planned(report, saved, written, repeated, read_table(stream.folder / "state"))


@pytest.mark.long
@pytest.mark.parametrize(("name", "use"), list_cells(OUTCOMES, ALL, "comparison", "plan", "report", "undo"))
def test_plans_and_undos_have_the_values(planned: Planned, name: str, use: str) -> None:
    """A plan and its examples have both values of a row, and an undo gives the rows back.

    A neighbouring value is a change, and an equal one is none.
    """
    require_exact(OUTCOMES, name, use)
    kind = BY_NAME[name]
    if use == "undo":
        assert list_columns(kind, planned.undone) == list_expected(kind, NEIGHBOURS.before)
    elif use == "comparison":
        assert list_columns(kind, planned.written) == list_expected(kind, NEIGHBOURS.after)
        assert planned.report["plan"]["kinds"]["updated"] == len(NEIGHBOURS.ids)
        assert planned.repeated["plan"]["kinds"]["updated"] == 0
    elif use == "plan":
        check_images(NEIGHBOURS, planned.saved, kind)
    else:
        check_examples(kind, planned.report["plan"]["examples"])


def check_examples(kind: Kind, examples: list[dict[str, Any]]) -> None:
    """Check that the examples of a report have both values, and name what set the one that differs."""
    positions = {name_row(*id_): position for position, id_ in enumerate(NEIGHBOURS.ids)}
    assert examples
    for example in examples:
        position = positions[example["after"][ID]]
        sides = {"before": NEIGHBOURS.before, "after": NEIGHBOURS.after}
        texts = {side: write_plain(rows[kind.name][position].as_py(), kind) for side, rows in sides.items()}
        assert {side: write_shown(example[side].get(kind.name), kind) for side in sides} == texts
        reasons = [part.partition(": ") for part in example["detail"].split("; ")]
        is_named = (kind.name, "the newest record") in [
            (column, reason[:17]) for column, _, reason in reasons
        ]
        assert is_named == (texts["before"] != texts["after"]), example["detail"]
