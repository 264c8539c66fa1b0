"""What is written down so that a run that dies is carried on: lease, state, plan, manifests, ledger.

Source: merge_record spec §11.4 and §11.5.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from airflow_merge_provider.core.errors import ConflictError, DataError
from airflow_merge_provider.core.merge_record.plan import Plan
from airflow_merge_provider.core.merge_record.state import STATE_FILE, State, plan_file
from airflow_merge_provider.jobs.merge_record.files.storage import Storage

_LEASE = "lease.json"
_LEASE_SECONDS = 120.0


class Journal:
    """The folder ``state_path``: one writer at a time, and every step written once."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lease: str | None = None

    @property
    def location(self) -> str:
        """Where the journal is."""
        return self._storage.location

    def state(self) -> tuple[State, dict[str, Any]]:
        """Give the state, and what the run that wrote it told."""
        raw = self._json(STATE_FILE)
        return (State(), {}) if raw is None else (State.of(raw["state"]), raw["told"])

    def save(self, before: State, after: State, told: Mapping[str, Any]) -> None:
        """Put a state in place of the one before it, and drop the plan that led to it.

        :raises ConflictError: when another run has saved one meanwhile.
        """
        self.hold()
        if self.state()[0].generation != before.generation:
            raise ConflictError(f"another run has changed the state in {self.location}: run it again")
        self._storage.write(STATE_FILE, _bytes({"state": after.as_json(), "told": told}))
        self._storage.delete(plan_file(after.generation))

    def unfinished(self, state: State) -> dict[str, Any] | None:
        """Give the plan that a run before wrote down and did not finish; ``plan`` holds it."""
        return self._json(plan_file(state.generation + 1))

    def decide(self, made: Plan, beside: Mapping[str, Any]) -> None:
        """Write a plan down, once: from here on it is carried out.

        :raises ConflictError: when another run has written one.
        """
        self.hold()
        name = plan_file(made.state.generation)
        if not self._storage.create(name, _bytes({**beside, "plan": made.as_json()})):
            raise ConflictError(f"another run has planned in {self.location}: run it again")

    def abandon(self, generation: int) -> None:
        """Forget a plan: nothing of it has been carried out, or all."""
        self._storage.delete(plan_file(generation))

    def manifest(self, merge_id: str) -> dict[str, Any] | None:
        """Give what was published for a merge, or None while it was not."""
        return self._json(_manifest_name(merge_id))

    def publish(self, merge_id: str, manifest: Mapping[str, Any]) -> None:
        """Write a merge's manifest: its commit point."""
        self.hold()
        self._storage.create(_manifest_name(merge_id), _bytes(manifest))

    def record(self, generation: int, lines: Iterable[Mapping[str, Any]]) -> str:
        """Write a run's lines of the ledger, one per bin that ended, and give their place."""
        name = f"ledger/{generation:012d}.jsonl"
        self._storage.write(name, b"".join(_bytes(line) + b"\n" for line in lines))
        return self._storage.uri(name)

    @contextmanager
    def lease(self, owner: Mapping[str, Any]) -> Iterator[None]:
        """Keep other runs away from this journal while the block lasts.

        :raises ConflictError: when another run is at work.
        """
        self._lease = uuid.uuid4().hex
        self._take(owner)
        stop = threading.Event()
        beat = threading.Thread(target=self._renew, args=(owner, stop), daemon=True)
        beat.start()
        try:
            yield
        finally:
            stop.set()
            beat.join()
            if self._is_mine(self._json(_LEASE)):
                self._storage.delete(_LEASE)
            self._lease = None

    def hold(self) -> None:
        """Make sure that no other run has taken the lease over, for example because this one hung.

        :raises ConflictError: when one has.
        """
        if not self._is_mine(self._json(_LEASE)):
            raise ConflictError(f"another run has taken over the lease in {self.location}: run it again")

    def _take(self, owner: Mapping[str, Any]) -> None:
        if self._storage.create(_LEASE, self._lease_of(owner)):
            return
        held = self._json(_LEASE) or {}
        if not _is_over(held):
            who = "/".join(str(held.get("owner", {}).get(name)) for name in ("dag_id", "task_id", "run_id"))
            raise ConflictError(
                f"{who} is at work in {self.location}: run it again when that has ended, "
                "or set max_active_tis_per_dag=1"
            )
        # Out of the way under a name of its own: of two runs that see it expired, one gets the next lease.
        with suppress(FileNotFoundError):
            self._storage.move(_LEASE, self._storage, f"lease-{held.get('id')}.over")
        self._storage.delete(f"lease-{held.get('id')}.over")
        if not self._storage.create(_LEASE, self._lease_of(owner)):
            raise ConflictError(f"another run has just begun in {self.location}: run it again")

    def _renew(self, owner: Mapping[str, Any], stop: threading.Event) -> None:
        while not stop.wait(_LEASE_SECONDS / 4):
            if self._is_mine(self._json(_LEASE)):
                self._storage.write(_LEASE, self._lease_of(owner))

    def _lease_of(self, owner: Mapping[str, Any]) -> bytes:
        expires = time.time() + _LEASE_SECONDS
        where = {"host": socket.gethostname(), "pid": os.getpid()}
        return _bytes({"id": self._lease, "owner": owner, "expires": expires, **where})

    def _is_mine(self, held: Mapping[str, Any] | None) -> bool:
        return held is not None and held.get("id") == self._lease

    def _json(self, name: str) -> dict[str, Any] | None:
        content = self._storage.read(name)
        if content is None:
            return None
        try:
            raw: dict[str, Any] = json.loads(content)
        except ValueError as error:
            raise DataError(
                f"{self._storage.uri(name)} is damaged: {error}; restore it from a copy"
            ) from None
        return raw


def _is_over(held: Mapping[str, Any]) -> bool:
    """Say whether a lease has expired, or its process on this machine is gone."""
    if time.time() > held.get("expires", 0):
        return True
    if held.get("host") != socket.gethostname():
        return False
    try:
        os.kill(int(held["pid"]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _manifest_name(merge_id: str) -> str:
    return f"manifests/{merge_id}.json"


def _bytes(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
