"""Test that an undo of a merge record is refused if it could not take everything back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.merge_record.journal import UNDOABLE_RUNS
from airflow_merge_provider.core.merge_record.landing import SIDECAR
from tests.jobs.merge_record.test_crash import Mortal
from tests.jobs.merge_record.test_undo import build_landing, put_files
from tests.tagged_store import Killed


def test_an_undo_is_not_undone(tmp_path: Path) -> None:
    """The undo of an undo is refused, with what to do instead."""
    landing = build_landing(tmp_path)
    put_files(landing, "aA")
    landing.run_job()
    landing.undo_runs(run_id="u")

    with pytest.raises(DataError, match="an undo of files cannot be undone"):
        landing.undo_runs(run="u")


def test_what_cannot_be_taken_back_is_refused_at_once(tmp_path: Path) -> None:
    """All problems are reported together, and nothing is changed."""
    landing = build_landing(tmp_path)
    put_files(landing, "aAbBcC")
    landing.run_job()
    deleted, changed, _ = landing.list_outputs()
    deleted.unlink()
    changed.write_text("changed")
    (tmp_path / "original" / "a.json").unlink()
    landing.put_records("b.json", {"id": "new"})
    content = landing.read_files()

    with pytest.raises(DataError) as refused:
        landing.undo_runs()

    texts = [problem.message for problem in refused.value.problems]
    assert [text.partition(":")[0] for text in texts] == [
        "2 outputs that were changed or removed since, whose records may be in use",
        "1 merged source files that no longer exist or have changed",
        "1 new files in the source folder with the names of files to move back",
    ]
    assert landing.read_files() == content


def test_deleted_originals_cannot_be_taken_back(tmp_path: Path) -> None:
    """Nothing is withdrawn if the sources do not exist any more."""
    landing = build_landing(tmp_path, original_action="delete")
    put_files(landing, "aA")
    landing.run_job()

    with pytest.raises(DataError, match="no longer exist"):
        landing.undo_runs()

    assert len(landing.read_ids()) == 1


def test_kept_originals_that_changed_are_not_taken_back(tmp_path: Path) -> None:
    """A kept source with other content is not what was merged."""
    landing = build_landing(tmp_path, original_action="keep")
    put_files(landing, "aA")
    landing.run_job()
    landing.put_records("a.json", {"id": "other"}, at=5)

    with pytest.raises(DataError, match="no longer exist or have changed"):
        landing.undo_runs()


def test_moved_originals_that_changed_are_not_taken_back(tmp_path: Path) -> None:
    """An original with other content is not what was merged, although its sidecar is still there."""
    landing = build_landing(tmp_path)
    put_files(landing, "aA")
    landing.run_job()
    (tmp_path / "original" / "a.json").write_text('{"id": "other"}\n')

    with pytest.raises(DataError, match="no longer exist or have changed"):
        landing.undo_runs()


def test_the_sidecar_of_a_file_to_come_is_not_replaced(tmp_path: Path) -> None:
    """A producer that has written a sidecar for a new file of the same name is about to write the file."""
    landing = build_landing(tmp_path)
    put_files(landing, "aA")
    landing.run_job()
    (tmp_path / "in" / f"a.json{SIDECAR}").write_text('{"k": "new"}')

    with pytest.raises(DataError, match="with the names of files to move back"):
        landing.undo_runs()


def test_one_run_of_files_cannot_be_undone_alone(tmp_path: Path) -> None:
    """A later run may continue the bins of the run."""
    landing = build_landing(tmp_path)
    put_files(landing, "aA")
    landing.run_job()

    with pytest.raises(DataError, match=r"only: files have no history .*remove only"):
        landing.undo_runs(run="r1", only=True)


def test_a_folder_with_the_outputs_of_several_tasks_is_refused(tmp_path: Path) -> None:
    """The error asks for a state_path; so does a state in another folder, which is not searched."""
    landing = build_landing(tmp_path)
    put_files(landing, "aA")
    landing.run_job()
    put_files(landing, "bB")
    elsewhere = str(tmp_path / "more" / "state")
    landing.run_job(state_path=elsewhere, run_id="r2")
    assert landing.undo_runs(elsewhere)["details"]["undone"][0]["run_id"] == "r2"
    landing.run_job(state_path="state-2", run_id="r3")

    with pytest.raises(DataError, match=r"outputs of several tasks: .*set target to the state_path"):
        landing.undo_runs()
    report = landing.undo_runs("state-2")

    assert report["details"]["undone"][0]["run_id"] == "r3"
    assert landing.undo_runs("state")["details"]["undone"][0]["run_id"] == "r1"


def test_a_damaged_ledger_is_named(tmp_path: Path) -> None:
    """An undo does not guess what a run has merged."""
    landing = build_landing(tmp_path)
    put_files(landing, "aA")
    landing.run_job()
    (tmp_path / "state" / "ledger" / "000000000001.jsonl").write_text("{")

    with pytest.raises(DataError, match=r"000000000001\.jsonl is damaged"):
        landing.undo_runs()


def test_an_unfinished_run_is_completed_first(tmp_path: Path) -> None:
    """An undo does not guess what a dead run has left."""
    landing = build_landing(tmp_path)
    put_files(landing, "aA")
    landing.run_job()
    put_files(landing, "bB")
    Mortal.dies_at(4, before=True)
    with pytest.raises(Killed):
        landing.run_job(opened=Mortal)

    with pytest.raises(DataError, match="a run has left an unfinished plan"):
        landing.undo_runs("state")


def test_only_some_runs_are_kept_for_an_undo(tmp_path: Path) -> None:
    """States before the last runs are deleted, and an undo beyond them is refused; an undo counts."""
    landing = build_landing(tmp_path)
    for number, name in enumerate("abcdefghijklm"):
        put_files(landing, f"{name}{name.upper()}", at=number)
        landing.run_job(at=number)

    with pytest.raises(DataError, match=f"the states of {UNDOABLE_RUNS} runs are kept"):
        landing.undo_runs(run="r3")
    with pytest.raises(DataError, match="has no run 'r2'"):
        landing.undo_runs(run="r2")
    shutil.copytree(tmp_path, tmp_path.with_name("copy"))
    assert landing.undo_runs(run="r4")["counts"]["runs"] == 10
    landing = build_landing(tmp_path.with_name("copy"))
    undone = [landing.undo_runs(run_id=f"u{number}")["counts"]["runs"] for number in range(5)]
    assert undone == [1] * 5
    with pytest.raises(DataError, match="no longer in the history"):
        landing.undo_runs(run_id="u6")


@pytest.mark.parametrize("action", ["move", "keep", "delete"])
def test_a_cleared_run_that_is_not_kept_merges_nothing_again(tmp_path: Path, action: str) -> None:
    """No state and no undo knows the run any more: its files are still merged once, and new ones too."""
    landing = build_landing(tmp_path, original_action=action)
    for number, name in enumerate("abcdefghijklm"):
        put_files(landing, f"{name}{name.upper()}", at=number)
        landing.run_job(at=number)
    with pytest.raises(DataError, match="has no run 'r1'"):
        landing.undo_runs(run="r1")
    content = landing.read_files()

    cleared = landing.run_job(at=20, run_id="r1")
    assert (cleared["run_mode"], landing.read_files()) == ("noop", content)

    put_files(landing, "nN", at=21)
    for at in (22, 23):
        landing.run_job(at=at, run_id="r1")
    merged_ids = [id_ for ids in landing.read_ids() for id_ in ids]
    assert sorted(merged_ids) == sorted("abcdefghijklmnABCDEFGHIJKLMN")
