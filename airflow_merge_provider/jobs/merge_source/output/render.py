"""Render outputs: clusters and single entities as rows of the target."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce

import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from airflow_merge_provider.core.merge_source.columns import IDS, REPLACED_COLUMN
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.equality import Rule
from airflow_merge_provider.jobs.merge_source.cluster.clustering import ClusteringResult
from airflow_merge_provider.jobs.merge_source.diff.id_lineage import EVENT_NUMBER, STABLE
from airflow_merge_provider.jobs.merge_source.model import HASH, LABEL
from airflow_merge_provider.jobs.merge_source.output.content import Content
from airflow_merge_provider.jobs.merge_source.output.survivorship import (
    OFFSET,
    PICKED_BY_NAME,
    PROVENANCE,
    list_provenance,
)
from airflow_merge_provider.jobs.merge_source.output.typed_columns import choose_content
from airflow_merge_provider.jobs.merge_source.resolution import Resolution
from airflow_merge_provider.jobs.merge_source.scan.match_keys import SourceKeys
from airflow_merge_provider.jobs.merge_source.scan.previous_state import MEMBERS, STABLE_ID
from airflow_merge_provider.jobs.merge_source.scan.sources import (
    OWN_IDS,
    OWN_REPLACED,
    SCAN_DELETED,
    SCAN_ID,
    Source,
)
from airflow_merge_provider.jobs.spark.session import override_settings
from airflow_merge_provider.jobs.spark.sql import quote_column
from airflow_merge_provider.jobs.spark.staging import stage_table

REPLACED_BY = "$replaced_by"
MEMBER, PARTS = "__merge_member", "__merge_parts"
# From this number of rows on, computing discarded values costs more than compiling.
_MANY = 100_000
# Up to this many single entities, shuffling them costs less than a second scan of the sources.
_PLANNED_ONCE_MAX = 10_000
_MEMBER = f"{MEMBERS}.list.element"
_OF_MEMBERS = [f"{_MEMBER}.{name}" for name in ("dataset", "id", "hash")]
_KEY_COLUMNS = [f"{_MEMBER}.keys.list.element.{name}" for name in ("rule", "side", "value")]
_UNLIKE = ["_id", f"{IDS}.list.element", "_hash", f"{_MEMBER}.id", f"{_MEMBER}.hash", _KEY_COLUMNS[-1]]
# Members are collected from sorted rows, in their order. The hash aggregate would fall back to sorting after
# 128 clusters, at twice the cost and without keeping the order within a cluster.
_PLANNED = {"spark.sql.execution.useObjectHashAggregateExec": "false"}
# Parquet's writer would build dictionaries of values that hardly repeat, and statistics of lists that no
# reader uses: a tenth of the cost.
_PARQUET_OPTIONS = {
    "parquet.size.statistics.enabled": "false",
    **{f"parquet.enable.dictionary#{name}": "false" for name in _UNLIKE},
    **{f"parquet.column.statistics.enabled#{name}": "false" for name in [*_OF_MEMBERS, *_KEY_COLUMNS]},
}


@contextmanager
def render_outputs(
    spark: SparkSession,
    resolution: Resolution[ClusteringResult],
    *,
    written_at: int,
    stable: DataFrame | None = None,
) -> Iterator[DataFrame]:
    """Yield the target's rows, which are valid only inside the block: they need the settings that it sets."""
    entities = resolution.labels.num_rows
    planned = {**_PLANNED, **(_PARQUET_OPTIONS if entities > _MANY else {})}
    with override_settings(spark, planned), stage_table(spark, resolution.labels) as labels:
        yield _render_rows(resolution, labels, written_at, stable)


def _render_rows(
    resolution: Resolution[ClusteringResult], labels: DataFrame, written_at: int, stable: DataFrame | None
) -> DataFrame:
    """Render single entities directly from their source, and clusters by one shuffle.

    Sources are scanned once for each of the two: a scan costs a tenth of shuffling many single entities. Few
    single entities are rendered as clusters of one.
    """
    content = choose_content(resolution.sources, resolution.config)
    source_rows = _read_sources(resolution, content)
    shared = pc.bit_wise_and(resolution.labels.column(LABEL), 1)
    if resolution.labels.num_rows - (pc.sum(shared).as_py() or 0) <= _PLANNED_ONCE_MAX:
        outputs = _render_clusters(_add_labels(resolution, labels, source_rows), content, resolution.config)
    else:
        is_shared = F.col(LABEL).bitwiseAND(F.lit(1)) == 1
        singletons = _render_singletons(
            _add_labels(resolution, labels.where(~is_shared), source_rows), content, resolution.config
        )
        clusters = _render_clusters(
            _add_labels(resolution, labels.where(is_shared), source_rows), content, resolution.config
        )
        outputs = singletons.unionByName(clusters)
    outputs = content.finish_outputs(outputs)
    optional_columns = _add_columns(outputs, resolution.config, stable)
    if stable is not None:
        outputs = outputs.join(F.broadcast(stable), EVENT_NUMBER)
    rows = _build_row(outputs, content, optional_columns, written_at)
    if not resolution.config.replaced_by:
        return rows
    return rows.withColumn(REPLACED_BY, F.lit(None).cast("array<string>"))


