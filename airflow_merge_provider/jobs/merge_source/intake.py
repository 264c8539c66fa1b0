"""How the run comes to its clusters: the thin rows of every source, read once, connected, numbered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Generic, TypeVar, overload

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.errors import DataError, JobError, Problem
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.equality import Rule, planned_rules
from airflow_merge_provider.core.merge_source.overrides import Overrides
from airflow_merge_provider.jobs.delta.table import PinnedDataset, count_records, read_dataset
from airflow_merge_provider.jobs.merge_source.affected import Look, affected
from airflow_merge_provider.jobs.merge_source.before import Before, FullScanRequired, check, reading
from airflow_merge_provider.jobs.merge_source.components import (
    Entities,
    Graph,
    HashCollisionError,
    Watch,
    connected,
)
from airflow_merge_provider.jobs.merge_source.contraction import contracted, key_rows
from airflow_merge_provider.jobs.merge_source.difference import difference
from airflow_merge_provider.jobs.merge_source.feed import require_feeds
from airflow_merge_provider.jobs.merge_source.keys import SourceKeys
from airflow_merge_provider.jobs.merge_source.outcome import HASH, Outcome
from airflow_merge_provider.jobs.merge_source.overrides import marked
from airflow_merge_provider.jobs.merge_source.past import REACHED, Past, remembered
from airflow_merge_provider.jobs.merge_source.quarantine import quarantined, warnings
from airflow_merge_provider.jobs.merge_source.reading import Read, Reading, read_thin
from airflow_merge_provider.jobs.merge_source.solving import Solved, SolvedChanges, solved
from airflow_merge_provider.jobs.merge_source.sources import Source, opened
from airflow_merge_provider.jobs.merge_source.succession import handed_on
from airflow_merge_provider.jobs.merge_source.totals import count_past
from airflow_merge_provider.jobs.run.progress import Progress
from airflow_merge_provider.jobs.spark.session import adaptive_execution_disabled, override_settings
from airflow_merge_provider.jobs.spark.staging import stage_table

# How many keys may come to the driver; beyond, Spark connects. A key costs some hundred bytes while it works.
KEYS_ON_DRIVER = "spark.merge.source.keysOnDriver"
_KEYS_ON_DRIVER = 30_000_000
# One collision of 64-bit hashes is rare enough; several in a row are a defect of ours.
_SEEDS = range(5)
# A target of so many outputs is read as fast as it is searched.
_SEARCHED_FROM = 20_000
NONE = Overrides()


SolvedT_co = TypeVar("SolvedT_co", bound=Solved, covariant=True)


@dataclass(frozen=True)
class Intake(Generic[SolvedT_co]):
    """The sources as they are merged, the rules, the columns of the keys, and the outputs they make.

    ``positions`` say how far each dataset was read, ``evaluated`` which of them need the definition itself to
    tell their keys, ``said`` what is probably not meant.
    """

    config: MergeSourceConfig
    rules: Sequence[Rule]
    sources: Sequence[Source]
    keys: Sequence[SourceKeys]
    solved: SolvedT_co
    positions: Mapping[str, int]
    evaluated: Sequence[str]
    overrides: Overrides = NONE
    said: Sequence[str] = ()

    @property
    def outcome(self) -> Outcome:
        """The outputs."""
        return self.solved.outcome

    @property
    def labels(self) -> pa.Table:
        """The entities that are rendered, with the places of their outputs."""
        if isinstance(self.solved, SolvedChanges):
            return self.solved.difference.labels
        return self.outcome.labels

    @property
    def used(self) -> Sequence[Source]:
        """The sources that entities to render come from: all of them in a run that renders all."""
        if not isinstance(self.solved, SolvedChanges):
            return self.sources
        offsets = self.outcome.offsets(self.labels.column(HASH))
        return [source for source in self.sources if source.offset in offsets]


@overload
def take_in(
    spark: SparkSession,
    pinned: Sequence[PinnedDataset],
    config: MergeSourceConfig,
    progress: Progress,
    before: None,
    overrides: Overrides,
) -> Intake[Solved]: ...


@overload
def take_in(
    spark: SparkSession,
    pinned: Sequence[PinnedDataset],
    config: MergeSourceConfig,
    progress: Progress,
    before: Before,
    overrides: Overrides,
) -> Intake[SolvedChanges]: ...


def take_in(
    spark: SparkSession,
    pinned: Sequence[PinnedDataset],
    config: MergeSourceConfig,
    progress: Progress,
    before: Before | None,
    overrides: Overrides,
) -> Intake[Solved]:
    """Read what decides who belongs together, and decide it.

    :raises DataError: for entities without an id, with two current versions, or that cannot be merged.
    :raises FullScanRequired: when what has changed cannot be told from the changes alone.
    """
    names = config.dataset_ids
    rules = (*planned_rules(config), *overrides.rules(names))
    offsets = {name: offset for offset, name in enumerate(names)}

    def see(rows: DataFrame, offset: int) -> Source:
        return marked(opened(rows, offset, config), overrides, names)

    sources = [see(read_dataset(spark, each), offsets[each.dataset.id]) for each in pinned]
    if config.change_detection == "sequence":
        _check_places(sources)
    if config.change_detection == "change_feed":
        require_feeds(spark, pinned)
    whole = before is None or before.everything
    for seed in _SEEDS:
        try:
            readings = [
                reading(each, source, seed, config, before, partial(see, offset=source.offset))
                for each, source in zip(pinned, sources, strict=True)
            ]
            if whole and _may_contract(config, overrides) and _has_many_keys(spark, sources, pinned, rules):
                readings = [replace(each, keyed=False) for each in readings]
            return _connected(spark, readings, rules, config, progress, before, overrides=overrides)
        except HashCollisionError:
            progress.say("two values have one hash: hashing anew")
    raise JobError(f"hashes collided with {len(_SEEDS)} seeds in a row: report this with the datasets")


def _check_places(sources: Sequence[Source]) -> None:
    """Refuse datasets whose changes can be found by their contents alone."""
    hint = "name a column of whole numbers or timestamps with sequence_column=…, or leave it to 'auto'"
    problems = [
        Problem(f"dataset {source.name!r}", "sequence", "has no column that says what is new", hint)
        for source in sources
        if source.place is None
    ]
    if problems:
        raise DataError.of(problems)


def _connected(
    spark: SparkSession,
    readings: Sequence[Reading],
    rules: Sequence[Rule],
    config: MergeSourceConfig,
    progress: Progress,
    before: Before | None,
    *,
    overrides: Overrides,
) -> Intake[Solved]:
    with progress.step("scan match keys"):
        read = read_thin(readings, rules)
        past = None if before is None else _past(spark, read, before, rules, config)
    keys = [each.keys for each in read]
    texts = [(each.reading.source, every) for each, every in zip(read, keys, strict=True)]
    seed = _seed(read)
    solve = partial(
        solved,
        config=config,
        connect=partial(_graph, spark, read, rules),
        judge=partial(quarantined, opened=texts, config=config, seed=seed),
        different=overrides.different,
    )
    with progress.step("cluster"):
        if before is None or past is None:
            found = solve([look.entities for look in _looks(read, config, complete=True)])
        else:
            found = _compared(read, past, before, rules, config, solve)
        said = [each.reading.why for each in read if each.reading.why]
        said += warnings(found.evidence, texts, seed)
    positions = dict(before.positions) if before else {}
    positions |= {each.reading.source.name: each.position for each in read if each.position is not None}
    rendered = [each.reading.rendered for each in read]
    evaluated = [each.reading.source.name for each in read if not each.reading.native]
    return Intake(config, rules, rendered, keys, found, positions, evaluated, overrides, said)


def _has_many_keys(
    spark: SparkSession, sources: Sequence[Source], pinned: Sequence[PinnedDataset], rules: Sequence[Rule]
) -> bool:
    """Tell whether there may be more keys than the driver should hold."""
    limit = _limit(spark)
    sides = {side.order for rule in rules for side in (rule.left, rule.right)}
    keys = 0
    for source, each in zip(sources, pinned, strict=True):
        held = sum(order[0] == source.offset for order in sides)
        if not held:
            continue
        rows = count_records(spark, each)
        keys += held * (source.frame.count() if rows is None else rows)
    return keys > limit


def _limit(spark: SparkSession) -> int:
    return int(spark.conf.get(KEYS_ON_DRIVER, str(_KEYS_ON_DRIVER)) or 0)


def _may_contract(config: MergeSourceConfig, overrides: Overrides) -> bool:
    """Tell whether nobody needs to see the links themselves, which only the driver's way shows."""
    return config.max_key_fanout is None and config.metrics is None and not overrides.different


