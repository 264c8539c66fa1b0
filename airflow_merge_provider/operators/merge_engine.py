"""Define the operator that folds a stream of changes into a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import Asset

from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.operators._spark_job import SparkJobOperator


class MergeEngineOperator(SparkJobOperator):
    """Fold the records of a source into a table with one row per key, by the rules of a merge engine.

    Every argument but ``emit_asset`` is templated.

    :param source: the dataset of records to fold.
    :param target: the table to fold them into: a bare id, a catalog table, a location or an ``Asset``.
    :param primary_key: the columns of the key.
    :param merge_engine: ``deduplicate``, ``partial-update``, ``aggregation`` or ``first-row``.
    :param options: table options with their names in Paimon, such as ``{"sequence.field": "ts"}``.
    :param row_kind_column: the column of the source with ``+I``, ``-U``, ``+U`` or ``-D``; without it every
        row is ``+I``.
    :param order_by: the columns that define the arrival order; by default the source's commits and files.
    :param partition_by: the columns by which a new target is partitioned.
    :param clear_column: the column of the source that lists the columns which a record sets to NULL.
    :param tombstone_retention: how long the sequence of removed keys is kept: days, or ``"12 hours"``.
    :param compact_ratio: compact the target when more than this share of its stored rows is outdated.
    :param batch_id: the id of the batch; a batch that was already folded is not folded again.
    :param expect: named conditions on the rows of the source or on the changed rows, and what to do with rows
        that do not meet them: ``fail``, ``warn`` or ``quarantine``.
    :param changelog: the table to which every run writes its net changes.
    :param fail_on: conditions that fail a run: ``tie``, ``null-sequence``, ``orphan-retract``,
        ``lone-update``.
    :param incremental: whether a run reads only records that were added to the source since the previous run.
    """

    job = "merge_engine"
    config_class = MergeEngineConfig

    def __init__(
        self,
        *,
        source: str | Asset,
        target: str | Asset,
        primary_key: Sequence[str] | str,
        merge_engine: str = "deduplicate",
        options: Mapping[str, Any] | None = None,
        row_kind_column: str | None = None,
        order_by: Sequence[str] | str = (),
        partition_by: Sequence[str] | str = (),
        clear_column: str | None = None,
        tombstone_retention: float | str | None = None,
        compact_ratio: float | str | None = None,
        batch_id: str | None = None,
        changelog: str | Asset | None = None,
        expect: Mapping[str, Any] | None = None,
        fail_on: Sequence[str] | str = (),
        incremental: bool | str = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.target = target
        self.primary_key = primary_key
        self.merge_engine = merge_engine
        self.options = options
        self.row_kind_column = row_kind_column
        self.order_by = order_by
        self.partition_by = partition_by
        self.clear_column = clear_column
        self.tombstone_retention = tombstone_retention
        self.compact_ratio = compact_ratio
        self.batch_id = batch_id
        self.changelog = changelog
        self.expect = expect
        self.fail_on = fail_on
        self.incremental = incremental
        self._declare_assets(target, [source])
