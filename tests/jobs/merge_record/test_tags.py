"""Test runs and undos over stores whose copies have other tags, killed before any request.

Every input file is at one location afterwards, and no record is merged twice.
"""

from __future__ import annotations

import itertools
import json
import os
import uuid
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.merge_record.landing import SIDECAR
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.merge_record.files.storage import Storage, open_storage
from airflow_merge_provider.jobs.merge_record.job import _resolve_config, run_with
from airflow_merge_provider.jobs.undo.files import find_journal, undo_files
from tests.jobs.merge_record.landing import PlainEngine
from tests.jobs.merge_record.part_engine import PartEngine
from tests.reports import check_report
from tests.tagged_store import TAGS, Killed, TaggedFileSystem, make_bucket

_FOLDERS = ("source", "merged", "failure", "original")


class Lake:
    """The folders of a task in a store or on the disk, with its runs and undos."""

    def __init__(self, root: str, engine: PlainEngine | None = None, **settings: Any) -> None:
        self.root, self.engine = root, engine or PlainEngine()
        self.folders = {name: f"{root}/{name}" for name in (*_FOLDERS, "state")}
        sizes = {"min_records": 2, "max_records": 2, "max_bin_age": "1 day", "bin_age_from": "first_seen"}
        self.settings = {**sizes, "attribute_sources": ["sidecar"], **settings}
        TaggedFileSystem.dies_before(-1)

    def open_folder(self, name: str) -> Storage:
        """Open one of the folders."""
        return open_storage(self.folders[name])

    def put_file(self, name: str, *records: Any, **attributes: str) -> None:
        """Write a file into the source folder, and a sidecar."""
        source = self.open_folder("source")
        source.write_file(f"{name}{SIDECAR}", json.dumps(attributes).encode())
        source.write_file(name, "".join(json.dumps(record) + "\n" for record in records).encode())

    def run_job(self, run_id: str = "") -> dict[str, Any]:
        """Run the task."""
        request = self.build_run(run_id)
        return check_report(
            run_with(self.engine, open_storage, _resolve_config(request), request, Progress(out=str))
        )

    def build_run(self, run_id: str = "") -> JobRequest:
        """Return the request of a run."""
        folders = {name: self.folders[name] for name in _FOLDERS}
        config = {**folders, "state_path": self.folders["state"], "reader": "json", **self.settings}
        if config.get("original_action", "move") != "move":
            del config["original"]
        return self._build_request("merge_record", config, run_id)

    def undo_run(self, run_id: str = "", **changes: Any) -> dict[str, Any]:
        """Undo the newest run."""
        target = {"target": self.folders["state"], **changes}
        journal = find_journal(resolve_dataset(self.folders["state"], None), open_storage)
        assert journal is not None
        request = self._build_request("undo", target, run_id)
        return check_report(undo_files(journal, open_storage, request, Progress(out=str)))

    def read_folder(self, name: str) -> dict[str, bytes | None]:
        """Return the contents of the files of a folder."""
        folder = self.open_folder(name)
        return {entry.name: folder.read_file(entry.name) for entry in folder.list_files()}

    def count_inputs(self) -> dict[str, int]:
        """Return how often the content of each input file is in the folders of inputs."""
        return dict(Counter(self.list_inputs()))

    def read_merged(self) -> list[list[Any]]:
        """Return the ids of the records of each merged file."""
        contents = (text or b"" for name, text in self.read_folder("merged").items() if SIDECAR not in name)
        return sorted(sorted(json.loads(line)["id"] for line in content.splitlines()) for content in contents)

    def read_files(self) -> dict[str, bytes | None]:
        """Return the contents of all files outside the state."""
        return {f"{name}/{file}": text for name in _FOLDERS for file, text in self.read_folder(name).items()}

    def list_inputs(self) -> list[str]:
        """Return the contents of the files in the folders of inputs."""
        folders = [self.read_folder(folder) for folder in ("source", "original", "failure")]
        contents = ((name, text) for folder in folders for name, text in folder.items())
        return [text.decode() for name, text in contents if SIDECAR not in name and text is not None]

    def _build_request(self, job: Any, config: Any, run_id: str) -> JobRequest:
        token = RunToken(dag_id="d", run_id=run_id or uuid.uuid4().hex, task_id="t")
        return JobRequest(job=job, config=config, run=token, started_at=2**52)


def build_lake(tags: str) -> Lake:
    """Build a lake in which a run has archived two files whose names the next run archives again.

    The next run merges two files, one of which waits in a bin already, fails one, and leaves one in a bin.
    """
    lake = Lake(make_bucket(tags), correlation_attribute_name="k")
    for name in ("a", "b"):
        lake.put_file(f"{name}.json", {"id": f"{name}1"}, k="old")
    lake.put_file("c.json", {"id": "c2"}, k="new")
    lake.run_job()
    lake.put_file("a.json", {"id": "a2"}, k="new")
    lake.put_file("b.json", {"bad": "b2"}, k="bad")
    lake.put_file("e.json", {"id": "e2"}, k="alone")
    return lake


