"""Tests of the OpenLineage metadata of a run."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from airflow_merge_provider.lineage import build_lineage, lineage_name
from tests.fakes import REPORT


@pytest.mark.parametrize(
    ("uri", "namespace", "name"),
    [
        ("/lake/golden", "file", "/lake/golden"),
        ("file:///lake/golden", "file", "/lake/golden"),
        ("s3://lake/crm/golden", "s3://lake", "crm/golden"),
        ("table:lake.crm.Golden", "merge://catalog", "lake.crm.golden"),
    ],
)
def test_a_uri_is_split_as_openlineage_names_datasets(uri: Any, namespace: Any, name: Any) -> None:
    """A URI is split into namespace and name as OpenLineage does. A table has the same name in all tools."""
    assert lineage_name(uri) == (namespace, name)


def test_sources_and_target_carry_their_versions() -> None:
    """Sources have the versions that were read, and the target the version that was written."""
    lineage = build_lineage(REPORT)

    versions = [dataset.facets["version"].datasetVersion for dataset in [*lineage.inputs, *lineage.outputs]]
    assert versions == ["7", "2", "3"]
    assert lineage.outputs[0].outputFacets["outputStatistics"].rowCount == 3


def test_a_report_without_versions_or_counts_still_names_the_datasets() -> None:
    """Datasets are reported without versions and counts too, as after a dry run on a new target."""
    lineage = build_lineage(
        {"target": {"uri": "/lake/golden", "version": None}, "sources": {}, "rows": {"inserted": None}}
    )

    assert lineage.inputs == []
    assert lineage.outputs[0].facets == {}
    assert lineage.outputs[0].outputFacets == {}


def test_columns_are_led_back_to_the_fields_they_show() -> None:
    """Column lineage follows the report. The name of a field may contain dots, that of a source may not."""
    columns = [{"name": "id", "from": "crm.cust.id"}, {"name": "mail", "from": "erp.email"}]

    (output,) = build_lineage({**REPORT, "details": {"columns": columns}}).outputs

    column_fields = output.facets["columnLineage"].fields
    source_fields = {
        name: [(input_field.name, input_field.field) for input_field in column_lineage.inputFields]
        for name, column_lineage in column_fields.items()
    }
    assert source_fields == {"id": [("/lake/crm", "cust.id")], "mail": [("/lake/erp", "email")]}
    assert output.facets["version"].datasetVersion == "3"


def test_keys_of_a_join_are_told_once_for_the_whole_dataset() -> None:
    """Join keys are reported once for the whole dataset.

    They decide which rows there are, and a key column may come from any source.
    """
    columns = [{"name": "id", "from": ["crm.id", "erp.no"]}]

    (output,) = build_lineage(
        {**REPORT, "details": {"columns": columns, "keys": [["crm.id", "erp.no"]]}}
    ).outputs

    column_lineage = output.facets["columnLineage"]
    key = [("/lake/crm", "id"), ("/lake/erp", "no")]
    assert [
        (input_field.name, input_field.field) for input_field in column_lineage.fields["id"].inputFields
    ] == key
    assert [(input_field.name, input_field.field) for input_field in column_lineage.dataset] == key
    assert {
        (transformation.type, transformation.subtype)
        for input_field in column_lineage.dataset
        for transformation in input_field.transformations
    } == {("INDIRECT", "JOIN")}


def test_without_openlineage_there_is_no_lineage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without OpenLineage there is no lineage, because the package is optional."""
    monkeypatch.setitem(sys.modules, "airflow.providers.openlineage.extractors.base", None)

    assert build_lineage(REPORT) is None
