"""Define the operator that updates and inserts rows by key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_merge_provider.core.merge_load.config import UpsertConfig
from airflow_merge_provider.operators._merge_load import MergeLoadOperator


class UpsertOperator(MergeLoadOperator):
    """Update stored rows by primary key and insert new ones; delete flagged rows and, with cdc, absent ones.

    Every argument but ``emit_asset`` is templated; ``MergeLoadOperator`` documents the
    arguments of all merge loads.

    :param primary_key: the column or columns that identify a record.
    :param variant: ``upsert``, ``insert-only`` (stored rows are never changed) or ``cdc`` (the load is
        complete: stored rows that it does not contain are deleted).
    :param skip_unchanged_rows: whether stored rows with equal values are not rewritten.
    :param row_version_column_name: the column that alone determines whether a row has changed.
    :param merge_key: cdc: absent rows are deleted only in the groups that the load contains.
    :param destination_scope: cdc: a SQL condition; only absent rows that match it are deleted.
    :param sequence_by: the column or columns that order the versions of a record: the highest wins, and a row
        that is lower than the stored one has no effect.
    """

    strategy = "upsert"
    config_class = UpsertConfig

    def __init__(
        self,
        *,
        primary_key: str | Sequence[str],
        variant: str = "upsert",
        skip_unchanged_rows: bool | str = True,
        row_version_column_name: str | None = None,
        merge_key: str | Sequence[str] | None = None,
        destination_scope: str | None = None,
        sequence_by: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.primary_key = primary_key
        self.variant = variant
        self.skip_unchanged_rows = skip_unchanged_rows
        self.row_version_column_name = row_version_column_name
        self.merge_key = merge_key
        self.destination_scope = destination_scope
        self.sequence_by = sequence_by
        self._declare_assets(self.target, [self.source])
