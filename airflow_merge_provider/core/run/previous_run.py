"""Find the run whose result a target holds, and the commit of an earlier attempt of this run.

The state of a run is on its commit, so it goes back with the rows: after a ``RESTORE`` the previous run is
the run that wrote the restored rows. Maintenance changes nothing. Rows changed by another writer are
reported, so that no run treats such a target as up to date.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.run.table_log import (
    HISTORY_PAGE,
    LOG_RETENTION,
    TableLog,
    find_last_number,
    find_log_retention,
    has_owner,
    parse_metadata,
    require_no_deletion_vectors,
    require_owner,
)
from airflow_merge_provider.core.run_mode import ADOPTED, ALL_UNDONE, NEVER_RUN, STATE_EXPIRED
from airflow_merge_provider.core.source_offset import RunState
from airflow_merge_provider.core.table_history import (
    PURGE,
    UNDO,
    UNDONE_VERSION,
    HistoryEntry,
    Lineage,
    trace_lineage,
)

# The clocks of writers may differ by this much, in milliseconds.
_CLOCK_SKEW = 3_600_000
# The key of the run whose state a commit repeats: its version, and the rows that it had written.
RENEWAL = "renewal"
_CAPABILITY, TOKEN, RESULT, VERSION_BEFORE = "capability", "token", "result", "version_before"
SIDE_TABLE_VERSIONS, SIDE_TABLE_LOCATIONS = "side_table_versions", "side_table_locations"
# The key of a state that may lack names of side tables, because an earlier state has aged out of the log.
HAS_UNNAMED_SIDE_TABLES = "has_unnamed_side_tables"
# The version of a side table whose name has aged out: the newest one of the runs that have committed.
UNNAMED = -1


@dataclass(frozen=True, slots=True)
class RunCommit:
    """A commit of a run: its version, its state, and the rows written, None if unknown.

    ``timestamp`` is in milliseconds since 1970 UTC.
    """

    version: int
    state: RunState
    rows: int | None = None
    timestamp: int = 0

    @property
    def is_renewal(self) -> bool:
        """Whether the commit only repeats the state of the run before it."""
        return RENEWAL in self.state

    @property
    def undone_version(self) -> int | None:
        """The version of the only run that this commit has undone; None if it is not such an undo."""
        version = (self.state.get(UNDO) or {}).get(UNDONE_VERSION)
        return version if isinstance(version, int) else None


@dataclass(frozen=True, slots=True)
class PreviousRun:
    """The last run whose rows the target holds, or the undo of one run among earlier ones.

    ``number`` is the newest transaction of the target, which a RESTORE does not revert; 0 if no run has
    committed yet. ``version`` is the newest version of the target, ``run_version`` the version that the
    previous run committed. If that commit has aged out of the history, or if an undo has undone all runs
    (``is_reset``), ``run_version`` is None and ``state`` is empty. ``newest_state`` is the state of the
    newest run, even if a RESTORE has undone that run: counters continue from there. ``changed_by`` is the
    newest commit of another writer that changed rows since then. ``rows_version`` is the version whose commit
    was the last to change the rows, whoever made it; -1 if none did, None if unknown. ``own_commit`` is the
    commit of an earlier attempt of this run, ``cleared_commit`` one from before the run was cleared.
    ``is_adopted`` is set if another program has written the table, and the run takes it over. ``is_purged``
    is set if the files of the previous run were rewritten without deleted rows. ``is_searched`` is unset if
    the history begins after the run was created, so that a commit of an earlier attempt may have aged out.
    ``is_expiring`` is set if the log may soon lose the commit of the previous run.
    ``overlooked`` is a change of another writer that came before the commit of the previous run, and that it
    had not read: a killed process did not revert its commit.
    """

    number: int
    version: int
    run_version: int | None
    state: RunState
    rows: int | None = None
    newest_state: RunState = field(default_factory=dict)
    changed_by: HistoryEntry | None = None
    is_reset: bool = False
    rows_version: int | None = None
    own_commit: RunCommit | None = None
    cleared_commit: RunCommit | None = None
    is_adopted: bool = False
    is_purged: bool = False
    is_searched: bool = True
    is_expiring: bool = False
    overlooked: HistoryEntry | None = None

    @property
    def run_number(self) -> int:
        """The number of the previous run; smaller than ``number`` if a RESTORE has undone later runs."""
        return int(self.state.get("number", self.number))

    @property
    def is_restored(self) -> bool:
        """Whether a RESTORE has undone runs of the target."""
        return self.run_number < self.number

    @property
    def is_expired(self) -> bool:
        """Whether the commit of the previous run has aged out of the history."""
        return bool(self.number) and self.run_version is None and not self.is_reset

    @property
    def missing_state_reason(self) -> str:
        """Why there is no state to continue from."""
        if self.is_adopted:
            return ADOPTED
        if not self.number:
            return NEVER_RUN
        return ALL_UNDONE if self.is_reset else STATE_EXPIRED

    @property
    def side_table_versions(self) -> Mapping[str, int]:
        """The versions of the side tables that belong to the rows, by the capability's name of each table."""
        return self.state.get(SIDE_TABLE_VERSIONS) or {}

    @property
    def has_unnamed_side_tables(self) -> bool:
        """Whether side tables may belong to the rows that the state does not name."""
        return self.is_expired or HAS_UNNAMED_SIDE_TABLES in self.state

    def find_side_table_version(self, name: str) -> int | None:
        """Return the version of a side table of the rows, or ``UNNAMED``; None if there is none."""
        return self.side_table_versions.get(name, UNNAMED if self.has_unnamed_side_tables else None)

    @property
    def renewed_state(self) -> RunState:
        """The state in the form in which a commit without rows repeats it."""
        result = self.state.get(RESULT)
        return {
            **self.state,
            **({RESULT: {**result, VERSION_BEFORE: self.version}} if result else {}),
            RENEWAL: self.state.get(RENEWAL) or {"version": self.run_version, "rows": self.rows},
        }

    @property
    def integrity_warnings(self) -> list[str]:
        """Warnings about what earlier runs have left: a state that has aged out, or rows of another writer.

        The previous run may have overwritten or doubled rows of another writer.
        """
        if self.is_expired and not self.is_adopted:
            effect = "its source offsets are unknown, and side tables continue"
            return [f"{STATE_EXPIRED}: {effect} (let the task run more often, or raise {LOG_RETENTION})"]
        if self.overlooked is None:
            return []
        version, operation = self.overlooked.version, self.overlooked.operation or "a commit"
        message = (
            f"version {self.run_version} of the target was written without knowledge of version {version}, "
            f"{operation} of another writer: compare both versions, and repair the rows"
        )
        return [message]

    @property
    def warnings(self) -> list[str]:
        """Warnings about the target for the user, before the next run."""
        # The rows of an adopted table are those of another writer, also after an undo of the first run.
        if self.changed_by is None or not self.number or self.is_adopted:
            return []
        operation = self.changed_by.operation or "a commit"
        return [
            f"another writer changed rows of the target: {operation} in version {self.changed_by.version}"
        ]


