"""How the run comes to its clusters: the thin rows of every source, read once, connected, numbered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_source import refusals
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.equality import Rule, planned_rules
from airflow_merge_provider.jobs import tables
from airflow_merge_provider.jobs.merge_source.components import (
    Entities,
    HashCollisionError,
    connected,
    entities_of,
)
from airflow_merge_provider.jobs.merge_source.keys import SourceKeys, source_keys
from airflow_merge_provider.jobs.merge_source.outcome import HASH, Outcome, outcome
from airflow_merge_provider.jobs.merge_source.sources import CONTENT, DELETED, ID, Source, opened
from airflow_merge_provider.jobs.progress import Progress
from airflow_merge_provider.jobs.tables import Pinned

# One collision of 64-bit hashes is rare enough; several in a row are a defect of ours.
_SEEDS = range(5)


@dataclass(frozen=True)
class Intake:
    """The sources as they are merged, the rules, the columns of the keys, and the outputs they make."""

    config: MergeSourceConfig
    rules: Sequence[Rule]
    sources: Sequence[Source]
    keys: Sequence[SourceKeys]
    outcome: Outcome


def take_in(
    spark: SparkSession, pinned: Sequence[Pinned], config: MergeSourceConfig, progress: Progress
) -> Intake:
    """Read what decides who belongs together, and decide it.

    :raises DataError: for entities without an id, with two current versions, or that cannot be merged.
    """
    rules = planned_rules(config)
    offsets = {name: offset for offset, name in enumerate(config.dataset_ids)}
    sources = [opened(tables.read(spark, each), offsets[each.dataset.id], config) for each in pinned]
    for seed in _SEEDS:
        try:
            return _connected(sources, rules, config, progress, seed)
        except HashCollisionError:
            progress.say("two values have one hash: hashing anew")
    raise AssertionError(f"hashes collided with {len(_SEEDS)} seeds in a row")


def _connected(
    sources: Sequence[Source], rules: Sequence[Rule], config: MergeSourceConfig, progress: Progress, seed: int
) -> Intake:
    with progress.step("read keys"):
        read = _read([_Reading(_hashed(source, seed), seed) for source in sources], rules)
    with progress.step("connect"):
        known = {reading.source.offset: entities for reading, entities in read}
        graph = connected(
            [known.get(offset, Entities.none()) for offset in range(len(config.dataset_ids))],
            [rule for rule in rules if {rule.left.dataset, rule.right.dataset} <= set(known)],
        )
        found = outcome(graph, config)
    readings = [reading for reading, _ in read]
    keys = [each.keys(rules) for each in readings]
    return Intake(config, rules, [each.source for each in readings], keys, found)


@dataclass(frozen=True)
class _Reading:
    """How a source's thin rows are read: on fast assumptions first, again where the data contradicts them.

    They are that Spark's own expressions can tell every key, and that every entity has one version.
    """

    source: Source
    seed: int
    native: bool = True
    one_version: bool = True

    def keys(self, rules: Sequence[Rule]) -> SourceKeys:
        return source_keys(self.source, rules, native=self.native)

    def corrected(self, thin: pa.Table, entities: Entities) -> _Reading | None:
        """Give the reading to try next; None when this one was right.

        :raises DataError: when there is none left to try.
        """
        if self.native and pc.any(thin.column("coded")).as_py():
            return replace(self, native=False)
        repeated = entities.repeated()
        if repeated is None:
            return None
        if not self.one_version:
            raise _two_versions(self.source, *repeated)
        return replace(self, source=self.source.latest(), one_version=False)


def _read(readings: Sequence[_Reading], rules: Sequence[Rule]) -> list[tuple[_Reading, Entities]]:
    """Read the thin rows of all sources in one Spark job, and once more those that turned out to need it."""
    done: dict[int, tuple[_Reading, Entities]] = {}
    pending = list(readings)
    while pending:
        keys = [reading.keys(rules) for reading in pending]
        frames = [_thin(reading, each) for reading, each in zip(pending, keys, strict=True)]
        rows = reduce(_together, frames).toArrow()
        again = []
        for reading, each in zip(pending, keys, strict=True):
            thin = rows.filter(pc.equal(rows.column("source"), reading.source.offset))
            _check_rows(reading.source, thin.column("id"), thin.column("broken"))
            entities = entities_of(thin, each.sides)
            corrected = reading.corrected(thin, entities)
            if corrected is None:
                done[reading.source.offset] = (reading, entities)
            else:
                again.append(corrected)
        pending = again
    return [done[reading.source.offset] for reading in readings]


def _together(left: DataFrame, right: DataFrame) -> DataFrame:
    return left.unionByName(right, allowMissingColumns=True)


def _hashed(source: Source, seed: int) -> Source:
    hashed = F.xxhash64(F.lit(seed), F.lit(source.offset), F.col(ID))
    return replace(source, frame=source.frame.withColumn(HASH, hashed))


def _thin(reading: _Reading, keys: SourceKeys) -> DataFrame:
    """Pick what decides: ids, hashes of ids and keys, and a second hash that betrays collisions."""
    source, seed = reading.source, reading.seed

    def hashes() -> Iterator[Column]:
        first = keys.mapped(lambda key: F.xxhash64(F.lit(seed), key))
        second = keys.mapped(lambda key: F.hash(key))
        for number, (key, check) in enumerate(zip(first, second, strict=True)):
            many = "_list" if keys.keys[number].many else ""
            yield key.alias(f"key{number}{many}")
            yield check.alias(f"check{number}{many}")

    never = F.lit(False)
    return source.frame.select(
        F.lit(source.offset).alias("source"),
        F.col(ID).alias("id"),
        F.col(HASH).alias("hash"),
        F.col(DELETED).alias("deleted"),
        (never if source.properties is not None else F.col(CONTENT).isNull()).alias("broken"),
        (never if keys.coded is None else keys.coded).alias("coded"),
        *hashes(),
    )


def _check_rows(source: Source, ids: pa.ChunkedArray, broken: pa.ChunkedArray) -> None:
    at = f"dataset {source.name!r}"
    problems = []
    if wrong := int(pc.sum(broken).as_py() or 0):
        message = f"{wrong} rows hold no JSON object in their entity column"
        problems.append(Problem(at, "entity", message, "correct or drop those rows"))
    without = int(pc.sum(pc.or_(pc.is_null(ids), pc.equal(pc.fill_null(ids, ""), ""))).as_py() or 0) - wrong
    if without > 0:
        problems += refusals.without_id(source.name, without).problems
    if problems:
        raise DataError.of(problems)


def _two_versions(source: Source, id_: str, rows: int) -> DataError:
    if source.sequence is None:
        way_out = "one row per id, or sequence_column=… names the column that grows with every version"
    else:
        way_out = f"column {source.sequence!r} must differ between the versions of an entity"
    problem = Problem(
        f"dataset {source.name!r}", "two-versions", f"entity {id_!r} is in {rows} rows", way_out
    )
    return DataError.of([problem])