@dataclass(frozen=True)
class _SourceRows:
    """One source with its keys as columns and, from both, the contribution of an entity to its output."""

    source: Source
    keys: list[Column]
    columns: list[Column]

    def build_rows(self, source: Source) -> DataFrame:
        """Return one row per entity, in the same columns for every source."""
        labelled = [name for name in (HASH, LABEL) if name in source.frame.columns]
        return source.frame.select("*", *self.keys).select(*labelled, *self.columns)


def _read_sources(resolution: Resolution[ClusteringResult], content: Content) -> list[_SourceRows]:
    keys_of = dict(zip((source.offset for source in resolution.sources), resolution.keys, strict=True))
    source_rows = []
    for source in resolution.used or resolution.sources[:1]:
        columns, keys = keys_of[source.offset].project_keys()
        source_rows.append(
            _SourceRows(source, columns, _project_source(source, keys, content, resolution.rules))
        )
    return source_rows


def _add_labels(
    resolution: Resolution[ClusteringResult], labels: DataFrame, source_rows: Sequence[_SourceRows]
) -> DataFrame:
    """Return the entities that have one of the labels.

    If the labels are joined before the union, nothing is computed for other entities, not even which version
    is the latest. If they are joined after it, Spark compiles the following steps once and not once per
    source, which matters if there are few entities.
    """
    labels = F.broadcast(labels)
    early = resolution.labels.num_rows > _MANY or any(rows.source.several for rows in source_rows)
    frames = []
    for rows in source_rows:
        source = rows.source
        chosen = replace(source, frame=source.frame.join(labels, HASH)) if early else source
        frames.append(rows.build_rows(chosen.keep_latest()))
    entities = reduce(DataFrame.unionByName, frames)
    return entities if early else entities.join(labels, HASH)


def _project_source(
    source: Source, keys: SourceKeys, content: Content, rules: Sequence[Rule]
) -> list[Column]:
    live = ~F.col(SCAN_DELETED)
    member = F.struct(
        F.lit(source.name).alias("dataset"),
        F.col(SCAN_ID).alias("id"),
        source.content_hash().alias("hash"),
        keys.concat_keys(rules).alias("keys"),
    )
    return [
        F.lit(source.offset).alias(OFFSET),
        F.col(SCAN_ID),
        F.col(SCAN_DELETED),
        (F.col(OWN_REPLACED) & ~live).alias(REPLACED_COLUMN),
        _own_ids(source).alias(OWN_IDS),
        member.alias(MEMBER),
        *content.project_source(source),
    ]


def _render_singletons(entities: DataFrame, content: Content, config: MergeSourceConfig) -> DataFrame:
    return entities.select(
        F.shiftright(F.col(LABEL), 1).alias(EVENT_NUMBER),
        _output_id(F.col(OFFSET), F.col(SCAN_ID), config).alias("_id"),
        F.col(SCAN_DELETED).alias("_deleted"),
        F.col(OWN_IDS).alias(IDS),
        F.col(REPLACED_COLUMN),
        *content.project_singleton(),
        *_list_origins(
            content,
            lambda name: F.when(content.non_null(name), _join_with_slash(F.col(MEMBER))),
            lambda: _map_names(content.list_default_properties(), _join_with_slash(F.col(MEMBER))),
        ),
        F.array(F.col(MEMBER)).alias(MEMBERS),
    )


