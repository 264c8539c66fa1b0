"""Tests of ``timeline``: every state of a key, for targets of each kind and for other tables."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from airflow_merge_provider.cli import main as cli
from airflow_merge_provider.core.merge_load.columns import SHAPE
from airflow_merge_provider.core.merge_load.scd2 import HASH_COLUMN, Scd2Config, build_history_shape
from airflow_merge_provider.explain.target import find_key_columns, find_row_columns, open_target
from tests.unit.cli.conftest import build_state

_TIME = re.compile(r"(?<=version )(\d+, )[^,]+Z")
JOIN = {
    "inputs": {"a": "/lake/a", "b": "/lake/b"}, "required": ["a"], "keys": {"a": ["k"], "b": ["k"]},
    "nulls_match": True, "expression": None, "aliases": {}, "key_columns": ["K"],
    "outputs": {"K": ["a", "k"]}, "append": False,
}  # fmt: skip


def print_timeline(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """Run the command, and return its lines without the times of commits."""
    capsys.readouterr()
    assert cli.main(["timeline", *arguments]) == 0
    return [_TIME.sub(r"\1…", line) for line in capsys.readouterr().out.splitlines()]


def write_history(write_run: Any) -> str:
    """Write a history of two loads: the second closes the version of the first and opens another."""
    config = Scd2Config.parse({"source": "s", "target": "t", "strategy": "scd2", "natural_key": ["id"]})
    times = pa.timestamp("us", "UTC")
    metadata = {SHAPE: json.dumps(build_history_shape(config))}
    schema = pa.schema([
        pa.field("id", pa.int64()), pa.field("city", pa.string()), pa.field("valid_from", times),
        pa.field("valid_to", times), pa.field(HASH_COLUMN, pa.string(), metadata=metadata),
    ])  # fmt: skip
    first, second = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC)

    def build_rows(*rows: Any) -> pa.Table:
        return pa.table(list(zip(*rows, strict=True)), schema=schema)

    write_run("t", build_rows((7, "Oslo", first, None, "o")), build_state(1), owner="merge_load")
    rows = build_rows((7, "Oslo", first, second, "o"), (7, "Bergen", second, None, "b"))
    location: str = write_run("t", rows, build_state(2), mode="overwrite")
    return location


def test_every_state_of_a_key_is_shown(write_run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Inserts, updates and deletes are shown with their runs, oldest first; equal rows are no state."""
    state = build_state(1, config={"primary_key": ["id"]})
    target = write_run("t", [{"id": 7, "v": "a"}, {"id": 8, "v": "z"}], state, owner="merge_load")
    write_run("t", [{"id": 7, "v": "a"}], build_state(2), mode="overwrite")
    write_run("t", [{"id": 7, "v": "b"}], build_state(3), mode="overwrite")
    DeltaTable(target).delete("id = 7")

    assert print_timeline(capsys, target, "7") == [
        "id = 7: 3 states",
        "  version 0, …, run r1 of shop.orders: inserted",
        '    + id = 7, v = "a"',
        "  version 2, …, run r3 of shop.orders: updated",
        '    v: "a" → "b"',
        "  version 3, …, DELETE of another writer: deleted",
        '    - id = 7, v = "b"',
    ]
    assert len(print_timeline(capsys, target, "7", "--version", "1")) == 3


