"""The lineage of one run, from its configuration alone or together with its report.

The datasets follow from the configuration, so that every event of a task names the same ones. Report and
descriptions of the datasets, which only their logs tell, add what is known once the run has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from airflow_merge_provider.core.capabilities import JOBS
from airflow_merge_provider.core.capability import Capability
from airflow_merge_provider.core.change_plan.shown_rows import mask_error
from airflow_merge_provider.core.dataset import Dataset, DatasetName, name_dataset, resolve_dataset
from airflow_merge_provider.core.errors import MergeError
from airflow_merge_provider.core.expectations.config import (
    EXPECT,
    REJECTED,
    REJECTED_SUFFIX,
    parse_expectations,
)
from airflow_merge_provider.core.model import DatasetUse
from airflow_merge_provider.core.protocol import DatasetDescription, Job, JobRequest
from airflow_merge_provider.core.report import Report
from airflow_merge_provider.core.run.lineage_model import (
    TARGET,
    Assertion,
    ColumnLineage,
    DatasetCounts,
    DatasetLineage,
    LifecycleChange,
    RunDatasets,
    RunLineage,
    RunSchemas,
)
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.core.run.table_log import PinnedDataset, TableLog

Descriptions = Mapping[str, DatasetDescription]
_UNKNOWN_DATASET = DatasetDescription()
# The formats whose files contain their schema; for others, Spark would read all rows.
_WITH_SCHEMA = ("delta", "parquet", "avro", "orc")


def list_datasets(job: Job, config: Mapping[str, Any], warehouse: str | None) -> RunDatasets:
    """Return the datasets that a run reads and writes, by the paths that errors name; its main one is TARGET.

    :raises ConfigError: if the configuration is not valid, or if a bare ID requires a warehouse.
    """
    capability = JOBS[job]
    parsed_config = capability.config.parse(config)
    main = parsed_config.output_field

    def resolve(uses: Sequence[DatasetUse]) -> dict[str, Dataset]:
        datasets = {}
        for path, ref in parsed_config.list_datasets(*uses).items():
            dataset = resolve_dataset(ref, warehouse, at=path)
            file_format = capability.lineage.find_format(parsed_config, path) or dataset.format
            datasets[TARGET if path == main else path] = replace(dataset, format=file_format)
        return datasets

    inputs, outputs = resolve(("input", "lookup")), resolve(("output",))
    if TARGET not in {**inputs, **outputs}:
        outputs[TARGET] = resolve_dataset("", warehouse, at=main)
    expectations = parse_expectations(config.get(EXPECT))
    inputs |= {
        item.path: resolve_dataset(item.dataset, warehouse, at=item.path)
        for item in expectations
        if item.kind == "foreign_key"
    }
    if TARGET in outputs and any(item.action == "quarantine" for item in expectations):
        outputs[REJECTED] = replace(outputs[TARGET].with_suffix(REJECTED_SUFFIX), format="delta", options={})
    return RunDatasets(inputs, outputs)


def describe_run(
    job: Job,
    config: Mapping[str, Any],
    warehouse: str | None,
    *,
    dry_run: bool = False,
    full_refresh: bool = False,
    report: Report | None = None,
    descriptions: Descriptions | None = None,
) -> RunLineage:
    """Return the lineage of a run; without a report, its datasets alone.

    A dry run writes nothing, so it has no outputs.

    :param descriptions: the descriptions of the datasets, by their URIs.
    :raises ConfigError: if the configuration is not valid, or if a bare ID requires a warehouse.
    """
    datasets = list_datasets(job, config, warehouse)
    if dry_run:
        datasets = RunDatasets(datasets.inputs or datasets.outputs)
    capability = JOBS[job]
    described_run = _DescribedRun(
        capability, capability.config.parse(config), datasets, report, descriptions or {}, full_refresh
    )
    return described_run.build_lineage()


@dataclass(frozen=True, slots=True)
class _DescribedRun:
    """A run with what is known about it; ``report`` is None if it has not ended, or has failed."""

    capability: Capability
    config: Any
    datasets: RunDatasets
    report: Report | None
    descriptions: Descriptions
    full_refresh: bool

    def build_lineage(self) -> RunLineage:
        """Return the lineage; a dataset with two names in the configuration is contained once."""
        inputs = [self._build_input(name, dataset) for name, dataset in self.datasets.inputs.items()]
        columns: Mapping[str, ColumnLineage] = {}
        # Columns that another program has changed meanwhile may not suit the configuration any more: then the
        # event has all datasets, without their columns.
        with suppress(MergeError):
            if self.report is not None:
                columns = self.capability.lineage.trace_columns(self.config, self._find_schemas())
        outputs = [
            self._build_output(name, dataset, columns.get(name))
            for name, dataset in self.datasets.outputs.items()
        ]
        return RunLineage(
            _list_unique(inputs),
            _list_unique(outputs),
            {name: name_dataset(dataset.uri) for name, dataset in self.datasets.inputs.items()},
        )

    def _build_input(self, name: str, dataset: Dataset) -> DatasetLineage:
        version, counts = None, DatasetCounts()
        if self.report is not None:
            version, rows = _find_input(self.report, dataset.uri)
            if self.report.run_mode != "noop":
                read = self.capability.lineage.count_read(self.report).get(name, counts)
                counts = DatasetCounts(read.rows if rows is None else rows, read.files)
        described = self._describe(dataset, version, counts)
        return replace(described, assertions=self._list_assertions(dataset.uri))

    def _build_output(self, name: str, dataset: Dataset, columns: ColumnLineage | None) -> DatasetLineage:
        version, counts, change = None, DatasetCounts(), None
        if self.report is not None:
            counts = self.capability.lineage.count_written(self.report).get(name, counts)
            if name == TARGET:
                version = self.report.target.version
                counts = DatasetCounts(_count_written_rows(self.report), counts.files)
                change = self._find_lifecycle_change(self.report)
        described = self._describe(dataset, version, counts)
        return replace(described, columns=columns, lifecycle_change=change)

    def _list_assertions(self, uri: str) -> tuple[Assertion, ...]:
        """Return the expectations that were checked on the rows of a source."""
        if self.report is None:
            return ()
        names = [name for name, source in self.report.sources.items() if source.uri == uri]
        return tuple(
            Assertion(
                item.name,
                item.kind,
                item.condition,
                item.columns[0] if len(item.columns) == 1 else None,
                success=item.success,
                blocks=item.action == "fail",
            )
            for item in self.report.expectations
            if item.source in names
        )

    def _describe(self, dataset: Dataset, version: int | None, counts: DatasetCounts) -> DatasetLineage:
        """Return a dataset with what its description tells."""
        description = self.descriptions.get(dataset.uri, _UNKNOWN_DATASET)
        return DatasetLineage(
            dataset,
            name_dataset(dataset.uri),
            description.version if version is None else version,
            counts,
            description.fields,
            None if description.location is None else name_dataset(description.location),
        )

    def _find_schemas(self) -> RunSchemas:
        def find_fields(datasets: Mapping[str, Dataset]) -> dict[str, Any]:
            found_fields = {
                name: self.descriptions.get(dataset.uri, _UNKNOWN_DATASET).fields
                for name, dataset in datasets.items()
            }
            return {name: fields for name, fields in found_fields.items() if fields is not None}

        return RunSchemas(find_fields(self.datasets.inputs), find_fields(self.datasets.outputs))

    def _find_lifecycle_change(self, report: Report) -> LifecycleChange | None:
        """Return how the run has changed the target as a whole; None if it changed some rows or none."""
        if not report.changed or report.target.version is None:
            return None
        if report.target.version_before is None:
            return "CREATE"
        if self.capability.lineage.is_truncate(report):
            return "TRUNCATE"
        is_overwrite = self.capability.lineage.is_overwrite(self.config, full_refresh=self.full_refresh)
        return "OVERWRITE" if is_overwrite else None


def _find_input(report: Report, uri: str) -> tuple[int | None, int | None]:
    """Return the version and the rows of an input that the run has read; the target may be one, too."""
    for source in report.sources.values():
        if source.uri == uri:
            return source.version, source.rows
    return report.target.version_before if report.target.uri == uri else None, None


def _list_unique(datasets: Sequence[DatasetLineage]) -> list[DatasetLineage]:
    unique_datasets: dict[DatasetName, DatasetLineage] = {}
    for dataset in datasets:
        unique_datasets.setdefault(dataset.name, dataset)
    return list(unique_datasets.values())


def _count_written_rows(report: Report) -> int | None:
    """Return how many rows the run has written: new ones, and new versions of existing ones."""
    rows = report.rows
    return None if rows.inserted is None else rows.inserted + (rows.updated or 0)


def describe_datasets(
    log: TableLog, request: JobRequest, report: Report, progress: Progress
) -> dict[str, DatasetDescription]:
    """Return descriptions by URI; none if the request does not require them.

    The run has succeeded: a dataset that cannot be described is left out, with a line in the log.
    """
    if not request.describes_datasets:
        return {}
    datasets = list_datasets(request.job, request.config, request.warehouse)
    versions: dict[str, int | None] = {source.uri: source.version for source in report.sources.values()}
    versions[report.target.uri] = report.target.version
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
