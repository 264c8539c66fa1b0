"""How are files of all kinds looked into in one Spark job, and kept for those who write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

from pyspark.sql import DataFrame

from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.schema import Schema
from airflow_merge_provider.jobs.merge_record.readers import formats
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

    Once more without each file of which Spark says that it cannot read it.
    """
    facts: dict[str, Fact] = {}
    rest = [group for group in groups if group.uris]
    while rest:
        raws = [records.cached(group.raw(records), group.size) for group in rest]
        frames = [group.kind.seen(raw) for group, (raw, _) in zip(rest, raws, strict=True)]
        try:
            seen = _collected(frames)
        except Exception as error:
            # Not always an error of pyspark's own: what fails while rows are fetched comes from py4j.
            broken = _named(rest, records, str(error))
            if broken is None:
                raise
            records.forget()
            facts[broken] = Fact(unreadable="Spark cannot read it to its end")
            rest = [each for group in rest if (each := _without(group, broken, records)).uris]
            continue
        for group, (raw, is_kept) in zip(rest, raws, strict=True):
            found = {uri: group.kind.fact(uri, seen.get(records.file(uri), Seen())) for uri in group.uris}
            facts |= found
            if is_kept:
                _keep(records, group.kind, raw, found, config)
        break
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


def _without(group: Group, broken: str, records: Records) -> Group:
    uris = tuple(uri for uri in group.uris if uri != broken)
    if len(uris) == len(group.uris):
        return group
    return replace(group, uris=uris, places=records.spool.places(uris))
