"""Runner of MergeRecord vectors: the planner alone decides the result, so Spark is not needed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.flowfile import FlowFile
from airflow_merge_provider.core.merge_record.plan import NewFiles, PlannedMerge, plan_merges
from airflow_merge_provider.core.merge_record.properties import from_properties
from airflow_merge_provider.core.merge_record.schema import Field, Schema
from airflow_merge_provider.core.merge_record.state import State

_SECOND = 1_000_000


def run_vector(_spark: Any, vector: Mapping[str, Any], _warehouse: Path) -> dict[str, Any]:
    """Plan every trigger of one vector; bins are kept across restarts of the processor."""
    try:
        config = _parse_config(vector)
    except ConfigError as error:
        return {"id": vector["id"], "invalid_configuration": True, "message": str(error)}
    if vector["mode"] == "validate":
        return {"id": vector["id"], "invalid_configuration": False, "message": ""}
    return {"id": vector["id"], **_run_triggers(vector, config)}


def _parse_config(vector: Mapping[str, Any]) -> MergeRecordConfig:
    arguments = from_properties(vector["properties"], vector.get("environment"))
    arguments["complete_full_enough"] = vector["mode"] != "single"
    if vector.get("writer_schema"):
        writer_schema = vector["writer_schema"]
        schema = writer_schema if isinstance(writer_schema, Mapping) else {"fields": writer_schema}
        arguments["writer"] = {"format": "json", "schema": schema}
    return MergeRecordConfig.parse(arguments)


def _run_triggers(vector: Mapping[str, Any], config: MergeRecordConfig) -> dict[str, Any]:
    state = State()
    queued: dict[str, Mapping[str, Any]] = {}
    merged: list[dict[str, Any]] = []
    original: list[str] = []
    failure: list[str] = []
    for number, trigger in enumerate(vector["triggers"]):
        if trigger.get("event") == "restart":
            continue
        now = round(trigger["at"] * _SECOND)
        arrivals = list(_build_arrivals(trigger.get("arrivals", ()), now, config))
        queued |= {arrival["name"]: arrival for arrival in trigger.get("arrivals", ())}
        schemas = {key: schema for _, key, schema in arrivals}
        plan = plan_merges(
            state, NewFiles(tuple(flowfile for flowfile, _, _ in arrivals), schemas), now, config
        )
        state = plan.state
        merged += [_format_merge(number, merge, queued) for merge in plan.merges]
        original += [source.name for merge in plan.merges for source in merge.sources]
        failure += [source.name for failed in plan.failures for source in failed.sources]
    return {
        "merged": merged,
        "original": original,
        "failure": failure,
        "still_queued_or_open": [source.name for bin_ in state.bins for source in bin_.sources],
        "open_bins": len(state.bins),
    }


def _build_arrivals(
    arrivals: list[Mapping[str, Any]], now: int, config: MergeRecordConfig
) -> Iterator[tuple[FlowFile, str, Schema]]:
    for arrival in arrivals:
        schema = Schema.from_json(arrival["schema"])
        key = schema.build_key(config.schema_identity)
        fails_at = arrival.get("fail_at_record")
        flowfile = FlowFile(
            uri=arrival["name"],
            uuid=arrival["name"],
            arrival=now,
            records=len(arrival["records"]),
            bytes=arrival.get("bytes", _json_lines(arrival["records"])),
            schema=key,
            attributes={"filename": arrival["name"], **arrival["attributes"]},
            unreadable="no reader" if arrival.get("unreadable") else None,
            malformed=None if fails_at is None else f"record {fails_at}",
        )
        yield flowfile, key, schema


def _json_lines(records: list[Any]) -> int:
    """Return the size of records as JSON lines without spaces."""
    return sum(
        len(json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode()) + 1 for record in records
    )


def project_record(record: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Return a record with the fields of a schema: missing fields are None, additional fields are dropped."""
    return {field["name"]: _find_value(record, field) for field in schema.fields}


def _find_value(record: Mapping[str, Any], field: Field) -> Any:
    names = (name for name in (field["name"], *(field.get("aliases") or ())) if name in record)
    return record.get(next(names, ""))


def _format_merge(
    trigger: int, merge: PlannedMerge, queued: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    return {
        "trigger": trigger,
        "records": [
            project_record(record, merge.schema)
            for source in merge.sources
            for record in queued[source.name]["records"]
        ],
        "attributes": dict(merge.attributes),
        "reason": merge.reason.text,
        "sources": [source.name for source in merge.sources],
    }
