"""Test runs that are killed before or after any step: the next run leads to the same result."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.core.errors import ConflictError, DataError
from airflow_merge_provider.jobs.merge_record.files.journal import identify_process
from airflow_merge_provider.jobs.merge_record.files.storage import LocalStorage, Storage
from tests.jobs.merge_record.landing import Landing, PlainEngine
from tests.tagged_store import Killed


class Mortal(LocalStorage):
    """A storage whose process dies before or after the n-th change of anything but the lease."""

    one_at_a_time = threading.Lock()

    changes = itertools.count(1)
    fatal = -1
    before = True
    dead = False

    @classmethod
    def dies_at(cls, change: int, *, before: bool) -> None:
        cls.changes, cls.fatal, cls.before, cls.dead = itertools.count(1), change, before, False

    def _change_file(self, change: Any, name: str, *args: Any) -> Any:
        if "lease" in name:
            return change(name, *args)
        with Mortal.one_at_a_time:
            return self._count_change(change, name, *args)

    def _count_change(self, change: Any, name: str, *args: Any) -> Any:
        number = next(Mortal.changes)
        if Mortal.dead or (number == Mortal.fatal and Mortal.before):
            Mortal.dead = True
            raise Killed
        result = change(name, *args)
        if number == Mortal.fatal:
            Mortal.dead = True
            raise Killed
        return result

    def write_file(self, name: str, content: bytes) -> None:
        self._change_file(super().write_file, name, content)

    def write_sidecar(self, name: str, content: bytes) -> None:
        self._change_file(super().write_sidecar, name, content)

    def create_file(self, name: str, content: bytes) -> bool:
        created: bool = self._change_file(super().create_file, name, content)
        return created

    def delete_path(self, name: str) -> None:
        self._change_file(super().delete_path, name)

    def claim_file(self, name: str, version: str) -> str | None:
        claimed: str | None = self._change_file(super().claim_file, name, version)
        return claimed

    def move_file(self, name: str, target: Storage, target_name: str) -> None:
        self._change_file(super().move_file, name, target, target_name)

    def copy_new(self, name: str, target: Storage, target_name: str) -> bool:
        copied: bool = self._change_file(super().copy_new, name, target, target_name)
        return copied


def build_landing(root: Path) -> Landing:
    """Build two files that fill a bin, two malformed ones in a bin, and a waiting one with a sidecar."""
    landing = Landing(
        root, min_records=2, max_records=2, correlation_attribute_name="k", attribute_sources=["sidecar"]
    )
    for name, group in (("a", "1"), ("b", "1"), ("c", "2"), ("d", "3"), ("e", "4")):
        content = {"bad": 1} if name == "d" else {"id": name}
        landing.put_records(f"{name}.json", content, k=group)
    landing.put_records("f.json", {"id": "f"}, {"id": "g"})
    return landing


def make_relative(contents: dict[str, bytes], root: Path) -> dict[str, bytes]:
    return {name: content.replace(str(root).encode(), b"") for name, content in contents.items()}


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_run_killed_at_any_step_is_finished_by_the_next(before: Any, tmp_path: Path) -> None:
    """Wherever a run dies, the next run leaves the same files with the same bytes, and each record once."""
    expected_landing = build_landing(tmp_path / "whole")
    expected_report = expected_landing.run_job(run_id="r")
    # The uuid of a file is derived from its location: all tries must use the same folder.
    (tmp_path / "whole").rename(tmp_path / "kept")
    expected = Landing(tmp_path / "kept").read_everything()

    for change in itertools.count(1):
        landing = build_landing(tmp_path / "whole")
        Mortal.dies_at(change, before=before)
        try:
            landing.run_job(run_id="r", opened=Mortal)
            break
        except Killed:
            pass
        Mortal.dies_at(-1, before=before)
        report = landing.run_job(run_id="r")
        assert landing.read_everything() == expected, change
        assert report["counts"] == expected_report["counts"], change
        assert report["changed"], change
        (tmp_path / "whole").rename(tmp_path / f"tried-{change}")

    assert change > 25
    assert len(expected_report["details"]["merged"]) == 2


def test_the_next_scheduled_run_finishes_a_plan_and_goes_on(tmp_path: Path) -> None:
    """The next scheduled run completes an existing plan without planning it again.

    It merges files that have arrived meanwhile in the same run.
    """
    landing = build_landing(tmp_path)
    Mortal.dies_at(4, before=True)
    with pytest.raises(Killed):
        landing.run_job(run_id="first", opened=Mortal)
    landing.put_records("g.json", {"id": "h"}, {"id": "i"}, at=5)

    report = landing.run_job(run_id="second", at=5)

    assert landing.read_ids() == [["a", "b"], ["f", "g"], ["h", "i"]]
    assert report["counts"]["merged"] == 3


def test_a_plan_is_made_anew_when_its_files_changed_before_it_began(tmp_path: Path) -> None:
    """A plan is made anew if its files changed before it began; nothing of it was published or lost."""
    landing = build_landing(tmp_path)
    Mortal.dies_at(2, before=True)
    with pytest.raises(Killed):
        landing.run_job(run_id="first", opened=Mortal)
    landing.put_records("a.json", {"id": "new"}, at=1, k="1")

    landing.run_job(run_id="second", at=1)

    assert sorted(landing.read_ids()) == [["b", "new"], ["f", "g"]]


def test_of_a_plan_that_has_begun_only_what_has_changed_is_planned_anew(tmp_path: Path) -> None:
    """Of a plan that has begun, the published half stays, and only changed files are planned anew.

    A changed file is merged as it is.
    """
    landing = next(
        landing
        for number in itertools.count(1)
        if (landing := _kill_run(tmp_path / str(number), number)) is not None
    )
    (name,) = {"a.json", "f.json"} - _list_merged_names(landing)
    landing.put_records(name, {"id": "new"}, at=1)

    report = landing.run_job(run_id="r", at=1)

    expected_ids = {"a.json": [["b", "new"], ["f", "g"]], "f.json": [["a", "b"], ["new"]]}[name]
    ids = sorted([*landing.read_ids(), *([["new"]] if name == "f.json" else [])])
    assert ids == expected_ids
    assert any("1 files have changed" in warning for warning in report["warnings"])


def _kill_run(root: Path, change: int) -> Landing | None:
    """Kill a run at a step; return its landing folder if it has one manifest then."""
    landing = build_landing(root)
    Mortal.dies_at(change, before=False)
    with pytest.raises(Killed):
        landing.run_job(run_id="r", opened=Mortal)
    return landing if len(list((root / "state" / "manifests").glob("*"))) == 1 else None


def _list_merged_names(landing: Landing) -> set[str]:
    (manifest,) = (landing.root / "state" / "manifests").glob("*")
    return {Path(uri).name for uri in json.loads(manifest.read_text(encoding="utf-8"))["sources"]}


def test_two_runs_at_once_are_one(tmp_path: Path) -> None:
    """The second of two concurrent runs stops at the lease with the name of the first.

    Nothing is duplicated.
    """
    landing = build_landing(tmp_path)
    refused: list[Any] = []

    class Interrupting(type(landing.engine)):  # type: ignore[misc]
        def stage_merges(self, *args: Any) -> Any:
            with pytest.raises(ConflictError, match="d/merge/first holds the lease") as error:
                landing_again.run_job(run_id="second")
            refused.append(error.value.retryable)
            return super().stage_merges(*args)

    landing_again = Landing(tmp_path, **landing.settings)
    landing.engine = Interrupting()
    landing.run_job(run_id="first")

    assert refused == [True]
    assert landing.read_ids() == [["a", "b"], ["f", "g"]]


def test_a_lease_of_a_process_that_is_gone_is_taken_over(tmp_path: Path) -> None:
    """A lease of a dead process is taken over, at once if the death of the process can be detected."""
    landing = build_landing(tmp_path)
    lease = tmp_path / "state" / "lease.json"
    lease.parent.mkdir()
    child = subprocess.Popen(["/bin/sleep", "100"])
    process = asdict(identify_process(child.pid))
    lease.write_text(json.dumps({"id": "x", "owner": {}, "process": process}))
    with pytest.raises(ConflictError):
        landing.run_job()
    child.kill()
    child.wait()

    landing.run_job()

    assert landing.read_ids() == [["a", "b"], ["f", "g"]]
    assert not lease.exists()


@pytest.mark.parametrize(
    "other", [{"namespace": "pid:[1]"}, {"boot": "x"}, None], ids=["pid", "boot", "none"]
)
def test_a_process_of_elsewhere_is_not_looked_for_here(other: Any, tmp_path: Path) -> None:
    """The process id of another machine is not looked up here, where it may be absent.

    Its lease expires after the store has not seen a change of it for a long time.
    """
    landing = build_landing(tmp_path)
    lease = tmp_path / "state" / "lease.json"
    lease.parent.mkdir()
    process = other and {**asdict(identify_process(os.getpid())), "pid": 2**22 + 1, **other}
    # Neither the clock nor the host name of the other machine matters.
    lease_content = {"id": "x", "owner": {}, "host": os.uname().nodename, "pid": 2**22 + 1}
    lease.write_text(json.dumps({**lease_content, "process": process}))
    with pytest.raises(ConflictError):
        landing.run_job()

    long_ago = time.time() - 121
    os.utime(lease, (long_ago, long_ago))
    landing.run_job()

    assert landing.read_ids() == [["a", "b"], ["f", "g"]]
    assert {path.name for path in lease.parent.glob("lease*")} == set()


def test_a_run_that_lost_its_lease_publishes_nothing(tmp_path: Path) -> None:
    """A run that hung until another one took its lease stops before its commit."""
    landing = build_landing(tmp_path)

    class Hung(type(landing.engine)):  # type: ignore[misc]
        def stage_merges(self, *args: Any) -> Any:
            (tmp_path / "state" / "lease.json").write_text('{"id": "other"}')
            return super().stage_merges(*args)

    landing.engine = Hung()
    with pytest.raises(ConflictError, match="has taken over the lease"):
        landing.run_job()

    assert landing.list_outputs() == []
    assert len(landing.list_names("in")) == 6


def test_a_damaged_state_is_no_empty_state(tmp_path: Path) -> None:
    """A damaged state is an error, as an empty or partial state would lose the ages of open bins."""
    landing = build_landing(tmp_path)
    landing.run_job()
    (tmp_path / "state" / "state-000000000001.json").write_text("{")

    with pytest.raises(DataError, match="damaged"):
        landing.run_job(at=1)


@pytest.mark.parametrize("other", [1, 3])
def test_a_state_of_another_format_is_refused(tmp_path: Path, other: int) -> None:
    """A state that another version of the package has written is rejected, because its content is unknown."""
    landing = build_landing(tmp_path)
    landing.run_job()
    state = tmp_path / "state" / "state-000000000001.json"
    state.write_text(state.read_text().replace('"format":2', f'"format":{other}'))

    with pytest.raises(DataError, match=f"has format {other}, this package version supports only 2"):
        landing.run_job(at=1)


@pytest.mark.parametrize("action", ["keep", "move"])
def test_a_folder_that_was_moved_is_carried_on(action: Any, tmp_path: Path) -> None:
    """Runs continue after the folder was moved: open bins, waiting files and the plan of a killed run."""
    for change in itertools.count(1):
        landing = Landing(
            tmp_path / f"{change}", min_records=2, max_records=2, correlation_attribute_name="k",
            attribute_sources=["sidecar"], original_action=action,
        )  # fmt: skip
        for name, group in (("a", "1"), ("b", "1"), ("c", "2")):
            landing.put_records(f"{name}.json", {"id": name}, k=group, own=f"{landing.root}/in/x")
        landing.run_job(run_id="first")
        for name, group in (("d", "2"), ("e", "3"), ("f", "3"), ("g", "4")):
            landing.put_records(f"{name}.json", {"id": name}, k=group)
        Mortal.dies_at(change, before=False)
        with contextlib.suppress(Killed):
            landing.run_job(run_id="r", opened=Mortal)
        is_dead, Mortal.dead = Mortal.dead, False
        moved_landing = Landing(tmp_path / f"moved-{change}", **landing.settings)
        landing.root.rename(moved_landing.root)

        report = moved_landing.run_job(run_id="r", at=1)
        moved_landing.run_job(run_id="later", at=2, flush=True)

        assert moved_landing.read_ids() == [["a", "b"], ["c", "d"], ["e", "f"], ["g"]], change
        assert not any("have changed or no longer exist" in warning for warning in report["warnings"]), change
        if not is_dead:
            break
    assert change > 10


class DyingEngine(PlainEngine):
    """An engine whose first driver is killed when its files are to be written, while its job continues."""

    def __init__(self) -> None:
        self.staging: Storage | None = None

    def stage_merges(self, source: Storage, merges: Any, schemas: Any, config: Any, staging: Storage) -> Any:
        if self.staging is None:
            self.staging = staging
            raise Killed
        return super().stage_merges(source, merges, schemas, config, staging)


def test_what_a_job_writes_after_its_driver_was_killed_is_removed(tmp_path: Path) -> None:
    """Files that a job writes after its driver was killed and the retry has cleaned up are deleted.

    Files that runs of another journal write stay.
    """
    engine = DyingEngine()
    landing = Landing(tmp_path, engine=engine, min_records=1)
    landing.put_records("a.json", {"id": "a"})
    with pytest.raises(Killed):
        landing.run_job(run_id="r")
    landing.run_job(run_id="r")
    assert engine.staging is not None
    engine.staging.write_file("write-0/late", b"x")
    other = tmp_path / "merged" / "_staging-0-0" / "late"
    other.parent.mkdir()
    other.touch()

    landing.put_records("b.json", {"id": "b"})
    landing.run_job()

    assert list((tmp_path / "merged").glob("_staging-*")) == [other.parent]
    assert landing.read_ids() == [["a"], ["b"]]
