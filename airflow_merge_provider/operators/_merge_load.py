"""Define the base classes of the three merge load operators, which run one job with different strategies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow.sdk import Asset

from airflow_merge_provider.core.model import Config
from airflow_merge_provider.operators._spark_job import SparkJobOperator


class LoadJobOperator(SparkJobOperator):
    """Run the job of merge loads; a subclass sets the strategy."""

    job = "merge_load"
    strategy: ClassVar[str]

    def _parse_config(self) -> tuple[Config, dict[str, Any]]:
        config, arguments = super()._parse_config()
        return config, {"strategy": self.strategy, **arguments}


class MergeLoadOperator(LoadJobOperator):
    """Load a source into a target; a subclass sets the strategy and adds its arguments.

    A subclass sets its own arguments after these and calls ``self._declare`` at the end of its constructor.

    :param source: the dataset to load: a bare id, a catalog table, a location, an ``Asset``, or
        ``{"dataset": …, "format": "parquet"}`` for plain files. (templated)
    :param target: the Delta table to write. (templated)
    :param source_filter: a SQL condition; only matching rows are loaded. (templated)
    :param hard_delete: the column that flags deleted rows: true, or any value but NULL if it is not a
        boolean. (templated)
    :param hard_delete_when: a SQL condition over the source's columns; matching rows are deleted. (templated)
    :param dedup_sort: which of several rows with the same key is used, as ``{"column": "desc"}``. (templated)
    :param on_empty: what a load without rows does: ``error``, ``skip`` or ``apply``. (templated)
    :param nested: ``columns``: lists stay in their columns; ``tables``: each list is written to a table of
        its own beside the target. (templated)
    :param schema_evolution: ``add`` new columns, ``error`` or ``ignore``; a column that is no longer in the
        source is an error, or NULL in the written rows with ``["add", "allow_missing"]``. (templated)
    :param dispatch_by: the column whose value is the name of the row's table inside the target. (templated)
    :param expect: named conditions on the rows of the source or on the changed rows, and what to do with rows
        that do not meet them: ``fail``, ``warn`` or ``quarantine``. (templated)
    :param adopt: whether a target that another program has written is taken over, with its rows. (templated)
    """

    def __init__(
        self,
        *,
        source: str | Mapping[str, Any] | Asset,
        target: str | Asset,
        source_filter: str | None = None,
        hard_delete: str | None = None,
        hard_delete_when: str | None = None,
        dedup_sort: Mapping[str, str] | None = None,
        on_empty: str | None = None,
        nested: str = "columns",
        schema_evolution: str | Sequence[str] = "add",
        dispatch_by: str | None = None,
        expect: Mapping[str, Any] | None = None,
        adopt: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.target = target
        self.source_filter = source_filter
        self.hard_delete = hard_delete
        self.hard_delete_when = hard_delete_when
        self.dedup_sort = dedup_sort
        self.on_empty = on_empty
        self.nested = nested
        self.schema_evolution = schema_evolution
        self.dispatch_by = dispatch_by
        self.expect = expect
        self.adopt = adopt
