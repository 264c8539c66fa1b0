"""Tests of values that commands show: exact for every value that a table can hold, also as keys."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from airflow_merge_provider.cli import main as cli
from tests.unit.cli.conftest import build_state

FEED = {"delta.enableChangeDataFeed": "true"}
UTC, LOCAL, DAY = pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32()
LAST, FIRST = 2**63 - 1, -(2**63)
LAST_TEXT = "+294247-01-10T04:00:54.775807"
FIRST_TEXT = "-290308-12-21T19:59:05.224192"
# Of each column: its type, two numbers that differ in the last place, and their texts.
COLUMNS: dict[str, tuple[pa.DataType, Any, Any, str, str]] = {
    "utc": (UTC, LAST, LAST - 1, f"{LAST_TEXT}Z", f"{LAST_TEXT[:-1]}6Z"),
    "local": (LOCAL, FIRST, FIRST + 1, FIRST_TEXT, f"{FIRST_TEXT[:-1]}3"),
    "day": (DAY, 2_932_897, -719_163, "+10000-01-01", "0000-12-31"),
    "days": (pa.list_(DAY), [2_932_897, None], [2_932_898], "[+10000-01-01, NULL]", "[+10000-01-02]"),
    "times": (
        pa.map_(UTC, pa.struct([("at", LOCAL)])),
        [(LAST, {"at": FIRST})],
        [],
        f'{{{LAST_TEXT}Z: {{"at": {FIRST_TEXT}}}}}',
        "[]",
    ),
    "near": (UTC, 253_402_300_799_999_999, 0, "9999-12-31T23:59:59.999999Z", "1970-01-01T00:00:00Z"),
    "single": (pa.float32(), 0.1, 16777216.0, "0.1", "16777216.0"),
    "singles": (pa.list_(pa.float32()), [1e-45, None], [3.4028235e38], "[1e-45, NULL]", "[3.4028235e+38]"),
    "zero": (pa.float64(), -0.0, 1.5, "-0.0", "1.5"),
}


def build_rows(position: int) -> pa.Table:
    """Return one row with the first or the second value of each column."""
    columns = {name: column[1 + position] for name, column in COLUMNS.items()}
    arrays = {name: _build_array(value, COLUMNS[name][0]) for name, value in columns.items()}
    return pa.table({"id": [1], **arrays})


def _build_array(value: Any, kind: pa.DataType) -> pa.Array:
    # pyarrow casts numbers to dates, also inside of other types.
    numbers = {DAY: pa.int32(), pa.list_(DAY): pa.list_(pa.int32())}
    return pa.array([value], numbers.get(kind, kind)).cast(kind)


@pytest.fixture(params=[FEED, {}], ids=["feed", "files"])
def target(request: pytest.FixtureRequest, write_run: Any) -> str:
    """Write two versions of a row as the runs of an upsert."""
    state = build_state(1, config={"strategy": "upsert", "primary_key": ["id"]})
    write_run("t", build_rows(0), state, owner="merge_load", configuration=request.param)
    location: str = write_run("t", build_rows(1), {**state, "number": 2}, mode="overwrite")
    return location


def run_command(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    code = cli.main([*arguments])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return printed.out


def test_every_command_shows_exact_values(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Dates and times in any year, FLOATs with their own digits and -0.0 are shown as they are stored."""
    for arguments, arrow in (
        (("timeline", target, "1"), "→"),
        (("explain", target, "1"), "→"),
        (("diff", target, "0", "1"), "->"),
    ):
        lines = run_command(capsys, *arguments).splitlines()
        changes = [line.strip() for line in lines if arrow in line]
        assert changes == [
            f"{name}: {before} {arrow} {after}" for name, (*_, before, after) in COLUMNS.items()
        ]

    example = json.loads(run_command(capsys, "diff", target, "0", "1", "--json"))["examples"][0]
    assert (example["before"]["single"], example["before"]["day"]) == (0.1, "+10000-01-01")
    assert [str(example[side]["zero"]) for side in ("before", "after")] == ["-0.0", "1.5"]


@pytest.mark.parametrize("name", ["utc", "local", "day", "near", "single"])
def test_shown_values_are_keys(write_run: Any, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """A value that a command shows finds its row, and no other."""
    target = write_run("t", pa.concat_tables([build_rows(0), build_rows(1)]))
    for text in COLUMNS[name][3:]:
        lines = run_command(capsys, "timeline", target, json.dumps({name: text})).splitlines()
        assert lines[0] == f"{name} = {text}: 1 state"
        assert sum(line.startswith("    + ") for line in lines) == 1
