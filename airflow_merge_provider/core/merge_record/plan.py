"""The plan of a run: a pure function of the state, the new files, their sizes, the time and the options.

Source: docs/semantics/merge_record.md, Bins; Attributes; Steps of a run.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field as default, replace
from types import MappingProxyType

from airflow_merge_provider.core.merge_record.bins import (
    FULL,
    Bins,
    EndedBin,
    Reason,
    describe_lost,
    describe_malformed,
    describe_rejected,
    describe_unwritable,
)
from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.flowfile import FlowFile, inherit_attributes, merge_id
from airflow_merge_provider.core.merge_record.schema import (
    Schema,
    build_text_keys,
    complete_schema,
    find_unwritable_field,
    unite_schemas,
)
from airflow_merge_provider.core.merge_record.state import (
    State,
    WrittenSizes,
    compute_fingerprint,
    remove_files,
)
from airflow_merge_provider.core.merge_record.stored import Stored
from airflow_merge_provider.core.protocol import RunToken

MIME_TYPES = {
    "csv": "text/csv",
    "json": "application/x-ndjson",
    "json-array": "application/json",
    "avro": "application/avro-binary",
    "parquet": "application/vnd.apache.parquet",
    "orc": "application/vnd.apache.orc",
    "xml": "application/xml",
}
_JSON_FORMATS = ("json", "json-array")
_MICROS_PER_MILLI = 1000
NO_ATTRIBUTES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class NewFiles:
    """The files that are new in this run, in queue order, and their schemas by key."""

    flowfiles: tuple[FlowFile, ...] = ()
    schemas: Mapping[str, Schema] = default(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlannedMerge(Stored):
    """One merged file to write: its sources, its fields and attributes, and the reason."""

    id: str
    bin: str
    reason: Reason
    sources: tuple[FlowFile, ...]
    schema: Schema
    attributes: Mapping[str, str]
    records: int
    bytes: int
    age_ms: int
    threshold: Mapping[str, int | None] = default(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlannedFailure(Stored):
    """One failed bin, whose sources are moved to failure together.

    ``culprit`` is the uuid of the FlowFile that made it fail.
    """

    id: str
    bin: str
    reason: Reason
    sources: tuple[FlowFile, ...]
    culprit: str | None


@dataclass(frozen=True, slots=True)
class Plan(Stored):
    """The actions of a run and the state after it; a stored plan is carried out and not computed again.

    ``finished`` are the files that are merged completely, each with the merges that contain it or parts of
    it.
    """

    now: int
    state: State
    merges: tuple[PlannedMerge, ...] = ()
    failures: tuple[PlannedFailure, ...] = ()
    lost: tuple[str, ...] = ()
    finished: Mapping[str, tuple[str, ...]] = default(default_factory=dict)
    schemas: Mapping[str, Schema] = default(default_factory=dict)

    @property
    def is_idle(self) -> bool:
        """Whether no bin ends."""
        return not self.merges and not self.failures and not self.lost

    @property
    def reasons(self) -> dict[str, int]:
        """The number of ended bins by reason."""
        ended = [*(merge.reason for merge in self.merges), *(failure.reason for failure in self.failures)]
        return dict(Counter(reason.code for reason in ended))


@dataclass(frozen=True, slots=True)
class PlanFile(Stored):
    """A plan with the run that made it and its configuration, so that a later run can carry it out."""

    token: RunToken
    config: MergeRecordConfig
    plan: Plan


def plan_merges(
    state: State,
    arrivals: NewFiles,
    now: int,
    config: MergeRecordConfig,
    *,
    lost: Sequence[str] = (),
    broken: Mapping[str, str] = NO_ATTRIBUTES,
    rejected: Mapping[str, str] = NO_ATTRIBUTES,
    lost_values: Mapping[str, str] = NO_ATTRIBUTES,
) -> Plan:
    """Add new files to bins and end the bins that are due; ``now`` is in microseconds since 1970 UTC.

    The bins of the state must have the groups of this configuration (``state.fingerprint``) and contain no
    file that has changed. ``lost`` are files that vanished from the bins, for the report. ``broken`` are
    FlowFiles that were found malformed when their bin was to be merged, with the reason: either the bin
    fails, or they fail alone. ``rejected`` are FlowFiles that do not meet expectations, with the reason: they
    fail alone, and a set of fragments fails with them, because it would never be complete. ``lost_values``
    are FlowFiles with a value that their merged file cannot hold; they fail like malformed ones.
    """
    arrivals = replace(arrivals, flowfiles=(*state.returned, *arrivals.flowfiles))
    state = replace(state, returned=())
    if broken and config.failure_scope == "flowfile":
        state, arrivals = _set_apart(state, arrivals, broken, lambda file, why: replace(file, malformed=why))
    if lost_values and config.failure_scope == "flowfile":
        state, arrivals = _set_apart(state, arrivals, lost_values, lambda file, why: replace(file, lost=why))
    if rejected and not config.defragment:
        state, arrivals = _set_apart(state, arrivals, rejected, lambda file, why: replace(file, rejected=why))
    schemas = {**state.schemas, **arrivals.schemas}
    open_before = [bin_.remove_flowfiles(()) for bin_ in state.bins]
    bins = Bins(config, open_before, state.next_seq, now)
    for flowfile in arrivals.flowfiles:
        bins.offer_flowfile(flowfile)
    bins.end_bins(queue_was_empty=config.complete_full_enough or not arrivals.flowfiles)
    ended_bins = bins.ended
    for problems, describe in (
        (broken, describe_malformed),
        (lost_values, describe_lost),
        (rejected, describe_rejected),
    ):
        ended_bins = [_fail_bin(ended, problems, describe) for ended in ended_bins]
    ended_bins = [_fail_unwritable(ended, schemas, config) for ended in ended_bins]
    generation = state.generation + 1
    merges = tuple(
        _build_merge(ended, schemas, now, config, generation) for ended in ended_bins if not ended.failed
    )
    failures = tuple(_build_failure(ended, generation) for ended in ended_bins if ended.failed)
    used = {source.schema for bin_ in bins.open for source in bin_.sources}
    new_state = replace(
        state,
        generation=generation,
        fingerprint=compute_fingerprint(config),
        next_seq=bins.next_seq,
        bins=tuple(bins.open),
        schemas={key: schemas[key] for key in sorted(used) if key in schemas},
    )
    ended_schemas = {source.schema for merge in merges for source in merge.sources}
    merge_schemas = {key: schema for key, schema in schemas.items() if key in ended_schemas}
    plan = Plan(now, new_state, merges, failures, tuple(lost), schemas=merge_schemas)
    return _record_merged_files(plan, config)


def reduce_plan(
    plan: Plan, previous_state: State, published: Collection[str], config: MergeRecordConfig
) -> Plan:
    """Return the part of a plan that remains if only some merges were published; its failures stay.

    The files of the other merges are new to the next plan, which adds them to bins in their order; bins that
    were open before keep them. If only some parts of a file were published, its other parts are offered
    again.

    :param previous_state: the state that the plan was made for.
    :param published: the ids of merges.
    """
    merges = tuple(merge for merge in plan.merges if merge.id in published)
    results: list[PlannedMerge | PlannedFailure] = [*merges, *plan.failures]
    ended_uuids = {source.uuid for result in results for source in result.sources}
    previous_state = remove_files(previous_state, plan.lost)
    bins = tuple(
        remaining_bin
        for bin_ in previous_state.bins
        if (remaining_bin := bin_.remove_flowfiles(ended_uuids)).sources
    )
    waiting_uuids = {source.uuid for bin_ in bins for source in bin_.sources}
    started_uris = {source.uri for merge in merges for source in merge.sources} | set(previous_state.partial)
    other_sources = [source for merge in plan.merges for source in merge.sources] + plan.state.sources
    returned = tuple(
        source
        for source in other_sources
        if source.uri in started_uris and source.uuid not in ended_uuids | waiting_uuids
    )
    schema_keys = {source.schema for bin_ in bins for source in bin_.sources} | {
        flowfile.schema for flowfile in returned
    }
    schemas = {**previous_state.schemas, **plan.state.schemas, **plan.schemas}
    state = replace(
        plan.state,
        bins=bins,
        returned=returned,
        partial=previous_state.partial,
        done=previous_state.done,
        schemas={key: schemas[key] for key in sorted(schema_keys) if key in schemas},
    )
    return _record_merged_files(replace(plan, state=state, merges=merges), config)


def next_expiry(state: State, config: MergeRecordConfig) -> int | None:
    """Return when the oldest open bin expires, in microseconds; None if no bin ever expires."""
    if config.max_bin_age is None or not state.bins:
        return None
    return min(bin_.created_at for bin_ in state.bins) + config.max_bin_age.microseconds


def _fail_bin(
    ended: EndedBin, problems: Mapping[str, str], describe: Callable[[str, str], Reason]
) -> EndedBin:
    """Fail a bin that was to be merged, because of the first of its sources that has a problem."""
    culprit = next((source for source in ended.sources if source.uuid in problems), None)
    if ended.failed or culprit is None:
        return ended
    reason = describe(culprit.name, problems[culprit.uuid])
    return replace(ended, reason=reason, failed=True, culprit=culprit.uuid)


def _fail_unwritable(ended: EndedBin, schemas: Mapping[str, Schema], config: MergeRecordConfig) -> EndedBin:
    """Fail a bin that was to be merged if no file of the format has the fields, such as none at all."""
    if ended.failed:
        return ended
    schema = _output_schema([schemas.get(source.schema, Schema()) for source in ended.sources], config)
    problem = find_unwritable_field(schema, config.output.format)
    return ended if problem is None else replace(ended, reason=describe_unwritable(problem), failed=True)


def _set_apart(
    state: State,
    arrivals: NewFiles,
    problems: Mapping[str, str],
    add_problem: Callable[[FlowFile, str], FlowFile],
) -> tuple[State, NewFiles]:
    """Add FlowFiles with their problem; those of open bins are added again, before the others."""
    old = [source for bin_ in state.bins for source in bin_.sources if source.uuid in problems]
    bins = (bin_.remove_flowfiles(problems) for bin_ in state.bins)
    flowfiles = [
        add_problem(flowfile, problems[flowfile.uuid]) if flowfile.uuid in problems else flowfile
        for flowfile in (*old, *arrivals.flowfiles)
    ]
    new_state = replace(state, bins=tuple(bin_ for bin_ in bins if bin_.sources))
    return new_state, replace(arrivals, flowfiles=tuple(flowfiles))


def _build_merge(
    ended: EndedBin, schemas: Mapping[str, Schema], now: int, config: MergeRecordConfig, generation: int
) -> PlannedMerge:
    bin_, sources = ended.bin, ended.sources
    age_ms = max(0, now - bin_.created_at) // _MICROS_PER_MILLI
    inherited = inherit_attributes((source.attributes for source in sources), config.attribute_strategy)
    written = {
        "record.count": str(bin_.records),
        "mime.type": MIME_TYPES[config.output.format],
        "merge.count": str(len(sources)),
        "merge.bin.age": str(age_ms),
        "merge.completion.reason": ended.reason.text,
    }
    return PlannedMerge(
        id=merge_id(bin_.id, sources, generation),
        bin=bin_.id,
        reason=ended.reason,
        sources=sources,
        schema=_output_schema([schemas.get(source.schema, Schema()) for source in sources], config),
        attributes={**inherited, **written},
        records=bin_.records,
        bytes=bin_.bytes,
        age_ms=age_ms,
        threshold=_describe_threshold(ended, config),
    )


def _build_failure(ended: EndedBin, generation: int) -> PlannedFailure:
    id_ = merge_id(ended.bin.id, ended.sources, generation)
    return PlannedFailure(id_, ended.bin.id, ended.reason, ended.sources, ended.culprit)


def _output_schema(schemas: Sequence[Schema], config: MergeRecordConfig) -> Schema:
    """Return the fields of an output: the writer's own, the union, or those of the first source."""
    if (writer_schema := config.output.fields) is not None:
        schema = writer_schema
    elif config.schema_merge == "union":
        schema = unite_schemas(_list_distinct(schemas))
    else:
        # A file without records may have no fields, so the first file that has fields determines the schema.
        named = [schema for schema in schemas if schema.fields]
        schema = complete_schema(named[0], _list_distinct(named)) if named else Schema()
    if config.output.format not in _JSON_FORMATS:
        return schema
    return replace(schema, fields=tuple(build_text_keys({"fields": schema.fields})["fields"]))


