"""Test explanations of merge engines on tables that are written without Spark."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.explain.merge_engine import explain_key

# Of each type of keys: a value, and how people write it.
KEYS: dict[str, tuple[pa.DataType, Any, str | None]] = {
    "flag": (pa.bool_(), True, "true"),
    "number": (pa.int8(), 7, "7"),
    "price": (pa.decimal128(38, 18), Decimal("2.50"), "2.5"),
    "single": (pa.float32(), 0.1, "0.1"),
    "double": (pa.float64(), float("nan"), "NaN"),
    "text": (pa.string(), "a ", "a "),
    "raw": (pa.binary(), b"\xff\x00", "0xff00"),
    "day": (pa.date32(), date(1, 1, 1), "0001-01-01"),
    "at": (pa.timestamp("us", "UTC"), datetime(9999, 1, 1, tzinfo=UTC), "9999-01-01T01:00:00+01:00"),
    "local": (pa.timestamp("us"), datetime(1500, 2, 28, 0, 0, 0, 1), "1500-02-28T00:00:00.000001"),  # noqa: DTZ001
    "nothing": (pa.string(), None, None),
}


def write_target(folder: Path, key: list[str], source: pa.Table, *, undo: int | None = None) -> None:
    """Append rows to a source, and commit the run that folds them; or an undo of the runs after a version."""
    state: dict[str, Any] = {"capability": "merge_engine", "number": 1}
    if undo is None:
        write_deltalake(str(folder / "changes"), source, mode="append")
        changes = DeltaTable(str(folder / "changes"))
        config = {"source": "changes", "target": "state", "primary_key": key}
        state |= {"configs": {str(folder / "changes"): config}}
        state |= {"sources": {str(folder / "changes"): changes.version()}}
        state |= {"tables": {str(folder / "changes"): str(changes.metadata().id)}}
    else:
        state["undo"] = {"restored_version": undo}
    metadata = CommitProperties(custom_metadata={"userMetadata": json.dumps(state)})
    if undo is not None and undo >= 0:
        DeltaTable(str(folder / "state")).restore(undo, commit_properties=metadata)
    else:
        write_deltalake(str(folder / "state"), source, mode="append", commit_properties=metadata)


def test_a_key_of_each_type_finds_its_records(tmp_path: Path) -> None:
    """Values of a key are compared by type, however they are written."""
    columns = {name: pa.array([value, None], kind) for name, (kind, value, _) in KEYS.items()}
    far = pa.array([[3_672_485, None], []], pa.list_(pa.int32())).cast(pa.list_(pa.date32()))
    write_target(tmp_path, list(KEYS), pa.table(columns | {"v": far}))

    key = json.dumps({name: text for name, (_, _, text) in KEYS.items()})
    lines = list(explain_key("state", key, warehouse=str(tmp_path)).format_lines())

    assert lines[0].endswith("local = 1500-02-28T00:00:00.000001, nothing = NULL: a row from 1 records")
    assert lines[2] == "  v = [+12024-12-03, NULL]: the newest record (record 0)"
    empty = json.dumps(dict.fromkeys(KEYS))
    assert explain_key("state", empty, warehouse=str(tmp_path)).trace.values["v"].value == []
    with pytest.raises(DataError, match="contain no record with flag = "):
        explain_key("state", key.replace('"7"', '"300"'), warehouse=str(tmp_path))


def test_an_undone_run_is_not_explained(tmp_path: Path) -> None:
    """After an undo, a row is explained by the runs that are left; without one, the error says so."""
    for value in ("a", "b"):
        write_target(tmp_path, ["k"], pa.table({"k": [1], "v": [value]}))
    assert explain_key("state", "1", warehouse=str(tmp_path)).trace.values["v"].value == "b"
    write_target(tmp_path, ["k"], pa.table({"k": [1], "v": ["b"]}), undo=0)

    explanation = explain_key("state", "1", warehouse=str(tmp_path))

    assert (explanation.trace.values["v"].value, len(explanation.read)) == ("a", 1)
    assert explain_key("state", "1", warehouse=str(tmp_path), version=1).trace.values["v"].value == "b"
    write_target(tmp_path, ["k"], pa.table({"k": [1], "v": ["b"]}), undo=-1)
    with pytest.raises(DataError, match=r"all its runs were undone.*run its task again"):
        explain_key("state", "1", warehouse=str(tmp_path))
