"""Tests of the lineage of merged entities."""

from __future__ import annotations

from typing import Any

from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.lineage import trace_columns
from airflow_merge_provider.core.run.lineage_model import TARGET, ColumnLineage, RunSchemas
from tests.unit.core.columns_shown import build_fields, show_columns, show_sources

CRM, ERP = "datasets[0]", "datasets[1]"
TYPED = RunSchemas(
    {
        CRM: build_fields("_id", "email", "name", _updated="timestamp", _deleted="boolean"),
        ERP: build_fields("_id", "mail", "name", _updated="timestamp"),
    }
)


def trace(schemas: RunSchemas, **config: Any) -> ColumnLineage:
    parsed_config = MergeSourceConfig.parse(
        {
            "datasets": ["crm c", "erp e"],
            "equality": [["eq", "c.email", ["lower", "e.mail"]]],
            "target": "golden",
            "version": 2,
            **config,
        }
    )
    return trace_columns(parsed_config, schemas)[TARGET]


def test_an_entity_contains_the_properties_of_all_datasets() -> None:
    """The entity aggregates all properties; the columns of match rules determine the rows."""
    lineage = trace(TYPED)

    columns = show_columns(lineage)
    properties = [f"{CRM}.email", f"{CRM}.name", f"{ERP}.mail", f"{ERP}.name"]
    assert columns["entity"] == [f"{column} AGGREGATION" for column in properties]
    assert columns["_hash"] == [f"{column} TRANSFORMATION*" for column in properties]
    assert columns["_id"] == [f"{CRM}._id TRANSFORMATION", f"{ERP}._id TRANSFORMATION"]
    assert columns["$ids"] == [f"{CRM}._id AGGREGATION", f"{ERP}._id AGGREGATION"]
    assert columns["_deleted"] == [f"{CRM}._deleted AGGREGATION"]
    assert columns["_members"] == [
        f"{CRM}._id AGGREGATION", f"{CRM}.email AGGREGATION",
        f"{ERP}._id AGGREGATION", f"{ERP}.mail AGGREGATION",
    ]  # fmt: skip
    assert "$provenance" not in columns
    assert show_sources(lineage.rows) == [f"{CRM}.email JOIN", f"{ERP}.mail JOIN"]


def test_a_typed_column_lists_values_or_takes_the_surviving_one() -> None:
    """A survivorship rule takes one value, and ``latest`` depends on the sequence column, too."""
    lineage = trace(TYPED, values="columns", identity="first", survivorship={"name": ["longest", "latest"]})

    columns = show_columns(lineage)
    assert columns["email"] == [f"{CRM}.email AGGREGATION"]
    assert columns["name"] == [
        f"{CRM}.name IDENTITY", f"{CRM}._updated SORT", f"{ERP}.name IDENTITY", f"{ERP}._updated SORT",
    ]  # fmt: skip
    assert columns["_id"] == [f"{CRM}._id IDENTITY", f"{ERP}._id IDENTITY"]
    assert columns["$provenance"] == [f"{CRM}._id AGGREGATION", f"{ERP}._id AGGREGATION"]
    assert "entity" not in columns


def test_the_default_rule_takes_the_surviving_value_of_every_other_column() -> None:
    """A column without a rule of its own has the lineage of the rule for ``"*"``."""
    lineage = trace(TYPED, values="columns", survivorship={"*": "latest", "name": "first"})

    columns = show_columns(lineage)
    assert columns["email"] == [f"{CRM}.email IDENTITY", f"{CRM}._updated SORT"]
    assert columns["name"] == [f"{CRM}.name IDENTITY", f"{ERP}.name IDENTITY"]


def test_whole_entities_are_one_column() -> None:
    """A dataset with an entity column contributes this column, whatever the rules read inside it."""
    schemas = RunSchemas({CRM: build_fields(entity="variant"), ERP: TYPED.inputs[ERP]})

    lineage = trace(schemas)

    assert show_columns(lineage)["entity"][0] == f"{CRM}.entity AGGREGATION"
    assert show_columns(lineage)["_id"][0] == f"{CRM}.entity TRANSFORMATION"
    assert show_sources(lineage.rows) == [f"{CRM}.entity JOIN", f"{ERP}.mail JOIN"]


def test_columns_that_the_target_lacks_have_no_lineage() -> None:
    """Only the columns of the target are traced, from the datasets that exist."""
    schemas = RunSchemas({CRM: TYPED.inputs[CRM]}, {TARGET: build_fields("_id", "entity", "_updated")})

    lineage = trace(schemas)

    assert set(lineage.columns) == {"_id", "entity"}
    assert show_sources(lineage.rows) == [f"{CRM}.email JOIN"]
