"""How the run comes to its clusters: the thin rows of every source, read once, connected, numbered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_source import refusals
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.equality import Rule, planned_rules
from airflow_merge_provider.core.merge_source.overrides import Overrides
from airflow_merge_provider.jobs import tables
from airflow_merge_provider.jobs.merge_source.affected import Look, affected, differs
from airflow_merge_provider.jobs.merge_source.components import (
    Entities,
    HashCollisionError,
    entities_of,
)
from airflow_merge_provider.jobs.merge_source.difference import Difference, difference
from airflow_merge_provider.jobs.merge_source.keys import SourceKeys, source_keys
from airflow_merge_provider.jobs.merge_source.outcome import HASH, Outcome
from airflow_merge_provider.jobs.merge_source.overrides import marked
from airflow_merge_provider.jobs.merge_source.past import Past, remembered
from airflow_merge_provider.jobs.merge_source.quarantine import quarantined, warnings
from airflow_merge_provider.jobs.merge_source.solving import Solved, solved
from airflow_merge_provider.jobs.merge_source.sources import CONTENT, DELETED, ID, Source, opened
from airflow_merge_provider.jobs.merge_source.succession import handed_on
from airflow_merge_provider.jobs.merge_source.totals import of_past
from airflow_merge_provider.jobs.progress import Progress
from airflow_merge_provider.jobs.tables import Pinned

# One collision of 64-bit hashes is rare enough; several in a row are a defect of ours.
_SEEDS = range(5)
NONE = Overrides()


class LookAgainError(Exception):
    """Raised where the changes alone do not tell the result: everything has to be compared."""


@dataclass(frozen=True)
class Before:
    """What a run compares itself with: the target's rows, and how far the last run had read each dataset.

    ``positions`` are by the names of datasets; with ``everything`` they are not used. ``evaluated`` names the
    datasets whose keys Spark's own expressions could not tell. ``next_stable`` is the first stable id that is
    free.
    """

    rows: DataFrame
    positions: Mapping[str, int]
    evaluated: Sequence[str]
    everything: bool
    same_rules: bool
    next_stable: int = 0


@dataclass(frozen=True)
class Intake:
    """The sources as they are merged, the rules, the columns of the keys, and the outputs they make.

    ``positions`` say how far each dataset was read, ``evaluated`` which of them need the definition itself to
    tell their keys, ``said`` what is probably not meant.
    """

    config: MergeSourceConfig
    rules: Sequence[Rule]
    sources: Sequence[Source]
    keys: Sequence[SourceKeys]
    solved: Solved
    positions: Mapping[str, int]
    evaluated: Sequence[str]
    overrides: Overrides = NONE
    said: Sequence[str] = ()

    @property
    def outcome(self) -> Outcome:
        """The outputs."""
        return self.solved.outcome

    @property
    def difference(self) -> Difference | None:
        """What the outputs are beside those of the past, where there is one."""
        return self.solved.difference

    @property
    def labels(self) -> pa.Table:
        """The entities that are rendered, with the places of their outputs."""
        return self.outcome.labels if self.difference is None else self.difference.labels


def take_in(
    spark: SparkSession,
    pinned: Sequence[Pinned],
    config: MergeSourceConfig,
    progress: Progress,
    before: Before | None = None,
    overrides: Overrides = NONE,
) -> Intake:
    """Read what decides who belongs together, and decide it.

    :raises DataError: for entities without an id, with two current versions, or that cannot be merged.
    :raises LookAgainError: when what has changed cannot be told from the changes alone.
    """
    names = config.dataset_ids
    rules = (*planned_rules(config), *overrides.rules(names))
    offsets = {name: offset for offset, name in enumerate(names)}
    sources = [opened(tables.read(spark, each), offsets[each.dataset.id], config) for each in pinned]
    sources = [marked(source, overrides, names) for source in sources]
    connect = partial(_connected, sources, rules, config, progress, before, overrides=overrides)
    for seed in _SEEDS:
        try:
            return connect(seed=seed)
        except HashCollisionError:
            progress.say("two values have one hash: hashing anew")
    raise AssertionError(f"hashes collided with {len(_SEEDS)} seeds in a row")


def _connected(
    sources: Sequence[Source],
    rules: Sequence[Rule],
    config: MergeSourceConfig,
    progress: Progress,
    before: Before | None,
    *,
    overrides: Overrides,
    seed: int,
) -> Intake:
    with progress.step("read keys"):
        readings = [_reading(_hashed(source, seed), seed, before) for source in sources]
        read = _read(readings, rules)
        past = None if before is None else remembered(before.rows, config.dataset_ids, rules, seed)
    keys = [each.reading.keys(rules) for each in read]
    texts = [(each.reading.source, every) for each, every in zip(read, keys, strict=True)]
    judge = partial(quarantined, opened=texts, config=config, seed=seed)
    solve = partial(solved, rules=rules, config=config, judge=judge, different=overrides.different)
    with progress.step("connect"):
        if before is None or past is None:
            found = solve([look.entities for look in _looks(read, config, complete=True)])
        else:
            found = _compared(read, past, before, rules, config, solve)
        said = warnings(found.evidence, texts, seed)
    positions = dict(before.positions) if before else {}
    positions |= {each.reading.source.name: each.position for each in read if each.position is not None}
    rendered = [each.reading.rendered for each in read]
    evaluated = [each.reading.source.name for each in read if not each.reading.native]
    return Intake(config, rules, rendered, keys, found, positions, evaluated, overrides, said)


def _compared(
    read: Sequence[_Read],
    past: Past,
    before: Before,
    rules: Sequence[Rule],
    config: MergeSourceConfig,
    solve: Callable[[Sequence[Entities]], Solved],
) -> Solved:
    """Solve what a change can reach, and compare it with what was there."""
    for each in read:
        if each.short:
            _check_end(each, past, rules)
    looks = _looks(read, config, complete=before.everything)
    part = affected(looks, past, everything=before.everything)
    found = solve(part.sources)
    different = difference(found.outcome, part, past, config, same_rules=before.same_rules)
    if different.overlaps and not before.everything:
        raise LookAgainError
    left = None if before.everything else of_past(past, part.touched)
    found = replace(found, difference=different, left=left)
    if not (config.stable_id or config.replaced_by):
        return found
    handed = handed_on(
        found.outcome,
        part,
        past,
        different,
        next_stable=before.next_stable if config.stable_id else None,
        successors=config.replaced_by,
    )
    return replace(found, **vars(handed))


def _looks(read: Sequence[_Read], config: MergeSourceConfig, *, complete: bool) -> list[Look]:
    """Give what was read of every dataset; of one that does not exist, nothing, which may be all there is."""
    known = {each.reading.source.offset: each.look for each in read}
    nothing = Look(Entities.none(), complete=complete)
    return [known.get(offset, nothing) for offset in range(len(config.dataset_ids))]


def _reading(source: Source, seed: int, before: Before | None) -> _Reading:
    """Read a source from where the last run ended, if that can be told."""
    if before is None:
        return _Reading(source, seed)
    native = source.name not in before.evaluated
    position = before.positions.get(source.name)
    if before.everything or position is None or source.place is None:
        return _Reading(source, seed, native=native, compared=True)
    return _Reading(source, seed, native=native, compared=True, position=position)


@dataclass(frozen=True)
class _Reading:
    """How a source's thin rows are read: on fast assumptions first, again where the data contradicts them.

    They are that Spark's own expressions can tell every key, and that every entity has one version. From
    ``position`` on, or all of them; ``compared`` asks for hashes of the contents.
    """

    source: Source
    seed: int
    native: bool = True
    compared: bool = False
    position: int | None = None

    def keys(self, rules: Sequence[Rule]) -> SourceKeys:
        return source_keys(self.source, rules, native=self.native)

    @property
    def opened(self) -> Source:
        """The rows to read now."""
        return (self.source if self.position is None else self.source.after(self.position)).latest()

    @property
    def rendered(self) -> Source:
        """The rows to make outputs of: also those not read now, whose versions nobody has counted."""
        return self.source if self.position is None else replace(self.source, several=True)

    def corrected(self, thin: pa.Table, entities: Entities) -> _Reading | None:
        """Give the reading to try next; None when this one was right.

        :raises DataError: when there is none left to try.
        """
        if self.native and pc.any(thin.column("coded")).as_py():
            return replace(self, native=False)
        repeated = entities.repeated()
        if repeated is None:
            return None
        if self.source.several or self.source.sequence is None:
            raise _two_versions(self.source, *repeated)
        return replace(self, source=replace(self.source, several=True))


@dataclass(frozen=True)
class _Read:
    """What a reading gave: entities, and how far the source is read now, where that can be told.

    ``short`` says that the source ends before the place that the last run had come to.
    """

    reading: _Reading
    entities: Entities
    position: int | None
    short: bool

    @property
    def look(self) -> Look:
        return Look(self.entities, complete=self.reading.position is None)


def _read(readings: Sequence[_Reading], rules: Sequence[Rule]) -> list[_Read]:
    """Read the thin rows of all sources in one Spark job, and once more those that turned out to need it."""
    done: dict[int, _Read] = {}
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
                done[reading.source.offset] = _Read(reading, entities, *_position(reading, thin))
            else:
                again.append(corrected)
        pending = again
    return [done[reading.source.offset] for reading in readings]


def _position(reading: _Reading, thin: pa.Table) -> tuple[int | None, bool]:
    """Tell how far a source is read now, and whether it ends before what was read of it."""
    last: int | None = pc.max(thin.column("place")).as_py()
    if reading.position is None or last is not None or reading.source.place is None:
        return last, False
    end = reading.source.frame.agg(F.max(reading.source.place)).collect()[0][0]
    return reading.position, end is None or end < reading.position


def _check_end(read: _Read, past: Past, rules: Sequence[Rule]) -> None:
    """See why a source is shorter than it was: rows that are only gone are not noticed by versions.

    :raises LookAgainError: when it has others than it had, and was made anew or set back.
    """
    source = read.reading.source
    (whole,) = _read([replace(read.reading, position=None)], rules)
    if differs(whole.entities, past.entities[source.offset]):
        reason = f"dataset {source.name!r} ends before what was read of it: everything is compared"
        raise LookAgainError(reason)


def _together(left: DataFrame, right: DataFrame) -> DataFrame:
    return left.unionByName(right, allowMissingColumns=True)


def _hashed(source: Source, seed: int) -> Source:
    hashed = F.xxhash64(F.lit(seed), F.lit(source.offset), F.col(ID))
    return replace(source, frame=source.frame.withColumn(HASH, hashed))


def _thin(reading: _Reading, keys: SourceKeys) -> DataFrame:
    """Pick what decides: ids, hashes of ids and keys, and a second hash that betrays collisions."""
    source, seed = reading.opened, reading.seed

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
        (source.content_hash() if reading.compared else F.lit(0).cast("bigint")).alias("content"),
        (F.lit(None).cast("bigint") if source.place is None else source.place).alias("place"),
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
