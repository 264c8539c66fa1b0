"""The files that allow a run to resume after a crash, and the lease that restricts them to one run at a time.

Source: docs/semantics/merge_record.md, State and lease; Steps of a run.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from airflow_merge_provider.core.errors import ConflictError
from airflow_merge_provider.core.merge_record.journal import (
    LOCATION,
    STATE_PREFIX,
    JournalReader,
    LedgerLine,
    Manifest,
    StateFile,
    find_state_file,
    ledger_file,
    list_old_states,
    plan_file,
    state_file,
)
from airflow_merge_provider.core.merge_record.plan import PlanFile
from airflow_merge_provider.core.merge_record.state import State
from airflow_merge_provider.core.merge_record.stored import Stored
from airflow_merge_provider.core.protocol import RunToken
from airflow_merge_provider.core.undo.files import UndoFile
from airflow_merge_provider.jobs.merge_record.files.storage import Storage

_KEY_LENGTH = 8
_LEASE = "lease.json"
_LEASE_SECONDS = 120.0
_RENEW_SECONDS = _LEASE_SECONDS / 4
_MICROS_PER_SECOND = 1_000_000
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")
# The index of the start time among the fields after the process name, which may contain spaces.
_STARTED = 19


class Journal(JournalReader):
    """The folder ``state_path``, with one writer at a time; every step is written exactly once."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage.location, partial(storage.list_prefixed, STATE_PREFIX), storage.read_file)
        self._storage = storage
        self.lease = Lease(storage)

    @property
    def key(self) -> str:
        """The key that distinguishes this journal from others that use the same folder."""
        return hashlib.sha256(os.fsencode(self.location)).hexdigest()[:_KEY_LENGTH]

    def read_earlier_state(self, generation: int) -> State:
        """Return a state that still exists; that of generation 0 is empty.

        :raises ConflictError: when it has been deleted meanwhile.
        """
        if not generation:
            return State()
        stored = self.read_json(state_file(generation), StateFile.from_json)
        if stored is None:
            raise ConflictError(f"other runs have written newer states in {self.location}: retry the task")
        return stored.state

    def save_state(self, previous_state: State, file: StateFile) -> None:
        """Write the next state, and delete the plan that led to it.

        :raises ConflictError: when another run has saved one meanwhile.
        """
        self.lease.check_lease()
        if self.read_state()[0].generation != previous_state.generation:
            raise ConflictError(f"another run has changed the state in {self.location}: retry the task")
        name = state_file(file.state.generation)
        created = self._create_file(name, file)
        if not created or find_state_file(self._list_names()) != name:
            # If a run hangs before it writes its state, other runs may have written newer states meanwhile.
            # No run reads the state that it writes then.
            raise ConflictError(f"other runs have written newer states in {self.location}: retry the task")
        self.clear_old_files(file.state)

    def find_unfinished_plan(self, state: State) -> PlanFile | UndoFile | None:
        """Return the plan of a merge or an undo that an earlier run left unfinished, or None."""
        return self.read_json(
            plan_file(state.generation + 1),
            lambda raw: UndoFile.from_json(raw) if "undo" in raw else PlanFile.from_json(raw),
        )

    def write_plan(self, generation: int, plan: PlanFile | UndoFile) -> None:
        """Write the plan of a merge or an undo exactly once; this run or a later one executes it.

        :param generation: that of the state to which the plan leads.
        :raises ConflictError: when another run has written one.
        """
        self.lease.check_lease()
        name = plan_file(generation)
        if not self._create_file(name, plan):
            raise ConflictError(f"another run has written a plan in {self.location}: retry the task")
        # If this run hangs here, other runs may use this number and remove their plan file. The number must
        # not be used a second time.
        if self.read_state()[0].generation >= generation:
            self._storage.delete_path(name)
            raise ConflictError(f"other runs have written newer states in {self.location}: retry the task")

    def clear_old_files(self, state: State) -> None:
        """Delete the plan of a state, and all older states but the most recent one."""
        self._storage.delete_path(plan_file(state.generation))
        for name in list_old_states(self._storage.list_prefixed(STATE_PREFIX), state.generation):
            self._storage.delete_path(name)

    def read_manifest(self, merge_id: str) -> Manifest | None:
        """Return the manifest of a published or withdrawn merge; None while it is undecided."""
        return self.read_json(_manifest_name(merge_id), Manifest.from_json)

    def publish_merge(self, manifest: Manifest) -> None:
        """Write the manifest of a merge, which commits the merge.

        :raises ConflictError: when another run has withdrawn the merge.
        """
        self.lease.check_lease()
        is_new = self._create_file(_manifest_name(manifest.merge_id), manifest)
        if not is_new and self._is_withdrawn(manifest.merge_id):
            raise ConflictError(f"another run has withdrawn a merge in {self.location}: retry the task")

    def withdraw_merge(self, merge_id: str) -> None:
        """Write a manifest that prevents the merge from being published, even by a run that hangs meanwhile.

        :raises ConflictError: when it has been published meanwhile.
        """
        self.lease.check_lease()
        is_new = self._create_file(_manifest_name(merge_id), Manifest(merge_id, withdrawn=True))
        if not is_new and not self._is_withdrawn(merge_id):
            raise ConflictError(f"another run has published a merge in {self.location}: retry the task")

    def withdraw_published(self, merge_id: str, token: RunToken) -> None:
        """Mark the manifest of a published merge as withdrawn, by the run that undoes it."""
        self.lease.check_lease()
        content = Manifest(merge_id, withdrawn=True, undone_by=token).as_json()
        self._storage.write_file(_manifest_name(merge_id), to_json({**content, LOCATION: self.location}))

    def write_ledger(self, generation: int, lines: Iterable[LedgerLine]) -> str:
        """Write the ledger lines of a run, one for each ended bin, and return the URI of the file."""
        name = ledger_file(generation)
        self._storage.write_file(name, b"".join(to_json(line.as_json()) + b"\n" for line in lines))
        return self._storage.build_uri(name)

    def _create_file(self, name: str, content: Stored) -> bool:
        return self._storage.create_file(name, to_json({**content.as_json(), LOCATION: self.location}))

    def _is_withdrawn(self, merge_id: str) -> bool:
        manifest = self.read_manifest(merge_id)
        return manifest is not None and manifest.withdrawn is True


