"""Tests of reading the Avro schemas of CDAP pipelines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.joiner.config import JoinerConfig
from airflow_merge_provider.core.joiner.schema import from_record


def build_record(*types: Any) -> dict[str, Any]:
    fields = [{"name": f"f{index}", "type": field_type} for index, field_type in enumerate(types)]
    return {"type": "record", "name": "etlSchemaBody", "fields": fields}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("long", ("long", False)),
        (["string", "null"], ("string", True)),
        ({"type": "int", "logicalType": "date"}, ("date", False)),
        ([{"type": "long", "logicalType": "timestamp-micros"}, "null"], ("timestamp", True)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}, ("decimal(8,2)", False)),
        ({"type": "enum", "symbols": ["a", "b"]}, ("string", False)),
        ({"type": "array", "items": ["int", "null"]}, ("array<int>", False)),
        ({"type": "map", "keys": "string", "values": "bytes"}, ("map<string,bytes>", False)),
        ({"type": {"type": "string"}}, ("string", False)),
        (build_record("int", ["string", "null"]), ("struct<f0:int,f1:string>", False)),
    ],
)
def test_a_field_has_its_type(written: Any, expected: tuple[str, bool]) -> None:
    """A union with null is read as a nullable type; logical types are read as the column types of tables."""
    (field,) = from_record(build_record(written))

    assert (field.type, field.nullable) == expected


@pytest.mark.parametrize(
    "output_schema",
    [
        "{",
        "{}",
        build_record("number"),
        build_record(["int", "string"]),
        build_record({"type": "int", "logicalType": "time-millis"}),
        {"type": "record", "fields": ["x"]},
        {"type": "record", "fields": [{"type": "int"}]},
    ],
)
def test_what_is_no_record_of_a_table_is_refused(output_schema: Any) -> None:
    """A schema that is not a record is rejected; the error has the property name that pipelines use."""
    with pytest.raises(ConfigError) as refused:
        JoinerConfig.parse({"inputs": ["A", "B"], "joinKeys": "A.x=B.x", "schema": output_schema})

    assert [(problem.path, problem.code) for problem in refused.value.problems] == [
        ("schema", "output_schema")
    ]


def test_a_record_declares_the_output() -> None:
    """A record given as text or as an object declares the same output as a list of fields."""
    join_options = {"inputs": ["A", "B"], "join_keys": "A.x=B.x"}
    text_config = JoinerConfig.parse(
        {**join_options, "output_schema": json.dumps(build_record("int", ["string", "null"]))}
    )
    list_config = JoinerConfig.parse(
        {**join_options, "output_schema": [["f0", "int", False], ["f1", "string"]]}
    )

    assert text_config == list_config