@pytest.mark.parametrize("tags", TAGS)
def test_a_run_killed_at_any_request_leaves_each_file_once(tags: str) -> None:
    """The next run completes it, and its undo gives back every file with its sidecar."""
    for request in itertools.count(1):
        lake = build_lake(tags)
        before = lake.read_files()
        TaggedFileSystem.dies_before(request)
        is_killed = _is_killed(lambda lake=lake: lake.run_job("r"))
        lake.run_job("r")

        assert lake.read_merged() == [["a1", "b1"], ["a2", "c2"]], request
        assert set(lake.count_inputs().values()) == {1}, request
        assert len(lake.count_inputs()) == 6
        lake.undo_run()
        assert lake.read_files() == before, request
        if not is_killed:
            break
    assert request > 20


@pytest.mark.parametrize("by", ["undo", "run"])
@pytest.mark.parametrize("tags", TAGS)
def test_an_undo_killed_at_any_request_leaves_each_file_once(tags: str, by: str) -> None:
    """Its retry, or the next run, completes it: the next run merges each record once."""
    for request in itertools.count(1):
        lake = build_lake(tags)
        before = lake.read_files()
        lake.run_job()
        TaggedFileSystem.dies_before(request)
        is_killed = _is_killed(lambda lake=lake: lake.undo_run("u"))
        if by == "undo":
            lake.undo_run("u")
            assert lake.read_files() == before, request
        report = lake.run_job()

        assert lake.read_merged() == [["a1", "b1"], ["a2", "c2"]], request
        assert set(lake.count_inputs().values()) == {1}, request
        assert not [text for text in report["warnings"] if "have changed" in text], request
        if not is_killed:
            break
    assert request > 15


def _is_killed(call: Any) -> bool:
    try:
        call()
    except Killed:
        return True
    finally:
        TaggedFileSystem.dies_before(-1)
    return False


@pytest.mark.parametrize("tags", TAGS)
def test_parts_that_a_run_before_has_merged_are_not_merged_again(tags: str) -> None:
    """A file of which one part waited before the undone run is not a new file, although its copy has a tag.

    Its sidecar goes with it again, also after a second undo.
    """
    lake = Lake(make_bucket(tags), PartEngine(), correlation_attribute_name="p")
    lake.put_file("a.json", {"id": 1, "p": "x"}, {"id": 2, "p": "y"})
    lake.put_file("b.json", {"id": 3, "p": "x"})
    lake.run_job()
    lake.put_file("c.json", {"id": 4, "p": "y"})
    before, inputs = lake.read_files(), lake.list_inputs()
    for to_version in (None, 1):
        lake.run_job()
        lake.undo_run(to_version=to_version)
        assert lake.read_files() == before

    report = lake.run_job()

    assert lake.read_merged() == [[1, 3], [2, 4]]
    assert not report["warnings"]
    assert lake.read_folder("source") == {}
    assert set(lake.count_inputs().values()) == {1}
    for _ in range(2):
        lake.undo_run()
    assert sorted(lake.list_inputs()) == sorted(inputs)
    assert lake.read_folder("original") == {}
    assert len(lake.read_folder("source")) == 6


def test_a_file_whose_parts_fail_is_moved_once() -> None:
    """Parts of one file in several failed bins move one file."""
    lake = Lake(make_bucket("write"), PartEngine(), correlation_attribute_name="p")
    lake.put_file("a.json", *({"bad": 1, "p": part} for part in "abcdefgh"))

    lake.run_job()

    assert list(lake.count_inputs().values()) == [1]
    assert len(lake.read_folder("failure")) == 3


@pytest.mark.parametrize("tags", TAGS)
def test_files_with_the_same_name_and_content_are_different_files(tags: str) -> None:
    """Each delivery is merged, archived and moved back once, although their versions may be the same."""
    lake = Lake(make_bucket(tags))
    before: dict[str, bytes | None] = {}
    for number in range(3):
        for name in "ab":
            lake.put_file(f"{name}.json", {"id": name}, delivery=str(number))
        before = lake.read_files()
        lake.run_job(f"r{number}")
    assert list(lake.count_inputs().values()) == [3, 3]

    with pytest.raises(DataError, match="2 new files in the source folder"):
        lake.undo_run(run="r1")
    lake.undo_run()
    assert lake.read_files() == before
    with pytest.raises(DataError, match="2 new files in the source folder"):
        lake.undo_run()
    lake.run_job()

    assert lake.read_merged() == [["a", "b"]] * 3
    assert list(lake.count_inputs().values()) == [3, 3]