def load_previous_run(
    log: TableLog,
    target: Dataset,
    capability: str,
    request: JobRequest | None = None,
    *,
    adopts: bool | None = None,
) -> PreviousRun | None:
    """Return the previous run of a target; None if the target does not exist.

    :param request: the run whose own commit is searched.
    :param adopts: whether the run takes over a table of another program; None if the capability cannot.
    :raises DataError: if the target is not a Delta table, or not one that this capability wrote.
    :raises ConfigError: if the run excludes deletion vectors, and the target has them.
    """
    run_after = None if request is None or request.run_after is None else request.run_after // 1000
    history: Sequence[HistoryEntry] = []
    lineage = Lineage((), is_complete=False)
    own_commits: list[RunCommit] = []
    runs: list[RunCommit] = []
    is_adopted = False
    for limit in (HISTORY_PAGE, 10 * HISTORY_PAGE, None):
        history = log.read_history(target, limit)
        if not history:
            return None
        if limit == HISTORY_PAGE:
            is_adopted = bool(adopts) and not has_owner(log, target)
            if not is_adopted:
                require_owner(log, target, capability, can_adopt=adopts is not None)
            if request is not None and not request.deletion_vectors:
                require_no_deletion_vectors(log, target)
        lineage = trace_lineage(history, partial(log.find_restored_version, target))
        commits = list_commits_in_force(lineage.entries, capability)
        runs = list_state_commits(lineage.entries, capability)
        own_commits = [run for run in commits if request and request.run.is_same_run(run.state.get(TOKEN))]
        is_found = bool(own_commits) or request is None or _is_reaching(history, run_after)
        if len(history) != limit or (runs and is_found):
            break
    previous_run = _build_previous_run(log, target, capability, history, lineage)
    if adopts is not None and previous_run.run_version is None and lineage.is_complete:
        # An undo of the run that took over a table leaves the rows of the other program, and our property.
        is_adopted = is_adopted or previous_run.changed_by is not None
    is_searched = run_after is None or history[-1].version == 0 or _is_reaching(history, run_after)
    previous_run = replace(
        previous_run,
        is_adopted=is_adopted,
        is_searched=is_searched,
        is_expiring=bool(runs) and _is_expiring(log, target, capability, runs[0], request),
    )
    if request is None or not own_commits:
        return previous_run
    attempts = [run for run in own_commits if request.run.is_same_attempt(run.state.get(TOKEN))]
    return replace(previous_run, own_commit=next(iter(attempts), None), cleared_commit=own_commits[0])


