"""Tests of the lineage of a join."""

from __future__ import annotations

from airflow_merge_provider.core.joiner.config import JoinerConfig
from airflow_merge_provider.core.joiner.lineage import trace_columns
from airflow_merge_provider.core.run.lineage_model import TARGET, RunSchemas
from tests.unit.core.columns_shown import build_fields, show_columns, show_sources

SCHEMAS = RunSchemas(
    {"inputs.crm": build_fields("id", "name"), "inputs.erp": build_fields("no", "name", "total")}
)
INPUTS = {"crm": "crm", "erp": "erp"}


def test_a_column_comes_from_the_field_that_it_shows() -> None:
    """Renamed columns are traced to their fields, and the compared fields determine the rows."""
    config = JoinerConfig.parse(
        {
            "inputs": INPUTS,
            "target": "t",
            "join_keys": "crm.id = erp.no",
            "required_inputs": "crm",
            "selected_fields": "crm.name, erp.name as shop",
        }
    )

    lineage = trace_columns(config, SCHEMAS)[TARGET]

    assert show_columns(lineage) == {
        "name": ["inputs.crm.name IDENTITY"],
        "shop": ["inputs.erp.name IDENTITY"],
    }
    assert show_sources(lineage.rows) == ["inputs.crm.id JOIN", "inputs.erp.no JOIN"]


def test_a_key_column_comes_from_every_input() -> None:
    """A key column has the key of whichever input has the row."""
    config = JoinerConfig.parse(
        {
            "inputs": INPUTS,
            "target": "t",
            "join_keys": "crm.id = erp.no",
            "key_columns": "key",
            "selected_fields": "erp.total",
            "indicator": "found_in",
        }
    )

    lineage = trace_columns(config, SCHEMAS)[TARGET]

    assert show_columns(lineage) == {
        "key": ["inputs.crm.id IDENTITY", "inputs.erp.no IDENTITY"],
        "total": ["inputs.erp.total IDENTITY"],
    }


def test_the_fields_of_an_expression_determine_the_rows() -> None:
    """In an advanced condition, the fields of the expression are those that are compared."""
    config = JoinerConfig.parse(
        {
            "inputs": INPUTS,
            "target": "t",
            "condition_type": "advanced",
            "condition_expression": "c.id = erp.`no` AND erp.total > 5 AND 'c.name' <> ''",
            "input_aliases": "crm=c",
            "required_inputs": "crm, erp",
            "selected_fields": "crm.id",
        }
    )

    lineage = trace_columns(config, SCHEMAS)[TARGET]

    assert show_sources(lineage.rows) == ["inputs.crm.id JOIN", "inputs.erp.no JOIN", "inputs.erp.total JOIN"]


def test_an_input_without_a_schema_leaves_no_lineage() -> None:
    """Columns cannot be traced if those of one input are unknown."""
    config = JoinerConfig.parse({"inputs": INPUTS, "target": "t", "join_keys": "crm.id = erp.no"})

    assert trace_columns(config, RunSchemas({"inputs.crm": SCHEMAS.inputs["inputs.crm"]})) == {}
