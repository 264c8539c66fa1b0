"""The operator that updates and inserts rows by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import Asset

from airflow_merge_provider.core.merge_load.keyed import UpsertConfig
from airflow_merge_provider.operators._merge_load import MergeLoadOperator


class UpsertOperator(MergeLoadOperator):
    """Update stored rows by primary key and insert new ones; delete what is flagged or, with cdc, absent.

    Every argument but ``emit_asset`` and ``spark_conn_id`` is templated.

    :param source: the dataset to load: a bare id, a catalog table, a location, an ``Asset``, or
        ``{"dataset": …, "format": "parquet"}`` for plain files.
    :param target: the Delta table to write.
    :param primary_key: the column or columns that identify a record.
    :param variant: ``upsert``, ``insert-only`` (stored rows are never touched) or ``cdc`` (the load is all
        there is: stored rows that it does not have are deleted).
    :param source_filter: a SQL condition; only rows that fulfil it are loaded.
    :param hard_delete: the column that flags deleted rows.
    :param dedup_sort: which of several rows with one key counts, as ``{"column": "desc"}``.
    :param skip_unchanged_rows: whether stored rows that are equal already are left alone.
    :param row_version_column_name: the column that alone says whether a row has changed.
    :param merge_key: cdc: absent rows are deleted only in the groups that the load has.
    :param destination_scope: cdc: a SQL condition; absent rows are deleted only inside it.
    :param on_empty: what a load without rows does: ``error``, ``skip`` or ``apply``.
    :param nested: ``columns``: lists stay in their columns.
    :param schema_evolution: ``add`` new columns, ``error`` or ``ignore``.
    """

    strategy = "upsert"
    config_class = UpsertConfig
    config_fields = (
        "source",
        "target",
        "primary_key",
        "variant",
        "source_filter",
        "hard_delete",
        "dedup_sort",
        "skip_unchanged_rows",
        "row_version_column_name",
        "merge_key",
        "destination_scope",
        "on_empty",
        "nested",
        "schema_evolution",
    )
    template_fields: Sequence[str] = (*config_fields, *MergeLoadOperator.template_fields)

    def __init__(
        self,
        *,
        source: str | Mapping[str, Any] | Asset,
        target: str | Asset,
        primary_key: str | Sequence[str],
        variant: str = "upsert",
        source_filter: str | None = None,
        hard_delete: str | None = None,
        dedup_sort: Mapping[str, str] | None = None,
        skip_unchanged_rows: bool | str = True,
        row_version_column_name: str | None = None,
        merge_key: str | Sequence[str] | None = None,
        destination_scope: str | None = None,
        on_empty: str | None = None,
        nested: str = "columns",
        schema_evolution: str = "add",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.target = target
        self.primary_key = primary_key
        self.variant = variant
        self.source_filter = source_filter
        self.hard_delete = hard_delete
        self.dedup_sort = dedup_sort
        self.skip_unchanged_rows = skip_unchanged_rows
        self.row_version_column_name = row_version_column_name
        self.merge_key = merge_key
        self.destination_scope = destination_scope
        self.on_empty = on_empty
        self.nested = nested
        self.schema_evolution = schema_evolution
        self._declare(target, [source])