def test_a_history_shows_what_became_of_its_versions(
    write_run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """In an SCD2 history, a load opens and closes versions of the key."""
    target = write_history(write_run)

    assert print_timeline(capsys, target, "7") == [
        "id = 7: 2 states",
        "  version 0, …, run r1 of shop.orders: 1 version",
        "    from 2026-01-01T00:00:00Z: opened",
        "  version 1, …, run r2 of shop.orders: 2 versions",
        "    from 2026-01-01T00:00:00Z: closed at 2026-02-01T00:00:00Z",
        "    from 2026-02-01T00:00:00Z: opened",
    ]
    assert find_row_columns(*open_target(target, None)) == ("id", "valid_from")
    assert cli.main(["explain", target, "7"]) == 0
    assert capsys.readouterr().out.startswith("id = 7: 2 versions\n")


def test_a_timeline_as_json(write_run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has the rows after each commit, the change, and the events of a history."""
    target = write_history(write_run)

    assert cli.main(["timeline", target, '{"id": 7}', "--json"]) == 0

    content = json.loads(capsys.readouterr().out)
    assert content["key"] == {"id": 7}
    last = content["states"][-1]
    assert (last["kind"], last["commit"]["run_id"]) == ("updated", "r2")
    assert {row["city"] for row in last["rows"]} == {"Oslo", "Bergen"}
    assert [event["kind"] for event in last["events"]] == ["closed", "opened"]


def test_a_table_of_another_program_has_a_timeline(
    write_run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a recorded key, an object names any columns; a value alone is refused with an example."""
    target = write_run("t", [{"id": 1, "v": "a"}])

    assert print_timeline(capsys, target, '{"v": "a"}')[0] == 'v = "a": 1 state'
    assert cli.main(["timeline", target, "1"]) == 2
    assert "JSON object" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("owner", "state", "key"),
    [
        ("merge_load", {"config": {"merge_key": ["id"]}}, ("id",)),
        ("merge_load", {"config": {"primary_key": ["ID"], "merge_key": ["v"]}}, ("id",)),
        ("merge_load", {}, ()),
        ("merge_engine", {"configs": {"/s": {"source": "s", "target": "t", "primary_key": "id"}}}, ("id",)),
        ("joiner", {"join": JOIN}, ("k",)),
        ("merge_source", {}, ("_id",)),
    ],
)
def test_the_key_is_that_of_the_stored_configuration(
    write_run: Any, owner: str, state: Any, key: tuple[str, ...]
) -> None:
    """Each capability records its key; its names are those of the columns."""
    row = {"id": 1, "v": "a", "k": 1, "_id": "x"}
    target = write_run("t", [row], build_state(1, owner, **state), owner=owner)

    dataset, table = open_target(target, None)

    assert find_key_columns(dataset, table) == find_row_columns(dataset, table) == key


@pytest.mark.parametrize(
    ("key", "header"),
    [
        ("0|7", '_id = "0|7": 1 state'),
        ("c1", '_id = "0|7": 1 state'),
        ("crm/c1", '_id = "0|7": 1 state'),
        ("7", "$stable_id = 7: 1 state"),
        ("8", '_id = "0|9": 1 state'),
    ],
)
def test_an_output_is_found_by_its_id_an_entity_or_its_stable_id(
    key: str, header: str, write_run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """`timeline` and `explain` find the same output; an entity takes precedence over a stable ID."""

    def build_output(output_id: str, stable_id: int, *ids: str) -> dict[str, Any]:
        members = [{"dataset": "crm", "id": id_, "hash": 1, "keys": []} for id_ in ids]
        return {"_id": output_id, "_deleted": not ids, "$stable_id": stable_id, "_members": members}

    rows = [build_output("0|7", 7, "c1", "c2"), build_output("0|9", 9, "8", "twice"), build_output("0|1", 8)]
    rows.append(build_output("0|t", 10, "twice"))
    target = write_run("golden", rows, build_state(1, "merge_source"), owner="merge_source")

    assert print_timeline(capsys, target, key)[0] == header
    assert cli.main(["explain", target, key]) == 0
    assert ("0|7: 2 entities" if "7" in header else "0|9: 2 entities") in capsys.readouterr().out

    assert cli.main(["timeline", target, "twice"]) == 2
    assert "key: 'twice' is an entity of '0|9', '0|t' (name one of them)" in capsys.readouterr().err
    for command in ("timeline", "explain"):
        assert cli.main([command, target, "77"]) == 3


def test_an_unknown_key_is_refused(write_run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A key that no version has is an error with the versions that were read."""
    target = write_run("t", [{"id": 1}])

    assert cli.main(["timeline", target, '{"id": 2}']) == 3
    message = f"error: key: {target} has no row with id = 2 in versions 0 to 0 (check the value)\n"
    assert capsys.readouterr().err == message


def test_an_unknown_version_is_refused(write_run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A version that the table does not have is an error with its number."""
    target = write_run("t", [{"id": 1}])

    assert cli.main(["timeline", target, '{"id": 1}', "--version", "9"]) == 3
    assert f"error: {target} cannot be read at version 9" in capsys.readouterr().err
