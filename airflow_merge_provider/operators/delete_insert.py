"""The operator that replaces the rows of the loaded keys, groups or scope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import Asset

from airflow_merge_provider.core.merge_load.keyed import DeleteInsertConfig
from airflow_merge_provider.operators._merge_load import MergeLoadOperator


class DeleteInsertOperator(MergeLoadOperator):
    """Replace stored rows: those with a loaded primary key, those of a loaded group, or those of a scope.

    Every argument but ``emit_asset`` and ``spark_conn_id`` is templated.

    :param source: the dataset to load: a bare id, a catalog table, a location, an ``Asset``, or
        ``{"dataset": …, "format": "parquet"}`` for plain files.
    :param target: the Delta table to write.
    :param primary_key: the column or columns that identify a record; each key is loaded once.
    :param merge_key: the column or columns that identify a group; loaded groups are replaced whole.
    :param source_filter: a SQL condition; only rows that fulfil it are loaded.
    :param hard_delete: the column that flags deleted rows.
    :param dedup_sort: which of several rows with one key counts, as ``{"column": "desc"}``.
    :param deduplicated: the promise that no key is in the load twice; duplicates are then kept.
    :param destination_scope: a SQL condition; exactly the stored rows that fulfil it are replaced.
    :param on_no_keys: without keys and scope ``append`` the load, or ``error``.
    :param on_empty: what a load without rows does: ``error``, ``skip`` or ``apply``.
    :param nested: ``columns``: lists stay in their columns.
    :param schema_evolution: ``add`` new columns, ``error`` or ``ignore``.
    """

    strategy = "delete-insert"
    config_class = DeleteInsertConfig
    config_fields = (
        "source",
        "target",
        "primary_key",
        "merge_key",
        "source_filter",
        "hard_delete",
        "dedup_sort",
        "deduplicated",
        "destination_scope",
        "on_no_keys",
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
        primary_key: str | Sequence[str] | None = None,
        merge_key: str | Sequence[str] | None = None,
        source_filter: str | None = None,
        hard_delete: str | None = None,
        dedup_sort: Mapping[str, str] | None = None,
        deduplicated: bool | str = False,
        destination_scope: str | None = None,
        on_no_keys: str = "append",
        on_empty: str | None = None,
        nested: str = "columns",
        schema_evolution: str = "add",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.target = target
        self.primary_key = primary_key
        self.merge_key = merge_key
        self.source_filter = source_filter
        self.hard_delete = hard_delete
        self.dedup_sort = dedup_sort
        self.deduplicated = deduplicated
        self.destination_scope = destination_scope
        self.on_no_keys = on_no_keys
        self.on_empty = on_empty
        self.nested = nested
        self.schema_evolution = schema_evolution
        self._declare(target, [source])