def _seed(read: Sequence[Read]) -> int:
    return read[0].reading.seed if read else _SEEDS[0]


def _graph(
    spark: SparkSession,
    read: Sequence[Read],
    rules: Sequence[Rule],
    entities: Sequence[Entities],
    watch: Watch,
) -> Graph:
    """Connect entities, in the driver's memory or in Spark."""
    if all(each.reading.keyed for each in read):
        return connected(entities, rules, watch)
    ends = [side for rule in rules for side in (rule.left, rule.right)]
    numbers = {order: at for at, order in enumerate(dict.fromkeys(side.order for side in ends))}
    rows = [key_rows(each.reading.opened.frame, each.keys, numbers, each.reading.seed) for each in read]
    keys = reduce(DataFrame.unionByName, rows)
    return contracted(spark, entities, keys, rules, numbers, _limit(spark))


def _past(
    spark: SparkSession,
    read: Sequence[Read],
    before: Before,
    rules: Sequence[Rule],
    config: MergeSourceConfig,
) -> Past:
    """Read what the target remembers: of everything, or of what the entities that were read can reach."""
    seed = _seed(read)
    names = config.dataset_ids
    if before.everything:
        # What the past had in common with what is read is not asked.
        return remembered(before.rows, names, (), seed, None)
    few = before.outputs is not None and before.outputs < _SEARCHED_FROM
    if few or any(each.look.complete or each.short for each in read):
        return remembered(before.rows, names, rules, seed, None)
    hashes = [part for each in read for part in each.entities.every_hash]
    hashes += [each.look.gone for each in read]
    reaching = pa.table({REACHED: np.concatenate([np.empty(0, np.int64), *hashes])})
    with stage_table(spark, reaching) as rows, override_settings(spark, adaptive_execution_disabled(spark)):
        return remembered(before.rows, names, rules, seed, rows)


