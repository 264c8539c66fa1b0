"""Routing of source files after planning: originals and failures, and the lines of the ledger.

Every step is idempotent, so that it may be repeated after a crash.
Source: docs/semantics/merge_record.md, Steps of a run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.flowfile import FlowFile
from airflow_merge_provider.core.merge_record.journal import (
    LedgerLine,
    LedgerSource,
    MovedFile,
    Outcome,
)
from airflow_merge_provider.core.merge_record.landing import LONGEST_NAME, SIDECAR
from airflow_merge_provider.core.merge_record.plan import Plan, PlannedFailure, PlannedMerge
from airflow_merge_provider.core.protocol import RunToken
from airflow_merge_provider.jobs.merge_record.files.journal import to_json
from airflow_merge_provider.jobs.merge_record.files.storage import Storage

# Where the folders of originals and failures keep the sidecars that their files arrived with, for an undo.
_ARRIVED = "_sidecars"
# The number of characters that remain of the stem, and of the ending, of a name that is too long.
_SHORT = 20


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of one operator; ``original`` is None if merged sources are kept or deleted."""

    source: Storage
    merged: Storage
    failure: Storage
    original: Storage | None


def route_sources(plan: Plan, folders: Folders, config: MergeRecordConfig) -> dict[str, MovedFile]:
    """Move finished and failed sources out of the source folder; return where they are, by URI.

    Failed sources go to the failure folder, merged ones to the original folder, unless ``original_action``
    deletes or keeps them. A new file that has replaced a source under the same name stays in the source
    folder, and the next run merges it.
    """
    merged = {source.uri: source for merge in plan.merges for source in merge.sources}
    steps: dict[str, Callable[[], MovedFile | None]] = {}
    original = None if config.original_action == "delete" else folders.original
    if config.original_action != "keep":
        for uri, ids in plan.finished.items():
            steps[uri] = _build_step(merged[uri], folders, original, {"merge.uuid": ",".join(ids)})
    for failure in plan.failures:
        for source in failure.sources:
            # A file with several parts is moved once.
            added = _describe_failure(failure)
            steps.setdefault(source.uri, _build_step(source, folders, folders.failure, added))
    moved_files = folders.source.for_each(lambda step: step(), steps.values())
    return {uri: moved for uri, moved in zip(steps, moved_files, strict=True) if moved is not None}


def build_ledger(
    plan: Plan,
    uris: Mapping[str, str],
    moved_files: Mapping[str, MovedFile],
    config: MergeRecordConfig,
    token: RunToken,
) -> Iterator[LedgerLine]:
    """Yield a ledger line for each bin that ended, and for each file of a bin that no longer exists.

    :param uris: the merged files by merge ID.
    :param moved_files: where the sources were moved, by URI.
    :param token: the run that executed the plan.
    """
    for merge in plan.merges:
        yield replace(
            _build_line(merge, "merged", plan.now, moved_files, token),
            uri=uris[merge.id],
            records=merge.records,
            bytes=merge.bytes,
            size_basis=config.size_basis,
            bin_age_ms=merge.age_ms,
            threshold=merge.threshold,
            details=f"Records Merged due to: {merge.reason.text}",
            attributes=merge.attributes,
        )
    for failure in plan.failures:
        line = _build_line(failure, "failed", plan.now, moved_files, token)
        yield replace(line, culprit=_find_culprit(failure))
    for uri in plan.lost:
        yield LedgerLine("lost", plan.now, (LedgerSource(uri),), token)


def _build_line(
    ended: PlannedMerge | PlannedFailure,
    outcome: Outcome,
    now: int,
    moved_files: Mapping[str, MovedFile],
    token: RunToken,
) -> LedgerLine:
    sources = (
        LedgerSource(
            source.uri, source.uuid, source.records, source.part, source.version, source.size,
            moved_files.get(source.uri),
        )
        for source in ended.sources
    )  # fmt: skip
    reason = ended.reason
    return LedgerLine(outcome, now, tuple(sources), token, ended.id, ended.bin, reason.code, reason.text)


