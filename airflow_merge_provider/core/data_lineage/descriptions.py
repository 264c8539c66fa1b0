"""Describe the datasets of a run that has ended: their columns, and what else only their logs tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from airflow_merge_provider.core.change_plan.shown_rows import mask_error
from airflow_merge_provider.core.data_lineage.run_lineage import list_datasets
from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.protocol import DatasetDescription, JobRequest
from airflow_merge_provider.core.run.progress import Progress
from airflow_merge_provider.core.run.table_log import PinnedDataset, TableLog

# The formats whose files contain their schema; for others, Spark would read all rows.
_WITH_SCHEMA = ("delta", "parquet", "avro", "orc")


def describe_datasets(
    log: TableLog, request: JobRequest, report: Mapping[str, Any], progress: Progress
) -> dict[str, DatasetDescription]:
    """Return descriptions by URI; none if the request does not require them.

    The run has succeeded: a dataset that cannot be described is left out, with a line in the log.
    """
    if not request.describes_datasets:
        return {}
    datasets = list_datasets(request.job, request.config, request.warehouse)
    versions = dict(_list_versions(report))
    descriptions = {}
    for dataset in {**datasets.inputs, **datasets.outputs}.values():
        describe = partial(_describe_dataset, log, dataset, versions, progress)
        try:
            descriptions[dataset.uri] = describe()
        except Exception as error:  # noqa: BLE001 - lineage must not fail a run that has succeeded
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            shown = mask_error(reason, error)
            progress.log_line(f"lineage: the columns of {dataset.uri} are unknown ({shown})")
    return descriptions


def _list_versions(report: Mapping[str, Any]) -> Iterator[tuple[str, int | None]]:
    """Yield the versions that the report names, of the sources first."""
    for source in report["sources"].values():
        yield source["uri"], source["version"]
    yield report["target"]["uri"], report["target"]["version"]


def _describe_dataset(
    log: TableLog, dataset: Dataset, versions: Mapping[str, int | None], progress: Progress
) -> DatasetDescription:
    version, newest = versions.get(dataset.uri), None
    is_delta = dataset.format == "delta"
    if is_delta and (dataset.table is not None or dataset.uri not in versions):
        newest = log.find_newest_version(dataset)
    if version is None and newest is not None and dataset.uri not in versions:
        version = newest.version
    fields = progress.schemas.get(dataset.uri)
    if fields is None and version is not None and dataset.format in _WITH_SCHEMA:
        fields = log.read_fields(PinnedDataset(dataset, version))
    return DatasetDescription(
        fields=None if fields is None else tuple(map(dict, fields)),
        version=version,
        location=newest.location if newest is not None and dataset.table is not None else None,
    )