@pytest.mark.parametrize("action", ["keep", "move"])
def test_a_change_of_metadata_is_not_a_change_of_the_file(action: str) -> None:
    """Where a store has a digest of the content, merged and waiting files are not merged again.

    A plan that was made before the change is carried out.
    """
    lake = Lake(make_bucket("generation"), original_action=action)
    for name in "abc":
        lake.put_file(f"{name}.json", {"id": name})
    lake.run_job()
    files: Any = lake.open_folder("source")
    files.fs.change_tags(files.resolve_path(""))

    assert lake.run_job()["run_mode"] == "noop"
    lake.put_file("d.json", {"id": "d"})
    TaggedFileSystem.dies_before(3)
    assert _is_killed(lake.run_job)
    files.fs.change_tags(files.resolve_path(""))
    report = lake.run_job()

    assert lake.read_merged() == [["a", "b"], ["c", "d"]]
    assert not report["warnings"]
    assert len(lake.read_folder("source")) == (8 if action == "keep" else 0)


@pytest.mark.parametrize("tags", [*TAGS, "local"])
@pytest.mark.parametrize("folder", ["merged", "original", "failure"])
def test_another_file_of_the_same_size_is_not_undone(tmp_path: Path, tags: str, folder: str) -> None:
    """An undo neither deletes an output that was replaced, nor moves another file back."""
    lake = Lake(str(tmp_path) if tags == "local" else make_bucket(tags))
    lake.put_file("a.json", {"id": 1})
    lake.put_file("b.json", {"id": 2})
    lake.put_file("c.json", {"bad": 3})
    lake.run_job()
    storage = lake.open_folder(folder)
    name = next(name for name in lake.read_folder(folder) if SIDECAR not in name)
    content = storage.read_file(name)
    assert content is not None
    storage.write_file(name, content.replace(b"{", b"["))
    files = lake.read_files()

    if folder == "failure":
        report = lake.undo_run()
        assert "are not in the failure folder any more" in report["warnings"][0]
        assert len(lake.read_folder("failure")) == 3
    else:
        with pytest.raises(DataError, match="changed"):
            lake.undo_run()
        assert lake.read_files() == files


def test_a_new_file_of_the_same_size_and_time_is_not_lost(tmp_path: Path) -> None:
    """A file that takes the name after the plan of the undo is another file: its content tells."""
    lake = Lake(str(tmp_path))
    for name in "ab":
        lake.put_file(f"{name}.json", {"id": name})
    lake.run_job()
    original = tmp_path / "original" / "a.json"
    stat = original.stat()
    TaggedFileSystem.dies_before(-1)

    class Racing(type(open_storage(str(tmp_path)))):  # type: ignore[misc]
        def delete_path(self, name: str) -> None:
            super().delete_path(name)
            if name.startswith("merged-"):
                new = tmp_path / "source" / "a.json"
                new.write_bytes(original.read_bytes().replace(b"a", b"z"))
                os.utime(new, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    journal = find_journal(resolve_dataset(lake.folders["state"], None), Racing)
    assert journal is not None
    undo_files(
        journal,
        Racing,
        lake._build_request("undo", {"target": lake.folders["state"]}, "u"),
        Progress(out=str),
    )

    texts = [
        json.loads(text or b"") for name, text in lake.read_folder("source").items() if SIDECAR not in name
    ]
    assert sorted(record["id"] for record in texts) == ["a", "b", "z"]


def test_files_of_a_store_are_archived_on_the_disk(tmp_path: Path) -> None:
    """Originals on another store have other versions than the sources, and are moved back."""
    lake = Lake(make_bucket("write"))
    lake.folders |= {name: f"{tmp_path}/{name}" for name in ("original", "failure")}
    for name in "ab":
        lake.put_file(f"{name}.json", {"id": name})
    lake.put_file("c.json", {"bad": "c"})
    before = lake.read_folder("source")
    lake.run_job()
    assert lake.read_folder("source") == {}

    lake.undo_run()

    assert lake.read_folder("source") == before


class LateCopies(MemoryFileSystem):  # type: ignore[misc]
    """A client that returns from a copy before the store has copied the file, as adlfs does for Azure."""

    protocol = ("late", "abfs")
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        assert self.exists(path1)
        self.pipe_file(path2, b"")


def test_a_file_is_not_removed_before_the_store_has_copied_it() -> None:
    fsspec.register_implementation("late", LateCopies, clobber=True)
    source, target = (open_storage(f"late://bucket/{name}") for name in ("source", "target"))
    source.write_file("a.json", b"a")

    source.move_file("a.json", target, "b.json")
    assert target.copy_new("b.json", source, "c.json")

    assert (source.read_file("a.json"), source.read_file("c.json")) == (None, b"a")
