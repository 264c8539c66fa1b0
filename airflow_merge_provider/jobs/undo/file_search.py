"""Find the files of the runs that an undo reverts, and what prevents the undo.

Source: docs/undo.md, Files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_merge_provider.core.merge_record.landing import SIDECAR
from airflow_merge_provider.core.merge_record.state import FOLDERS
from airflow_merge_provider.core.run.previous_run import RunCommit
from airflow_merge_provider.core.run.reporter import RunResult
from airflow_merge_provider.core.undo.files import (
    FileKey,
    ReturnedFile,
    ReturnedVersions,
    WithdrawnOutput,
    refuse_files,
)
from airflow_merge_provider.jobs.merge_record.files.journal import WITHDRAWN, Journal
from airflow_merge_provider.jobs.merge_record.files.storage import Open, Storage
from airflow_merge_provider.jobs.merge_record.routing import MOVED, MovedFile


@dataclass
class FileSearch:
    """The files of the runs that are undone: where they are, and what prevents an undo."""

    journal: Journal
    opened: Open
    returned_versions: ReturnedVersions
    outputs: list[WithdrawnOutput] = field(default_factory=list)
    files: list[ReturnedFile] = field(default_factory=list)
    sources: set[FileKey] = field(default_factory=set)
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
                    "put them back with their times, or move their originals to the source folder by hand",
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
            is_unchanged = (
                entry is not None
                and entry.size == manifest.get("bytes")
                and entry.version == manifest.get("version")
            )
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
        parts: dict[FileKey, list[Mapping[str, Any]]] = {}
        for part in (part for line in lines for part in line["sources"]):
            version = self.returned_versions.find_key(part["uri"], part["version"])
            parts.setdefault(version, []).append(part)
        # Another file with the same name and content was moved to another place.
        moved_files = {(file.folder, file.name) for file in self.files}
        versions = [
            version
            for version in parts
            if version not in self.sources
            or any(
                (part[MOVED]["folder"], part[MOVED]["name"]) not in moved_files
                for part in parts[version]
                if MOVED in part
            )
        ]

        def find_location(version: FileKey) -> _Location:
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
    version: FileKey, parts: Sequence[Mapping[str, Any]], source: Storage, folders: Sequence[Storage]
) -> _Location:
    """Find a source file that was merged or has failed, from its parts in the ledger."""
    name = version[0].removeprefix(f"{source.location}/")
    entry = source.find_entry(name)
    candidates = (
        (folder, MovedFile(**part[MOVED]))
        for folder in folders
        for part in parts
        if MOVED in part and part[MOVED]["folder"] == folder.location
    )
    file = next((moved for folder, moved in candidates if _has_file(folder, moved)), None)
    if file is None:
        return _Location(is_in_place=entry is not None and entry.version == version[1])
    has_sidecar = source.find_entry(f"{name}{SIDECAR}") is not None
    returned = ReturnedFile(file.folder, file.name, source.location, name, file.uuid, version[1])
    return _Location(is_taken=entry is not None or has_sidecar, file=returned)


def _has_file(folder: Storage, moved: MovedFile) -> bool:
    entry = folder.find_entry(moved.name)
    return entry is not None and entry.version == moved.version