@dataclass(frozen=True, slots=True)
class Process(Stored):
    """The identity of a process; its number is ambiguous, because every container starts at 1."""

    boot: str
    namespace: str
    pid: int
    started: str


@dataclass(frozen=True, slots=True)
class LeaseFile(Stored):
    """The content of a lease: its ID, and the run that holds it with its process, if they are known."""

    id: str | None = None
    owner: RunToken | None = None
    process: Process | None = None


class Lease:
    """The file ``lease.json`` of a folder; a thread renews it while the run is active."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.id = uuid.uuid4().hex

    @contextmanager
    def hold_lease(self, owner: RunToken) -> Iterator[None]:
        """Hold the lease during the ``with`` block, so that no other run can work on the journal.

        :raises ConflictError: when another run is at work.
        """
        self._take_lease(owner)
        stop = threading.Event()
        beat = threading.Thread(target=self._renew_lease, args=(owner, stop), daemon=True)
        beat.start()
        try:
            yield
        finally:
            stop.set()
            beat.join()
            if self._is_mine():
                self._storage.delete_path(_LEASE)

    def check_lease(self) -> None:
        """Check that no other run has taken over the lease, for example because this run was suspended.

        :raises ConflictError: when one has.
        """
        if not self._is_mine():
            raise ConflictError(
                f"another run has taken over the lease in {self._storage.location}: retry the task"
            )

    def _take_lease(self, owner: RunToken) -> None:
        if self._storage.create_file(_LEASE, self._build_content(owner)):
            return
        current_lease = self._read_lease() or LeaseFile()
        if not self._is_over(current_lease):
            holder = current_lease.owner
            name = f"{holder.dag_id}/{holder.task_id}/{holder.run_id}" if holder else "unknown"
            raise ConflictError(
                f"run {name} holds the lease in {self._storage.location}: retry the task after that "
                "run ends, or set max_active_tis_per_dag=1"
            )
        # The expired lease is moved to a name with its own id. If two runs find it expired, only one of them
        # gets the next lease.
        expired_name = f"lease-{current_lease.id}.over"
        with suppress(FileNotFoundError):
            self._storage.move_file(_LEASE, self._storage, expired_name)
        self._storage.delete_path(expired_name)
        if not self._storage.create_file(_LEASE, self._build_content(owner)):
            raise ConflictError(
                f"another run has just taken the lease in {self._storage.location}: retry the task"
            )

    def _renew_lease(self, owner: RunToken, stop: threading.Event) -> None:
        while not stop.wait(_RENEW_SECONDS):
            # If the store does not respond, the next renewal may still succeed before the lease expires.
            with suppress(Exception):
                if self._is_mine():
                    self._storage.write_file(_LEASE, self._build_content(owner))

    def _is_over(self, lease: LeaseFile) -> bool:
        """Return whether the process of a lease has ended, or the lease has not been renewed in time."""
        if (has_ended := _is_gone(lease.process)) is not None:
            return has_ended
        # Both timestamps come from the store, because the clocks of two machines may differ by minutes.
        probe = f"lease-{self.id}.now"
        self._storage.write_file(probe, b"")
        now, written = self._storage.find_entry(probe), self._storage.find_entry(_LEASE)
        self._storage.delete_path(probe)
        if now is None or written is None:
            return written is None
        return now.modified - written.modified > _LEASE_SECONDS * _MICROS_PER_SECOND

    def _build_content(self, owner: RunToken) -> bytes:
        return to_json(LeaseFile(self.id, owner, identify_process(os.getpid())).as_json())

    def _is_mine(self) -> bool:
        lease = self._read_lease()
        return lease is not None and lease.id == self.id

    def _read_lease(self) -> LeaseFile | None:
        content = self._storage.read_file(_LEASE) or b""
        with suppress(ValueError, TypeError, AttributeError):
            pairs = json.loads(content).items()
            return LeaseFile.from_json({name: value for name, value in pairs if value})
        return None


def identify_process(pid: int) -> Process | None:
    """Return the identity of a process; None if the system does not provide it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
        boot, namespace = _BOOT.read_text(encoding="ascii").strip(), _PID_NAMESPACE.readlink()
    except OSError:
        return None
    return Process(boot, str(namespace), pid, fields.split()[_STARTED])


def _is_gone(process: Process | None) -> bool | None:
    """Return whether a process has ended; None if this process cannot determine it."""
    own_process = identify_process(os.getpid())
    if own_process is None or process is None:
        return None
    is_near = (process.boot, process.namespace) == (own_process.boot, own_process.namespace)
    return identify_process(process.pid) != process if is_near else None


def _manifest_name(merge_id: str) -> str:
    return f"manifests/{merge_id}.json"


def to_json(content: Any, indent: int | None = None) -> bytes:
    """Convert a value to JSON in UTF-8; in ASCII with escapes if a file name in it is not valid UTF-8."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(content, ensure_ascii=False, indent=indent, separators=separators)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(content, indent=indent, separators=separators).encode()
