"""The lineage of merged files: fields keep their values, and files are grouped by some of them."""

from __future__ import annotations

from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.report import Report
from airflow_merge_provider.core.run.lineage_model import (
    TARGET,
    ColumnLineage,
    DatasetCounts,
    RunSchemas,
    list_direct,
    list_indirect,
    list_names,
)

SOURCE, FAILURE, ORIGINAL = "source", "failure", "original"


def find_format(config: MergeRecordConfig, path: str) -> str:
    """Return the format of a folder: that of the merged files, or that of their sources."""
    return (config.output if path == config.output_field else config.reader).format


def trace_columns(config: MergeRecordConfig, schemas: RunSchemas) -> dict[str, ColumnLineage]:
    """Return the lineage of the fields of merged files, if the run has merged any."""
    merged_fields = schemas.outputs.get(TARGET)
    if merged_fields is None:
        return {}
    source_names = set(list_names(schemas.inputs.get(SOURCE, merged_fields)))
    columns = {
        name: list_direct(SOURCE, [name], "IDENTITY")
        for name in list_names(merged_fields)
        if name in source_names
    }
    grouping_fields = dict.fromkeys((config.partition_by or {}).values())
    return {TARGET: ColumnLineage(columns, list_indirect(SOURCE, grouping_fields, "GROUP_BY"))}


def count_read(report: Report) -> dict[str, DatasetCounts]:
    """Return the number of files that the run has merged or moved to the failed ones."""
    return {SOURCE: DatasetCounts(files=sum(report.counts[name] or 0 for name in ("files", "failed_files")))}


def count_written(report: Report) -> dict[str, DatasetCounts]:
    """Return the number of files in each folder."""
    counts = report.counts
    return {
        TARGET: DatasetCounts(counts["outputs"], counts["merged"]),
        FAILURE: DatasetCounts(files=counts["failed_files"]),
        ORIGINAL: DatasetCounts(files=counts["files"]),
    }
