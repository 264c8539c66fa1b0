"""How the run comes to its clusters: the thin rows of every source, read once, connected, numbered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from airflow_merge_provider.core.errors import DataError, Problem
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
    """The sources as they are merged, the columns of their keys, and the outputs they make."""

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
    sources = [
        opened(tables.read(spark, each), offsets[each.dataset.id], config) for each in pinned
    ]
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
        read = [_read(source, rules, seed) for source in sources]
    entities = [each for _, _, each in read]
    with progress.step("connect"):
        known = {source.offset: each for (source, _, _), each in zip(read, entities, strict=True)}
        graph = connected(
            [known.get(offset, Entities.none()) for offset in range(len(config.dataset_ids))],
            [rule for rule in rules if {rule.left.dataset, rule.right.dataset} <= set(known)],
        )
        found = outcome(graph, config)
    return Intake([source for source, _, _ in read], [keys for _, keys, _ in read], found)


def _read(source: Source, rules: Sequence[Rule], seed: int) -> tuple[Source, SourceKeys, Entities]:
    """Read a source's thin rows: on the fast assumption first, again where the data contradicts it.

    It assumes that no key is transit-coded and that every entity has one version.
    """
    source = _hashed(source, seed)
    keys = source_keys(source, rules, native=True)
    thin = _thin(source, keys, seed).toArrow()
    if pc.any(thin.column("coded")).as_py():
        keys = source_keys(source, rules, native=False)
        thin = _thin(source, keys, seed).toArrow()
    _check_rows(source, thin.column("id"), thin.column("broken"))
    entities = entities_of(thin, keys.sides)
    if entities.repeated() is None:
        return source, keys, entities
    source = source.latest()
    entities = entities_of(_thin(source, keys, seed).toArrow(), keys.sides)
    if (repeated := entities.repeated()) is not None:
        raise _two_versions(source, *repeated)
    return source, keys, entities


def _hashed(source: Source, seed: int) -> Source:
    hashed = F.xxhash64(F.lit(seed), F.lit(source.offset), F.col(ID))
    return replace(source, frame=source.frame.withColumn(HASH, hashed))


def _thin(source: Source, keys: SourceKeys, seed: int) -> DataFrame:
    """Pick what decides: ids, hashes of ids and keys, and a second hash that betrays collisions."""

    def hashes() -> Iterator[Column]:
        for number, values in enumerate(keys.columns):
            yield F.transform(values, lambda key: F.xxhash64(F.lit(seed), key)).alias(f"key{number}")
            yield F.transform(values, lambda key: F.hash(key)).alias(f"check{number}")

    broken = F.lit(False) if source.properties is not None else F.col(CONTENT).isNull()  # noqa: FBT003
    return source.frame.select(
        F.col(ID).alias("id"),
        F.col(HASH).alias("hash"),
        F.col(DELETED).alias("deleted"),
        broken.alias("broken"),
        (F.lit(False) if keys.coded is None else keys.coded).alias("coded"),  # noqa: FBT003
        *hashes(),
    )


def _check_rows(source: Source, ids: object, broken: object) -> None:
    at = f"dataset {source.name!r}"
    problems = []
    if wrong := int(pc.sum(broken).as_py() or 0):
        message = f"{wrong} rows hold no JSON object in their entity column"
        problems.append(Problem(at, "entity", message, "correct or drop those rows"))
    without = int(pc.sum(pc.or_(pc.is_null(ids), pc.equal(pc.fill_null(ids, ""), ""))).as_py() or 0) - wrong
    if without > 0:
        message = f"entity without a string _id ({without} rows)"
        problems.append(Problem(at, "no-id", message, "give every row an id that is a text"))
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
