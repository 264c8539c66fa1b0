"""Plan from where each source is read, given the previous scan that the run compares its outputs with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.equality import Rule
from airflow_merge_provider.core.run.table_log import PinnedDataset, is_continued
from airflow_merge_provider.core.source_offset import SourceOffset, find_offset
from airflow_merge_provider.jobs.delta.table import SparkLog
from airflow_merge_provider.jobs.merge_source.model import FullScanRequired, PreviousState
from airflow_merge_provider.jobs.merge_source.scan.affected import has_changes
from airflow_merge_provider.jobs.merge_source.scan.change_feed import read_feed_changes
from airflow_merge_provider.jobs.merge_source.scan.late_rows import TooManyLateRowsError, find_late_entities
from airflow_merge_provider.jobs.merge_source.scan.source_scan import (
    ScanResult,
    SourceScan,
    add_entity_hash,
    scan_sources,
)
from airflow_merge_provider.jobs.merge_source.scan.sources import Source
from airflow_merge_provider.jobs.spark.errors import CHANGES_GONE_CONDITIONS, has_condition


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
