"""The files that allow a run to resume after a crash: state, plan, manifests and ledger.

Source: docs/semantics/merge_record.md, State and lease; Steps of a run.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_merge_provider.core.errors import ConflictError, DataError
from airflow_merge_provider.core.merge_record.state import (
    LOCATION,
    STATE_PREFIX,
    State,
    find_roots,
    find_state_file,
    list_generations,
    list_old_states,
    plan_file,
    relocate_files,
    state_file,
)
from airflow_merge_provider.jobs.merge_record.files.lease import Lease
from airflow_merge_provider.jobs.merge_record.files.storage import Storage

WITHDRAWN = "withdrawn"
_KEY_LENGTH = 8


class Journal:
    """The folder ``state_path``, with one writer at a time; every step is written exactly once."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.lease = Lease(storage)

    @property
    def location(self) -> str:
        """The location of the journal."""
        return self._storage.location

    @property
    def key(self) -> str:
        """The key that distinguishes this journal from others that use the same folder."""
        return hashlib.sha256(os.fsencode(self.location)).hexdigest()[:_KEY_LENGTH]

    def read_state(self) -> tuple[State, dict[str, Any]]:
        """Return the state and the report data of the run that wrote it, empty before the first run."""
        name = self._find_state_file()
        raw = None if name is None else self._read_json(name)
        return (State(), {}) if raw is None else (State.from_json(raw["state"]), raw["report_data"])

    def list_report_data(self) -> dict[int, dict[str, Any]]:
        """Return the report data of the runs whose states still exist, by generation, newest first."""
        generations = list_generations(self._storage.list_prefixed(STATE_PREFIX))
        contents = ((generation, self._read_json(state_file(generation))) for generation in generations)
        return {generation: content["report_data"] for generation, content in contents if content is not None}

    def read_earlier_state(self, generation: int) -> State:
        """Return a state that still exists; that of generation 0 is empty.

        :raises ConflictError: when it has been deleted meanwhile.
        """
        raw = self._read_json(state_file(generation)) if generation else None
        if generation and raw is None:
            raise ConflictError(f"other runs have written newer states in {self.location}: retry the task")
        return State() if raw is None else State.from_json(raw["state"])

    def save_state(self, previous_state: State, new_state: State, report_data: Mapping[str, Any]) -> None:
        """Write the next state, and delete the plan that led to it.

        :raises ConflictError: when another run has saved one meanwhile.
        """
        self.lease.check_lease()
        if self.read_state()[0].generation != previous_state.generation:
            raise ConflictError(f"another run has changed the state in {self.location}: retry the task")
        name = state_file(new_state.generation)
        created = self._create_file(name, {"state": new_state.as_json(), "report_data": report_data})
        if not created or self._find_state_file() != name:
            # If a run hangs before it writes its state, other runs may have written newer states meanwhile.
            # No run reads the state that it writes then.
            raise ConflictError(f"other runs have written newer states in {self.location}: retry the task")
        self.clear_old_files(new_state)

    def find_unfinished_plan(self, state: State) -> dict[str, Any] | None:
        """Return the content of the plan file that an earlier run left unfinished, or None.

        The key ``plan`` holds the plan of a merge, the key ``undo`` that of an undo.
        """
        return self._read_json(plan_file(state.generation + 1))

    def write_plan(self, generation: int, content: Mapping[str, Any]) -> None:
        """Write the plan of a merge or an undo exactly once; this run or a later one executes it.

        :param generation: that of the state to which the plan leads.
        :raises ConflictError: when another run has written one.
        """
        self.lease.check_lease()
        name = plan_file(generation)
        if not self._create_file(name, content):
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

    def read_manifest(self, merge_id: str) -> dict[str, Any] | None:
        """Return the manifest of a published or ``withdrawn`` merge; None while it is undecided."""
        return self._read_json(_manifest_name(merge_id))

    def publish_merge(self, merge_id: str, manifest: Mapping[str, Any]) -> None:
        """Write the manifest of a merge, which commits the merge.

        :raises ConflictError: when another run has withdrawn the merge.
        """
        self.lease.check_lease()
        if self._create_file(_manifest_name(merge_id), manifest):
            return
        if (self.read_manifest(merge_id) or {}).get(WITHDRAWN):
            raise ConflictError(f"another run has withdrawn a merge in {self.location}: retry the task")

    def withdraw_merge(self, merge_id: str) -> None:
        """Write a manifest that prevents the merge from being published, even by a run that hangs meanwhile.

        :raises ConflictError: when it has been published meanwhile.
        """
        self.lease.check_lease()
        if not self._create_file(_manifest_name(merge_id), _build_withdrawn(merge_id)):
            manifest = self.read_manifest(merge_id) or {}
            if not manifest.get(WITHDRAWN):
                raise ConflictError(f"another run has published a merge in {self.location}: retry the task")

    def withdraw_published(self, merge_id: str, token: Mapping[str, Any]) -> None:
        """Mark the manifest of a published merge as withdrawn, by the run that undoes it."""
        self.lease.check_lease()
        content = {**_build_withdrawn(merge_id), "undone_by": dict(token), LOCATION: self.location}
        self._storage.write_file(_manifest_name(merge_id), to_json(content))

    def write_ledger(self, generation: int, lines: Iterable[Mapping[str, Any]]) -> str:
        """Write the ledger lines of a run, one for each ended bin, and return the URI of the file."""
        name = _ledger_name(generation)
        self._storage.write_file(name, b"".join(to_json(line) + b"\n" for line in lines))
        return self._storage.build_uri(name)

    def read_ledger(self, generation: int) -> list[dict[str, Any]] | None:
        """Return the ledger lines of a run, with the current locations of its files; None if it has none."""
        content = self._storage.read_file(_ledger_name(generation))
        if content is None:
            return None
        lines = [self._parse_json(_ledger_name(generation), line) for line in content.splitlines()]
        # A ledger without a state is that of a plan that is not completed.
        names = (state_file(generation), plan_file(generation))
        contents = ((name, self._storage.read_file(name)) for name in names)
        written = next((self._parse_json(name, raw) for name, raw in contents if raw is not None), {})
        return [self._relocate_content(line, written.get(LOCATION)) for line in lines]

    def _find_state_file(self) -> str | None:
        return find_state_file(self._storage.list_prefixed(STATE_PREFIX))

    def _create_file(self, name: str, content: Mapping[str, Any]) -> bool:
        return self._storage.create_file(name, to_json({**content, LOCATION: self.location}))

    def _read_json(self, name: str) -> dict[str, Any] | None:
        """Read a JSON file; if the journal has been moved since it was written, adapt its locations.

        Return None if the file does not exist.
        """
        content = self._storage.read_file(name)
        if content is None:
            return None
        raw = self._parse_json(name, content)
        return self._relocate_content(raw, raw.get(LOCATION))

    def _parse_json(self, name: str, content: bytes) -> dict[str, Any]:
        try:
            raw: dict[str, Any] = json.loads(content)
        except ValueError as error:
            raise DataError(
                f"{self._storage.build_uri(name)} is damaged: restore it from a backup ({error})"
            ) from None
        return raw

    def _relocate_content(self, raw: dict[str, Any], written_at: str | None) -> dict[str, Any]:
        """Return JSON that was written at another location with the locations that its files have now."""
        if written_at is None or written_at == self.location:
            return raw
        relocated: dict[str, Any] = relocate_files(raw, *find_roots(written_at, self.location))
        return relocated


def _manifest_name(merge_id: str) -> str:
    return f"manifests/{merge_id}.json"


def _build_withdrawn(merge_id: str) -> dict[str, Any]:
    return {"merge_id": merge_id, WITHDRAWN: True, "uri": None, "records": 0, "sources": []}


def _ledger_name(generation: int) -> str:
    return f"ledger/{generation:012d}.jsonl"


def to_json(content: Any, indent: int | None = None) -> bytes:
    """Convert a value to JSON in UTF-8; in ASCII with escapes if a file name in it is not valid UTF-8."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(content, ensure_ascii=False, indent=indent, separators=separators)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(content, indent=indent, separators=separators).encode()
