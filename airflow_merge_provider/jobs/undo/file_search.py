"""Find the files of the runs that an undo reverts, and what prevents the undo.

Source: docs/undo.md, Files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_merge_provider.core.merge_record.landing import SIDECAR
from airflow_merge_provider.core.merge_record.state import FOLDERS
from airflow_merge_provider.core.run.previous_run import RunCommit
from airflow_merge_provider.core.run.reporter import RunResult
from airflow_merge_provider.core.undo.files import ReturnedFile, WithdrawnOutput, refuse_files
from airflow_merge_provider.jobs.merge_record.files.journal import WITHDRAWN, Journal
from airflow_merge_provider.jobs.merge_record.files.storage import LocalStorage, Open, Storage
from airflow_merge_provider.jobs.merge_record.routing import build_unique_name

# The URI and the version of a file.
_Version = tuple[str, str]


@dataclass
class FileSearch:
    """The files of the runs that are undone: where they are, and what prevents an undo."""

    journal: Journal
    opened: Open
    outputs: list[WithdrawnOutput] = field(default_factory=list)
    files: list[ReturnedFile] = field(default_factory=list)
    sources: set[_Version] = field(default_factory=set)
    records: int = 0
    missing_failures: list[str] = field(default_factory=list)
    _changed_outputs: list[str] = field(default_factory=list)
    _missing_originals: list[str] = field(default_factory=list)
    _taken_names: list[str] = field(default_factory=list)
    _missing_ledgers: list[str] = field(default_factory=list)

    def add_run(self, run: RunCommit) -> None:
        """Find the outputs, originals and failures of a run."""
        lines = self.journal.read_ledger(run.version)
        if lines is None:
            if ledger := RunResult.from_state(run.state).details.get("ledger"):
                self._missing_ledgers.append(ledger)
            return
        locations = run.state[FOLDERS]
        source = self.opened(locations["source"])
        folders = [self.opened(locations[name]) for name in ("original", "failure") if locations[name]]
        merged = [line for line in lines if line["outcome"] == "merged"]
        self._find_outputs(merged, self.opened(locations["merged"]))
        self._find_sources(merged, source, folders, self._missing_originals)
        failed = [line for line in lines if line["outcome"] == "failed"]
        self._find_sources(failed, source, folders, self.missing_failures)

    def refuse_problems(self) -> None:
        """Raise an error if something prevents the undo.

        :raises DataError: with every reason.
        """
        refuse_files(
            [
                (
                    "outputs that were changed or removed since, whose records may be in use",
                    "put them back, or move their originals to the source folder by hand",
                    self._changed_outputs,
                ),
                (
                    "merged source files that no longer exist or have changed",
                    "an undo needs them: use original_action 'move', and keep the originals",
                    self._missing_originals,
                ),
                (
                    "new files in the source folder with the names of files to move back",
                    "let the task merge them first, or rename them",
                    self._taken_names,
                ),
                (
                    "files of the ledger that no longer exist",
                    "restore them from a backup",
                    self._missing_ledgers,
                ),
            ]
        )

    def _find_outputs(self, lines: Sequence[Mapping[str, Any]], folder: Storage) -> None:
        def check_output(line: Mapping[str, Any]) -> WithdrawnOutput | None:
            manifest = self.journal.read_manifest(line["merge_id"]) or {}
            name = str(line["uri"]).removeprefix(f"{folder.location}/")
            entry = folder.find_entry(name)
            is_unchanged = entry is not None and entry.size == manifest.get("bytes")
            if manifest.get(WITHDRAWN) or not is_unchanged:
                return None
            return WithdrawnOutput(line["merge_id"], folder.location, name)

        for line, output in zip(lines, folder.for_each(check_output, lines), strict=True):
            if output is None:
                self._changed_outputs.append(str(line["uri"]))
                continue
            self.outputs.append(output)
            self.records += line["records"]

    def _find_sources(
        self,
        lines: Sequence[Mapping[str, Any]],
        source: Storage,
        folders: Sequence[Storage],
        missing: list[str],
    ) -> None:
        """Find the sources of merges or failures: in place, or in the folders to which they were moved."""
        parts: dict[_Version, list[Mapping[str, Any]]] = {}
        for part in (part for line in lines for part in line["sources"]):
            parts.setdefault((part["uri"], part["version"]), []).append(part)
        versions = [version for version in parts if version not in self.sources]

        def find_location(version: _Version) -> _Location:
            return _find_location(version, parts[version], source, folders)

        names = {(file.source, file.source_name) for file in self.files}
        for version, location in zip(versions, source.for_each(find_location, versions), strict=True):
            if not location.is_in_place and location.file is None:
                missing.append(version[0])
                continue
            self.sources.add(version)
            if (file := location.file) is not None:
                if location.is_taken or (file.source, file.source_name) in names:
                    self._taken_names.append(version[0])
                names.add((file.source, file.source_name))
                self.files.append(file)


@dataclass(frozen=True, slots=True)
class _Location:
    """Where a source file is: in the source folder, in another one, or nowhere.

    ``is_taken`` is True if another file, or its sidecar, has its name in the source folder.
    """

    is_in_place: bool = False
    is_taken: bool = False
    file: ReturnedFile | None = None


def _find_location(
    version: _Version, parts: Sequence[Mapping[str, Any]], source: Storage, folders: Sequence[Storage]
) -> _Location:
    """Find a source file that was merged or has failed, from its parts in the ledger."""
    name = version[0].removeprefix(f"{source.location}/")
    entry = source.find_entry(name)
    if entry is not None and entry.version == version[1]:
        return _Location(is_in_place=True)
    candidates = (
        ReturnedFile(folder.location, moved_name, source.location, name, part["uuid"])
        for folder in folders
        for part in parts
        for moved_name in (name, build_unique_name(name, part["uuid"]))
        if _is_moved_file(folder, moved_name, part)
    )
    file = next(candidates, None)
    has_sidecar = source.find_entry(f"{name}{SIDECAR}") is not None
    return _Location(is_taken=file is not None and (entry is not None or has_sidecar), file=file)


def _is_moved_file(folder: Storage, name: str, part: Mapping[str, Any]) -> bool:
    """Return whether a file is the one that a run has moved, and unchanged since.

    A local file keeps its version when it is moved; in an object store, its copy may have another tag.
    """
    if _read_uuid(folder, name) != part["uuid"]:
        return False
    entry = folder.find_entry(name)
    if entry is None or entry.version == part["version"]:
        return entry is not None
    return not isinstance(folder, LocalStorage) and entry.size == part["size"]


def _read_uuid(folder: Storage, name: str) -> str | None:
    """Return the UUID of the FlowFile in the sidecar of a file that a run has moved."""
    content = folder.read_file(f"{name}{SIDECAR}")
    if content is None:
        return None
    try:
        attributes = json.loads(content)
    except ValueError:
        return None
    return attributes.get("uuid") if isinstance(attributes, dict) else None
