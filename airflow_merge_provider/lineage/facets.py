"""Build the OpenLineage metadata of a run from its lineage; none if OpenLineage is not installed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_merge_provider.core.dataset import DatasetName
from airflow_merge_provider.core.run.columns import format_type
from airflow_merge_provider.core.run.lineage_model import (
    Assertion,
    ColumnLineage,
    DatasetLineage,
    InputColumn,
    RunLineage,
)
from airflow_merge_provider.core.run.table_log import Fields

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors.base import OperatorLineage
    from openlineage.client.event_v2 import InputDataset, OutputDataset

_PRODUCER_URI = "urn:airflow-merge-provider"
# The names of the parts of an array and of a map, as the Spark integration of OpenLineage shows them.
_PART_NAMES = {"array": {"_element": "elementType"}, "map": {"key": "keyType", "value": "valueType"}}

Facets = dict[str, Any]
InputNames = Mapping[str, DatasetName]


def build_lineage(run: RunLineage) -> OperatorLineage[Any, Any] | None:
    """Return the metadata of a run."""
    try:
        from airflow.providers.openlineage.extractors.base import (  # noqa: PLC0415 - lineage is optional
            OperatorLineage,
        )
    except ImportError:
        return None
    return OperatorLineage(
        inputs=[_build_input(dataset) for dataset in run.inputs],
        outputs=[_build_output(dataset, run.input_names) for dataset in run.outputs],
    )


def _build_input(dataset: DatasetLineage) -> InputDataset:
    """Return an input; facets about the quality of its rows belong to ``inputFacets``."""
    from openlineage.client.event_v2 import InputDataset  # noqa: PLC0415 - lineage is optional
    from openlineage.client.facet_v2 import input_statistics_input_dataset  # noqa: PLC0415

    facets: Facets = {}
    if (counts := _list_counts(dataset)) is not None:
        facets["inputStatistics"] = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
            **counts, producer=_PRODUCER_URI
        )
    if dataset.assertions:
        facets["dataQualityAssertions"] = _build_assertions(dataset.assertions)
    return InputDataset(*dataset.name, facets=_build_facets(dataset), inputFacets=facets)


def _build_output(dataset: DatasetLineage, input_names: InputNames) -> OutputDataset:
    """Return an output; facets about the quality of its rows belong to the facets of the dataset."""
    from openlineage.client.event_v2 import OutputDataset  # noqa: PLC0415 - lineage is optional
    from openlineage.client.facet_v2 import (  # noqa: PLC0415
        lifecycle_state_change_dataset,
        output_statistics_output_dataset,
    )

    facets: Facets = {}
    if (counts := _list_counts(dataset)) is not None:
        facets["outputStatistics"] = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            **counts, producer=_PRODUCER_URI
        )
    dataset_facets = _build_facets(dataset)
    if dataset.columns is not None and dataset.columns.columns:
        dataset_facets["columnLineage"] = _build_column_lineage(dataset.columns, input_names)
    if dataset.lifecycle_change is not None:
        change = lifecycle_state_change_dataset.LifecycleStateChange(dataset.lifecycle_change)
        dataset_facets["lifecycleStateChange"] = (
            lifecycle_state_change_dataset.LifecycleStateChangeDatasetFacet(change, producer=_PRODUCER_URI)
        )
    return OutputDataset(*dataset.name, facets=dataset_facets, outputFacets=facets)


def _build_assertions(assertions: Iterable[Assertion]) -> Any:
    """Return the facet of the expectations that were checked on the rows of an input."""
    from openlineage.client.facet_v2 import data_quality_assertions_dataset  # noqa: PLC0415

    facets = [
        data_quality_assertions_dataset.Assertion(
            assertion="custom_sql" if item.kind == "condition" else item.kind,
            success=item.success,
            column=item.column,
            severity="error" if item.blocks else "warn",
            name=item.name,
            content=item.condition,
        )
        for item in assertions
    ]
    return data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(facets, producer=_PRODUCER_URI)


def _list_counts(dataset: DatasetLineage) -> dict[str, int | None] | None:
    counts = dataset.counts
    if counts.rows is None and counts.files is None:
        return None
    return {"rowCount": counts.rows, "fileCount": counts.files}


def _build_facets(dataset: DatasetLineage) -> Facets:
    """Return the facets that inputs and outputs have in common."""
    from openlineage.client.facet_v2 import (  # noqa: PLC0415 - lineage is optional
        dataset_version_dataset,
        schema_dataset,
        storage_dataset,
        symlinks_dataset,
    )

    facets: Facets = {}
    if dataset.version is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(
            datasetVersion=str(dataset.version), producer=_PRODUCER_URI
        )
        if dataset.dataset.format == "delta":
            facets["storage"] = storage_dataset.StorageDatasetFacet(
                "delta", "parquet", producer=_PRODUCER_URI
            )
    if dataset.fields is not None:
        facets["schema"] = schema_dataset.SchemaDatasetFacet(
            fields=list(_build_fields(dataset.fields)), producer=_PRODUCER_URI
        )
    if dataset.location is not None:
        # Spark's own events name a catalog table by its location.
        location = symlinks_dataset.Identifier(*dataset.location, type="LOCATION")
        facets["symlinks"] = symlinks_dataset.SymlinksDatasetFacet([location], producer=_PRODUCER_URI)
    return facets


def _build_fields(fields: Fields) -> Iterator[Any]:
    """Yield the columns of a schema; a nested type has its parts as fields of its own."""
    from openlineage.client.facet_v2 import schema_dataset  # noqa: PLC0415 - lineage is optional

    for position, field in enumerate(fields, 1):
        kind, parts = _split_type(field["type"])
        yield schema_dataset.SchemaDatasetFacetFields(
            name=str(field["name"]),
            type=kind,
            description=(field.get("metadata") or {}).get("comment"),
            ordinal_position=position,
            fields=list(_build_fields(parts)),
        )


def _split_type(kind: Any) -> tuple[str, Fields]:
    """Return the name of a type in Spark's JSON form, and the fields that it consists of."""
    if not isinstance(kind, Mapping):
        return format_type(kind), ()
    name = str(kind["type"])
    if name == "struct":
        return name, kind["fields"]
    parts = _PART_NAMES.get(name, {})
    return name, [{"name": part, "type": kind[key]} for part, key in parts.items()]