def _build_previous_run(
    log: TableLog, target: Dataset, capability: str, history: Sequence[HistoryEntry], lineage: Lineage
) -> PreviousRun:
    version = history[0].version
    commits = list_commits(history, capability)
    newest = next((commit for commit in commits if UNDO not in commit.state), None)
    newest_state = {} if newest is None else newest.state
    run = next(iter(list_state_commits(lineage.entries, capability)), None)
    changed_by = _find_foreign_change(lineage.entries, -1 if run is None else run.version)
    number, rows_version = find_last_number(log, target, capability, history), lineage.rows_version
    if run is None:
        is_reset = any(entry.is_reset for entry in lineage.entries)
        return PreviousRun(number, version, None, {}, None, newest_state, changed_by, is_reset, rows_version)
    later_operations = {entry.operation for entry in lineage.entries if entry.version > run.version}
    return PreviousRun(
        number, version, run.version, run.state, run.rows, newest_state, changed_by,
        rows_version=rows_version, is_purged=PURGE in later_operations,
        overlooked=_find_overlooked(lineage.entries, run),
    )  # fmt: skip


def list_runs(entries: Sequence[HistoryEntry], capability: str) -> list[RunCommit]:
    """Return the commits of the runs in force, without those of an undo or a renewed state.

    :param entries: commits that the rows of one version are based on, newest first.
    """
    commits = list_commits_in_force(entries, capability)
    return [commit for commit in commits if UNDO not in commit.state and not commit.is_renewal]


def list_state_commits(entries: Sequence[HistoryEntry], capability: str) -> list[RunCommit]:
    """Return the commits from whose state a run continues: runs in force, undos of one run, renewed states.

    The undo of one run keeps later runs, so its commit carries the state of the newest of them.
    """
    return [
        commit
        for commit in list_commits_in_force(entries, capability)
        if UNDO not in commit.state or commit.undone_version is not None
    ]


def list_commits_in_force(entries: Sequence[HistoryEntry], capability: str) -> list[RunCommit]:
    """Return the commits of a capability without the runs that an undo has taken out from between others."""
    commits = list_commits(entries, capability)
    undone_versions = {commit.undone_version for commit in commits}
    return [commit for commit in commits if commit.version not in undone_versions]


def list_commits(entries: Sequence[HistoryEntry], capability: str) -> list[RunCommit]:
    """Return the commits of a capability: those of its runs, those that undid some, and renewed states."""
    commits = ((entry, parse_metadata(entry)) for entry in entries)
    return [
        RunCommit(entry.version, metadata, metadata.get(RENEWAL, {}).get("rows", entry.rows), entry.timestamp)
        for entry, metadata in commits
        if metadata.get(_CAPABILITY) == capability
    ]


def _find_foreign_change(entries: Sequence[HistoryEntry], since: int) -> HistoryEntry | None:
    """Return the newest commit after a version that changed rows, other than a RESTORE."""
    return next((entry for entry in entries if entry.version > since and entry.effect == "rows"), None)


def _find_overlooked(entries: Sequence[HistoryEntry], run: RunCommit) -> HistoryEntry | None:
    """Return the newest change between the version that a run had found and its commit."""
    since = (run.state.get(RESULT) or {}).get(VERSION_BEFORE)
    if since is None:
        return None
    between = (entry for entry in entries if since < entry.version < run.version)
    return next((entry for entry in between if entry.effect != "none"), None)


def _is_expiring(
    log: TableLog, target: Dataset, capability: str, run: RunCommit, request: JobRequest | None
) -> bool:
    """Return whether a run that may commit finds a state older than half of the time that the log keeps."""
    if request is None or request.job != capability or request.until != "commit":
        return False
    age = request.started_at // 1000 - run.timestamp
    return age > find_log_retention(log.read_properties(target)) // 2


def _is_reaching(history: Sequence[HistoryEntry], run_after: int | None) -> bool:
    """Return whether the history goes back to the time before which no attempt of the run has begun."""
    return run_after is not None and history[-1].timestamp < run_after - _CLOCK_SKEW