def _render_clusters(entities: DataFrame, content: Content, config: MergeSourceConfig) -> DataFrame:
    """Collect members in their order: by the offset of their dataset, then by ID.

    Rows are sorted, not lists: a list of structs takes longer to sort and to unpack. A deleted entity is
    alone, so the flags of the first member are those of all.
    """
    # Shuffled before aggregation: a partial aggregate would find almost nothing to combine.
    numbered = entities.withColumn(EVENT_NUMBER, F.shiftright(F.col(LABEL), 1)).repartition(EVENT_NUMBER)
    ordered = numbered.sortWithinPartitions(EVENT_NUMBER, OFFSET, SCAN_ID)
    id_ = _output_id(F.col(OFFSET), F.col(SCAN_ID), config)
    chosen = content.survivors
    collected = F.collect_list(F.struct(OFFSET, MEMBER, *content.names)).alias(PARTS)
    parts = [collected] if chosen.has_rules else []
    clusters = ordered.groupBy(EVENT_NUMBER).agg(
        (F.first(id_) if config.identity == "first" else F.concat_ws("|", F.collect_list(id_))).alias("_id"),
        F.first(SCAN_DELETED).alias("_deleted"),
        F.array_distinct(F.flatten(F.collect_list(OWN_IDS))).alias(IDS),
        F.first(REPLACED_COLUMN).alias(REPLACED_COLUMN),
        *content.collect_members(),
        F.collect_list(MEMBER).alias(MEMBERS),
        *parts,
    )
    if parts:
        clusters = clusters.select("*", *chosen.pick_members(F.col(PARTS)))
    return clusters.select(
        EVENT_NUMBER,
        "_id",
        "_deleted",
        IDS,
        REPLACED_COLUMN,
        *content.project_cluster(),
        *_list_origins(
            content,
            chosen.build_origin(lambda picked: _join_with_slash(picked[MEMBER])),
            lambda: F.transform_values(PICKED_BY_NAME, lambda _, picked: _join_with_slash(picked[MEMBER])),
        ),
        MEMBERS,
    )


def _list_origins(
    content: Content, origin: Callable[[str], Column], default_origins: Callable[[], Column]
) -> list[Column]:
    """Return for every chosen property the member that its value comes from."""
    survivors = content.survivors
    if not survivors.has_rules:
        return []
    provenance = list_provenance({name: origin(name) for name in survivors.properties})
    if survivors.has_default:
        provenance = F.map_concat(provenance, default_origins())
    return [provenance.alias(PROVENANCE)]


def _map_names(names: Column, value: Column) -> Column:
    return F.map_from_entries(F.transform(names, lambda name: F.struct(name, value)))


def _join_with_slash(member: Column) -> Column:
    return F.concat_ws("/", member["dataset"], member["id"])


def _add_columns(outputs: DataFrame, config: MergeSourceConfig, stable: DataFrame | None) -> list[Column]:
    """Return the optional columns of outputs; without ``stable``, an output's number is its stable ID."""
    columns = [F.col(PROVENANCE)] if PROVENANCE in outputs.columns else []
    if config.stable_id:
        columns.append(F.col(EVENT_NUMBER if stable is None else STABLE).alias(STABLE_ID))
    return columns


def _build_row(
    outputs: DataFrame, content: Content, optional_columns: Sequence[Column], written_at: int
) -> DataFrame:
    """Return the target's columns in their order."""
    optional_json = [F.to_json(F.struct(*optional_columns))] if optional_columns else []
    return outputs.select(
        "_id",
        F.col(EVENT_NUMBER).alias("_updated"),
        "_deleted",
        IDS,
        REPLACED_COLUMN,
        content_hash(F.to_json(IDS), content.content_json(outputs), *optional_json).alias("_hash"),
        F.lit(None).cast("bigint").alias("_previous"),
        F.lit(written_at).cast("bigint").alias("_ts"),
        *map(quote_column, content.columns),
        *optional_columns,
        MEMBERS,
    )


def content_hash(*json_columns: Column) -> Column:
    """Hash the content of an output: its ID, whether it is deleted or replaced, and more columns as JSON."""
    flags = (F.coalesce(F.col(flag), F.lit(False)).cast("string") for flag in ("_deleted", REPLACED_COLUMN))
    return F.md5(F.concat_ws("\n", "_id", *flags, *json_columns))


def _output_id(offset: Column, id_: Column, config: MergeSourceConfig) -> Column:
    return id_ if config.identity == "first" else F.concat(offset.cast("string"), F.lit("|"), id_)


def _own_ids(source: Source) -> Column:
    """Return the distinct IDs that an entity brings along; its own ID if it brings none."""
    own_id = F.array(F.col(SCAN_ID))
    if source.properties is not None and IDS not in source.frame.columns:
        return own_id
    return F.coalesce(F.array_distinct(F.array_compact(F.col(OWN_IDS))), own_id)
