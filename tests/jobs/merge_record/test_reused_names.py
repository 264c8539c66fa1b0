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
from tests.jobs.merge_record.test_crash import Mortal
from tests.tagged_store import Killed

ACTIONS = ("move", "delete", "keep")


class Watched(Mortal):
    """A storage that runs an action before or after the n-th change, and continues."""

    def _count_change(self, change: Any, name: str, *args: Any) -> Any:
        number = next(Mortal.changes)
        if number == Mortal.fatal and Mortal.before:
            Watched.act()
        result = change(name, *args)
        if number == Mortal.fatal and not Mortal.before:
            Watched.act()
        return result

    act: Any = None


def make_landing(root: Path, action: str) -> Landing:
    """Return two bins of two files, and one file that waits for more."""
    landing = Landing(
        root,
        min_records=2,
        max_records=2,
        correlation_attribute_name="k",
        attribute_sources=["sidecar"],
        original_action=action,
    )
    for name, group in (("a", "1"), ("b", "1"), ("c", "2"), ("d", "2"), ("e", "3")):
        landing.put_records(f"{name}.json", {"id": name}, k=group)
    return landing


def replace_file(landing: Landing) -> None:
    """Replace a file that may have been merged by other content, its sidecar first."""
    path = landing.root / "in" / "a.json"
    path.parent.mkdir(exist_ok=True)
    path.with_name(f"a.json{SIDECAR}").write_text(json.dumps({"k": "9"}), encoding="utf-8")
    new = path.with_name(".a.json.tmp")
    new.write_text('{"id": "A"}\n', encoding="utf-8")
    new.replace(path)


def count_merged(landing: Landing) -> Counter[str]:
    """Return how often each record was merged, after all waiting files are flushed."""
    landing.run_job(run_id="later", at=5)
    landing.run_job(run_id="last", at=6, flush=True)
    return Counter(id_ for ids in landing.read_ids() for id_ in ids)


def check_merged(landing: Landing, step: Any) -> None:
    """Check that every record is merged once, except the replaced one, which may be lost."""
    merged = count_merged(landing)
    replaced = merged.pop("a", 0)
    assert merged == Counter("bcdeA"), step
    assert replaced in {0, 1}, step
    assert list(landing.root.rglob(".claimed-*")) == [], step
    assert list((landing.root / "merged").glob("_staging-*")) == [], step
    committed = {
        json.loads(path.read_text())["uri"] for path in (landing.root / "state" / "manifests").glob("*")
    }
    assert {str(path) for path in landing.list_outputs()} == committed - {None}, step
    if landing.settings["original_action"] != "keep":
        assert landing.list_names("in") == [], step
        assert [path.name for path in (landing.root / "in").rglob("*") if path.is_file()] == [], step
    if landing.settings["original_action"] == "move":
        originals = Counter(
            json.loads(line)["id"]
            for path in (landing.root / "original").rglob("*.json")
            if SIDECAR not in path.name
            for line in path.read_text().splitlines()
        )
        assert originals - Counter("a") == Counter("bcdeA"), step


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("action", ACTIONS)
def test_a_name_that_is_used_again_after_a_crash(action: Any, before: Any, tmp_path: Path) -> None:
    """After a run dies at any step and a new file takes the name of a source, the next run merges all."""
    for change in itertools.count(1):
        landing = make_landing(tmp_path / str(change), action)
        Mortal.dies_at(change, before=before)
        try:
            landing.run_job(run_id="r", opened=Mortal)
            break
        except Killed:
            pass
        replace_file(landing)

        landing.run_job(run_id="r", at=1)

        check_merged(landing, change)
    assert change > 12


