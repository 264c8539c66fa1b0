"""Choose the version that an undo restores, from the history of the target alone.

The lineage of a table are the commits that its rows are based on; runs that were undone are not part of it.
So the newest run of the lineage is the newest run in force, and the entry after it is the version before it.
The side tables of the restored run go back to the versions that its state names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.population import FLAG
from airflow_merge_provider.core.report import Details
from airflow_merge_provider.core.run.previous_run import (
    RESULT,
    SIDE_TABLE_LOCATIONS,
    SIDE_TABLE_VERSIONS,
    VERSION_BEFORE,
    RunCommit,
    list_commits,
    list_commits_in_force,
    list_runs,
    list_state_commits,
)
from airflow_merge_provider.core.run.reporter import CHANGED
from airflow_merge_provider.core.run.table_log import list_properties
from airflow_merge_provider.core.source_offset import RunState
from airflow_merge_provider.core.table_history import (
    DEFINITION_OPERATIONS,
    NO_VERSION,
    REMOVES_FLAG,
    UNDO,
    HistoryEntry,
    Lineage,
)
from airflow_merge_provider.core.undo.config import UndoConfig

# The number of commits of a run that an error names.
_NAMED_MAX = 10
_HISTORY_EXPIRED_HINT = (
    "raise delta.logRetentionDuration for later runs; a full_refresh computes the target again"
)


@dataclass(frozen=True, slots=True)
class UndoChoice:
    """The version that is restored, -1 if no rows are left, and the runs that are undone, newest first.

    ``restored`` are the runs that are in force again, because an undo of them is undone. ``foreign`` are the
    commits of other writers whose changes of rows are reverted too, ``definitions`` those whose changes of
    columns, properties or constraints are.
    """

    version: int
    undone: Sequence[RunCommit]
    restored: Sequence[RunCommit] = ()
    foreign: Sequence[HistoryEntry] = ()
    definitions: Sequence[HistoryEntry] = ()

    def list_warnings(self) -> list[str]:
        """Return what is reverted beside runs; a caller who did not ask for it may have to repeat it."""
        return [
            *(
                f"the change of another writer in version {entry.version} ({entry.operation}) is reverted"
                for entry in self.foreign
            ),
            *(
                f"the change of the table's definition in version {entry.version} ({entry.operation}) is "
                "reverted too: make it again if you still need it"
                for entry in self.definitions
            ),
        ]


def choose_undo(
    config: UndoConfig,
    capability: str,
    history: Sequence[HistoryEntry],
    lineage: Lineage,
    *,
    expired_hint: str = _HISTORY_EXPIRED_HINT,
) -> UndoChoice | None:
    """Return what an undo does; None if no run is in force.

    :param history: all commits of the target that its log describes, newest first.
    :param lineage: the commits that the rows of the target are based on.
    :param expired_hint: what to do if the history does not reach back to the version before a run.
    :raises DataError: if there is no such run or version, if another writer has changed rows since, or if a
        run would be in force again that was undone alone.
    """
    if config.to_version is not None:
        return _choose_version(config.to_version, capability, history, lineage)
    if config.run is not None:
        commits = find_run(config.run, capability, history, lineage)
        commit, later = commits[-1], list_later_runs(commits, lineage, capability)
        if len(commits) > 1 and any(run.state.get(CHANGED, True) for run in later):
            raise refuse_several_commits("run", config.run, commits)
    else:
        in_force = list_runs(lineage.entries, capability)
        if not in_force:
            if lineage.is_complete:
                return None
            message = "the commits of its runs are no longer in the history of the target"
            raise build_refusal("target", message, expired_hint)
        # A run that has only moved its source offsets is undone together with the run before.
        commit = next((run for run in in_force if run.state.get(CHANGED, True)), in_force[0])
    version = find_version_before(commit, lineage)
    if UNDO in commit.state and version is not None:
        version = _find_version_with_flag(version, history)
    if version is None:
        message = f"the version before version {commit.version} is no longer in the history of the target"
        raise build_refusal("target", message, expired_hint)
    choice = _build_choice(version, capability, history, lineage)
    refuse_foreign_changes(choice.foreign, commit, version, "both")
    if UNDO not in commit.state:
        _refuse_restored_run(choice, commit, lineage, capability)
    return choice


def describe_run(commit: RunCommit) -> Details:
    """Return the identity of a run for the report: its ID, number and version, and what it had written."""
    token = commit.state.get("token") or {}
    return {
        "run_id": token.get("run_id"),
        "dag_id": token.get("dag_id"),
        "task_id": token.get("task_id"),
        "number": commit.state.get("number"),
        "version": commit.version,
        "rows": commit.rows,
    }


def _choose_version(
    version: int, capability: str, history: Sequence[HistoryEntry], lineage: Lineage
) -> UndoChoice:
    newest, oldest = history[0].version, history[-1].version
    if not oldest <= version < newest:
        hint = f"set a version from {oldest} to {newest - 1}" if oldest < newest else "there is none before"
        raise build_refusal("to_version", f"{version} is not an earlier version of the target", hint)
    return _build_choice(version, capability, history, lineage)


def find_run(
    name: str, capability: str, history: Sequence[HistoryEntry], lineage: Lineage
) -> Sequence[RunCommit]:
    """Return the commits of a run that are in force, newest first, by its ID or else by its number.

    A DAG run that was cleared, or that has several tasks for the target, has several commits. Its newest
    undo counts only if it has no other commit.

    :raises DataError: if it is not in the history, or not in force.
    """
    commits = [commit for commit in list_commits(history, capability) if not commit.is_renewal]
    same = [commit for commit in commits if (commit.state.get("token") or {}).get("run_id") == name]
    same = same or [commit for commit in commits if str(commit.state.get("number")) == name]
    if not same:
        hint = "list its runs with `airflow_merge_provider history`"
        if oldest := history[-1].version:
            hint += f", which begins with version {oldest}: older runs are no longer in it"
        raise build_refusal("run", f"the target has no run {name!r}", hint)
    in_force = {commit.version for commit in list_commits_in_force(lineage.entries, capability)}
    commits = [commit for commit in same if commit.version in in_force]
    if not commits:
        raise build_refusal(
            "run", f"the run {name!r}, version {same[0].version}, is already undone", "choose another run"
        )
    return [commit for commit in commits if UNDO not in commit.state] or commits[:1]


def list_later_runs(commits: Sequence[RunCommit], lineage: Lineage, capability: str) -> list[RunCommit]:
    """Return the other runs in force that have committed since the first of the commits of a run."""
    own = {commit.version for commit in commits}
    return [
        run
        for run in list_state_commits(lineage.entries, capability)
        if run.version > min(own) and run.version not in own and not run.is_renewal
    ]


def refuse_several_commits(path: str, name: str, commits: Sequence[RunCommit]) -> DataError:
    """Return the error of an undo that names a run with several commits, of which it can undo only one."""
    named = [f"number {commit.state.get('number')} (version {commit.version})" for commit in commits]
    more = [f"{len(named) - _NAMED_MAX} more"] if len(named) > _NAMED_MAX else []
    message = (
        f"the run {name!r} has {len(commits)} commits, and other runs have committed since the first of them:"
        f" {', '.join([*named[:_NAMED_MAX], *more])}"
    )
    return build_refusal(path, message, "set run to the number of one of them")


def find_version_before(commit: RunCommit, lineage: Lineage) -> int | None:
    """Return the version on which a run or an undo was based; -1 if it was the first commit.

    None if the history does not contain it any more.
    """
    if UNDO in commit.state:
        # Since then, an undo of all runs has removed the populated flag in a commit of its own.
        version: int | None = (commit.state.get(RESULT) or {}).get(VERSION_BEFORE)
        return commit.version - 1 if version is None else version
    earlier = [entry.version for entry in lineage.entries if entry.version < commit.version]
    if earlier:
        return earlier[0]
    return NO_VERSION if lineage.is_complete else None


def _find_version_with_flag(version: int, history: Sequence[HistoryEntry]) -> int:
    """Return the version before an undo of all runs, whose first attempt died when it had removed the flag.

    :param version: the version that the attempt found that has committed.
    """
    for entry in history:
        if entry.version > version:
            continue
        if entry.effect != "none" or _changes_definition(entry):
            break
        if REMOVES_FLAG in (entry.user_metadata or ""):
            return entry.version - 1
    return version


def _build_choice(
    version: int, capability: str, history: Sequence[HistoryEntry], lineage: Lineage
) -> UndoChoice:
    from_then = _trace_from(version, history)
    runs_now = list_runs(lineage.entries, capability)
    runs_then = list_runs([entry for entry in history if entry.version in from_then], capability)
    versions_now, versions_then = ({run.version for run in runs} for runs in (runs_now, runs_then))
    undone = [run for run in runs_now if run.version not in versions_then]
    restored = [run for run in runs_then if run.version not in versions_now]
    reverted = [entry for entry in lineage.entries if entry.version not in from_then]
    foreign = [
        entry for entry in reverted if entry.effect == "rows" and not list_commits([entry], capability)
    ]
    # Without a version before, the undo deletes all rows, and the table keeps its definition.
    definitions = [entry for entry in reverted if version != NO_VERSION and _changes_definition(entry)]
    return UndoChoice(version, undone, restored, foreign, definitions)


def _changes_definition(entry: HistoryEntry) -> bool:
    """Return whether a commit changes columns, properties or constraints; runs set the populated flag."""
    return entry.operation in DEFINITION_OPERATIONS and list_properties(entry) != {FLAG}


def _trace_from(version: int, history: Sequence[HistoryEntry]) -> set[int]:
    """Return the versions that the rows of a version are based on, as far as the history tells."""
    by_version = {entry.version: entry for entry in history}
    versions: set[int] = set()
    while version in by_version or (versions and version > NO_VERSION and version not in versions):
        versions.add(version)
        entry = by_version.get(version, HistoryEntry(version))
        restored = entry.restored_version if entry.effect == "restore" else version - 1
        if restored is None:
            break
        version = restored
    return versions


def refuse_foreign_changes(
    foreign: Sequence[HistoryEntry], commit: RunCommit, version: int | None, reverted: str
) -> None:
    """Raise an error if an undo would revert changes of other writers, whom nobody has asked.

    :param commit: the run that is undone, or the first one of several.
    :param version: the version before it; None if the history does not contain it, -1 if there is none.
    :param reverted: what the version reverts, for the hint.
    :raises DataError: with the newest of these changes.
    """
    if not foreign:
        return
    entry = foreign[0]
    if version is None:
        hint = "revert the other change first"
    elif version == NO_VERSION:
        # No version is without the first run.
        hint = (
            f"set to_version to {commit.version} to revert everything after the run and undo the run then, "
            "or revert the other change first"
        )
    else:
        hint = f"set to_version to {version} to revert {reverted}, or revert the other change first"
    raise build_refusal(
        "target",
        f"another writer changed rows in version {entry.version} ({entry.operation}): the undo would revert"
        " this change too",
        hint,
    )


def _refuse_restored_run(choice: UndoChoice, commit: RunCommit, lineage: Lineage, capability: str) -> None:
    """Raise an error if an undo would revert the undo of one run, and so bring that run back.

    :raises DataError: with the newest of these runs.
    """
    if not choice.restored:
        return
    restored = choice.restored[0]
    undo = next(
        entry
        for entry in list_commits(lineage.entries, capability)
        if entry.undone_version == restored.version
    )
    run_id, undo_id = (describe_run(entry)["run_id"] for entry in (commit, undo))
    raise build_refusal(
        "run",
        f"version {undo.version} has undone only the run {describe_run(restored)['run_id']!r}: the undo of"
        f" {run_id!r} would bring it back",
        f"set run to {run_id!r} and only to true, or first undo {undo_id!r}",
    )


def build_refusal(path: str, message: str, hint: str) -> DataError:
    return DataError.from_problems([Problem(path, "undo", message, hint)])


# The side tables whose name is not the name under which the commit of the target records them.
_SUFFIXES = {"merge_engine_removals": "__removed"}
# Side tables with a name that users choose; a run that does not write them does not record it.
_NAMED_BY_USERS = ("merge_engine_changelog", "joiner_unmatched")


class SideTableVersion(NamedTuple):
    """A side table and the version that it goes back to, or ``UNNAMED``; None if it has no rows then."""

    dataset: Dataset
    version: int | None


def list_side_tables(
    target: Dataset, state: RunState, restored_state: RunState, absent: int | None
) -> Iterator[SideTableVersion]:
    """Yield the side tables whose version differs between two states of a target.

    :param state: the state of the newest run in force.
    :param restored_state: the state of the run whose rows are restored; empty if there is none.
    :param absent: the version of a side table that this state does not name: None, or ``UNNAMED``.
    """
    before, after = (recorded.get(SIDE_TABLE_VERSIONS) or {} for recorded in (state, restored_state))
    locations: dict[str, str] = {}
    for recorded in (state, restored_state):
        locations |= recorded.get(SIDE_TABLE_LOCATIONS) or {}
    for name in sorted({*before, *after}):
        dataset = _locate(target, name, locations)
        if dataset is not None and before.get(name) != after.get(name, absent):
            yield SideTableVersion(dataset, after.get(name, absent))


def _locate(target: Dataset, name: str, locations: Mapping[str, str]) -> Dataset | None:
    if name in locations:
        return target.find_neighbour(locations[name])
    if name in _NAMED_BY_USERS:
        return None
    return target.with_suffix(_SUFFIXES.get(name, name if name.startswith("__") else f"__{name}"))
