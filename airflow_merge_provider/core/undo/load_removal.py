"""Choose a load that is taken out of the middle of an SCD2 history, from the history of the target alone.

What the removal leaves is only known if every load of the history has one time, and if the loads after it
are known to confirm a state or not. Everything else is refused.
Source: docs/undo.md, One load of a history.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_merge_provider.core.errors import ConfigError, DataError
from airflow_merge_provider.core.merge_load.scd2 import Scd2Config
from airflow_merge_provider.core.run.previous_run import (
    RunCommit,
    list_commits,
    list_runs,
)
from airflow_merge_provider.core.run.reporter import CHANGED, RunResult
from airflow_merge_provider.core.table_history import UNDO, HistoryEntry, Lineage
from airflow_merge_provider.core.undo.choice import (
    build_refusal,
    describe_run,
    find_run,
    find_version_before,
    list_later_runs,
    refuse_foreign_changes,
    refuse_several_commits,
)

_LEAVE_OUT_ONLY = "leave out only: an undo of the run then undoes all later runs too"


@dataclass(frozen=True, slots=True)
class LoadRemoval:
    """A load that is undone alone, with its configuration and its time.

    ``base`` is the newest run that stays in force, from whose offsets the next run continues. ``load_times``
    are the times of the other runs.
    """

    run: RunCommit
    base: RunCommit
    config: Scd2Config
    load_time: datetime
    load_times: Sequence[datetime]

    def list_warnings(self, opened: int | None = None) -> list[str]:
        """Return warnings about values that the history does not keep.

        :param opened: how many versions the removal opens; None if that is not known yet.
        """
        config, warnings = self.config, []
        if config.overwrite:
            names = ", ".join(config.overwrite)
            warnings.append(
                f"overwrite: the values of {names} that the undone load replaced are unknown: versions keep"
                " the values that they have"
            )
        if opened and (config.track or config.track_except or config.row_version_column_name):
            warnings.append(
                "untracked columns have the values of the undone load in versions that a later load confirmed"
            )
        return warnings


def find_removal(
    name: str, capability: str, history: Sequence[HistoryEntry], lineage: Lineage
) -> LoadRemoval | None:
    """Return the load to take out of a history; None if it is the newest run, which a RESTORE undoes.

    :param name: the ID or the number of a run.
    :param history: all commits of the target that its log describes, newest first.
    :param lineage: the commits that the rows of the target are based on.
    :raises DataError: if the result would not be exact.
    """
    commits = find_run(name, capability, history, lineage)
    run = commits[-1]
    later = list_later_runs(commits, lineage, capability)
    if not later:
        return None
    if len(commits) > 1:
        if not any(other.state.get(CHANGED, True) for other in later):
            return None
        raise refuse_several_commits("only", name, commits)
    if UNDO in run.state:
        raise _refuse(f"{name!r} is an undo, and later runs are in force")
    later_entries = [entry for entry in lineage.entries if entry.version > run.version]
    foreign = [
        entry for entry in later_entries if entry.effect == "rows" and not list_commits([entry], capability)
    ]
    version = find_version_before(run, lineage)
    refuse_foreign_changes(foreign, run, version, "all changes since the run")
    other_runs = [other for other in list_runs(lineage.entries, capability) if other.version != run.version]
    if not other_runs:
        raise _refuse("no other run is in force")
    config, load_time = _read_load(run)
    _require_exact(run, config)
    load_times = [_check_other_load(other, run, load_time) for other in _list_same_history(other_runs, run)]
    return LoadRemoval(run, other_runs[0], config, load_time, load_times)


def _list_same_history(other_runs: Sequence[RunCommit], run: RunCommit) -> Iterator[RunCommit]:
    """Yield the other runs of the history, newest first."""
    for other in other_runs:
        yield other
        if other.version < run.version and RunResult.from_state(other.state).run_mode in ("initial", "full"):
            return


def _read_load(run: RunCommit) -> tuple[Scd2Config, datetime]:
    """Return the configuration and the time of a load, as its commit records them.

    :raises DataError: if it does not record them, or if the load has no single time.
    """
    recorded = run.state.get("config")
    name = describe_run(run)["run_id"]
    if recorded is None or recorded.get("strategy") != "scd2" or not recorded.get("natural_key"):
        raise _refuse("only a load of an SCD2 history with natural_key can be undone alone")
    try:
        config = Scd2Config.parse({**recorded, "source": "source", "target": "target"})
    except ConfigError as error:
        message = f"the configuration of the run {name!r} is not valid in this release: {error.message}"
        raise _refuse(message) from error
    if config.time_column is not None or config.time_given is None:
        raise _refuse(f"the rows of the run {name!r} have their own times (effective_from)")
    return config, config.time_given


def _require_exact(run: RunCommit, config: Scd2Config) -> None:
    """Raise an error if the history does not tell what later loads confirm.

    :raises DataError: if it does not.
    """
    if RunResult.from_state(run.state).run_mode == "full":
        raise _refuse("the run has replaced the history (full_refresh)")
    _require_closing(run, config)
    if config.nested == "tables":
        raise _refuse("the target was written with nested='tables'")
    if isinstance(config.scope, str):
        raise _refuse("scope is a condition, and rows outside it leave no load time")
    if config.on_late == "error" and (config.mode == "changes" or config.scope is not None):
        kind = "loads of changes" if config.mode == "changes" else "loads with scope"
        raise _refuse(f"{kind} with on_late='error' do not record which rows they confirm")


def _check_other_load(other: RunCommit, run: RunCommit, load_time: datetime) -> datetime:
    """Return the time of another load of the history.

    :raises DataError: if it prevents an exact removal.
    """
    config, other_time = _read_load(other)
    name = describe_run(other)["run_id"]
    if other_time == load_time:
        raise _refuse(f"the run {name!r} has loaded the same time, {load_time.isoformat()}")
    _require_closing(other, config)
    if other.version > run.version and RunResult.from_state(other.state).run_mode == "full":
        raise _refuse(f"the run {name!r} has replaced the history (full_refresh)")
    return other_time


def _require_closing(run: RunCommit, config: Scd2Config) -> None:
    """Raise an error if a load does not show in the history which keys it deletes.

    :raises DataError: if it does not.
    """
    name = describe_run(run)["run_id"]
    if config.scope is not None and config.has_flags:
        option = "hard_delete" if config.hard_delete is not None else "hard_delete_when"
        raise _refuse(f"the run {name!r} has {option}, whose rows may delete keys outside its scope")
    if config.on_delete in ("ignore", "purge"):
        raise _refuse(f"the run {name!r} has on_delete={config.on_delete!r}")


def _refuse(message: str) -> DataError:
    return build_refusal("only", message, _LEAVE_OUT_ONLY)
