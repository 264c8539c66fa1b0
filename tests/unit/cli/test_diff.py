"""Tests of ``diff``: the rows that differ between two versions, compared with an obvious calculation."""

from __future__ import annotations

import base64
import json
import random
import re
import struct
from collections import Counter
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyroaring import BitMap

from airflow_merge_provider.cli import main as cli
from airflow_merge_provider.explain.diff import compare_versions
from tests.unit.cli.conftest import build_state, run_on_terminal

FEED = {"delta.enableChangeDataFeed": "true"}
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_ROWS_MAGIC = 1681511377


def change_rows(location: str) -> None:
    """Insert the row 4, update the row 2 and delete the row 1."""
    table = DeltaTable(location)
    source = pa.table({"id": [2, 4], "v": ["x", "y"]})
    merge = table.merge(source, "s.id = t.id", source_alias="s", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    table.delete("id = 1")


def delete_by_vector(location: str, row: int) -> None:
    """Delete a row of the only file of a table with a deletion vector, as Delta stores it in the log."""
    table = DeltaTable(location)
    log = Path(location, "_delta_log")
    lines = (log / f"{table.version():020d}.json").read_text().splitlines()
    add = next(action["add"] for action in map(json.loads, lines) if "add" in action)
    content = struct.pack("<iqi", _ROWS_MAGIC, 1, 0) + BitMap([row]).serialize()
    padded = content + b"\0" * (-len(content) % 4)
    vector = {
        "storageType": "i",
        "pathOrInlineDv": base64.b85encode(padded).decode().translate(str.maketrans(_B85, _Z85)),
        "sizeInBytes": len(content),
        "cardinality": 1,
    }
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    actions = [
        {"commitInfo": {"timestamp": 1, "operation": "DELETE"}},
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
        {"remove": {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}},
        {"add": {**add, "deletionVector": vector}},
    ]
    text = "\n".join(map(json.dumps, actions))
    (log / f"{table.version() + 1:020d}.json").write_text(text)


@pytest.mark.parametrize(
    ("configuration", "method"), [(FEED, "the change data feed"), ({}, "the files that differ")]
)
def test_changed_rows_are_counted_by_kind(
    write_run: Any, configuration: Any, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The key that the run recorded pairs rows; the counts are the same with and without the feed."""
    state = build_state(1, config={"primary_key": ["ID"]})
    rows = [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 3, "v": "c"}]
    target = write_run("orders", rows, state, owner="merge_load", configuration=configuration)
    change_rows(target)

    assert cli.main(["diff", target, "0", "2"]) == 0

    assert capsys.readouterr().out.splitlines() == [
        f"{target} version 0 to 2: 3 rows changed: 1 inserted, 1 updated, 1 deleted",
        f"key: id; compared by {method}",
        '+ id = 4, v = "y"',
        "~ id = 2",
        '    v: "b" -> "x"',
        '- id = 1, v = "a"',
    ]


def test_the_newest_run_that_records_a_key_decides(write_run: Any) -> None:
    """A load without a key has none, whatever earlier ones had; golden records have one, side tables none."""
    tables: dict[str, tuple[str, list[dict[str, Any]]]] = {
        "keyless": ("merge_load", [{"config": {"primary_key": ["id"]}}, {"config": {"primary_key": None}}]),
        "keyed": ("merge_load", [{"config": {"primary_key": ["id"]}}, {}]),
        "golden": ("merge_source", []),
        "orders__items": ("merge_load_nested", []),
        "unmatched": ("joiner_unmatched", [{}]),
    }
    keys = {}
    for name, (owner, states) in tables.items():
        target = write_run(name, [{"id": 1, "_id": "1"}], owner=owner)
        write_run(name, [{"id": 1, "_id": "1"}], mode="append")
        for number, state in enumerate(states):
            write_run(name, [{"id": 2, "_id": "2"}], build_state(number, owner, **state), mode="append")
        keys[name] = compare_versions(target, 0, 1).key

    assert keys == {
        "keyless": (), "keyed": ("id",), "golden": ("_id",), "orders__items": (), "unmatched": (),
    }  # fmt: skip


def test_a_difference_of_golden_records_has_no_internal_columns(
    write_run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows, differences and timelines have the columns of the business; `--all-columns` shows all of them."""
    row = {"_id": "0|c1", "_updated": 0, "_deleted": False, "$ids": ["c1"], "_hash": "a", "city": "Oslo"}
    target = write_run("golden", [row], build_state(0, "merge_source"), owner="merge_source")
    changed = [{**row, "_updated": 1, "_hash": "b", "city": "Bergen"}]
    write_run("golden", changed, build_state(1, "merge_source"), mode="overwrite")
    texts = {}
    for name in ("diff", "diff --all-columns", "timeline", "timeline --all-columns"):
        command, *option = name.split()
        assert cli.main([command, target, *(["0", "1"] if command == "diff" else ["0|c1"]), *option]) == 0
        texts[name] = capsys.readouterr().out.splitlines()

    assert texts["diff"][2:] == ['~ _id = "0|c1"', '    city: "Oslo" -> "Bergen"']
    assert texts["timeline"][2] == '    + _id = "0|c1", city = "Oslo"'
    assert texts["timeline"][4:] == ['    city: "Oslo" → "Bergen"']
    for name in ("diff --all-columns", "timeline --all-columns"):
        assert "    _hash:" in "\n".join(texts[name])


def test_a_difference_has_a_direction(write_run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """From the later to the earlier version, inserted rows are deleted ones."""
    target = write_run("t", [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    change_rows(target)

    assert cli.main(["diff", target, "2", "0", "--key", "Id", "--json"]) == 0

    content = json.loads(capsys.readouterr().out)
    assert content["rows"] == {"inserted": 1, "updated": 1, "deleted": 1}
    assert (content["version_before"], content["version_after"], content["key"]) == (2, 0, ["id"])
    updated = next(example for example in content["examples"] if example["kind"] == "updated")
    assert (updated["before"], updated["after"]) == ({"id": 2, "v": "x"}, {"id": 2, "v": "b"})


def test_equal_versions_and_maintenance_change_no_row(
    write_run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A version equals itself, and rewriting its files changes no row."""
    target = write_run("t", [{"id": 1}])
    write_run("t", [{"id": 1}], mode="append")
    DeltaTable(target).optimize.compact()

    assert cli.main(["diff", target, "1", "1"]) == 0
    assert cli.main(["diff", target, "1", "2"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[2] for line in lines[::2]] == ["0 rows changed", "0 rows changed"]


def test_rows_that_occur_several_times_are_counted(write_run: Any) -> None:
    """One of two equal rows is deleted."""
    target = write_run("t", [{"id": 1, "f": float("nan")}] * 2)
    write_run("t", [{"id": 1, "f": float("nan")}], mode="overwrite")

    assert compare_versions(target, 0, 1).kinds == {"inserted": 0, "updated": 0, "deleted": 1}


def test_values_of_every_type_are_compared(write_run: Any) -> None:
    """Nested values, NULLs, NaN, times and bytes are equal to themselves; a changed list is an update."""
    row = {
        "id": 1, "l": [1, None], "s": {"a": None}, "f": float("nan"), "d": date(2026, 1, 1), "b": b"\x00",
        "t": datetime(2026, 1, 1, tzinfo=UTC), "n": None, "m": [("x", 1)],
    }  # fmt: skip
    types = {
        "id": pa.int64(), "l": pa.list_(pa.int64()), "s": pa.struct([("a", pa.int64())]), "f": pa.float64(),
        "d": pa.date32(), "b": pa.binary(), "t": pa.timestamp("us", "UTC"), "n": pa.string(),
        "m": pa.map_(pa.string(), pa.int64()),
    }  # fmt: skip
    schema = pa.schema(list(types.items()))

    def build_rows(*rows: Any) -> pa.Table:
        return pa.Table.from_pylist(list(rows), schema=schema)

    target = write_run("t", build_rows(row, {**row, "id": 2}))
    write_run("t", build_rows({**row, "l": [1, 2]}, {**row, "id": 2}), mode="overwrite")

    diff = compare_versions(target, 0, 1, key=["id"])

    assert diff.kinds == {"inserted": 0, "updated": 1, "deleted": 0}
    assert [name for name, *_ in diff.examples[0].list_changed_columns()] == ["l"]


def test_a_change_of_a_long_value_is_shown(write_run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A long value begins shortly before the place where it differs; JSON has all of it."""
    before, after = ([{"text": "same"}] * 20 + [{"text": text}] for text in ("old", "new"))
    target = write_run("t", [{"id": 1, "l": before}])
    write_run("t", [{"id": 1, "l": after}], mode="overwrite")

    for command in (["diff", target, "0", "1", "--key", "id"], ["timeline", target, '{"id": 1}']):
        assert cli.main(command) == 0
        line = capsys.readouterr().out.splitlines()[-1]
        assert re.fullmatch(r' +l: …[^…]+ \{"text": "old"\}\] (->|→) …[^…]+ \{"text": "new"\}\]', line)
    assert cli.main(["diff", target, "0", "1", "--key", "id", "--json"]) == 0
    example = json.loads(capsys.readouterr().out)["examples"][0]
    assert (example["before"]["l"], example["after"]["l"]) == (before, after)


CHANGED_TYPES = {
    "bigint to double": (pa.array([1, 2**53 + 1]), pa.array([1.0, float(2**53)])),
    "bigint to decimal": (pa.array([1, 2]), pa.array(["1.00", "2.01"]).cast(pa.decimal128(20, 2))),
    "decimal": (
        pa.array(["1.00", "2.00"]).cast(pa.decimal128(38, 2)),
        pa.array(["1." + "0" * 18, f"2.{'0' * 17}1"]).cast(pa.decimal128(38, 18)),
    ),
    "float to double": (pa.array([0.5, 0.1], pa.float32()), pa.array([0.5, 0.1])),
    "date to timestamp": (
        pa.array([date(2024, 5, 1)] * 2),
        pa.array([datetime(2024, 5, 1, tzinfo=UTC), datetime(2024, 5, 1, 0, 0, 0, 1, tzinfo=UTC)]),
    ),
    "string to bigint": (pa.array(["1", "01"]), pa.array([1, 1])),
    "bigint to string": (pa.array([1, 1]), pa.array(["1", "01"])),
    "binary to string": (pa.array([b"1", b"a"]), pa.array(["1", "a"])),
    "boolean to bigint": (pa.array([True, False]), pa.array([1, 0])),
}


@pytest.mark.parametrize("name", CHANGED_TYPES)
@pytest.mark.parametrize("key", [("id",), ()])
def test_a_column_of_two_types_is_compared_by_its_values(
    write_run: Any, name: str, key: tuple[str, ...]
) -> None:
    """Values of two types are equal digit by digit or not at all: a text or bytes equal no other type."""
    before, after = CHANGED_TYPES[name]
    target = write_run("t", pa.table({"id": [1, 2], "v": before}))
    write_run("t", pa.table({"id": [1, 2], "v": after}), mode="overwrite", schema_mode="overwrite")

    kinds = compare_versions(target, 0, 1, key=key).kinds

    count = (
        2 if name in {"string to bigint", "bigint to string", "binary to string", "boolean to bigint"} else 1
    )
    assert sum(kinds.values()) == (count if key else 2 * count)


def test_negative_zero_equals_zero(write_run: Any) -> None:
    """-0.0 and 0.0 are the same value with the feed and without, and are shown as they are stored."""
    for configuration in (FEED, {}):
        target = write_run(f"t{len(configuration)}", [{"id": 1, "f": -0.0}], configuration=configuration)
        write_run(f"t{len(configuration)}", [{"id": 1, "f": 0.0}], mode="overwrite")

        assert not any(compare_versions(target, 0, 1, key=["id"]).kinds.values())


def test_a_new_column_without_values_changes_no_row(write_run: Any) -> None:
    """A row that has only NULL in a new column is the same row."""
    target = write_run("t", [{"id": 1}])
    rows = pa.table({"id": [1, 2], "v": pa.array([None, "x"])})
    write_run("t", rows, mode="overwrite", schema_mode="overwrite")

    assert compare_versions(target, 0, 1).kinds == {"inserted": 1, "updated": 0, "deleted": 0}


@pytest.mark.parametrize("configuration", [FEED, {}])
def test_rows_deleted_by_a_vector_are_deleted(write_run: Any, configuration: Any) -> None:
    """A deletion vector deletes rows of a file that stays in the table."""
    target = write_run("t", [{"id": 1}, {"id": 2}, {"id": 3}], configuration=configuration)
    delete_by_vector(target, 1)

    diff = compare_versions(target, 0, 1)

    assert diff.kinds == {"inserted": 0, "updated": 0, "deleted": 1}
    assert diff.examples[0].before == {"id": 2}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("configuration", [FEED, {}])
def test_random_changes_are_found(tmp_path: Path, seed: int, configuration: Any) -> None:
    """Any two versions of a table with random commits differ as the rows that are read from both do."""
    numbers = random.Random(seed)  # noqa: S311 - not a secret
    location = str(tmp_path / "t")

    def draw_rows() -> pa.Table:
        count = numbers.randint(1, 8)
        days = [date(2026, 1, numbers.randint(1, 3)) for _ in range(count)]
        return pa.table({
            "id": pa.array([numbers.choice([*range(20), None]) for _ in range(count)], pa.int64()),
            "v": [numbers.choice("abc") for _ in range(count)],
            "day": days,
        })  # fmt: skip

    write_deltalake(location, draw_rows(), configuration=configuration, partition_by=["day"])
    for _ in range(6):
        table = DeltaTable(location)
        action = numbers.choice(["append", "overwrite", "delete", "optimize", "restore"])
        if action == "delete":
            table.delete(f"id > {numbers.randint(0, 20)}")
        elif action == "optimize":
            table.optimize.compact()
        elif action == "restore" and table.version():
            table.restore(numbers.randrange(table.version()))
        else:
            mode: Any = "overwrite" if action == "overwrite" else "append"
            write_deltalake(location, draw_rows(), mode=mode)

    newest = DeltaTable(location).version()
    for _ in range(6):
        first, last = numbers.randint(0, newest), numbers.randint(0, newest)
        before, after = (
            Counter(
                tuple(row.values()) for row in DeltaTable(location, version).to_pyarrow_table().to_pylist()
            )
            for version in (first, last)
        )
        kinds = compare_versions(location, first, last).kinds
        assert kinds["inserted"] == (after - before).total()
        assert kinds["deleted"] == (before - after).total()


def test_the_number_of_examples_is_limited(write_run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """`--limit` is the number of examples; the others are counted."""
    target = write_run("t", [{"id": 0}])
    write_run("t", [{"id": number} for number in range(1, 31)], mode="append")

    assert cli.main(["diff", target, "0", "1", "--limit", "2"]) == 0

    assert capsys.readouterr().out.splitlines()[2:] == ["+ id = 1", "+ id = 2", "+ 28 more inserted"]


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["0", "7"], "V2: {target} has no version 7 (use 0 to 1)", 2),
        (["-1", "1"], "V1: {target} has no version -1 (use 0 to 1)", 2),
        (["0", "1", "--key", "idd"], "--key: {target} has no column 'idd' (did you mean 'id'?)", 2),
    ],
)
def test_what_is_not_there_is_refused(
    write_run: Any, arguments: list[str], message: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unknown versions and columns are errors with the valid values."""
    target = write_run("t", [{"id": 1}])
    write_run("t", [{"id": 2}], mode="append")

    assert cli.main(["diff", target, *arguments]) == code
    assert capsys.readouterr().err.splitlines()[0] == f"error: {message.format(target=target)}"


def test_a_version_without_its_files_is_refused(write_run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A version whose files VACUUM has deleted cannot be compared."""
    target = write_run("t", [{"id": 1}])
    write_run("t", [{"id": 2}], mode="overwrite")
    DeltaTable(target).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)

    assert cli.main(["diff", target, "0", "1"]) == 3
    assert f"{target} cannot be read" in capsys.readouterr().err


def test_a_terminal_shows_kinds_in_colours(write_run: Any) -> None:
    """On a terminal, inserted rows are green."""
    target = write_run("t", [{"id": 1}])
    write_run(
        "t",
        [
            {
                "id": 2,
            }
        ],
        mode="append",
    )

    code, output = run_on_terminal("diff", target, "0", "1")

    assert code == 0
    assert "\x1b[32m+ id = 2" in output
