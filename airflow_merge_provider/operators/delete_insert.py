"""Define the operator that replaces the rows of the loaded keys, groups or scope."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_merge_provider.core.merge_load.config import DeleteInsertConfig
from airflow_merge_provider.operators._merge_load import MergeLoadOperator


class DeleteInsertOperator(MergeLoadOperator):
    """Replace stored rows: those with a loaded primary key, those of a loaded group, or those of a scope.

    Every argument but ``emit_asset`` is templated; ``MergeLoadOperator`` documents the
    arguments of all merge loads.

    :param primary_key: the column or columns that identify a record; each key is loaded once.
    :param merge_key: the column or columns that identify a group; loaded groups are replaced completely.
    :param deduplicated: the assertion that the load has no duplicate keys; duplicates are then kept.
    :param destination_scope: a SQL condition; exactly the stored rows that match it are replaced.
    :param on_no_keys: without keys and scope ``append`` the load, or ``error``.
    """

    strategy = "delete-insert"
    config_class = DeleteInsertConfig

    def __init__(
        self,
        *,
        primary_key: str | Sequence[str] | None = None,
        merge_key: str | Sequence[str] | None = None,
        deduplicated: bool | str = False,
        destination_scope: str | None = None,
        on_no_keys: str = "append",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.primary_key = primary_key
        self.merge_key = merge_key
        self.deduplicated = deduplicated
        self.destination_scope = destination_scope
        self.on_no_keys = on_no_keys
        self._declare_assets(self.target, [self.source])
