"""Resolve entities into clusters: read the projected rows of every source once, connect and number them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Generic, TypeVar, overload

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.errors import DataError, JobError, Problem
from airflow_merge_provider.core.merge_source.columns import check_rule_columns, check_survivorship_columns
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.equality import Rule, plan_rules
from airflow_merge_provider.core.merge_source.overrides import Overrides
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.core.run.table_log import PinnedDataset
from airflow_merge_provider.jobs.delta.table import count_records, read_dataset
from airflow_merge_provider.jobs.merge_source.cluster.clustering import ClusteringResult, cluster_entities
from airflow_merge_provider.jobs.merge_source.cluster.components import MatchCallback, connect_entities
from airflow_merge_provider.jobs.merge_source.cluster.components_distributed import (
    build_key_rows,
    connect_distributed,
)
from airflow_merge_provider.jobs.merge_source.cluster.quarantine import (
    find_quarantined_keys,
    find_swallowing,
    list_unlinked,
    list_warnings,
)
from airflow_merge_provider.jobs.merge_source.diff.comparison import (
    ComparedClusters,
    compare_clusters,
    list_deltas,
)
from airflow_merge_provider.jobs.merge_source.model import (
    HASH,
    Entities,
    EntityGraph,
    HashCollisionError,
    OutputAssignment,
    PreviousState,
)
from airflow_merge_provider.jobs.merge_source.scan.incremental_scan import PreviousScan, plan_scan
from airflow_merge_provider.jobs.merge_source.scan.match_keys import SourceKeys
from airflow_merge_provider.jobs.merge_source.scan.overrides import mark_overrides
from airflow_merge_provider.jobs.merge_source.scan.previous_state import REACHED, load_previous_state
from airflow_merge_provider.jobs.merge_source.scan.source_scan import (
    ScanResult,
    SourceScan,
    require_feeds,
    scan_sources,
)
from airflow_merge_provider.jobs.merge_source.scan.sources import Source, open_source
from airflow_merge_provider.jobs.run.expectations import RunExpectations
from airflow_merge_provider.jobs.spark.session import adaptive_execution_disabled, override_settings
from airflow_merge_provider.jobs.spark.staging import stage_table

# The maximum number of keys on the driver; beyond it, Spark connects. A key costs some hundred bytes there.
KEYS_ON_DRIVER = "spark.merge.source.keysOnDriver"
_KEYS_ON_DRIVER_MAX = 30_000_000
# One collision of 64-bit hashes is rare enough; several in a row are a defect of this package.
_SEEDS = range(5)
# Reading a target of up to this many outputs completely is as fast as searching it.
_FULL_READ_MAX_ROWS = 20_000
NO_OVERRIDES = Overrides()
ClusteringT_co = TypeVar("ClusteringT_co", bound=ClusteringResult, covariant=True)


@dataclass(frozen=True)
class Resolution(Generic[ClusteringT_co]):
    """The sources as they are merged, the rules, the columns of the keys, and the resulting outputs.

    ``positions`` are the positions up to which each dataset was read, ``evaluated`` the datasets whose keys
    only the definition itself can compute, ``records`` counts the entities that were read, ``warnings``
    describe what is probably not intended.
    """

    config: MergeSourceConfig
    rules: Sequence[Rule]
    sources: Sequence[Source]
    keys: Sequence[SourceKeys]
    clustering: ClusteringT_co
    positions: Mapping[str, int]
    evaluated: Sequence[str]
    records: int
    overrides: Overrides = NO_OVERRIDES
    warnings: Sequence[str] = ()

    @property
    def assignment(self) -> OutputAssignment:
        """The outputs."""
        return self.clustering.assignment

    @property
    def labels(self) -> pa.Table:
        """The entities that are rendered, with the positions of their outputs."""
        if isinstance(self.clustering, ComparedClusters):
            return self.clustering.difference.labels
        return self.assignment.labels

    @property
    def used(self) -> Sequence[Source]:
        """The sources of the entities to render: all of them in a run that renders all."""
        if not isinstance(self.clustering, ComparedClusters):
            return self.sources
        offsets = self.assignment.find_offsets(self.labels.column(HASH))
        return [source for source in self.sources if source.offset in offsets]


@overload
def resolve_entities(
    spark: SparkSession,
    pinned: Sequence[PinnedDataset],
    config: MergeSourceConfig,
    progress: Progress,
    previous_scan: None,
    overrides: Overrides,
    *,
    expectations: RunExpectations,
) -> Resolution[ClusteringResult]: ...


@overload
def resolve_entities(
    spark: SparkSession,
    pinned: Sequence[PinnedDataset],
    config: MergeSourceConfig,
    progress: Progress,
    previous_scan: PreviousScan,
    overrides: Overrides,
    *,
    expectations: RunExpectations,
) -> Resolution[ComparedClusters]: ...


def resolve_entities(
    spark: SparkSession,
    pinned: Sequence[PinnedDataset],
    config: MergeSourceConfig,
    progress: Progress,
    previous_scan: PreviousScan | None,
    overrides: Overrides,
    *,
    expectations: RunExpectations,
) -> Resolution[ClusteringResult]:
    """Read the inputs of clustering, and cluster the entities.

    :raises DataError: for entities without an ID, with two current versions, or that cannot be merged.
    :raises FullScanRequired: if the changes alone do not determine what has changed.
    """
    names = config.dataset_ids
    rules = (*plan_rules(config), *overrides.build_rules(names))

    def open_marked(rows: DataFrame, offset: int) -> Source:
        source = open_source(rows, offset, config)
        return mark_overrides(_mark_rejected(source, rows, expectations), overrides, names)

    def open_table(table: PinnedDataset) -> Source:
        rows = read_dataset(spark, table)
        progress.record_schema(table.dataset.uri, rows.schema.jsonValue()["fields"])
        return open_marked(rows, names.index(table.dataset.id))

    with progress.time_step("open sources"):
        sources = [open_table(table) for table in pinned]
        typed = {source.offset: source.columns for source in sources if source.properties is not None}
        warnings = check_survivorship_columns(config, typed)
        check_rule_columns(config, typed, is_complete=len(typed) == len(sources) > 0)
        _check_change_detection(config, sources, pinned)
    is_full = previous_scan is None or previous_scan.everything
    for seed in _SEEDS:
        try:
            readings = [
                plan_scan(
                    table, source, seed, config, previous_scan, partial(open_marked, offset=source.offset)
                )
                for table, source in zip(pinned, sources, strict=True)
            ]
            if seed == _SEEDS[0]:
                expectations.check_sources(_list_read_rows(readings))
            if (
                is_full
                and _can_distribute(config, overrides)
                and _has_many_keys(spark, sources, pinned, rules)
            ):
                readings = [replace(reading, keyed=False) for reading in readings]
            resolution = _scan_and_cluster(
                spark, readings, rules, config, progress, previous_scan, overrides=overrides
            )
            return replace(resolution, warnings=[*warnings, *resolution.warnings])
        except HashCollisionError:
            warnings.append(f"two values have the same hash with seed {seed}: all values were hashed again")
            progress.log_line(warnings[-1])
    raise JobError(f"hashes collided with {len(_SEEDS)} seeds in a row: report this error with the datasets")


def _mark_rejected(source: Source, rows: DataFrame, expectations: RunExpectations) -> Source:
    """Mark the rows that do not meet an expectation, if the run leaves such rows out."""
    rejection = expectations.build_rejection(source.name, rows)
    return source if rejection is None else source.reject_rows(rejection)


def _list_read_rows(readings: Sequence[SourceScan]) -> dict[str, DataFrame]:
    """Return the rows that a run reads of each source: in an incremental run, those that have changed."""
    return {reading.source.name: reading.read.frame for reading in readings if not reading.is_unchanged}


def _check_change_detection(
    config: MergeSourceConfig, sources: Sequence[Source], pinned: Sequence[PinnedDataset]
) -> None:
    """Refuse datasets whose changes can only be found by comparing contents.

    :raises DataError: if the configuration does not allow that.
    """
    if config.change_detection == "change_feed" and sources:
        require_feeds(sources[0].frame.sparkSession, pinned)
    hint = "set sequence_column to a column of integers or timestamps, or set change_detection to 'auto'"
    problems = [
        Problem(f"dataset {source.name!r}", "sequence", "has no usable sequence column", hint)
        for source in sources
        if config.change_detection == "sequence" and source.place is None
    ]
    if problems:
        raise DataError.from_problems(problems)


def _scan_and_cluster(
    spark: SparkSession,
    readings: Sequence[SourceScan],
    rules: Sequence[Rule],
    config: MergeSourceConfig,
    progress: Progress,
    previous_scan: PreviousScan | None,
    *,
    overrides: Overrides,
) -> Resolution[ClusteringResult]:
    with progress.time_step("scan match keys"):
        scans = scan_sources(readings, rules)
        previous_state = (
            None if previous_scan is None else _load_previous(spark, scans, previous_scan, rules, config)
        )
    keys = [scan.keys for scan in scans]
    texts = [(scan.reading.source, scan_keys) for scan, scan_keys in zip(scans, keys, strict=True)]
    seed = _get_seed(scans)
    solve = partial(
        cluster_entities,
        config=config,
        connect=partial(_connect_entities, spark, scans, rules),
        judge=partial(find_quarantined_keys, opened=texts, config=config, seed=seed),
        different=overrides.different,
    )
    with progress.time_step("cluster"):
        if previous_scan is None or previous_state is None:
            clustering = solve([delta.entities for delta in list_deltas(scans, config, complete=True)])
        else:
            clustering = compare_clusters(scans, previous_state, previous_scan, rules, config, solve)
        warnings = [warning for scan in scans for warning in scan.reading.list_warnings()]
        entities = max(
            previous_scan.entities or 0 if previous_scan else 0, len(clustering.assignment.graph.hashes)
        )
        warnings = [
            *find_swallowing(clustering.link_statistics, clustering.assignment.graph, entities, texts, seed),
            *warnings,
        ]
        if previous_scan is None or previous_scan.everything:
            filled = {scan.reading.source.offset for scan in scans if len(scan.entities.hashes)}
            warnings += list_unlinked(clustering.link_statistics, plan_rules(config), filled)
        warnings += list_warnings(clustering.link_statistics, texts, seed)
    positions = dict(previous_scan.positions) if previous_scan else {}
    positions |= {scan.reading.source.name: scan.position for scan in scans if scan.position is not None}
    rendered = [scan.reading.rendered for scan in scans]
    evaluated = [scan.reading.source.name for scan in scans if not scan.reading.native]
    records = sum(len(scan.entities.hashes) for scan in scans)
    return Resolution(
        config, rules, rendered, keys, clustering, positions, evaluated, records, overrides, warnings
    )


def _has_many_keys(
    spark: SparkSession, sources: Sequence[Source], pinned: Sequence[PinnedDataset], rules: Sequence[Rule]
) -> bool:
    """Return whether there may be more keys than the driver should hold."""
    limit = _get_key_limit(spark)
    sides = {side.order for rule in rules for side in (rule.left, rule.right)}
    keys = 0
    for source, table in zip(sources, pinned, strict=True):
        side_count = sum(order[0] == source.offset for order in sides)
        if not side_count:
            continue
        rows = count_records(spark, table)
        keys += side_count * (source.frame.count() if rows is None else rows)
    return keys > limit


def _get_key_limit(spark: SparkSession) -> int:
    return int(spark.conf.get(KEYS_ON_DRIVER, str(_KEYS_ON_DRIVER_MAX)) or 0)


def _can_distribute(config: MergeSourceConfig, overrides: Overrides) -> bool:
    """Return whether the links themselves are not needed, which only clustering on the driver provides."""
    return config.max_key_fanout is None and config.metrics is None and not overrides.different


def _get_seed(scans: Sequence[ScanResult]) -> int:
    return scans[0].reading.seed if scans else _SEEDS[0]


def _connect_entities(
    spark: SparkSession,
    scans: Sequence[ScanResult],
    rules: Sequence[Rule],
    entities: Sequence[Entities],
    match_callback: MatchCallback,
) -> EntityGraph:
    """Connect entities, in the driver's memory or in Spark."""
    if all(scan.reading.keyed for scan in scans):
        return connect_entities(entities, rules, match_callback)
    ends = [side for rule in rules for side in (rule.left, rule.right)]
    numbers = {order: at for at, order in enumerate(dict.fromkeys(side.order for side in ends))}
    rows = [
        build_key_rows(scan.reading.opened.frame, scan.keys, numbers, scan.reading.seed) for scan in scans
    ]
    keys = reduce(DataFrame.unionByName, rows)
    return connect_distributed(spark, entities, keys, rules, numbers, _get_key_limit(spark))


def _load_previous(
    spark: SparkSession,
    scans: Sequence[ScanResult],
    previous_scan: PreviousScan,
    rules: Sequence[Rule],
    config: MergeSourceConfig,
) -> PreviousState:
    """Read the previous state from the target: all of it, or the outputs that the read entities reach."""
    seed = _get_seed(scans)
    names = config.dataset_ids
    if previous_scan.everything:
        # The keys of previous members are not needed.
        return load_previous_state(previous_scan.rows, names, (), seed, None)
    is_small = previous_scan.outputs is not None and previous_scan.outputs < _FULL_READ_MAX_ROWS
    if is_small or any(scan.delta.complete or scan.short for scan in scans):
        return load_previous_state(previous_scan.rows, names, rules, seed, None)
    hashes = [part for scan in scans for part in scan.entities.every_hash]
    hashes += [scan.delta.deleted_hashes for scan in scans]
    reaching = pa.table({REACHED: np.concatenate([np.empty(0, np.int64), *hashes])})
    with stage_table(spark, reaching) as rows, override_settings(spark, adaptive_execution_disabled(spark)):
        return load_previous_state(previous_scan.rows, names, rules, seed, rows)
