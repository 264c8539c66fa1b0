"""Tests of the stored files of a merge record: they keep their form, and follow a folder that was moved."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.merge_record.bins import Bin
from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.flowfile import FlowFile
from airflow_merge_provider.core.merge_record.journal import (
    FOLDERS,
    JournalReader,
    LedgerLine,
    Manifest,
    RunFolders,
    StateFile,
    ledger_file,
    state_file,
)
from airflow_merge_provider.core.merge_record.plan import learn_size
from airflow_merge_provider.core.merge_record.state import State, compute_fingerprint

TOKEN = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1, "clear_number": 0}
SOURCE = {"uri": "/old/in/a", "uuid": "u", "records": 2, "part": None, "version": "1", "size": 9}
MOVED = {**SOURCE, "moved": {"folder": "/old/o", "name": "a", "uuid": "u", "version": "2"}}
ENDED = {"merge_id": "m", "at": 5, "bin": "bin-1", "code": "FULL", "reason": "Bin is full", "run": TOKEN}
FAILED = {**ENDED, "outcome": "failed", "sources": [SOURCE], "culprit": None}
MERGED = {
    **ENDED, "outcome": "merged", "sources": [SOURCE, MOVED], "uri": "/old/m/x", "records": 4, "bytes": 18,
    "size_basis": "input", "bin_age_ms": 0, "threshold": {"bytes": 18, "max_bin_size": 9},
    "details": "Records Merged due to: Bin is full", "attributes": {"path": "/old/in"},
}  # fmt: skip
LOST = {"merge_id": None, "at": 5, "run": TOKEN, "outcome": "lost", "sources": [{"uri": "/old/in/b"}]}
RETURNED = {**MOVED, "returned": {"uri": "/old/in/a", "version": "3", "sidecar": None}}
UNDONE = {**MERGED, "outcome": "undone", "sources": [{**SOURCE, "returned": None}, RETURNED]}
PUBLISHED = {
    "merge_id": "m", "uri": "/old/m/x", "records": 4, "bytes": 18, "version": "7", "reason": "Bin is full",
    "code": "FULL", "attributes": {"uuid": "m"}, "sources": ["/old/in/a"],
}  # fmt: skip
WITHDRAWN = {"merge_id": "m", "withdrawn": True, "uri": None, "records": 0, "sources": []}
RUN_FOLDERS = RunFolders("/old/in", "/old/m", "/old/f", None, "/old/state")


def build_reader(files: dict[str, Any]) -> JournalReader:
    """Return a reader of files whose folder was moved from /old/state to /new/state."""
    contents = {name: content if isinstance(content, bytes) else json.dumps(content).encode()
                for name, content in files.items()}  # fmt: skip
    return JournalReader("/new/state", lambda: list(contents), contents.get)


@pytest.mark.parametrize("line", [MERGED, FAILED, LOST, UNDONE], ids=lambda line: line["outcome"])
def test_a_line_of_the_ledger_keeps_its_form(line: Any) -> None:
    assert LedgerLine.from_json(line).as_json() == line


@pytest.mark.parametrize("manifest", [PUBLISHED, WITHDRAWN, {**WITHDRAWN, "undone_by": TOKEN}])
def test_a_manifest_keeps_its_form(manifest: Any) -> None:
    assert Manifest.from_json(manifest).as_json() == manifest


def test_a_line_of_an_earlier_version_is_read() -> None:
    """Earlier versions stored neither the run of a line nor the versions of files."""
    old = {"merge_id": "m", "at": 5, "outcome": "failed", "sources": [{"uri": "/in/a", "uuid": "u"}]}

    line = LedgerLine.from_json(old)

    assert (line.run, line.reason, line.sources[0].key) == (None, None, ("/in/a", ""))


def test_stored_locations_follow_a_folder_that_was_moved() -> None:
    """States and the ledger of a run name the files where they are now; attributes stay as they are."""
    waiting = Bin(1, ("s",), 5)
    waiting.add_flowfile(FlowFile("/old/in/c", "c", 5, 1, 2, "s", attributes={"path": "/old/in"}))
    stored = StateFile(State(3, bins=(waiting,)), {FOLDERS: RUN_FOLDERS.as_json()}).as_json()
    lines = b"".join(json.dumps(line).encode() + b"\n" for line in (MERGED, LOST))
    reader = build_reader({state_file(3): {**stored, "location": "/old/state"}, ledger_file(3): lines})

    state, commit = reader.read_state()
    ledger = reader.read_ledger(3)
    assert ledger is not None
    merged, lost = ledger

    assert [(source.uri, source.attributes["path"]) for source in state.sources] == [("/new/in/c", "/old/in")]
    assert RunFolders.from_commit(commit) == RunFolders("/new/in", "/new/m", "/new/f", None, "/new/state")
    assert [commit.version for commit in reader.list_commits()] == [3]
    assert (merged.uri, merged.attributes, lost.sources[0].uri) == (
        "/new/m/x", {"path": "/old/in"}, "/new/in/b",
    )  # fmt: skip
    assert merged.sources[1].moved is not None
    assert merged.sources[1].moved.folder == "/new/o"


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"state": {"format": 2}}', b'{"report_data": {}}'])
def test_a_damaged_state_is_refused_with_its_name(content: bytes) -> None:
    with pytest.raises(DataError, match=r"/new/state/state-000000000003\.json is damaged: restore it"):
        build_reader({state_file(3): content}).read_state()


def test_a_state_of_another_format_is_refused() -> None:
    with pytest.raises(DataError, match="has format 1, this package version supports only 2"):
        build_reader({state_file(3): {"state": {"format": 1}, "report_data": {}}}).read_state()


def test_the_fingerprint_of_a_configuration_stays_what_it_was() -> None:
    """A new version of the package does not dissolve bins if the configuration has not changed."""
    schema = {"fields": [{"name": "id", "type": "int"}]}
    config = {
        "reader": {"format": "csv", "schema": schema, "options": {"sep": ";"}},
        "partition_by": {"a": "b"},
    }

    assert compute_fingerprint(MergeRecordConfig.parse(config)) == "0fca493abbcf6144"
    state = learn_size(State(), MergeRecordConfig.parse(config), 1, 2)
    assert state.as_json()["learned"] == {"writer": "e60afe5491c32c84", "records": 1, "bytes": 2}
