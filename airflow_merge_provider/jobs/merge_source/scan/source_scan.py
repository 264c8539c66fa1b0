"""Scan the columns of a source that clustering needs, of all its entities or of those that have changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession, Window, functions as F
from pyspark.sql.types import StringType

from airflow_merge_provider.core.change_plan.shown_rows import mask_text
from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_source import refusals
from airflow_merge_provider.core.merge_source.equality import Rule, Side
from airflow_merge_provider.core.run.columns import describe_text_order
from airflow_merge_provider.core.run.table_log import PinnedDataset
from airflow_merge_provider.jobs.delta.table import has_change_feed, read_change_feed
from airflow_merge_provider.jobs.merge_source.model import (
    CONTENTS,
    HASH,
    Entities,
    Flags,
    Keyed,
    Numbers,
    SourceDelta,
    to_numbers,
)
from airflow_merge_provider.jobs.merge_source.scan import typed_rows
from airflow_merge_provider.jobs.merge_source.scan.match_keys import SourceKeys, build_source_keys
from airflow_merge_provider.jobs.merge_source.scan.sources import (
    JSON,
    SCAN_CONTENT,
    SCAN_DELETED,
    SCAN_ID,
    Source,
)
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.errors import CHANGES_GONE_CONDITIONS, has_condition
from airflow_merge_provider.jobs.spark.parallel import run_in_parallel
from airflow_merge_provider.jobs.spark.pickling import pickle_once

_KIND, _COMMIT_VERSION = "_change_type", "_commit_version"
_IS, _NET_CHANGE = "__merge_is", "net"


@dataclass(frozen=True)
class FeedChanges:
    """The entities that commits changed: ``rows`` are their current rows, ``hashes`` cover all of them.

    ``net`` is the net change of the number of rows of each entity.
    """

    rows: Source
    hashes: Numbers
    net: Numbers

    def find_deleted(self, present: Numbers) -> Numbers:
        """Return the entities that no longer exist, given those that do."""
        return np.setdiff1d(self.hashes, present)

    def is_plain(self, previous_hashes: Numbers) -> bool:
        """Return whether every entity had at most one row, before (``previous_hashes``) and after."""
        if self.rows.sequence is not None:
            return True
        existed: Flags = np.isin(self.hashes, previous_hashes)
        after = existed.astype(np.int64) + self.net
        return bool(((after == 0) | (after == 1)).all())


def require_feeds(spark: SparkSession, pinned: Sequence[PinnedDataset]) -> None:
    """Refuse datasets that have no change data feed.

    :raises DataError: with every such dataset.
    """
    problems = [
        _refuse_missing_feed(source.dataset) for source in pinned if not _keeps_feed(spark, source.dataset)
    ]
    if problems:
        raise DataError.from_problems(problems)


def read_feed_changes(
    spark: SparkSession,
    pinned: PinnedDataset,
    since: int,
    source: Source,
    open_rows: Callable[[DataFrame], Source],
) -> FeedChanges | None:
    """Read what a dataset's commits after ``since`` changed; None if the feed does not reach back that far.

    ``source`` has all rows, and ``open_rows`` maps rows of the feed to entities.
    """
    if pinned.version is None or pinned.version <= since:
        return None
    try:
        feed = read_change_feed(spark, pinned.dataset, since + 1, pinned.version)
        is_now = F.col(_KIND).isin("insert", "update_postimage")
        rows = open_rows(feed.withColumn(_IS, is_now))
        counted = rows.frame.groupBy(HASH).agg(F.sum(F.when(F.col(_IS), 1).otherwise(-1)).alias(_NET_CHANGE))
        touched = counted.toArrow()
    except Exception as error:
        if has_condition(error, CHANGES_GONE_CONDITIONS):
            return None
        raise
    hashes = touched.column(HASH).to_numpy().astype(np.int64)
    net = touched.column(_NET_CHANGE).to_numpy().astype(np.int64)
    if source.sequence is not None:
        # The version that counts may be one that no commit has changed.
        touched_ids = rows.frame.select(SCAN_ID).distinct()
        frame = source.frame.join(F.broadcast(touched_ids), SCAN_ID, "left_semi")
        return FeedChanges(replace(source, frame=frame, several=True), hashes, net)
    return FeedChanges(replace(rows, frame=_select_newest(rows.frame)), hashes, net)


def _select_newest(rows: DataFrame) -> DataFrame:
    """Keep the row of each entity after the last commit that changed it, if the entity still exists."""
    rank = "__merge_rank"
    newest = Window.partitionBy(SCAN_ID).orderBy(
        sql.quote_column(_COMMIT_VERSION).desc(), sql.quote_column(_IS).desc()
    )
    return rows.withColumn(rank, F.rank().over(newest)).where((F.col(rank) == 1) & F.col(_IS)).drop(rank)


def _keeps_feed(spark: SparkSession, dataset: Dataset) -> bool:
    return dataset.format == "delta" and has_change_feed(spark, dataset)


def _refuse_missing_feed(dataset: Dataset) -> Problem:
    hint = "set its table property delta.enableChangeDataFeed to true, or set change_detection to 'auto'"
    return Problem(f"dataset {dataset.id!r}", "feed", "has no change data feed", hint)


def read_entities(thin: pa.Table, sides: Sequence[Side]) -> Entities:
    """Read the projected rows of a source: columns id, hash, deleted, and key<n> and check<n> for each side.

    A column of lists holds several keys of an entity. Without a column content nothing is compared.
    """
    hashes = to_numbers(thin.column("hash"))
    compared = CONTENTS in thin.column_names
    return Entities(
        ids=thin.column("id").cast(pa.string()).combine_chunks(),
        hashes=hashes,
        deleted=thin.column("deleted").to_numpy().astype(np.bool_),
        contents=to_numbers(thin.column(CONTENTS)) if compared else np.zeros(len(hashes), np.int64),
        keys={
            side.order: _read_keys(
                *(thin.column(f"{kind}{number}").combine_chunks() for kind in ("key", "check"))
            )
            for number, side in enumerate(sides)
        },
    )


def _read_keys(keys: pa.Array, checks: pa.Array) -> Keyed:
    """Return (position of the entity, hash, second hash) of every key of a side."""
    if pa.types.is_list(keys.type):
        return (
            to_numbers(pc.list_parent_indices(keys)),
            to_numbers(keys.flatten()),
            to_numbers(checks.flatten()),
        )
    there = pc.indices_nonzero(keys.is_valid())
    return to_numbers(there), to_numbers(keys.drop_null()), to_numbers(checks.drop_null())


_ROW_POSITION, _BROKEN, _CODED, _IS_LONG = "place", "broken", "coded", "long"
# A number that VARIANT may not hold exactly: a DOUBLE has 15 digits and an exponent up to 308, a decimal 38
# digits. Texts that hold such numbers match, too.
_LONG_NUMBER = r"(?:^|[\[:,\s])-?(?:[0-9.]{39,}|[0-9.]{16,}[eE]|[0-9.]+[eE][+-]?0*[0-9]{3,})"


@dataclass(frozen=True)
class SourceScan:
    """The way a source's rows are scanned: with fast assumptions first, again if the data contradicts them.

    The assumptions are that Spark's own expressions can compute every key, and that every entity has one
    version. The scan reads the rows after ``position`` and the ``late`` entities, or the rows that were
    ``fed``, or all of them, or none if the source is ``is_unchanged``; ``compared`` adds hashes of the
    contents, ``keyed`` adds the keys. ``why`` explains to the user why all rows are read although only the
    changes were requested.
    """

    source: Source
    seed: int
    native: bool = True
    compared: bool = False
    position: int | None = None
    late: DataFrame | None = None
    fed: FeedChanges | None = None
    is_unchanged: bool = False
    keyed: bool = True
    why: str = ""

    def build_keys(self, rules: Sequence[Rule]) -> SourceKeys:
        return build_source_keys(self.source, rules, native=self.native)

    @property
    def read(self) -> Source:
        """The rows to read now, with all versions of an entity."""
        if self.fed is not None:
            return self.fed.rows
        return self.source if self.position is None else self.source.keep_after(self.position, self.late)

    @property
    def opened(self) -> Source:
        """The rows to merge now: one row for each entity."""
        return self.read.drop_rejected().keep_latest()

    @property
    def rendered(self) -> Source:
        """The rows to render as outputs: also those not read now, whose versions have not been counted."""
        in_part = self.is_unchanged or self.position is not None or self.fed is not None
        several = self.source.sequence is not None and in_part
        return replace(self.source, several=True) if several else self.source

    def list_warnings(self) -> Iterator[str]:
        """Yield why all rows are read, and that the order of versions may not be the intended one."""
        if self.why:
            yield self.why
        if self.source.several and self.source.has_text_order:
            yield describe_text_order(f"dataset {self.source.name!r}", self.source.sequence or "")

    def correct_scan(self, thin: pa.Table, entities: Entities) -> SourceScan | Problem | None:
        """Return the scan to try next, or a problem if there is none; None if this scan was right."""
        if self.native and _count_flag(thin, _CODED):
            return replace(self, native=False)
        repeated = entities.find_repeated_id()
        if repeated is None:
            return None
        if self.source.several or self.source.sequence is None:
            return _refuse_versions(self.source, *repeated)
        return replace(self, source=replace(self.source, several=True))


@dataclass(frozen=True)
class ScanResult:
    """The result of a scan: entities, and the position up to which the source is read, if known.

    ``keys`` are the columns that the keys of the entities come from. ``short`` is true if the source ends
    before the position that the last run had reached.
    """

    reading: SourceScan
    keys: SourceKeys
    entities: Entities
    position: int | None
    short: bool

    @property
    def delta(self) -> SourceDelta:
        reading = self.reading
        if reading.fed is not None:
            return SourceDelta(
                self.entities, complete=False, deleted_hashes=reading.fed.find_deleted(self.entities.hashes)
            )
        return SourceDelta(self.entities, complete=reading.position is None and not reading.is_unchanged)


def scan_sources(readings: Sequence[SourceScan], rules: Sequence[Rule]) -> list[ScanResult]:
    """Scan the rows of all sources in parallel, and again those whose data contradicts the assumptions.

    :raises DataError: with the problems of every source.
    """
    if not readings:
        return []
    spark = readings[0].source.frame.sparkSession
    results = run_in_parallel(spark, lambda reading: _scan_source(reading, rules), readings)
    if problems := [
        problem for result in results if not isinstance(result, ScanResult) for problem in result
    ]:
        raise DataError.from_problems(problems)
    return [result for result in results if isinstance(result, ScanResult)]


def _scan_source(reading: SourceScan, rules: Sequence[Rule]) -> ScanResult | list[Problem]:
    """Scan one source until its data confirms the assumptions, or return its problems."""
    while True:
        keys = reading.build_keys(rules)
        if reading.is_unchanged:
            return ScanResult(reading, keys, Entities.create_empty(), None, short=False)
        thin = _select_columns(reading, keys).toArrow()
        if problems := list(_find_problems(reading, thin)):
            return problems
        entities = read_entities(thin, keys.sides if reading.keyed else ())
        corrected = reading.correct_scan(thin, entities)
        if isinstance(corrected, Problem):
            return [corrected]
        if corrected is None:
            if not reading.compared:
                # A first run sorts all entities: it does so here, while Spark still reads other sources.
                entities.sort_ids()
            return ScanResult(reading, keys, entities, *_find_position(reading, thin))
        reading = corrected


def _find_position(reading: SourceScan, thin: pa.Table) -> tuple[int | None, bool]:
    """Return the position up to which a source is read, and whether it ends before an earlier position."""
    if reading.fed is not None:
        return None, False
    if reading.source.place is None:
        return None, False
    last: int | None = pc.max(thin.column(_ROW_POSITION)).as_py()
    if reading.position is None:
        return last, False
    if last is not None and last >= reading.position:
        return last, False
    end = reading.source.frame.agg(F.max(reading.source.place)).collect()[0][0]
    return reading.position, end is None or end < reading.position


def add_entity_hash(source: Source, seed: int) -> Source:
    hashed = F.xxhash64(F.lit(seed), F.lit(source.offset), F.col(SCAN_ID))
    return replace(source, frame=source.frame.withColumn(HASH, hashed))


def _select_columns(reading: SourceScan, keys: SourceKeys) -> DataFrame:
    """Select the columns for clustering: IDs, hashes of IDs and keys, and a second hash to detect collisions.

    A column with the same value in every row is left out: the data that comes to the driver is the main cost.
    """
    source = reading.opened
    facts = {"id": F.col(SCAN_ID), "hash": F.col(HASH), "deleted": F.col(SCAN_DELETED)}
    if reading.compared:
        facts[CONTENTS] = source.content_hash()
    if source.place is not None:
        facts[_ROW_POSITION] = source.place
    if source.properties is None:
        facts[_BROKEN] = F.col(SCAN_CONTENT).isNull()
    if source.is_json:
        facts[_IS_LONG] = F.col(JSON).rlike(_LONG_NUMBER)
    if keys.coded is not None:
        facts[_CODED] = keys.coded
    columns, hashes = _build_hashes(keys, reading.seed) if reading.keyed else ([], {})
    rows = source.frame.select(SCAN_DELETED, *(fact.alias(name) for name, fact in facts.items()), *columns)
    return rows.select(*facts, *(hashed.alias(name) for name, hashed in hashes.items()))


def _build_hashes(keys: SourceKeys, seed: int) -> tuple[list[Column], dict[str, Column]]:
    """Return the keys as columns, and the hashes of these that are read."""
    columns, named = keys.project_keys()
    first = named.map_keys(lambda key: F.xxhash64(F.lit(seed), key))
    second = named.map_keys(lambda key: F.hash(key))
    return columns, {
        f"{kind}{number}": hashed
        for kind, hash_columns in (("key", first), ("check", second))
        for number, hashed in enumerate(hash_columns)
    }


def _find_problems(reading: SourceScan, thin: pa.Table) -> Iterator[Problem]:
    name = reading.source.name
    ids, broken_count = thin.column("id"), _count_flag(thin, _BROKEN)
    if broken_count:
        message = f"{broken_count} rows have no JSON object in their entity column"
        yield Problem(f"dataset {name!r}", "entity", message, "correct or remove these rows")
    missing_count = (
        int(pc.sum(pc.or_(pc.is_null(ids), pc.equal(pc.fill_null(ids, ""), ""))).as_py() or 0) - broken_count
    )
    if missing_count > 0:
        yield refusals.refuse_missing_id(name, missing_count)
    if _count_flag(thin, _IS_LONG):
        yield from _find_inexact_number(reading.opened)


def _find_inexact_number(source: Source) -> Iterator[Problem]:
    """Yield the problem of an entity in JSON with a number that VARIANT rounds."""
    find = F.udf(pickle_once(typed_rows.find_inexact_number, typed_rows), StringType(), useArrow=True)
    is_long = F.col(SCAN_CONTENT).isNotNull() & F.col(JSON).rlike(_LONG_NUMBER)
    numbers = source.frame.where(is_long).select(SCAN_ID, find(F.col(JSON)).alias("number"))
    for id_, number in numbers.where("number IS NOT NULL").limit(1).collect():
        message = (
            f"entity {refusals.mask_id(id_)!r} has the number {mask_text(number)}, which VARIANT would round"
        )
        hint = "write it as text, or with at most 38 digits and without an exponent"
        yield Problem(f"dataset {source.name!r}", "number", message, hint)


def _count_flag(thin: pa.Table, flag: str) -> int:
    """Count the rows that have a flag; 0 if the flag was not read."""
    return int(pc.sum(thin.column(flag)).as_py() or 0) if flag in thin.column_names else 0


def _refuse_versions(source: Source, id_: str, rows: int, ids: int) -> Problem:
    if source.sequence is None:
        hint = "keep one row per ID, or set sequence_column to a column that increases with every version"
    else:
        hint = f"column {source.sequence!r} must differ between the versions of an entity"
    suffix = f", and {ids - 1} more in several rows" if ids > 1 else ""
    message = f"entity {refusals.mask_id(id_)!r} is in {rows} rows{suffix}"
    return Problem(f"dataset {source.name!r}", "two-versions", message, hint)
