"""How are files of all kinds looked into in one Spark job, and kept for those who write them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import DataFrame

from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.schema import Schema
from airflow_merge_provider.jobs.merge_record.readers import formats
from airflow_merge_provider.jobs.merge_record.readers.containers import describe
from airflow_merge_provider.jobs.merge_record.readers.formats import FILE
from airflow_merge_provider.jobs.merge_record.readers.kinds import Fact, JsonLines, Kind, Lasting, Seen, Typed
from airflow_merge_provider.jobs.merge_record.readers.records import Records


@dataclass(frozen=True, slots=True)
class Group:
    """Files that are looked into together: Spark finds them in ``places``, or their lines are here."""

    kind: Kind
    uris: tuple[str, ...]
    places: Sequence[str]
    size: int
    lines: DataFrame | None = None

    def raw(self, records: Records) -> DataFrame:
        """Give what is looked into."""
        if self.lines is not None and isinstance(self.kind, JsonLines | Typed):
            return self.kind.of_lines(self.lines)
        return self.kind.raw(records.spark, self.places)


def inspect_files(records: Records, groups: Sequence[Group], config: MergeRecordConfig) -> dict[str, Fact]:
    """Look into all groups in one job, and keep what was parsed.

    Once more without each file of which Spark says that it cannot read it. Where Spark does not say which
    file that is, the halves of the files are looked into one by one, down to the file that fails alone.

    :raises Exception: what Spark says of all files alike, or what a wrong option of the reader leads to.
    """
    facts: dict[str, Fact] = {}
    rest = [group for group in groups if group.uris]
    while rest:
        raws = [records.cached(group.raw(records), group.size) for group in rest]
        frames = [group.kind.seen(raw) for group, (raw, _) in zip(rest, raws, strict=True)]
        try:
            seen = _collected(frames)
        except Exception as error:  # noqa: BLE001 - raised again unless it is one file's
            # Not always an error of pyspark's own: what fails while rows are fetched comes from py4j.
            broken = _named(rest, records, str(error))
            records.forget()
            if broken is None:
                return facts | _isolate_broken(records, rest, config, error)
            facts[broken] = Fact(unreadable="Spark cannot read it to its end")
            rest = [_select(group, {*group.uris} - {broken}, records) for group in rest]
            rest = [group for group in rest if group.uris]
            continue
        for group, (raw, is_kept) in zip(rest, raws, strict=True):
            found = {uri: group.kind.fact(uri, seen.get(records.file(uri), Seen())) for uri in group.uris}
            facts |= found
            if is_kept:
                _keep(records, group.kind, raw, found, config)
        break
    return facts


def _isolate_broken(
    records: Records, groups: Sequence[Group], config: MergeRecordConfig, error: Exception
) -> dict[str, Fact]:
    """Look into the files of a failed job in ever smaller parts."""
    uris = [uri for group in groups for uri in group.uris]
    if len(uris) == 1:
        if isinstance(error, AnalysisException | IllegalArgumentException):
            raise error
        # Raises where Spark itself is gone: then nothing is wrong with the file.
        records.spark.range(1).count()
        return {uris[0]: Fact(unreadable=describe(error))}
    facts: dict[str, Fact] = {}
    for part in (uris[: len(uris) // 2], uris[len(uris) // 2 :]):
        selected = [_select(group, part, records) for group in groups]
        facts |= inspect_files(records, [group for group in selected if group.uris], config)
    if all(facts[uri].unreadable for uri in uris):
        raise error
    return facts


def _collected(frames: Sequence[DataFrame]) -> dict[str, Seen]:
    rows = reduce(DataFrame.unionAll, frames).toArrow().to_pylist()
    return {row[FILE]: Seen(row["records"], row["wrong"], row["told"]) for row in rows}


def _keep(
    records: Records, kind: Kind, raw: DataFrame, facts: Mapping[str, Fact], config: MergeRecordConfig
) -> None:
    """Offer what was parsed to those who write it, by the schemas that were found in it."""
    if not isinstance(kind, Lasting):
        return
    by_key: dict[str, dict[str, Schema]] = {}
    for uri, fact in facts.items():
        if not fact.unreadable and not fact.malformed:
            by_key.setdefault(fact.schema.key(config.schema_identity), {})[uri] = fact.schema
    for key, schemas in by_key.items():
        parse = partial(kind.parsed, schema=next(iter(schemas.values())))
        records.keep(key, schemas, raw, parse, is_shared=kind.is_shared and len(schemas) < len(facts))


def _named(groups: Sequence[Group], records: Records, message: str) -> str | None:
    """Find the file that an error of Spark's names."""
    uris = (uri for group in groups for uri in group.uris)
    return next((uri for uri in uris if _is_named(records.spool.place(uri), message)), None)


def _is_named(place: str, message: str) -> bool:
    names = {place, formats.spark_file(place)}
    names |= {name.replace("file:/", "file:///", 1) for name in names} | {f"file://{place}"}
    return any(f"reading file {name}." in message for name in names)


def _select(group: Group, uris: Collection[str], records: Records) -> Group:
    kept = tuple(uri for uri in group.uris if uri in uris)
    if len(kept) == len(group.uris):
        return group
    lines = None if group.lines is None else records.select(group.lines, kept)
    return replace(group, uris=kept, places=records.spool.places(kept), lines=lines)