@pytest.mark.parametrize("action", ACTIONS)
def test_a_name_that_is_used_again_during_a_run(action: Any, tmp_path: Path) -> None:
    """A new file that takes the name of a source before any step of the run is merged once."""
    for change in itertools.count(1):
        landing = make_landing(tmp_path / str(change), action)
        replacements: list[bool] = []

        def replace_now(landing: Landing = landing, replacements: list[bool] = replacements) -> None:
            replace_file(landing)
            replacements.append(True)

        Watched.act = staticmethod(replace_now)
        Mortal.dies_at(change, before=True)
        landing.run_job(run_id="r", opened=Watched)
        if not replacements:
            break

        check_merged(landing, change)
    assert change > 12


@pytest.mark.long
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_second_crash_after_a_name_was_used_again(before: Any, tmp_path: Path) -> None:
    """All files are merged even if the next run dies too, at any of its steps."""
    # Both cases together have a first crash at every step.
    for first in range(3 + before, 18, 2):
        for second in itertools.count(1):
            landing = make_landing(tmp_path / f"{first}-{second}", "move")
            Mortal.dies_at(first, before=False)
            with pytest.raises(Killed):
                landing.run_job(run_id="r", opened=Mortal)
            replace_file(landing)
            Mortal.dies_at(second, before=before)
            try:
                landing.run_job(run_id="r", at=1, opened=Mortal)
                break
            except Killed:
                pass

            landing.run_job(run_id="r", at=2)

            check_merged(landing, (first, second))
        assert second > 3


def test_a_file_is_replaced_between_two_looks_at_it(tmp_path: Path) -> None:
    """A file that a run took although it was replaced is returned to its name, or next to the file there."""
    storage = open_storage(str(tmp_path))
    path = tmp_path / "a.json"
    path.write_text("old")
    version = storage.find_entry("a.json").version

    class Slow(LocalStorage):
        def find_entry(self, name: str) -> Any:
            entry = super().find_entry(name)
            if name == "a.json":
                path.write_text("newer")
            return entry

    assert Slow(str(tmp_path)).claim_file("a.json", version) is None
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a.json", "newer")]

    # A run that died right after it had moved the file: the next try finds the moved file.
    path.write_text("old")
    version = storage.find_entry("a.json").version
    aside = storage.claim_file("a.json", version)
    (tmp_path / aside).write_text("newer")
    path.write_text("newest")
    assert storage.claim_file("a.json", version) is None
    contents = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert sorted(contents.values()) == ["newer", "newest"]
    assert contents["a.json"] == "newest"
    assert all(not name.startswith(".") for name in contents)


def test_a_failed_file_whose_name_is_used_again(tmp_path: Path) -> None:
    """The new file is merged with its own sidecar; the failed file of the same name is lost."""
    landing = Landing(tmp_path, failure_scope="flowfile")
    landing.put_records("a.json", {"bad": 1}, k="1")
    Mortal.dies_at(1, before=False)
    with pytest.raises(Killed):
        landing.run_job(run_id="r", opened=Mortal)
    replace_file(landing)

    landing.run_job(run_id="r", at=1)
    landing.run_job(at=2)

    assert landing.read_ids() == [["A"]]
    assert landing.list_names("failure") == []


def test_a_merge_that_was_withdrawn_is_never_published(tmp_path: Path) -> None:
    """A run that hung while it wrote an output publishes nothing if other runs have withdrawn its merge."""
    landing = make_landing(tmp_path, "move")
    engine = landing.engine
    stage = engine.stage_merges
    hung: list[Any] = []

    def stage_slowly(*args: Any) -> Any:
        staged = stage(*args)
        if not hung:
            hung.append(True)
            (tmp_path / "state" / "lease.json").unlink()
            replace_file(landing)
            engine.stage_merges = stage
            landing.run_job(run_id="other", at=1)
            engine.stage_merges = stage_slowly  # type: ignore[assignment]
        return staged

    engine.stage_merges = stage_slowly  # type: ignore[assignment]
    with pytest.raises(Exception, match="has taken over the lease"):
        landing.run_job(run_id="r")

    engine.stage_merges = stage
    check_merged(landing, "hung")
