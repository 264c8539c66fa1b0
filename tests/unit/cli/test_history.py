"""Tests of ``history``: the commits of a target as a table and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.cli import main as cli
from airflow_merge_provider.core.merge_record.journal import state_file
from airflow_merge_provider.core.merge_record.state import State
from tests.unit.cli.conftest import build_result, build_state, run_on_terminal

ROWS = [{"id": 1}, {"id": 2}]


@pytest.fixture
def target(write_run: Any) -> str:
    """Write a table with commits of a run, of an undo and of another writer."""
    write_run("orders", ROWS)
    state = build_state(7, result=build_result(inserted=1200, updated=3), approved_by="Ann")
    write_run("orders", ROWS, state, mode="append")
    location: str = write_run(
        "orders", ROWS, {**build_state(8), "undo": {"restored_version": 0}}, mode="append"
    )
    return location


def test_a_history_is_a_table_with_a_header(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each commit is a line below the header; counts are aligned on the right, and empty columns left out."""
    assert cli.main(["history", "orders", "--warehouse", str(tmp_path)]) == 0

    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split("  ")[0] == "VERSION"
    assert "DELETED" in header
    assert [line.split()[0] for line in lines] == ["2", "1", "0"]
    assert [line[header.index("RUN") :].split("  ")[0] for line in lines] == ["undo 8", "run 7", ""]
    end = header.index("INSERTED") + len("INSERTED")
    assert lines[1][:end].endswith("  1200")
    assert lines[1].endswith("shop orders r7        Ann")


def test_a_renewed_state_is_named(target: str, write_run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The counts are those of the run that it repeats, which the line does not show again."""
    state = build_state(9, result=build_result(inserted=1200), renewal={"version": 1, "rows": None})
    write_run("orders", ROWS, state, mode="append")

    assert cli.main(["history", target, "--json"]) == 0

    renewed, *_ = json.loads(capsys.readouterr().out)
    assert (renewed["kind"], renewed["number"], renewed["rows"]["inserted"]) == ("state", 9, None)


def test_a_history_has_a_limit(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--limit` is the number of commits."""
    assert cli.main(["history", target, "--limit", "1"]) == 0

    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize("limit", ["0", "-1", "x"])
def test_a_limit_that_is_not_valid_is_refused(
    target: str, limit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit is an integer from 1."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["history", target, f"--limit={limit}"])

    assert ended.value.code == 2
    assert "is not valid (use an integer from 1)" in capsys.readouterr().err


def test_a_history_as_json(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has every commit with its run, its counts and its approver."""
    assert cli.main(["history", target, "--json"]) == 0

    undo, run, write = json.loads(capsys.readouterr().out)
    assert (undo["version"], undo["kind"], undo["number"]) == (2, "undo", 8)
    assert (run["dag_id"], run["task_id"], run["run_id"]) == ("shop", "orders", "r7")
    assert run["rows"] == {"inserted": 1200, "updated": 3, "deleted": 0, "unchanged": 0}
    assert run["approved_by"] == "Ann"
    assert (write["operation"], write["kind"], write["number"]) == ("WRITE", None, None)


def test_a_terminal_has_colours(target: str) -> None:
    """On a terminal the table has colours, without them if NO_COLOR is set, and JSON never has any."""
    code, output = run_on_terminal("history", target)
    assert code == 0
    assert "\x1b[32mrun 7" in output

    code, plain = run_on_terminal("history", target, NO_COLOR="1")
    assert code == 0
    assert "\x1b[" not in plain
    assert plain.startswith("VERSION")

    code, content = run_on_terminal("history", target, "--json")
    assert code == 0
    assert "\x1b[" not in content
    assert len(json.loads(content)) == 3


def test_names_cannot_write_to_the_terminal(write_run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters in the ID of a run are written as escapes."""
    state = build_state(1)
    target = write_run("t", ROWS, {**state, "token": {**state["token"], "run_id": "x\x1b[2J"}})

    assert cli.main(["history", target]) == 0

    assert "x\\u001b[2J" in capsys.readouterr().out


def test_the_states_of_a_merge_record_are_its_commits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The history of a state_path lists the runs whose states still exist, newest first."""
    folder = tmp_path / "state"
    folder.mkdir()
    for number in (1, 2):
        run_data = {**build_state(number), "result": build_result(inserted=number)}
        content = {"state": State(number).as_json(), "report_data": run_data}
        (folder / state_file(number)).write_text(json.dumps(content))

    assert cli.main(["history", str(folder)]) == 0

    _, newest, oldest = capsys.readouterr().out.splitlines()
    assert "  MERGE RECORD  run 2  " in newest
    assert newest.endswith("  shop orders r2")
    assert oldest.split()[0] == "1"
