"""Tests of the undo of one load, from the history of the target alone: which load, and which are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_merge_provider.core.errors import ConfigError, DataError
from airflow_merge_provider.core.merge_load.config import describe_load
from airflow_merge_provider.core.merge_load.scd2 import Scd2Config
from airflow_merge_provider.core.merge_load.timestamps import parse_timestamp
from airflow_merge_provider.core.run.previous_run import list_runs, list_state_commits
from airflow_merge_provider.core.table_history import HistoryEntry, Lineage
from airflow_merge_provider.core.undo.choice import choose_undo
from airflow_merge_provider.core.undo.config import UndoConfig
from airflow_merge_provider.core.undo.load_removal import LoadRemoval, find_removal

HISTORY = {"strategy": "scd2", "natural_key": "id", "on_late": "repair"}
RESULT: dict[str, Any] = {"reason": "", "rows": {}, "counts": {}, "details": {}, "version_before": None}


def build_run(
    version: int, *, run_id: str = "", run_mode: str = "incremental", **settings: Any
) -> HistoryEntry:
    """Build the commit of a load of day ``version + 1``."""
    boundary = settings.pop("boundary_timestamp", f"2024-01-{version + 1:02d}")
    config = Scd2Config.parse({"source": "s", "target": "t", **HISTORY, **settings})
    recorded = describe_load(config, parse_timestamp(boundary))
    state = {"config": recorded, "result": {**RESULT, "run_mode": run_mode}}
    return build_entry(version, state, run_id)


def build_undo(version: int, undone_version: int) -> HistoryEntry:
    return build_entry(version, {"undo": {"undone_version": undone_version}}, f"u{version}")


def build_entry(version: int, state: dict[str, Any], run_id: str = "") -> HistoryEntry:
    token = {"run_id": run_id or f"r{version}"}
    metadata = {"capability": "merge_load", "number": version + 1, "token": token, **state}
    return HistoryEntry(version, "MERGE", user_metadata=json.dumps(metadata))


def find(*entries: HistoryEntry, run: str = "r1", capability: str = "merge_load") -> LoadRemoval | None:
    """Find the load to remove; the entries are given in the order of their versions."""
    newest_first = tuple(reversed(entries))
    return find_removal(run, capability, newest_first, Lineage(newest_first, is_complete=True))


def test_a_load_between_others_is_removed_alone() -> None:
    """The time is that of its commit, and the next run continues from the newest run that stays in force."""
    removal = find(build_run(0, run_mode="initial"), build_run(1), build_run(2))

    assert removal is not None
    assert (removal.run.version, removal.base.version) == (1, 2)
    assert removal.load_time == parse_timestamp("2024-01-02")
    assert set(removal.load_times) == {parse_timestamp("2024-01-01"), parse_timestamp("2024-01-03")}
    assert removal.list_warnings(opened=1) == []


def test_the_newest_run_is_restored() -> None:
    """A RESTORE undoes it, so that nothing has to be computed."""
    assert find(build_run(0), build_run(1)) is None


def test_a_run_with_several_commits_is_not_undone_alone() -> None:
    """If it was cleared, or has several tasks, the number of one of its commits names a load."""
    entries = (build_run(0), build_run(1, run_id="r"), build_run(2, run_id="r"), build_run(3))

    assert find(*entries[:3], run="r") is None
    assert find(*entries[:3], build_entry(3, {"changed": False}), run="r") is None
    with pytest.raises(DataError, match=r"only: the run 'r' has 2 commits.*number 3 \(version 2\), number 2"):
        find(*entries, run="r")
    removal = find(*entries, run="2")
    assert removal is not None
    assert removal.run.version == 1


def test_the_version_that_a_refusal_names_is_before_the_load() -> None:
    """Without one, it is that of the load."""
    loads = (build_run(0), build_run(1), build_run(2), HistoryEntry(3, "DELETE"))

    with pytest.raises(DataError, match="set to_version to 0 to revert all changes since the run, or revert"):
        find(*loads)
    with pytest.raises(DataError, match="set to_version to 0 to revert everything after the run and undo"):
        find(*loads, run="r0")


def test_the_newest_run_before_an_undo_of_one_load_is_removed() -> None:
    """A RESTORE would bring the load back that was undone alone, so an undo without only is refused."""
    entries = (build_run(0), build_run(1), build_run(2), build_undo(3, 1))
    lineage = Lineage(tuple(reversed(entries)), is_complete=True)

    removal = find(*entries, run="r2")

    assert removal is not None
    assert removal.base.version == 0
    assert [run.version for run in list_runs(lineage.entries, "merge_load")] == [2, 0]
    assert [run.version for run in list_state_commits(lineage.entries, "merge_load")] == [3, 2, 0]
    with pytest.raises(DataError, match="'r1', version 1, is already undone"):
        find(*entries)
    message = "version 3 has undone only the run 'r1': the undo of 'r2' would bring it back"
    with pytest.raises(DataError, match=message):
        choose_undo(UndoConfig(target="t"), "merge_load", lineage.entries, lineage)
    choice = choose_undo(UndoConfig(target="t", run="u3"), "merge_load", lineage.entries, lineage)
    assert choice is not None
    assert (choice.version, [run.version for run in choice.restored]) == (2, [1])
    newest_first = tuple(reversed((*entries, build_run(4))))
    later = Lineage(newest_first, is_complete=True)
    choice = choose_undo(UndoConfig(target="t", run="u3"), "merge_load", newest_first, later)
    assert choice is not None
    assert (choice.version, [run.version for run in choice.undone]) == (2, [4])


def test_values_that_are_not_versioned_are_warned_about() -> None:
    """Overwritten and untracked columns keep values that the history cannot give back."""
    settings = {"overwrite": "n", "track": "v"}
    removal = find(build_run(0, **settings), build_run(1, **settings), build_run(2, **settings))

    assert removal is not None
    assert len(removal.list_warnings()) == len(removal.list_warnings(opened=0)) == 1
    assert [text.split()[0] for text in removal.list_warnings(opened=1)] == ["overwrite:", "untracked"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"natural_key": None, "on_late": "error"}, "only a load of an SCD2 history with natural_key"),
        ({"mode": "changes", "effective_from": "at"}, r"have their own times \(effective_from\)"),
        ({"nested": "tables"}, "the target was written with nested='tables'"),
        ({"scope": "a = 1"}, "scope is a condition"),
        ({"scope": ["a"], "on_late": "error"}, "loads with scope with on_late='error'"),
        ({"mode": "changes", "on_late": "error"}, "loads of changes with on_late='error'"),
        ({"scope": ["a"], "hard_delete": "gone"}, "the run 'r1' has hard_delete"),
        ({"on_delete": "purge", "on_late": "error"}, "the run 'r1' has on_delete='purge'"),
        ({"on_delete": "ignore", "on_late": "error"}, "the run 'r1' has on_delete='ignore'"),
        ({"run_mode": "full"}, r"has replaced the history \(full_refresh\)"),
    ],
)
def test_a_load_that_cannot_be_removed_exactly_is_refused(settings: dict[str, Any], message: str) -> None:
    """The error names the undo of all later runs as the way out."""
    with pytest.raises(DataError, match=message) as refusal:
        find(build_run(0), build_run(1, **settings), build_run(2))

    assert "leave out only: an undo of the run then undoes all later runs too" in str(refusal.value)


@pytest.mark.parametrize(
    ("later", "message"),
    [
        (HistoryEntry(2, "DELETE"), r"another writer changed rows in version 2 \(DELETE\)"),
        (build_run(2, boundary_timestamp="2024-01-02"), "the run 'r2' has loaded the same time"),
        (build_run(2, run_mode="full"), r"the run 'r2' has replaced the history"),
        (build_run(2, mode="changes", on_delete="ignore"), "the run 'r2' has on_delete='ignore'"),
    ],
)
def test_later_commits_may_prevent_the_removal(later: HistoryEntry, message: str) -> None:
    """What a later commit has done to the rows of the load is not known."""
    with pytest.raises(DataError, match=message):
        find(build_run(0), build_run(1), later, build_run(3))


def test_loads_before_a_rebuild_do_not_matter() -> None:
    """The history begins with the run that has replaced it."""
    entries = (build_run(0, boundary_timestamp="2024-01-03"), build_run(1, run_mode="full"))

    removal = find(*entries, build_run(2), build_run(3), run="r2")

    assert removal is not None
    assert len(removal.load_times) == 2


def test_other_capabilities_are_refused() -> None:
    """Only loads of a history have a time."""
    for config in ({"strategy": "upsert"}, {"strategy": "scd2", "natural_key": None}):
        with pytest.raises(DataError, match="only a load of an SCD2 history with natural_key"):
            find(build_run(0), build_entry(1, {"config": config}), build_run(2))


def test_only_requires_a_run() -> None:
    """Without a run, the newest one is undone, and nothing later is there to keep."""
    with pytest.raises(ConfigError, match="only: requires run"):
        UndoConfig.parse({"target": "t", "only": True})
