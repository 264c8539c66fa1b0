"""The lineage of loads: columns keep their values, and a history adds columns that describe versions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_merge_provider.core.merge_load.config import (
    AnyConfig,
    AnyLoad,
    DeleteInsertConfig,
    Scd2CheckConfig,
    UpsertConfig,
)
from airflow_merge_provider.core.merge_load.load import ROW_ID, collect_columns
from airflow_merge_provider.core.merge_load.requirements import list_tracked
from airflow_merge_provider.core.merge_load.scd2 import HASH_COLUMN, Scd2Config
from airflow_merge_provider.core.report import Report
from airflow_merge_provider.core.run.lineage_model import (
    TARGET,
    ColumnLineage,
    DatasetCounts,
    InputColumn,
    RunSchemas,
    list_direct,
    list_indirect,
    list_names,
)

SOURCE = "source"


def trace_columns(config: AnyConfig, schemas: RunSchemas) -> dict[str, ColumnLineage]:
    """Return the lineage of the target's columns; none if neither schema is known."""
    if isinstance(config, Scd2CheckConfig):
        return {}
    source = schemas.inputs.get(SOURCE)
    target = schemas.outputs.get(TARGET, source)
    if target is None:
        return {}
    names = list_names(target)
    added_columns = {*(config.added_columns if isinstance(config, Scd2Config) else ()), ROW_ID}
    loaded_names = [name for name in names if name not in added_columns]
    if source is not None:
        # A column that the source has lost stays in the target, without new values.
        loaded_names = [name for name in loaded_names if name in set(list_names(source))]
    columns = {name: list_direct(SOURCE, [name], "IDENTITY") for name in loaded_names}
    if isinstance(config, Scd2Config):
        columns |= _trace_history(config, loaded_names)
    return {TARGET: ColumnLineage(columns, _list_row_columns(config))}


def count_read(report: Report) -> dict[str, DatasetCounts]:
    """Return the number of rows that the run has loaded."""
    return {SOURCE: DatasetCounts(report.counts.get("loaded"))}


def _trace_history(config: Scd2Config, names: Sequence[str]) -> dict[str, list[InputColumn]]:
    """Return the lineage of the columns that describe versions; values of the run itself have none."""
    times, keys = collect_columns(config.time_column), collect_columns(config.natural_key)
    if config.natural_key is None:
        tracked_columns = collect_columns(config.row_version_column_name) or names
    else:
        tracked_columns = list_tracked(names, config)
    columns = {
        config.valid_from: list_direct(SOURCE, times, "IDENTITY"),
        # A version ends where the next version of its key starts.
        config.valid_to: [
            *list_direct(SOURCE, times, "TRANSFORMATION"),
            *list_indirect(SOURCE, keys, "WINDOW"),
        ],
        HASH_COLUMN: list_direct(SOURCE, tracked_columns, "TRANSFORMATION", is_masking=True),
    }
    if config.current_column is not None:
        columns[config.current_column] = [
            *list_indirect(SOURCE, times, "CONDITIONAL"),
            *list_indirect(SOURCE, keys, "WINDOW"),
        ]
    if config.mark_column is not None:
        flags = collect_columns(config.hard_delete)
        columns[config.mark_column] = list_indirect(SOURCE, flags, "CONDITIONAL")
    if config.surrogate_key_column is not None:
        identity = (*keys, *times)
        columns[config.surrogate_key_column] = list_direct(
            SOURCE, identity, "TRANSFORMATION", is_masking=True
        )
    return {name: sources for name, sources in columns.items() if sources}


def _list_row_columns(config: AnyLoad) -> list[InputColumn]:
    """Return the columns that determine which rows there are; conditions in SQL are not parsed."""
    scope: Iterable[str] | None = None
    if isinstance(config, Scd2Config):
        # Without a natural key, the version itself identifies a row.
        version_key = None if config.natural_key else config.row_version_column_name
        keys = collect_columns(config.natural_key, config.merge_key, version_key)
        scope = config.scope if isinstance(config.scope, tuple) else None
    else:
        keys = collect_columns(config.primary_key, config.merge_key)
    sequence = () if isinstance(config, DeleteInsertConfig) else config.sequence_by
    version = config.row_version_column_name if isinstance(config, UpsertConfig) else None
    return [
        *list_indirect(SOURCE, keys, "JOIN"),
        *list_indirect(SOURCE, collect_columns(config.hard_delete, config.dispatch_by, scope), "FILTER"),
        *list_indirect(SOURCE, collect_columns(sequence, config.sort and config.sort[0]), "SORT"),
        *list_indirect(SOURCE, collect_columns(version), "CONDITIONAL"),
    ]
