"""Build the OpenLineage facets of what a run read and wrote; none if OpenLineage is not installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors.base import OperatorLineage

_TABLE = "table:"
_PRODUCER = "urn:airflow-merge-provider"


def lineage_name(uri: str) -> tuple[str, str]:
    """Split a dataset's URI into OpenLineage's namespace and name.

    >>> lineage_name("s3://lake/crm/customers"), lineage_name("/lake/customers")
    (('s3://lake', 'crm/customers'), ('file', '/lake/customers'))
    """
    if uri.startswith(_TABLE):
        return "merge://catalog", uri.removeprefix(_TABLE).lower()
    parts = urlsplit(uri)
    if parts.scheme in {"", "file"}:
        return "file", parts.path
    return f"{parts.scheme}://{parts.netloc}", parts.path.strip("/")


def build_lineage(report: Mapping[str, Any]) -> OperatorLineage[Any, Any] | None:
    """Return the lineage of a run from its report: sources and target with versions, and known columns."""
    try:
        from airflow.providers.openlineage.extractors.base import (  # noqa: PLC0415 - lineage is optional
            OperatorLineage,
        )
        from openlineage.client.event_v2 import InputDataset, OutputDataset  # noqa: PLC0415
        from openlineage.client.facet_v2 import (  # noqa: PLC0415
            dataset_version_dataset,
            output_statistics_output_dataset,
        )
    except ImportError:
        return None

    def describe_place(dataset: Mapping[str, Any]) -> dict[str, Any]:
        namespace, name = lineage_name(str(dataset["uri"]))
        version = dataset.get("version")
        facet = dataset_version_dataset.DatasetVersionDatasetFacet(
            datasetVersion=str(version), producer=_PRODUCER
        )
        return {
            "namespace": namespace,
            "name": name,
            "facets": {} if version is None else {"version": facet},
        }

    counts = report.get("rows") or {}
    rows = None if counts.get("inserted") is None else counts["inserted"] + (counts.get("updated") or 0)
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=rows, producer=_PRODUCER
    )
    sources = (report.get("sources") or {}).values()
    target = report.get("target") or {}
    return OperatorLineage(
        inputs=[InputDataset(**describe_place(source)) for source in sources if source.get("uri")],
        outputs=[
            OutputDataset(
                **_with_columns(describe_place(target), report),
                outputFacets={} if rows is None else {"outputStatistics": statistics},
            )
        ]
        if target.get("uri")
        else [],
    )


def _with_columns(dataset_fields: dict[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    """Add column lineage: the source fields of each column, and the source fields that determine the rows.

    In the details of a join, ``columns`` lists the columns, each ``from`` one or several fields, and ``keys``
    lists the fields that determine the rows.
    """
    from openlineage.client.facet_v2 import column_lineage_dataset as facet_v2  # noqa: PLC0415 - optional

    sources, details = report.get("sources") or {}, report.get("details") or {}

    def list_inputs(field_names: str | Sequence[str], kind: str, subtype: str) -> list[Any]:
        inputs = []
        for field_name in [field_names] if isinstance(field_names, str) else field_names:
            source, _, field = field_name.partition(".")
            namespace, name = lineage_name(str(sources[source]["uri"]))
            steps = [facet_v2.Transformation(type=kind, subtype=subtype)]
            inputs.append(facet_v2.InputField(namespace, name, field, steps))
        return inputs

    fields = {
        str(column["name"]): facet_v2.Fields(inputFields=list_inputs(column["from"], "DIRECT", "IDENTITY"))
        for column in details.get("columns") or ()
    }
    if not fields:
        return dataset_fields
    keys = [key for clause in details.get("keys") or () for key in list_inputs(clause, "INDIRECT", "JOIN")]
    facet = facet_v2.ColumnLineageDatasetFacet(fields=fields, dataset=keys, producer=_PRODUCER)
    return {**dataset_fields, "facets": {**dataset_fields["facets"], "columnLineage": facet}}