def _build_column_lineage(lineage: ColumnLineage, input_names: InputNames) -> Any:
    from openlineage.client.facet_v2 import column_lineage_dataset  # noqa: PLC0415 - lineage is optional

    fields = {
        name: column_lineage_dataset.Fields(inputFields=list(_build_input_fields(sources, input_names)))
        for name, sources in lineage.columns.items()
        if sources
    }
    rows = list(_build_input_fields(lineage.rows, input_names))
    return column_lineage_dataset.ColumnLineageDatasetFacet(
        fields=fields, dataset=rows, producer=_PRODUCER_URI
    )


def _build_input_fields(columns: Iterable[InputColumn], input_names: InputNames) -> Iterator[Any]:
    """Yield each input column once, with everything that is done with it."""
    from openlineage.client.facet_v2 import column_lineage_dataset  # noqa: PLC0415 - lineage is optional

    steps: dict[tuple[DatasetName, str], dict[Any, None]] = {}
    for column in columns:
        step = (column.kind, column.subtype, column.is_masking)
        steps.setdefault((input_names[column.dataset], column.column), {})[step] = None
    for (name, field), transformations in steps.items():
        yield column_lineage_dataset.InputField(
            *name,
            field,
            [
                column_lineage_dataset.Transformation(kind, subtype, description="", masking=is_masking)
                for kind, subtype, is_masking in transformations
            ],
        )
