"""Tests of ``bins``: what the state and the ledger of a merge record say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.cli import main as cli
from airflow_merge_provider.core.merge_record.bins import Bin
from airflow_merge_provider.core.merge_record.flowfile import FlowFile
from airflow_merge_provider.core.merge_record.journal import state_file
from airflow_merge_provider.core.merge_record.state import State

AT = 1_700_000_000_000_000


def build_flowfile(name: str, records: int) -> FlowFile:
    return FlowFile(f"/in/{name}", name, AT, records, 10 * records, "s")


def write_state(folder: Path, state: State) -> None:
    """Write a state as a run does."""
    folder.mkdir(exist_ok=True)
    content = {"state": state.as_json(), "report_data": {}}
    (folder / state_file(state.generation)).write_text(json.dumps(content))


def write_ledger(folder: Path, generation: int, *lines: Any) -> None:
    (folder / "ledger").mkdir(exist_ok=True)
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (folder / f"ledger/{generation:012d}.jsonl").write_text(text)


@pytest.fixture
def state_path(tmp_path: Path) -> Path:
    """Write the state and the ledger of three runs."""
    folder = tmp_path / "state"
    open_bin = Bin(4, ("s", "sunday"), AT, expected=3)
    open_bin.add_flowfile(build_flowfile("d.json", 2))
    write_state(folder, State(3, bins=(open_bin,), returned=(build_flowfile("r.json", 1),)))
    sources = [{"uri": "/in/a.json"}, {"uri": "/in/b.json"}]
    merged = {
        "at": AT, "bin": "bin-1", "outcome": "merged", "code": "FULL", "reason": "Bin is full",
        "sources": sources, "records": 1200, "bytes": 34, "uri": str(tmp_path / "merged/m-1.json"),
    }  # fmt: skip
    failed = {**merged, "bin": "bin-2", "outcome": "failed", "code": "BAD", "reason": "no JSON"}
    del failed["records"], failed["bytes"], failed["uri"]
    write_ledger(folder, 1, merged, failed)
    write_ledger(folder, 2, {"at": AT, "outcome": "lost", "sources": [{"uri": "/in/c.json"}]})
    return folder


def test_open_and_ended_bins_are_tables(state_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Open bins have their files and sizes, ended ones their reason, newest first."""
    assert cli.main(["bins", str(state_path)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{state_path}: 1 open"
    assert lines[1].split() == ["BIN", "GROUP", "OPEN", "SINCE", "(UTC)", "AGE", "FILES", "RECORDS", "BYTES"]
    assert lines[2].startswith("bin-4  sunday  2023-11-14 22:13:20  ")
    assert lines[2].endswith("1 of 3        2     20")
    assert lines[3] == "waiting for the next run, as their merges were withdrawn: 1"
    table = lines[lines.index("ended last:") + 1 :]
    assert [line.split()[2] for line in table[1:]] == ["lost", "failed", "merged"]
    assert "Bin is full (FULL)" in table[3]
    assert table[3].endswith("merged/m-1.json")


def test_the_merged_folder_names_the_bins_too(
    state_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """TARGET may be the merged folder next to the state_path; `--limit` is the number of ended bins."""
    (tmp_path / "merged").mkdir()

    assert cli.main(["bins", "merged", "--warehouse", str(tmp_path), "--limit", "2", "--json"]) == 0

    (report,) = json.loads(capsys.readouterr().out)
    assert report["state_path"] == str(state_path)
    assert [line["outcome"] for line in report["ended"]] == ["lost", "failed"]
    (open_bin,) = report["open_bins"]
    assert (open_bin["bin"], open_bin["group"], open_bin["files"]) == ("bin-4", "sunday", 1)
    assert (open_bin["records"], open_bin["bytes"], open_bin["expected_files"]) == (2, 20, 3)


def test_a_folder_that_was_moved_names_its_files_where_they_are(
    state_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A state and its ledger that were written elsewhere name the files below the folder as it is now."""
    state = state_path / state_file(3)
    state.write_text(json.dumps({**json.loads(state.read_text()), "location": "/old/state"}))
    line = {"at": AT, "outcome": "merged", "sources": [], "uri": "/old/merged/m-3.json"}
    write_ledger(state_path, 3, {**line, "records": 1, "bytes": 2})

    assert cli.main(["bins", "merged", "--warehouse", str(tmp_path), "--limit", "1", "--json"]) == 0

    (report,) = json.loads(capsys.readouterr().out)
    assert [line["uri"] for line in report["ended"]] == [str(tmp_path / "merged/m-3.json")]


def test_a_state_without_bins_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before the first merge there is neither an open nor an ended bin."""
    write_state(tmp_path / "state", State(1))

    assert cli.main(["bins", str(tmp_path / "state")]) == 0

    assert capsys.readouterr().out.splitlines() == [f"{tmp_path}/state: 0 open", "", "no bin has ended"]


def test_other_folders_and_damaged_files_are_refused(
    state_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder without a state is an error, and so is a ledger that cannot be read."""
    (tmp_path / "other").mkdir()
    assert cli.main(["bins", str(tmp_path / "other")]) == 3
    assert "is neither the state_path nor the merged folder" in capsys.readouterr().err

    (state_path / f"ledger/{2:012d}.jsonl").write_text("{")
    assert cli.main(["bins", str(state_path)]) == 3
    assert "is damaged: restore it from a backup" in capsys.readouterr().err
