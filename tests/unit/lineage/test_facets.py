"""Tests of the OpenLineage metadata of a run."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from airflow_merge_provider.core.dataset import Dataset, DatasetName
from airflow_merge_provider.core.run.lineage_model import (
    ColumnLineage,
    DatasetCounts,
    DatasetLineage,
    RunLineage,
    list_direct,
    list_indirect,
)
from airflow_merge_provider.lineage.facets import build_lineage

CRM, GOLDEN = DatasetName("file", "/lake/crm"), DatasetName("s3://lake", "golden")


def build_dataset(name: DatasetName = GOLDEN, kind: str = "delta", **values: Any) -> DatasetLineage:
    return DatasetLineage(Dataset("d", kind, "/lake/d"), name, **values)


def build_output(**values: Any) -> Any:
    """Return the OpenLineage dataset of an output."""
    run = RunLineage([], [build_dataset(**values)], {"crm": CRM, "again": CRM})
    return build_lineage(run).outputs[0]


def test_a_dataset_without_facts_has_a_name_alone() -> None:
    """Before the end of a run, datasets have no facets."""
    lineage = build_lineage(RunLineage([build_dataset(CRM)], [build_dataset()], {}))

    assert [(dataset.namespace, dataset.name) for dataset in lineage.inputs] == [CRM]
    assert [(dataset.namespace, dataset.name) for dataset in lineage.outputs] == [GOLDEN]
    (output,) = lineage.outputs
    assert (output.facets, output.outputFacets) == ({}, {})
    assert (lineage.inputs[0].facets, lineage.inputs[0].inputFacets) == ({}, {})


def test_versions_and_counts_are_facets() -> None:
    """A table has its version and its storage; rows and files are counted by the direction."""
    counts = DatasetCounts(3, 2)
    lineage = build_lineage(
        RunLineage([build_dataset(version=7, counts=counts)], [build_dataset(version=8, counts=counts)], {})
    )

    (source,), (target,) = lineage.inputs, lineage.outputs
    assert source.facets["version"].datasetVersion == "7"
    assert (source.facets["storage"].storageLayer, source.facets["storage"].fileFormat) == (
        "delta",
        "parquet",
    )
    statistics = source.inputFacets["inputStatistics"]
    assert (statistics.rowCount, statistics.fileCount) == (3, 2)
    statistics = target.outputFacets["outputStatistics"]
    assert (statistics.rowCount, statistics.fileCount) == (3, 2)


def test_files_are_no_delta_table() -> None:
    """Plain files have a version that identifies their content, and no storage layer."""
    assert set(build_output(kind="csv", version=5).facets) == {"version"}


def test_nested_types_are_shown_as_spark_shows_them() -> None:
    """The parts of arrays, maps and structs are fields, with the names of OpenLineage's Spark integration."""
    fields = [
        {"name": "id", "type": "long", "metadata": {"comment": "the key"}},
        {"name": "tags", "type": {"type": "array", "elementType": "string"}},
        {"name": "sizes", "type": {"type": "map", "keyType": "string", "valueType": "integer"}},
        {"name": "at", "type": {"type": "struct", "fields": [{"name": "city", "type": "decimal(5,2)"}]}},
    ]

    shown = build_output(fields=fields).facets["schema"].fields

    assert [(field.name, field.type, field.ordinal_position) for field in shown] == [
        ("id", "bigint", 1), ("tags", "array", 2), ("sizes", "map", 3), ("at", "struct", 4),
    ]  # fmt: skip
    assert shown[0].description == "the key"
    assert [[(part.name, part.type) for part in field.fields] for field in shown] == [
        [], [("_element", "string")], [("key", "string"), ("value", "int")], [("city", "decimal(5,2)")],
    ]  # fmt: skip


def test_a_catalog_table_is_linked_to_its_location() -> None:
    """Events of Spark itself name the location, so both names are linked."""
    (identifier,) = build_output(location=CRM).facets["symlinks"].identifiers

    assert (identifier.namespace, identifier.name, identifier.type) == (*CRM, "LOCATION")


def test_a_change_of_the_whole_dataset_is_a_facet() -> None:
    """The first run creates its target."""
    facet = build_output(lifecycle_change="CREATE").facets["lifecycleStateChange"]

    assert facet.lifecycleStateChange.value == "CREATE"


def test_columns_name_their_sources() -> None:
    """Each input column appears once, with everything that is done with it, under the name of its dataset."""
    columns = {
        "a": [*list_direct("crm", ["x"], "IDENTITY"), *list_indirect("again", ["x"], "SORT")],
        "b": list_direct("crm", ["y"], "TRANSFORMATION", is_masking=True),
        "nothing": [],
    }
    rows = [*list_indirect("crm", ["x"], "JOIN"), *list_indirect("again", ["x"], "JOIN")]

    facet = build_output(columns=ColumnLineage(columns, rows)).facets["columnLineage"]

    assert set(facet.fields) == {"a", "b"}
    (source,) = facet.fields["a"].inputFields
    assert (source.namespace, source.name, source.field) == (*CRM, "x")
    assert [(step.type, step.subtype, step.masking) for step in source.transformations] == [
        ("DIRECT", "IDENTITY", False), ("INDIRECT", "SORT", False),
    ]  # fmt: skip
    assert facet.fields["b"].inputFields[0].transformations[0].masking is True
    (key,) = facet.dataset
    assert [(step.type, step.subtype) for step in key.transformations] == [("INDIRECT", "JOIN")]


def test_without_openlineage_there_is_no_lineage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without OpenLineage there is no lineage, because the package is optional."""
    monkeypatch.setitem(sys.modules, "airflow.providers.openlineage.extractors.base", None)

    assert build_lineage(RunLineage([], [], {})) is None
