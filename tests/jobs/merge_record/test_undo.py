"""Test that an undo of a merge record withdraws outputs and moves sources back, also if it dies."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_merge_provider.before_spark import find_result
from airflow_merge_provider.cli import main as cli
from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.merge_record.landing import SIDECAR
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.merge_record.files.storage import LocalStorage, open_storage
from airflow_merge_provider.jobs.merge_record.job import _resolve_config, run_with
from airflow_merge_provider.jobs.undo import job as undo
from airflow_merge_provider.jobs.undo.files import find_journal, undo_files
from tests.jobs.merge_record.landing import Landing, PlainEngine
from tests.jobs.merge_record.test_crash import Mortal
from tests.tagged_store import Killed, make_bucket


def build_landing(root: Path, **settings: Any) -> Landing:
    """Build a landing folder whose bins are full with two files, one bin for each value of ``k``."""
    grouping = {"correlation_attribute_name": "k", "attribute_sources": ["sidecar"]}
    return Landing(root, **{"min_records": 2, "max_records": 2, **grouping, **settings})


def put_files(landing: Landing, names: str, *, at: float = 0) -> None:
    """Write a file for each letter; lower and upper case letters have the same group."""
    for name in names:
        landing.put_records(f"{name}.json", {"id": name}, at=at, k=name.lower())


def put_bad_file(landing: Landing, name: str) -> None:
    landing.put_records(f"{name}.json", {"bad": 1}, k="bad")


@pytest.mark.parametrize("action", ["move", "keep"])
def test_an_undo_leaves_the_files_as_before_the_run(tmp_path: Path, action: str) -> None:
    """Sources, their sidecars, open bins and failed files are as before, and the next run does the same."""
    landing = build_landing(tmp_path, original_action=action)
    put_files(landing, "ab")
    landing.run_job()
    put_files(landing, "ABc", at=1)
    put_bad_file(landing, "d")
    before = landing.read_files()
    landing.run_job(at=2)
    merged = landing.read_ids()

    planned = landing.undo_runs(until="transform")
    assert landing.read_ids() == merged
    report = landing.undo_runs()

    assert landing.read_files() == before
    manifests = [json.loads(path.read_text()) for path in (tmp_path / "state" / "manifests").glob("*")]
    assert sum("withdrawn" in manifest for manifest in manifests) == 2
    assert planned["counts"] == report["counts"]
    assert report["counts"] == {"runs": 1, "side_tables": 0, "outputs": 2, "files": 5}
    assert report["details"]["undone"][0]["run_id"] == "r2"
    assert report["rows"]["deleted"] == 4
    again = landing.run_job(at=2)
    assert landing.read_ids() == merged
    assert (again["counts"]["merged"], again["counts"]["failed"]) == (2, 1)
    assert landing.list_names("failure") == ["d.json"]


def test_undos_go_back_run_by_run(tmp_path: Path) -> None:
    """A second undo undoes the run before; without a run in force it does nothing."""
    landing = build_landing(tmp_path)
    contents = []
    for number, names in enumerate(("aA", "bB", "c", "C")):
        put_files(landing, names, at=number)
        contents.append(landing.read_files())
        landing.run_job(at=number)

    reports = []
    for content in reversed(contents):
        reports.append(landing.undo_runs())
        undone = {name: text for name, text in landing.read_files().items() if name in content}
        assert undone == content

    assert [report["details"]["undone"][0]["run_id"] for report in reports] == ["r4", "r3", "r2", "r1"]
    assert landing.read_ids() == []
    assert landing.undo_runs()["run_mode"] == "noop"
    landing.run_job(at=9)
    assert [sorted(ids) for ids in landing.read_ids()] == [["A", "a"], ["B", "b"], ["C", "c"]]


def test_several_runs_are_undone_at_once(tmp_path: Path) -> None:
    """``run`` and ``to_version`` choose how far an undo goes back."""
    landing = build_landing(tmp_path)
    contents = []
    for names in ("aA", "bB", "cC"):
        put_files(landing, names)
        contents.append(landing.list_names("original"))
        landing.run_job()

    report = landing.undo_runs("state", run="r2")

    assert [run["run_id"] for run in report["details"]["undone"]] == ["r3", "r2"]
    assert landing.list_names("original") == contents[1]
    with pytest.raises(DataError, match="'r3', version 3, is already undone"):
        landing.undo_runs(run="r3")
    assert landing.undo_runs(to_version=0)["counts"]["runs"] == 1
    assert landing.list_names("original") == []
    assert landing.list_names("in") == ["A.json", "B.json", "C.json", "a.json", "b.json", "c.json"]


def test_an_open_bin_keeps_its_age(tmp_path: Path) -> None:
    """A file that waited in a bin waits in the same bin again, since the same time."""
    landing = build_landing(tmp_path, max_bin_age="1 min", bin_age_from="first_seen")
    put_files(landing, "a")
    landing.run_job(at=10)
    put_files(landing, "A", at=20)
    landing.run_job(at=30)

    landing.undo_runs()

    (tmp_path / "in" / "A.json").unlink()
    assert landing.run_job(at=69)["counts"]["merged"] == 0
    assert landing.run_job(at=71)["details"]["reasons"] == {"AGE": 1}


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("by", ["undo", "run"])
def test_an_undo_killed_at_any_step_is_completed(tmp_path: Path, by: str, *, before: bool) -> None:
    """Wherever an undo dies, its retry or the next run completes it, with the same files."""
    for change in itertools.count(1):
        landing = build_landing(tmp_path / "lake")
        put_files(landing, "aAb")
        put_bad_file(landing, "d")
        content = landing.read_files()
        landing.run_job(run_id="r")
        Mortal.dies_at(change, before=before)
        try:
            landing.undo_runs(opened=Mortal, run_id="u")
            break
        except Killed:
            pass
        Mortal.dies_at(-1, before=before)
        if by == "run":
            state = tmp_path / "lake" / "state"
            is_planned = any((state / name).exists() for name in ("plan-2.json", "state-000000000002.json"))
            report = landing.run_job(run_id="r2")
            assert report["counts"]["merged"] == is_planned, change
            assert landing.read_ids() == [["A", "a"]], change
            assert landing.list_names("original") == ["A.json", "a.json"], change
            assert landing.list_names("failure") == ["d.json"], change
        else:
            assert landing.undo_runs(run_id="u")["counts"]["runs"] == 1, change
            assert landing.read_files() == content, change
        shutil.rmtree(tmp_path / "lake")
    assert change > 15


def test_a_retry_of_an_undo_undoes_nothing_more(tmp_path: Path) -> None:
    """A retry reports the completed undo, also after a later run."""
    landing = build_landing(tmp_path)
    for names in ("aA", "bB"):
        put_files(landing, names)
        landing.run_job()
    landing.undo_runs(run_id="u")
    landing.run_job()
    content = landing.read_files()

    report = landing.undo_runs(run_id="u")

    assert landing.read_files() == content
    assert "an earlier attempt" in report["run_mode_reason"]
    assert report["counts"]["runs"] == 1


def test_files_of_a_store_are_moved_back() -> None:
    """An undo moves the files of an object store, also an original that was put back from a backup."""
    root = make_bucket("generation")
    folders = {name: f"{root}/{name}" for name in ("source", "merged", "failure", "original")}
    token = RunToken(dag_id="d", run_id="r", task_id="t")
    config = {**folders, "state_path": f"{root}/state", "reader": "json", "min_records": 2, "max_records": 2}
    source = open_storage(folders["source"])
    for name in "ab":
        source.write_file(f"{name}.json", f'{{"id": "{name}"}}\n'.encode())
        source.write_file(f"{name}.json{SIDECAR}", b'{"k": "1"}')
    requests = [
        JobRequest(job="merge_record", config=config, run=token, started_at=2**60),
        JobRequest(job="undo", config={"target": folders["merged"]}, run=token, started_at=2**60),
    ]
    run_with(PlainEngine(), open_storage, _resolve_config(requests[0]), requests[0], Progress(out=str))
    assert source.list_files() == []
    journal = find_journal(resolve_dataset(folders["merged"], None), open_storage)
    assert journal is not None
    original = open_storage(folders["original"])
    content = original.read_file("a.json")
    assert content is not None
    original.write_file("a.json", b"longer" + content)
    with pytest.raises(DataError, match="no longer exist or have changed"):
        undo_files(journal, open_storage, requests[1], Progress(out=str))
    original.write_file("a.json", content)

    report = undo_files(journal, open_storage, requests[1], Progress(out=str))

    assert report.counts["files"] == 2
    contents = {entry.name: source.read_file(entry.name) for entry in source.list_files()}
    assert contents == {
        "a.json": b'{"id": "a"}\n', f"a.json{SIDECAR}": b'{"k": "1"}',
        "b.json": b'{"id": "b"}\n', f"b.json{SIDECAR}": b'{"k": "1"}',
    }  # fmt: skip
    assert [
        entry for name in ("merged", "original") for entry in open_storage(folders[name]).list_files()
    ] == []


def test_a_new_file_that_takes_the_name_meanwhile_is_not_lost(tmp_path: Path) -> None:
    """A file that arrives while an undo moves files back keeps its name; the other one gets its UUID."""

    class Racing(LocalStorage):
        def write_file(self, name: str, content: bytes) -> None:
            super().write_file(name, content)
            if name.startswith("manifests/"):
                landing.put_records("a.json", {"id": "new"}, at=7)

    landing = build_landing(tmp_path)
    put_files(landing, "aA")
    landing.run_job()

    landing.undo_runs(opened=Racing)

    names = landing.list_names("in")
    assert len(names) == 3
    contents = {json.loads((tmp_path / "in" / name).read_text())["id"] for name in names}
    assert contents == {"new", "a", "A"}
    assert (tmp_path / "in" / f"{next(name for name in names if '-' in name)}{SIDECAR}").exists()


def test_files_that_a_failure_folder_no_longer_has_are_warned_of(tmp_path: Path) -> None:
    """A failed file that a user has repaired does not prevent an undo."""
    landing = build_landing(tmp_path)
    put_files(landing, "aA")
    put_bad_file(landing, "d")
    landing.run_job()
    (tmp_path / "failure" / "d.json").unlink()

    report = landing.undo_runs()

    assert "are not in the failure folder any more" in report["warnings"][0]
    assert landing.list_names("in") == ["A.json", "a.json"]


def test_a_moved_lake_is_undone(tmp_path: Path) -> None:
    """All locations are those of the folders after a move."""
    landing = build_landing(tmp_path / "old")
    put_files(landing, "aA")
    content = landing.read_files()
    landing.run_job()
    (tmp_path / "old").rename(tmp_path / "new")

    moved = build_landing(tmp_path / "new")
    moved.undo_runs("merged")

    assert moved.read_files() == content


def test_the_history_lists_runs_and_undos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command line lists the runs of a merge record, and explains what became of a file."""
    landing = build_landing(tmp_path)
    put_files(landing, "aA")
    landing.run_job()
    landing.undo_runs(run_id="u")

    assert cli.main(["history", "merged", "--warehouse", str(tmp_path)]) == 0
    _, newest, oldest = capsys.readouterr().out.splitlines()
    assert (newest.split()[0], oldest.split()[0]) == ("2", "1")
    assert "  undo 2  " in newest
    assert newest.endswith("  d undo u")
    assert "  run 1  " in oldest
    assert oldest.endswith("  d merge r1")
    assert cli.main(["explain", "merged", "a.json", "--warehouse", str(tmp_path)]) == 0
    assert "undone by state 2" in capsys.readouterr().out


def test_a_job_undoes_files_and_a_dry_run_needs_spark(tmp_path: Path, spark: SparkSession) -> None:
    """The task leaves files to a job, and the same job undoes tables and files."""
    landing = build_landing(tmp_path)
    put_files(landing, "aA")
    content = landing.read_files()
    landing.run_job()
    request = JobRequest(
        job="undo",
        config={"target": "merged"},
        run=RunToken(dag_id="d", run_id="u", task_id="undo"),
        warehouse=str(tmp_path),
        started_at=1,
    )

    assert find_result(request, conf={}, is_local=True, on_line=print) is None
    report = undo.run(spark, request, Progress(out=str))

    assert report.counts["outputs"] == 1
    assert landing.read_files() == content