def _compared(
    read: Sequence[Read],
    past: Past,
    before: Before,
    rules: Sequence[Rule],
    config: MergeSourceConfig,
    solve: Callable[[Sequence[Entities]], Solved],
) -> SolvedChanges:
    """Solve what a change can reach, and compare it with what was there."""
    for each in read:
        check(each, past, rules)
    looks = _looks(read, config, complete=before.everything)
    part = affected(looks, past, everything=before.everything)
    try:
        found = solve(part.sources)
    except DataError as error:
        if before.everything:
            raise
        # A full run may name more: errors in clusters that the change does not reach.
        raise FullScanRequired(f"changed entities cannot be merged: {error.message}") from error
    different = difference(found.outcome, part, past, config, same_rules=before.same_rules)
    left = None if before.everything else count_past(past, part.touched)
    changed = SolvedChanges(**{**vars(found), "left": left}, difference=different)
    if not (config.stable_id or config.replaced_by):
        return changed
    handed = handed_on(
        found.outcome,
        part,
        past,
        different,
        next_stable=before.next_stable if config.stable_id else None,
        successors=config.replaced_by,
    )
    return replace(changed, **vars(handed))


def _looks(read: Sequence[Read], config: MergeSourceConfig, *, complete: bool) -> list[Look]:
    """Give what was read of every dataset; of one that does not exist, nothing, which may be all there is."""
    known = {each.reading.source.offset: each.look for each in read}
    nothing = Look(Entities.none(), complete=complete)
    return [known.get(offset, nothing) for offset in range(len(config.dataset_ids))]
