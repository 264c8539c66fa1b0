"""Test new files that take the names of files being merged, in runs that complete and runs that die.

A file in the folder is merged once; a file that was replaced before its merge may be lost.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.core.merge_record.landing import SIDECAR
from airflow_merge_provider.jobs.merge_record.files.storage import LocalStorage, open_storage
from tests.jobs.merge_record.landing import Landing
from tests.jobs.merge_record.test_crash import Killed, Mortal

ACTIONS = ("move", "delete", "keep")


class Watched(Mortal):
    """A storage that runs an action before or after the n-th change, and continues."""

    def _count_change(self, change: Any, name: str, *rest: Any) -> Any:
        number = next(Mortal.changes)
        if number == Mortal.fatal and Mortal.before:
            Watched.act()
        done = change(name, *rest)
        if number == Mortal.fatal and not Mortal.before:
            Watched.act()
        return done

    act: Any = None


def make_landing(root: Path, action: str) -> Landing:
    """Return two bins of two files, and one file that waits for more."""
    made = Landing(
        root,
        min_records=2,
        max_records=2,
        correlation_attribute_name="k",
        attribute_sources=["sidecar"],
        original_action=action,
    )
    for name, group in (("a", "1"), ("b", "1"), ("c", "2"), ("d", "2"), ("e", "3")):
        made.put_records(f"{name}.json", {"id": name}, k=group)
    return made


def replace_file(made: Landing) -> None:
    """Replace a file that may have been merged by other content, its sidecar first."""
    path = made.root / "in" / "a.json"
    path.parent.mkdir(exist_ok=True)
    path.with_name(f"a.json{SIDECAR}").write_text(json.dumps({"k": "9"}), encoding="utf-8")
    new = path.with_name(".a.json.tmp")
    new.write_text('{"id": "A"}\n', encoding="utf-8")
    new.replace(path)


def count_merged(made: Landing) -> Counter[str]:
    """Return how often each record was merged, after all waiting files are flushed."""
    made.run_job(run_id="later", at=5)
    made.run_job(run_id="last", at=6, flush=True)
    return Counter(id_ for ids in made.read_ids() for id_ in ids)


def check_merged(made: Landing, place: Any) -> None:
    """Check that every record is merged once, except the replaced one, which may be lost."""
    merged = count_merged(made)
    replaced = merged.pop("a", 0)
    assert merged == Counter("bcdeA"), place
    assert replaced in {0, 1}, place
    assert list(made.root.rglob(".claimed-*")) == [], place
    assert list((made.root / "merged").glob("_staging-*")) == [], place
    committed = {
        json.loads(path.read_text())["uri"] for path in (made.root / "state" / "manifests").glob("*")
    }
    assert {str(path) for path in made.list_outputs()} == committed - {None}, place
    if made.settings["original_action"] != "keep":
        assert made.list_names("in") == [], place
        assert [path.name for path in (made.root / "in").rglob("*") if path.is_file()] == [], place
    if made.settings["original_action"] == "move":
        originals = Counter(
            json.loads(line)["id"]
            for path in (made.root / "original").rglob("*.json")
            if SIDECAR not in path.name
            for line in path.read_text().splitlines()
        )
        assert originals - Counter("a") == Counter("bcdeA"), place


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("action", ACTIONS)
def test_a_name_that_is_used_again_after_a_crash(action: Any, before: Any, tmp_path: Path) -> None:
    """After a run dies at any step and a new file takes the name of a source, the next run merges all."""
    for change in itertools.count(1):
        made = make_landing(tmp_path / str(change), action)
        Mortal.dies_at(change, before=before)
        try:
            made.run_job(run_id="r", opened=Mortal)
            break
        except Killed:
            pass
        replace_file(made)

        made.run_job(run_id="r", at=1)

        check_merged(made, change)
    assert change > 12


@pytest.mark.parametrize("action", ACTIONS)
def test_a_name_that_is_used_again_during_a_run(action: Any, tmp_path: Path) -> None:
    """A new file that takes the name of a source before any step of the run is merged once."""
    for change in itertools.count(1):
        made = make_landing(tmp_path / str(change), action)
        came: list[bool] = []

        def replace_now(made: Landing = made, came: list[bool] = came) -> None:
            replace_file(made)
            came.append(True)

        Watched.act = staticmethod(replace_now)
        Mortal.dies_at(change, before=True)
        made.run_job(run_id="r", opened=Watched)
        if not came:
            break

        check_merged(made, change)
    assert change > 12


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_second_crash_after_a_name_was_used_again(before: Any, tmp_path: Path) -> None:
    """All files are merged even if the next run dies too, at any of its steps."""
    for first in range(3, 18):
        for second in itertools.count(1):
            made = make_landing(tmp_path / f"{first}-{second}", "move")
            Mortal.dies_at(first, before=False)
            with pytest.raises(Killed):
                made.run_job(run_id="r", opened=Mortal)
            replace_file(made)
            Mortal.dies_at(second, before=before)
            try:
                made.run_job(run_id="r", at=1, opened=Mortal)
                break
            except Killed:
                pass

            made.run_job(run_id="r", at=2)

            check_merged(made, (first, second))
        assert second > 3


def test_a_file_is_replaced_between_two_looks_at_it(tmp_path: Path) -> None:
    """A file that a run took although it was replaced is returned to its name, or next to the file there."""
    storage = open_storage(str(tmp_path))
    path = tmp_path / "a.json"
    path.write_text("old")
    version = storage.find_entry("a.json").version

    class Slow(LocalStorage):
        def find_entry(self, name: str) -> Any:
            found = super().find_entry(name)
            if name == "a.json":
                path.write_text("newer")
            return found

    assert Slow(str(tmp_path)).claim_file("a.json", version) is None
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("a.json", "newer")]

    # A run that died right after it had moved the file: the next try finds the moved file.
    path.write_text("old")
    version = storage.find_entry("a.json").version
    aside = storage.claim_file("a.json", version)
    (tmp_path / aside).write_text("newer")
    path.write_text("newest")
    assert storage.claim_file("a.json", version) is None
    found = {each.name: each.read_text() for each in tmp_path.iterdir()}
    assert sorted(found.values()) == ["newer", "newest"]
    assert found["a.json"] == "newest"
    assert all(not name.startswith(".") for name in found)


def test_a_failed_file_whose_name_is_used_again(tmp_path: Path) -> None:
    """The new file is merged with its own sidecar; the failed file of the same name is lost."""
    made = Landing(tmp_path, failure_scope="flowfile")
    made.put_records("a.json", {"bad": 1}, k="1")
    Mortal.dies_at(1, before=False)
    with pytest.raises(Killed):
        made.run_job(run_id="r", opened=Mortal)
    replace_file(made)

    made.run_job(run_id="r", at=1)
    made.run_job(at=2)

    assert made.read_ids() == [["A"]]
    assert made.list_names("failure") == []


def test_a_merge_that_was_withdrawn_is_never_published(tmp_path: Path) -> None:
    """A run that hung while it wrote an output publishes nothing if other runs have withdrawn its merge."""
    made = make_landing(tmp_path, "move")
    engine = made.engine
    stage = engine.stage_merges
    hung: list[Any] = []

    def stage_slowly(*given: Any) -> Any:
        staged = stage(*given)
        if not hung:
            hung.append(True)
            (tmp_path / "state" / "lease.json").unlink()
            replace_file(made)
            engine.stage_merges = stage
            made.run_job(run_id="other", at=1)
            engine.stage_merges = stage_slowly  # type: ignore[assignment]
        return staged

    engine.stage_merges = stage_slowly  # type: ignore[assignment]
    with pytest.raises(Exception, match="has taken over the lease"):
        made.run_job(run_id="r")

    engine.stage_merges = stage
    check_merged(made, "hung")