def _list_distinct(schemas: Iterable[Schema]) -> list[Schema]:
    return list({schema.build_key(): schema for schema in schemas}.values())


def _describe_threshold(ended: EndedBin, config: MergeRecordConfig) -> dict[str, int | None]:
    """Return the maximum that a full bin has reached, which NiFi's reason does not include."""
    if ended.reason != FULL or config.defragment:
        return {}
    if config.max_records is not None and ended.bin.records >= config.max_records:
        return {"records": ended.bin.records, "max_records": config.max_records}
    return {"bytes": ended.bin.bytes, "max_bin_size": config.max_bin_size}


def _record_merged_files(plan: Plan, config: MergeRecordConfig) -> Plan:
    """Add to the state the files that are merged in part, and those that are merged and stay in place."""
    waiting = plan.state.waiting
    failed = {source.uri for failure in plan.failures for source in failure.sources}
    ids_by_uri = {uri: list(ids) for uri, ids in plan.state.partial.items()}
    done = dict(plan.state.done)
    for merge in plan.merges:
        for source in merge.sources:
            ids_by_uri.setdefault(source.uri, []).append(merge.id)
            if config.original_action == "keep" and source.uri not in waiting:
                done[source.uri] = source.version
    ids = {uri: tuple(dict.fromkeys(merge_ids)) for uri, merge_ids in ids_by_uri.items()}
    partial = {uri: merge_ids for uri, merge_ids in ids.items() if uri in waiting}
    finished = {uri: merge_ids for uri, merge_ids in ids.items() if uri not in waiting and uri not in failed}
    return replace(plan, state=replace(plan.state, partial=partial, done=done), finished=finished)


def estimate_sizes(arrivals: NewFiles, state: State, config: MergeRecordConfig) -> NewFiles:
    """Return new files with the estimated size in bytes of their records in the output.

    Before the first merge, and with another ``size_basis``, the files keep their own size.
    """
    learned = state.learned
    if config.size_basis != "estimated_output" or learned is None or learned.writer != _hash_writer(config):
        return arrivals
    files = (
        replace(flowfile, bytes=flowfile.records * learned.bytes // learned.records)
        for flowfile in arrivals.flowfiles
    )
    return replace(arrivals, flowfiles=tuple(files))


def learn_size(state: State, config: MergeRecordConfig, records: int, size: int) -> State:
    """Add the bytes and records of a merge to its writer's statistics; another writer starts new ones."""
    if not records:
        return state
    writer = _hash_writer(config)
    sums = state.learned if state.learned and state.learned.writer == writer else WrittenSizes(writer)
    return replace(state, learned=WrittenSizes(writer, sums.records + records, sums.bytes + size))


def _hash_writer(config: MergeRecordConfig) -> str:
    return hashlib.sha256(json.dumps(config.output.as_json(), sort_keys=True).encode()).hexdigest()[:16]
