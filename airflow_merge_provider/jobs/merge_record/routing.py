"""Where do files go once a plan is decided: published outputs, originals, failures, lines of the ledger.

Every step may be done again after a crash and then finds itself done.
Source: merge_record spec §11.5, steps 6 to 8.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.flowfile import FlowFile
from airflow_merge_provider.core.merge_record.landing import SIDECAR
from airflow_merge_provider.core.merge_record.plan import Failure, Merge, Plan
from airflow_merge_provider.jobs.merge_record.files.journal import Journal
from airflow_merge_provider.jobs.merge_record.files.storage import Storage
from airflow_merge_provider.jobs.merge_record.writing import Staged

_PREFIX = "merged"


@dataclass(frozen=True, slots=True)
class Places:
    """The folders of one operator; there is no ``original`` where merged sources are kept or deleted."""

    source: Storage
    merged: Storage
    failure: Storage
    original: Storage | None


def publish(
    merges: Sequence[Merge], staged: Mapping[str, Staged], staging: Storage, places: Places, journal: Journal
) -> dict[str, dict[str, Any]]:
    """Put merged files in their places and commit each with its manifest; gives the manifests."""
    manifests = places.merged.for_each(
        lambda merge: _published(merge, staged[merge.id], staging, places, journal), merges
    )
    return {merge.id: manifest for merge, manifest in zip(merges, manifests, strict=True)}


def _published(
    merge: Merge, staged: Staged, staging: Storage, places: Places, journal: Journal
) -> dict[str, Any]:
    """Put a merged file in its place, its attributes beside it, and commit it with its manifest."""
    name = f"{_PREFIX}-{merge.id}{staged.suffix}"
    attributes = {"filename": name, "path": "./", **merge.attributes, "uuid": merge.id}
    places.merged.write(f"{name}{SIDECAR}", _json(attributes))
    staging.move(staged.name, places.merged, name)
    manifest = {
        "merge_id": merge.id,
        "uri": places.merged.uri(name),
        "records": merge.records,
        "bytes": staged.size,
        "reason": merge.reason.text,
        "code": merge.reason.code,
        "attributes": attributes,
        "sources": [source.uri for source in merge.sources],
    }
    journal.publish(merge.id, manifest)
    return manifest


def route(plan: Plan, places: Places, config: MergeRecordConfig) -> None:
    """Take every source that is done out of the way: to original or to failure, or as configured."""
    merged = {source.uri: source for merge in plan.merges for source in merge.sources}
    steps: list[Callable[[], None]] = []
    if config.original_action != "keep":
        steps += [_original(merged[uri], ids, places, config) for uri, ids in plan.finished.items()]
    for failure in plan.failures:
        steps += [_failed(source, failure, places) for source in failure.sources]
    places.source.for_each(lambda step: step(), steps)


def ledger(plan: Plan, uris: Mapping[str, str], config: MergeRecordConfig) -> Iterator[dict[str, Any]]:
    """Give a line for each bin that ended, and for each file that vanished from a bin."""
    for merge in plan.merges:
        yield {
            **_line(merge, plan.now),
            "outcome": "merged",
            "uri": uris[merge.id],
            "records": merge.records,
            "bytes": merge.bytes,
            "size_basis": config.size_basis,
            "bin_age_ms": merge.age_ms,
            "threshold": dict(merge.threshold),
            "details": f"Records Merged due to: {merge.reason.text}",
            "attributes": dict(merge.attributes),
        }
    for failure in plan.failures:
        yield {**_line(failure, plan.now), "outcome": "failed", "culprit": _culprit(failure)}
    for uri in plan.lost:
        yield {"merge_id": None, "at": plan.now, "outcome": "lost", "sources": [{"uri": uri}]}


def _line(ended: Merge | Failure, now: int) -> dict[str, Any]:
    return {
        "merge_id": ended.id,
        "at": now,
        "bin": ended.bin,
        "code": ended.reason.code,
        "reason": ended.reason.text,
        "sources": [
            {"uri": source.uri, "uuid": source.uuid, "records": source.records, "part": source.part}
            for source in ended.sources
        ],
    }


def _original(
    source: FlowFile, ids: Iterable[str], places: Places, config: MergeRecordConfig
) -> Callable[[], None]:
    name = _name(source, places)

    def step() -> None:
        if config.original_action == "delete" or places.original is None:
            places.source.delete(name)
        else:
            _move(source, name, places, places.original, {"merge.uuid": ",".join(ids)})
        places.source.delete(f"{name}{SIDECAR}")

    return step


def _failed(source: FlowFile, failure: Failure, places: Places) -> Callable[[], None]:
    name = _name(source, places)
    added = {
        "failure.reason": failure.reason.text,
        "failure.code": failure.reason.code,
        "failure.bin": failure.bin,
    }
    if culprit := _culprit(failure):
        added["failure.culprit"] = culprit

    def step() -> None:
        _move(source, name, places, places.failure, added)
        places.source.delete(f"{name}{SIDECAR}")

    return step


def _move(source: FlowFile, name: str, places: Places, target: Storage, added: Mapping[str, str]) -> None:
    """Move a file under its own name, or beside one that has that name already; gone means done."""
    if not places.source.exists(name):
        return
    there = name
    if target.exists(there):
        stem, dot, ending = name.rpartition("/")[2].partition(".")
        there = f"{name[: len(name) - len(stem + dot + ending)]}{stem}-{source.uuid}{dot}{ending}"
    target.put_beside(f"{there}{SIDECAR}", _json({**source.attributes, "uuid": source.uuid, **added}))
    places.source.move(name, target, there)


def _culprit(failure: Failure) -> str | None:
    return next((source.name for source in failure.sources if source.uuid == failure.culprit), None)


def _name(source: FlowFile, places: Places) -> str:
    return source.uri.removeprefix(f"{places.source.location}/")


def _json(content: Mapping[str, str]) -> bytes:
    return json.dumps(content, ensure_ascii=False, indent=1).encode()
