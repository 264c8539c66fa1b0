"""An engine without Spark that splits files into parts, as ``partition_by`` does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.flowfile import flowfile_uuid
from airflow_merge_provider.core.merge_record.plan import NewFiles, PlannedMerge
from airflow_merge_provider.core.merge_record.schema import Schema
from airflow_merge_provider.jobs.merge_record.files.listing import FileQueue
from airflow_merge_provider.jobs.merge_record.files.storage import Storage
from airflow_merge_provider.jobs.merge_record.writing import StagedFile
from tests.jobs.merge_record.landing import PlainEngine


class PartEngine(PlainEngine):
    """An engine that splits each file into one part for each of its lines, named by its ``p``."""

    def find_arrivals(
        self, source: Storage, queue: FileQueue, config: MergeRecordConfig, now: int
    ) -> NewFiles:
        arrivals = super().find_arrivals(source, queue, config, now)
        parts = []
        for file in arrivals.flowfiles:
            for line in _read_lines(source, file.uri):
                part = line["p"]
                own = {"uuid": flowfile_uuid(file.uri, file.uuid, part), "part": part, "records": 1}
                parts.append(replace(file, **own, bytes=1, attributes={**file.attributes, "p": part}))
        return replace(arrivals, flowfiles=tuple(parts))

    def stage_merges(
        self,
        source: Storage,
        merges: Sequence[PlannedMerge],
        schemas: Mapping[str, Schema],
        config: MergeRecordConfig,
        staging: Storage,
    ) -> dict[str, StagedFile]:
        staged = {}
        for merge in merges:
            lines = [
                line
                for file in merge.sources
                for line in _read_lines(source, file.uri)
                if line["p"] == file.part
            ]
            content = "".join(json.dumps(line) + "\n" for line in lines).encode()
            staging.write_file(merge.id, content)
            staged[merge.id] = StagedFile(merge.id, ".json", len(content))
        return staged


def _read_lines(source: Storage, uri: str) -> list[dict[str, Any]]:
    content = source.read_file(uri.removeprefix(f"{source.location}/")) or b""
    return [json.loads(line) for line in content.splitlines()]