def _build_step(
    source: FlowFile, folders: Folders, target: Storage | None, added: Mapping[str, str]
) -> Callable[[], MovedFile | None]:
    """Return what moves a source to a folder, or deletes it if there is none, together with its sidecar."""
    name = _build_name(source, folders)

    def route_source() -> MovedFile | None:
        moved = None
        if target is not None:
            moved = _move_source(source, folders, target, added)
        elif claimed := folders.source.claim_file(name, source.version):
            folders.source.delete_path(claimed)
        _route_sidecar(source, name, folders, target)
        return moved

    return route_source


def _describe_failure(failure: PlannedFailure) -> dict[str, str]:
    culprit = _find_culprit(failure)
    return {
        "failure.reason": failure.reason.text,
        "failure.code": failure.reason.code,
        "failure.bin": failure.bin,
        **({"failure.culprit": culprit} if culprit else {}),
    }


def _route_sidecar(source: FlowFile, name: str, folders: Folders, target: Storage | None) -> None:
    """Move the sidecar that was read with a file, or delete it if there is no target.

    A newer sidecar, which belongs to a future file, stays.
    """
    sidecar = f"{name}{SIDECAR}"
    if not source.sidecar or not (claimed := folders.source.claim_file(sidecar, source.sidecar)):
        return
    if target is None:
        folders.source.delete_path(claimed)
        return
    with suppress(FileNotFoundError):
        folders.source.move_file(claimed, target, build_arrived_name(source.uuid))


def build_arrived_name(uuid: str) -> str:
    """Return the name under which the sidecar is kept with which a file arrived."""
    return f"{_ARRIVED}/{uuid}{SIDECAR}"


def _move_source(
    source: FlowFile, folders: Folders, target: Storage, added: Mapping[str, str]
) -> MovedFile | None:
    """Move a source to the target folder under its own name, with its sidecar; return where it is.

    If the name is taken or too long, the UUID of the FlowFile becomes part of the name. A copy that an
    attempt has left is replaced: its sidecar, which is written before, has the IDs of the same merges. A
    source that no longer exists has already been moved.
    """
    name = _build_name(source, folders)
    sidecar = _write_json({**source.attributes, "uuid": source.uuid, **added})

    def is_taken(target_name: str) -> bool:
        is_used = target.find_entry(target_name) is not None
        return is_used and target.read_file(f"{target_name}{SIDECAR}") != sidecar

    target_name = build_unique_name(name, source.uuid) if _is_too_long(name) or is_taken(name) else name
    if claimed := folders.source.claim_file(name, source.version):
        target.write_sidecar(f"{target_name}{SIDECAR}", sidecar)
        with suppress(FileNotFoundError):
            folders.source.move_file(claimed, target, target_name)
    entry = target.find_entry(target_name)
    return None if entry is None else MovedFile(target.location, target_name, source.uuid, entry.version)


def build_unique_name(name: str, uuid: str) -> str:
    """Return the name of a file whose own name is taken or too long, with the UUID of its FlowFile."""
    folder, slash, last = name.rpartition("/")
    stem, dot, ending = last.partition(".")
    unique_name = f"{folder}{slash}{stem}-{uuid}{dot}{ending}"
    if _is_too_long(unique_name):
        unique_name = f"{folder}{slash}{stem[:_SHORT]}-{uuid}{dot}{ending[-_SHORT:]}"
    return unique_name


def _is_too_long(name: str) -> bool:
    return len(os.fsencode(f"{name.rpartition('/')[2]}{SIDECAR}")) > LONGEST_NAME


def _find_culprit(failure: PlannedFailure) -> str | None:
    return next((source.name for source in failure.sources if source.uuid == failure.culprit), None)


def _build_name(source: FlowFile, folders: Folders) -> str:
    return source.uri.removeprefix(f"{folders.source.location}/")


def _write_json(content: Mapping[str, str]) -> bytes:
    return to_json(content, indent=1)
