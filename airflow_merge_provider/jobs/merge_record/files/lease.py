"""The lease that restricts a journal to one run at a time, and the detection of leases of dead runs.

Source: docs/semantics/merge_record.md, State and lease.
"""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from airflow_merge_provider.core.errors import ConflictError
from airflow_merge_provider.jobs.merge_record.files.storage import Storage

_LEASE = "lease.json"
_LEASE_SECONDS = 120.0
_RENEW_SECONDS = _LEASE_SECONDS / 4
_MICROS_PER_SECOND = 1_000_000
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")
# The index of the start time among the fields after the process name, which may contain spaces.
_STARTED = 19


class Lease:
    """The file ``lease.json`` of a folder; a thread renews it while the run is active."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.id = uuid.uuid4().hex

    @contextmanager
    def hold_lease(self, owner: Mapping[str, Any]) -> Iterator[None]:
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
            if self._is_mine(self._read_lease()):
                self._storage.delete_path(_LEASE)

    def check_lease(self) -> None:
        """Check that no other run has taken over the lease, for example because this run was suspended.

        :raises ConflictError: when one has.
        """
        if not self._is_mine(self._read_lease()):
            raise ConflictError(
                f"another run has taken over the lease in {self._storage.location}: retry the task"
            )

    def _take_lease(self, owner: Mapping[str, Any]) -> None:
        if self._storage.create_file(_LEASE, self._build_content(owner)):
            return
        current_lease = self._read_lease() or {}
        if not self._is_over(current_lease):
            owner_name = "/".join(
                str(current_lease.get("owner", {}).get(name)) for name in ("dag_id", "task_id", "run_id")
            )
            raise ConflictError(
                f"run {owner_name} holds the lease in {self._storage.location}: retry the task after that "
                "run ends, or set max_active_tis_per_dag=1"
            )
        # The expired lease is moved to a name with its own id. If two runs find it expired, only one of them
        # gets the next lease.
        expired_name = f"lease-{current_lease.get('id')}.over"
        with suppress(FileNotFoundError):
            self._storage.move_file(_LEASE, self._storage, expired_name)
        self._storage.delete_path(expired_name)
        if not self._storage.create_file(_LEASE, self._build_content(owner)):
            raise ConflictError(
                f"another run has just taken the lease in {self._storage.location}: retry the task"
            )

    def _renew_lease(self, owner: Mapping[str, Any], stop: threading.Event) -> None:
        while not stop.wait(_RENEW_SECONDS):
            # If the store does not respond, the next renewal may still succeed before the lease expires.
            with suppress(Exception):
                if self._is_mine(self._read_lease()):
                    self._storage.write_file(_LEASE, self._build_content(owner))

    def _is_over(self, lease: Mapping[str, Any]) -> bool:
        """Return whether the process of a lease has ended, or the lease has not been renewed in time."""
        if (has_ended := _is_gone(lease.get("process"))) is not None:
            return has_ended
        # Both timestamps come from the store, because the clocks of two machines may differ by minutes.
        probe = f"lease-{self.id}.now"
        self._storage.write_file(probe, b"")
        now, written = self._storage.find_entry(probe), self._storage.find_entry(_LEASE)
        self._storage.delete_path(probe)
        if now is None or written is None:
            return written is None
        return now.modified - written.modified > _LEASE_SECONDS * _MICROS_PER_SECOND

    def _build_content(self, owner: Mapping[str, Any]) -> bytes:
        return json.dumps({"id": self.id, "owner": owner, "process": identify_process(os.getpid())}).encode()

    def _is_mine(self, lease: Mapping[str, Any] | None) -> bool:
        return lease is not None and lease.get("id") == self.id

    def _read_lease(self) -> dict[str, Any] | None:
        content = self._storage.read_file(_LEASE)
        with suppress(ValueError):
            lease = None if content is None else json.loads(content)
            return lease if isinstance(lease, dict) else None
        return None


def identify_process(pid: int) -> dict[str, Any] | None:
    """Return values that identify a process uniquely; None if the system does not provide them.

    A process number alone is ambiguous outside its namespace, because every container starts at 1. Host names
    are ambiguous, too.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
        boot, namespace = _BOOT.read_text(encoding="ascii").strip(), _PID_NAMESPACE.readlink()
    except OSError:
        return None
    return {"boot": boot, "namespace": str(namespace), "pid": pid, "started": fields.split()[_STARTED]}


def _is_gone(process: Any) -> bool | None:
    """Return whether a process has ended; None if this process cannot determine it."""
    own_process = identify_process(os.getpid())
    if own_process is None or not isinstance(process, dict):
        return None
    if any(process.get(name) != own_process[name] for name in ("boot", "namespace")):
        return None
    return identify_process(int(process["pid"])) != process
