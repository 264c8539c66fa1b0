"""Plan from where each source is read, find rows that were committed late, and what a change can affect."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, SparkSession, functions as F

from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.equality import Rule
from airflow_merge_provider.core.run.table_log import PinnedDataset, is_continued
from airflow_merge_provider.core.source_offset import SourceOffset, find_offset
from airflow_merge_provider.core.value_text import EPOCH
from airflow_merge_provider.jobs.delta.commit_log import GainedFile, open_commit_log
from airflow_merge_provider.jobs.delta.table import MemoryDataset, SparkLog, read_dataset
from airflow_merge_provider.jobs.merge_source.model import (
    HASH,
    NOWHERE,
    AffectedEntities,
    Entities,
    Flags,
    FullScanRequired,
    Numbers,
    PreviousState,
    SourceDelta,
)
from airflow_merge_provider.jobs.merge_source.scan.source_scan import (
    ScanResult,
    SourceScan,
    add_entity_hash,
    read_feed_changes,
    scan_sources,
)
from airflow_merge_provider.jobs.merge_source.scan.sources import Source
from airflow_merge_provider.jobs.spark.errors import CHANGES_GONE_CONDITIONS, has_condition


def find_affected(
    deltas: Sequence[SourceDelta], previous: PreviousState, *, everything: bool
) -> AffectedEntities:
    """Find the affected part; with ``everything`` it is the whole.

    An entity that was not read is unchanged if its source was not read completely; otherwise it is gone.
    """
    matches = [_SourceMatch.match_entities(delta, previous.entities[at]) for at, delta in enumerate(deltas)]
    keys = _sort_key_hashes(
        [delta.entities.select_entities(match.changed) for delta, match in zip(deltas, matches, strict=True)]
    )
    touched = np.full(len(previous.numbers), everything)
    for at, match in enumerate(matches):
        outputs, previous_entities = previous.outputs[at], previous.entities[at]
        touched[outputs[match.is_deleted | match.altered]] = True
        for positions, hashes, _ in previous_entities.keys.values():
            touched[outputs[positions[_is_among(hashes, keys)]]] = True
    parts = [
        match.select_part(delta.entities, previous.entities[at], previous.outputs[at], touched)
        for at, (delta, match) in enumerate(zip(deltas, matches, strict=True))
    ]
    return AffectedEntities(
        [entities for entities, _, _ in parts],
        np.concatenate([former for _, former, _ in parts]),
        np.concatenate([same for _, _, same in parts]),
        touched,
        sum(int(match.changed.sum() + match.is_deleted.sum()) for match in matches),
    )


def has_changes(current: Entities, previous: Entities) -> bool:
    """Return whether an entity is new or differs from the previous state."""
    return bool(_SourceMatch.match_entities(SourceDelta(current, complete=True), previous).changed.any())


@dataclass(frozen=True)
class _SourceMatch:
    """The entities of one source, matched with the previous ones.

    ``positions`` is the position of an entity in the previous state; ``changed`` marks those that are new or
    differ; of the previous entities, ``read`` marks those that were read again, ``altered`` those that differ
    now, ``is_deleted`` those that no longer exist.
    """

    positions: Numbers
    changed: Flags
    read: Flags
    altered: Flags
    is_deleted: Flags

    @staticmethod
    def match_entities(delta: SourceDelta, previous: Entities) -> _SourceMatch:
        current = delta.entities
        positions = _find_positions(current.hashes, previous.hashes)
        is_known = positions != NOWHERE
        differs = np.ones(len(positions), np.bool_)
        known_positions = positions[is_known]
        differs[is_known] = (current.contents[is_known] != previous.contents[known_positions]) | (
            current.deleted[is_known] != previous.deleted[known_positions]
        )
        is_read = np.zeros(len(previous.hashes), np.bool_)
        is_read[known_positions] = True
        is_altered = np.zeros(len(previous.hashes), np.bool_)
        is_altered[positions[is_known & differs]] = True
        is_gone = ~is_read if delta.complete else np.isin(previous.hashes, delta.deleted_hashes)
        return _SourceMatch(positions, differs, is_read, is_altered, is_gone)

    def select_part(
        self, current: Entities, previous: Entities, outputs: Numbers, touched: Flags
    ) -> tuple[Entities, Numbers, Flags]:
        """Return the entities that belong to the affected part, their outputs, and which are unchanged."""
        former = np.full(len(self.positions), NOWHERE, np.int64)
        is_known = self.positions != NOWHERE
        former[is_known] = outputs[self.positions[is_known]]
        is_selected = self.changed.copy()
        is_selected[is_known] |= touched[former[is_known]]
        is_kept = touched[outputs] & ~self.read & ~self.is_deleted
        return (
            current.select_entities(is_selected).and_also(previous.select_entities(is_kept)),
            np.concatenate([former[is_selected], outputs[is_kept]]),
            np.concatenate([~self.changed[is_selected], np.ones(int(is_kept.sum()), np.bool_)]),
        )


def _find_positions(numbers: Numbers, distinct_numbers: Numbers) -> Numbers:
    """Return the position of each number among distinct numbers; ``NOWHERE`` if it is not among them."""
    if not len(distinct_numbers):
        return np.full(len(numbers), NOWHERE, np.int64)
    order = np.argsort(distinct_numbers)
    insertions = np.minimum(
        np.searchsorted(distinct_numbers, numbers, sorter=order), len(distinct_numbers) - 1
    )
    positions = order[insertions]
    return np.where(distinct_numbers[positions] == numbers, positions, NOWHERE)


def _sort_key_hashes(changed: Sequence[Entities]) -> Numbers:
    """Return the sorted hashes of all keys that changed entities have now."""
    hashes = [hashes for entities in changed for _, hashes, _ in entities.keys.values()]
    return np.sort(np.concatenate([np.empty(0, np.int64), *hashes]))


def _is_among(hashes: Numbers, ordered: Numbers) -> Flags:
    if not len(ordered):
        return np.zeros(len(hashes), np.bool_)
    positions = np.minimum(np.searchsorted(ordered, hashes), len(ordered) - 1)
    among: Flags = ordered[positions] == hashes
    return among


# Up to this many rows, their entities are looked up among all rows; comparing all rows is as fast beyond it.
LATE_MAX_ROWS = 1_000_000


def find_late_entities(
    pinned: PinnedDataset, since: int, position: int, source: Source, open_rows: Callable[[DataFrame], Source]
) -> DataFrame | None:
    """Return the hashes of the entities that have a row committed after ``since`` and not above a position.

    None if there are none. ``open_rows`` opens rows like those of the source.

    :raises TooManyLateRowsError: if there may be so many that all rows have to be compared.
    :raises Exception: Spark's error, or FileNotFoundError, if the log lacks commits after ``since``.
    """
    spark = source.frame.sparkSession
    if isinstance(pinned, MemoryDataset):
        # Without a log, only a row that has no place may be late.
        return source.frame.where(source.is_after(position).isNull()).select(HASH).distinct()
    files = _list_late_files(spark, pinned, since, position, source)
    if not files:
        return None
    if sum(_read_stats(file).get("numRecords", math.inf) for file in files) > LATE_MAX_ROWS:
        raise TooManyLateRowsError
    names = [file.name for file in files]
    late = open_rows(read_dataset(spark, pinned).where(F.col("_metadata.file_name").isin(*names)))
    return late.frame.where(~F.coalesce(late.is_after(position), F.lit(False))).select(HASH).distinct()


class TooManyLateRowsError(Exception):
    """Raised if late rows may be so many that all rows of their dataset have to be compared."""


def _list_late_files(
    spark: SparkSession, pinned: PinnedDataset, since: int, position: int, source: Source
) -> Sequence[GainedFile]:
    """Return the files gained after a version that may have a row whose sequence is not above a position."""
    log = open_commit_log(spark, pinned)
    files = log.list_gained_files(since, pinned.version or since)
    # With column mapping, the statistics use physical column names.
    name = "" if log.is_mapped else source.sequence or ""
    return [file for file in files if not _is_after(_read_stats(file), name, position)]


def _is_after(stats: dict[str, Any], name: str, position: int) -> bool:
    """Return whether the statistics of a file show that all of its sequence values are above a position."""
    lowest = _read_number((stats.get("minValues") or {}).get(name))
    nulls = (stats.get("nullCount") or {}).get(name)
    return nulls == 0 and lowest is not None and lowest > position


def _read_stats(file: GainedFile) -> dict[str, Any]:
    stats: dict[str, Any] = json.loads(file.stats) if file.stats else {}
    return stats


def _read_number(value: Any) -> int | None:
    """Return a lowest value as a position: an integer, or microseconds of a timestamp; None if unknown."""
    if isinstance(value, int):
        return value
    try:
        moment = dt.datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return (moment - EPOCH) // dt.timedelta(microseconds=1) if moment.tzinfo else None


@dataclass(frozen=True)
class PreviousScan:
    """The previous scan: the target's rows, and the position up to which the last run had read each dataset.

    ``positions`` are by the names of datasets; with ``everything`` they and the ``offsets`` are not used.
    ``evaluated`` names the datasets whose keys Spark's own expressions could not compute. ``outputs`` is the
    approximate number of rows and ``entities`` the number of entities, None if unknown; ``next_stable`` is
    the first free stable ID.
    """

    rows: DataFrame
    outputs: int | None
    positions: Mapping[str, int]
    offsets: Sequence[SourceOffset]
    evaluated: Sequence[str]
    everything: bool
    same_rules: bool
    next_stable: int = 0
    entities: int | None = None


def plan_scan(
    pinned: PinnedDataset,
    source: Source,
    seed: int,
    config: MergeSourceConfig,
    previous_scan: PreviousScan | None,
    open_rows: Callable[[DataFrame], Source],
) -> SourceScan:
    """Plan to read a source from where the last run ended, if possible; not at all if it is unchanged.

    ``open_rows`` opens rows of the source's change data feed in the same way as the source.
    """
    source = add_entity_hash(source, seed)
    if previous_scan is None:
        return SourceScan(source, seed)
    full_scan = SourceScan(source, seed, native=source.name not in previous_scan.evaluated, compared=True)
    offset = find_offset(previous_scan.offsets, pinned.offset)
    if previous_scan.everything or offset is None or offset.table_id != pinned.table_id:
        # The previous offset does not apply to a table that was recreated, whatever its version is.
        return full_scan
    since = offset.version
    if offset.is_same_read(pinned.offset):
        return replace(full_scan, is_unchanged=True)
    if pinned.table_id is not None and not is_continued(SparkLog(source.frame.sparkSession), pinned, offset):
        reason = (
            f"dataset {source.name!r} lacks the commit that the previous run read: all its rows are compared"
        )
        return replace(full_scan, why=reason)
    if config.change_detection == "change_feed" and since is not None:
        changes = read_feed_changes(
            source.frame.sparkSession,
            pinned,
            since,
            source,
            lambda rows: add_entity_hash(open_rows(rows), seed),
        )
        reason = f"the change data feed of dataset {source.name!r} does not contain all changes since version"
        return replace(
            full_scan, fed=changes, why="" if changes else f"{reason} {since}: all its rows are compared"
        )
    by_place = source.place is not None and config.change_detection in ("auto", "sequence")
    position = previous_scan.positions.get(source.name) if by_place else None
    if position is None or since is None:
        return full_scan

    def open_hashed(rows: DataFrame) -> Source:
        return add_entity_hash(open_rows(rows), seed)

    return _plan_after(full_scan, pinned, since, position, open_hashed)


def _plan_after(
    full_scan: SourceScan,
    pinned: PinnedDataset,
    since: int,
    position: int,
    open_rows: Callable[[DataFrame], Source],
) -> SourceScan:
    """Plan to read the rows after a position and those that were committed late."""
    source = full_scan.source
    try:
        late = find_late_entities(pinned, since, position, source, open_rows)
    except TooManyLateRowsError:
        return full_scan
    except Exception as error:
        if not has_condition(error, CHANGES_GONE_CONDITIONS):
            raise
        reason = f"the log of dataset {source.name!r} lacks commits after version {since}"
        return replace(full_scan, why=f"{reason}: all its rows are compared")
    return replace(full_scan, position=position, late=late)


def check_delta(scan: ScanResult, previous_state: PreviousState, rules: Sequence[Rule]) -> None:
    """Check that what was read of a source covers all changes in it.

    :raises FullScanRequired: if it does not.
    """
    if scan.short:
        _check_end(scan, previous_state, rules)
    source, changes = scan.reading.source, scan.reading.fed
    # A feed consists of rows; only a scan of all rows shows which entities have several of them.
    if changes is not None and not changes.is_plain(previous_state.entities[source.offset].hashes):
        raise FullScanRequired(f"dataset {source.name!r} has several rows per entity")


def _check_end(scan: ScanResult, previous_state: PreviousState, rules: Sequence[Rule]) -> None:
    """Check why a source is shorter than it was: versions do not show rows that were only removed.

    :raises FullScanRequired: if it has other entities than before, and was recreated or restored.
    """
    source = scan.reading.source
    (full_scan,) = scan_sources([replace(scan.reading, position=None)], rules)
    if has_changes(full_scan.entities, previous_state.entities[source.offset]):
        raise FullScanRequired(
            f"the highest sequence value of dataset {source.name!r} is lower than in the previous run"
        )
