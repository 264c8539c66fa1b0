"""The tables of the examples in docs/command_line.md, written with delta-rs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake

from airflow_merge_provider.core.merge_record.bins import Bin
from airflow_merge_provider.core.merge_record.flowfile import FlowFile
from airflow_merge_provider.core.merge_record.journal import state_file
from airflow_merge_provider.core.merge_record.state import State
from airflow_merge_provider.core.source_offset import SourceOffset, write_offsets
from tests.unit.cli.conftest import build_result, build_state, name_owner

AT = 1_795_000_000_000_000
LOADS: Sequence[tuple[Sequence[Mapping[str, Any]], dict[str, int]]] = (
    ([{"id": 7, "status": "new"}, {"id": 8, "status": "new"}], {"inserted": 2}),
    (
        [{"id": 7, "status": "shipped"}, {"id": 9, "status": "new"}],
        {"inserted": 1, "updated": 1, "unchanged": 1},
    ),
)
PEOPLE = {
    "crm": {"_id": ["c1", "c2"], "email": ["ann@example.com", "bob@example.com"], "name": ["Ann", "Bob"]},
    "shop": {"_id": ["s1", "s2"], "email": ["Ann@example.com", "eve@example.com"], "vat_id": ["1", "2"]},
}
PIPE = """\
_id: orders
source:
  type: upsert
  source: new_orders
  primary_key: id
"""


def build_lake(folder: Path) -> None:
    """Write the tables of two loads, two lists of people, the state of a merge record, and a pipe."""
    for name, columns in PEOPLE.items():
        write_deltalake(str(folder / name), pa.table(columns))
    stored: dict[int, Mapping[str, Any]] = {}
    for number, (rows, counts) in enumerate(LOADS, start=1):
        _write_rows(folder / "new_orders", rows, {})
        stored |= {row["id"]: row for row in rows}
        _write_rows(folder / "orders", list(stored.values()), _build_load(folder, number, counts))
    name_owner(str(folder / "orders"), "merge_load")
    _write_bins(folder / "readings_state")
    (folder / "orders.yaml").write_text(PIPE)


def _build_load(folder: Path, number: int, counts: Mapping[str, int]) -> dict[str, Any]:
    source = DeltaTable(str(folder / "new_orders"))
    offset = SourceOffset(str(folder / "new_orders"), source.version(), str(source.metadata().id))
    return {
        **build_state(number, config={"strategy": "upsert", "primary_key": ["id"]}),
        **write_offsets([offset]),
        "result": build_result(**counts),
    }


def _write_rows(location: Path, rows: Sequence[Mapping[str, Any]], state: Mapping[str, Any]) -> None:
    metadata = {"userMetadata": json.dumps(state)} if state else {}
    properties = CommitProperties(custom_metadata=metadata)
    table = pa.Table.from_pylist(list(rows))
    write_deltalake(str(location), table, mode="overwrite", commit_properties=properties)


def write_rejected(target: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rejected rows of a target, and record them in the state of its newest run."""
    table = pa.table({
        "source": ["new_orders"] * len(rows), "source_version": [1] * len(rows),
        "expectations": [["paid"]] * len(rows), "reason": ["amount > 0"] * len(rows),
        "row": [json.dumps(row) for row in rows], "run_id": ["r2"] * len(rows),
        "rejected_at": range(len(rows)),
    })  # fmt: skip
    location = f"{target}__rejected"
    write_deltalake(location, table)
    name_owner(location, "rejected_rows")
    file = max((target / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in file.read_text().splitlines()]
    for action in actions:
        if state := json.loads(action.get("commitInfo", {}).get("userMetadata", "{}")):
            state["side_table_versions"] = {"rejected": 0}
            action["commitInfo"]["userMetadata"] = json.dumps(state)
    file.write_text("".join(f"{json.dumps(action)}\n" for action in actions))


def _write_bins(folder: Path) -> None:
    waiting = Bin(3, ("s", "oslo"), AT)
    waiting.add_flowfile(FlowFile("/lake/readings/e.json", "e", AT, 40, 2000, "s"))
    state = State(2, bins=(waiting,))
    (folder / "ledger").mkdir(parents=True)
    (folder / state_file(2)).write_text(json.dumps({"state": state.as_json(), "report_data": {}}))
    line = {
        "at": AT, "outcome": "merged", "bin": "bin-1", "code": "FULL", "reason": "Bin is full",
        "sources": [{"uri": f"/lake/readings/{name}.json"} for name in "abc"], "records": 1000,
        "bytes": 51200, "uri": "/lake/readings_merged/merged-1.json",
    }  # fmt: skip
    (folder / f"ledger/{2:012d}.jsonl").write_text(json.dumps(line) + "\n")
