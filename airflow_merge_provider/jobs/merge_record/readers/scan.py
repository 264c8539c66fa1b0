"""Inspection of files of all formats in one Spark job; the parsed records are cached for writing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

from pyspark.errors import AnalysisException, IllegalArgumentException, NumberFormatException
from pyspark.sql import DataFrame

from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.schema import Schema
from airflow_merge_provider.jobs.merge_record.readers import formats
from airflow_merge_provider.jobs.merge_record.readers.file_readers import (
    CachedReader,
    FileFacts,
    FileReader,
    FileSummary,
    JsonLinesReader,
    TypedReader,
)
from airflow_merge_provider.jobs.merge_record.readers.formats import FILE
from airflow_merge_provider.jobs.merge_record.readers.records import Records
from airflow_merge_provider.jobs.spark.causes import OF_A_FILE, list_causes
from airflow_merge_provider.jobs.spark.files.file_problem import describe_error


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Files that are inspected together: Spark reads ``locations``, or ``lines`` holds their lines."""

    kind: FileReader
    uris: tuple[str, ...]
    locations: Sequence[str]
    size: int
    lines: DataFrame | None = None

    def read_raw(self, records: Records) -> DataFrame:
        """Return the frame to inspect."""
        if self.lines is not None and isinstance(self.kind, JsonLinesReader | TypedReader):
            return self.kind.of_lines(self.lines)
        return self.kind.read_raw(records.spark, self.locations)


Settle = Callable[[dict[str, FileFacts]], dict[str, FileFacts]]


def inspect_files(
    records: Records, groups: Sequence[FileGroup], config: MergeRecordConfig, settle: Settle = dict
) -> dict[str, FileFacts]:
    """Inspect all groups in one job, and cache the parsed records; return the facts by URI.

    If an error of Spark names an unreadable file, the job is repeated without this file. If the error names
    no file, the files are split in halves, and each half is inspected separately, down to single files.

    :param settle: completes the facts of the files that were inspected together.
    :raises Exception: what Spark says of all files alike, or what a wrong option of the reader leads to.
    """
    facts: dict[str, FileFacts] = {}
    remaining_groups = [group for group in groups if group.uris]
    while remaining_groups:
        raws = [records.cache_frame(group.read_raw(records), group.size) for group in remaining_groups]
        frames = [
            group.kind.aggregate_by_file(raw) for group, (raw, _) in zip(remaining_groups, raws, strict=True)
        ]
        try:
            summaries = _collect_summaries(frames)
        except Exception as error:  # noqa: BLE001 - raised again unless one file causes it
            # The error is not always from pyspark: failures while rows are fetched come from py4j.
            broken = find_named_file(remaining_groups, records, error)
            records.unpersist_frames()
            if broken is None:
                return facts | _isolate_broken(records, remaining_groups, config, error, settle)
            facts[broken] = FileFacts(unreadable="Spark cannot read it completely")
            remaining_groups = [
                _select_files(group, {*group.uris} - {broken}, records) for group in remaining_groups
            ]
            remaining_groups = [group for group in remaining_groups if group.uris]
            continue
        for group, (raw, is_kept) in zip(remaining_groups, raws, strict=True):
            group_facts = {
                uri: group.kind.build_fact(uri, summaries.get(records.format_file(uri), FileSummary()))
                for uri in group.uris
            }
            group_facts = settle(group_facts)
            facts |= group_facts
            if is_kept:
                _keep_parsed(records, group.kind, raw, group_facts, config)
        break
    return facts


def _isolate_broken(
    records: Records,
    groups: Sequence[FileGroup],
    config: MergeRecordConfig,
    error: Exception,
    settle: Settle,
) -> dict[str, FileFacts]:
    """Inspect the files of a failed job in halves until each unreadable file is isolated.

    :raises Exception: the error of the job if every file fails, or if it is not caused by a file.
    """
    uris = [uri for group in groups for uri in group.uris]
    if len(uris) == 1:
        is_of_value = isinstance(error, NumberFormatException)
        if isinstance(error, AnalysisException | IllegalArgumentException) and not is_of_value:
            raise error
        # This raises if the Spark session itself has failed; then the file is not the cause.
        records.spark.range(1).count()
        return {uris[0]: FileFacts(unreadable=describe_error(error))}
    facts: dict[str, FileFacts] = {}
    for part in (uris[: len(uris) // 2], uris[len(uris) // 2 :]):
        selected = [_select_files(group, part, records) for group in groups]
        facts |= inspect_files(records, [group for group in selected if group.uris], config, settle)
    if all(facts[uri].unreadable for uri in uris):
        raise error
    return facts


def _collect_summaries(frames: Sequence[DataFrame]) -> dict[str, FileSummary]:
    rows = reduce(DataFrame.unionAll, frames).toArrow().to_pylist()
    return {row[FILE]: FileSummary(row["records"], row["wrong"], row["detail"]) for row in rows}


def _keep_parsed(
    records: Records,
    kind: FileReader,
    raw: DataFrame,
    facts: Mapping[str, FileFacts],
    config: MergeRecordConfig,
) -> None:
    """Register the parsed records for writing, by the schemas that were found in the files."""
    if not isinstance(kind, CachedReader):
        return
    by_key: dict[str, dict[str, Schema]] = {}
    for uri, fact in facts.items():
        if not fact.unreadable and not fact.malformed:
            by_key.setdefault(fact.schema.build_key(config.schema_identity), {})[uri] = fact.schema
    for key, schemas in by_key.items():
        parse = partial(kind.parse_records, schema=next(iter(schemas.values())))
        records.keep_records(key, schemas, raw, parse, is_shared=kind.is_shared and len(schemas) < len(facts))


def find_named_file(groups: Sequence[FileGroup], records: Records, error: Exception) -> str | None:
    """Return the URI of the file that Spark cannot read according to an error, or None."""
    causes = [cause for cause in list_causes(error) if cause.condition.startswith(OF_A_FILE)]
    uris = (uri for group in groups for uri in group.uris)
    locations = ((uri, records.spool.find_location(uri)) for uri in uris)
    return next(
        (uri for uri, location in locations if any(_is_named(location, cause.message) for cause in causes)),
        None,
    )


def _is_named(location: str, message: str) -> bool:
    names = {location, formats.spark_file(location)}
    names |= {name.replace("file:/", "file:///", 1) for name in names} | {f"file://{location}"}
    return message.startswith(tuple(f"Encountered error while reading file {name}." for name in names))


def _select_files(group: FileGroup, uris: Collection[str], records: Records) -> FileGroup:
    selected_uris = tuple(uri for uri in group.uris if uri in uris)
    if len(selected_uris) == len(group.uris):
        return group
    lines = None if group.lines is None else records.select_rows(group.lines, selected_uris)
    return replace(
        group, uris=selected_uris, locations=records.spool.find_locations(selected_uris), lines=lines
    )
