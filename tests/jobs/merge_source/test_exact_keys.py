"""Test that match keys are exact: the same for equal values of any type, whichever way they are computed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.equality import plan_rules
from airflow_merge_provider.jobs.merge_source.scan.match_keys import build_source_keys
from airflow_merge_provider.jobs.merge_source.scan.sources import open_source

_NOON = "t:2024-05-01T12:00:00.123456000Z"
_JULIAN, _ANCIENT = "d:1500-02-28", "s:~t-735525 days"
_NOT_OF_JSON: Any = object()
# Of each case: the value in SQL, the same in a JSON entity, and its keys.
CASES: dict[str, tuple[str, Any, list[str]]] = {
    "int": ("2", 2, ["n:2"]),
    "long": ("9007199254740993", 9007199254740993, ["n:9007199254740993"]),
    "lowest": ("-9223372036854775808L", -(2**63), ["n:-9223372036854775808"]),
    "double": ("9007199254740992D", 9007199254740992.0, ["n:9007199254740992"]),
    "decimal": ("9007199254740993.0BD", "~f9007199254740993.0", ["n:9007199254740993"]),
    "cents": ("cast(2 as decimal(38,2))", 2.00, ["n:2"]),
    "fine": ("2.000000000000000001BD", "2.000000000000000001", ["n:2.000000000000000001"]),
    "finest": ("1E-38BD", f"0.{'0' * 37}1", [f"n:0.{'0' * 37}1"]),
    "large": (f"{'9' * 38}BD", "9" * 38, [f"n:{'9' * 38}"]),
    "tenth": ("0.1D", 0.1, ["n:0.1"]),
    "float": ("cast(0.1 as float)", 0.1, ["n:0.1"]),
    "zero": ("-0.0D", 0, ["n:0"]),
    "nan": ("double('NaN')", None, []),
    "infinity": ("float('-Infinity')", None, []),
    "digits": ("'2'", '"2"', ["s:2"]),
    "empty": ("''", '""', ["s:"]),
    "padded": ("'a '", '"a "', ["s:a "]),
    "words": ("'NaN'", '"NaN"', ["s:NaN"]),
    "null": ("cast(null as int)", None, []),
    "bool": ("true", True, ["b:true"]),
    "date": ("date'2024-05-01'", '"~t2024-05-01"', ["d:2024-05-01"]),
    "julian": ("date'1500-02-28'", '"~t1500-02-28"', [_JULIAN]),
    "ancient": ("date'-0044-03-15'", _NOT_OF_JSON, [_ANCIENT]),
    "time": ("timestamp'2024-05-01T12:00:00.123456Z'", '"~t2024-05-01T12:00:00.123456Z"', [_NOON]),
    "local": ("timestamp_ntz'2024-05-01T12:00:00.123456'", _NOT_OF_JSON, [_NOON]),
    "future": ("timestamp'+12024-05-01T12:00:00Z'", _NOT_OF_JSON, ["s:~t317284084800000000 microseconds"]),
    "binary": ("X'00ff'", '"~bAP8="', ["y:00ff"]),
    "times": ("array(timestamp'2024-05-01T12:00:00.123456Z', null)", _NOT_OF_JSON, [_NOON]),
    "days": ("array(date'1500-02-28', date'-0044-03-15')", _NOT_OF_JSON, [_JULIAN, _ANCIENT]),
    "floats": ("array(cast(0.1 as float), float('NaN'))", _NOT_OF_JSON, ["n:0.1"]),
    "decimals": ("array(2.0BD, 2.000000000000000001BD)", _NOT_OF_JSON, ["n:2", "n:2.000000000000000001"]),
    "struct": (
        "named_struct('t', timestamp_ntz'2024-05-01T12:00:00.123456', 'f', cast(0.1 as float))",
        _NOT_OF_JSON,
        [f'o:{{"f":"n:0.1","t":"{_NOON}"}}'],
    ),
    "named": ("map('b', 2.000000000000000001BD, 'a', null)", _NOT_OF_JSON, [
        'o:{"a":null,"b":"n:2.000000000000000001"}'
    ]),
}  # fmt: skip
# Only typed columns hold these.
TYPED: dict[str, tuple[str, list[str]]] = {
    "by_flag": ("map(true, cast(0.1 as float))", ['o:{"true":"n:0.1"}']),
    "by_time": ("map(timestamp'2024-05-01T12:00:00.5Z', 1)", ['o:{"2024-05-01 12:00:00.5":"n:1"}']),
    "by_binary": ("map(X'ff', 1)", ['o:{"FF":"n:1"}']),
    "variants": (
        "array(parse_json('2.000000000000000001'), cast(cast(0.1 as float) as variant))",
        ["n:2.000000000000000001", "n:0.1"],
    ),
}
TYPED_KEYS = {name: keys for name, (_, _, keys) in CASES.items()} | {
    name: keys for name, (_, keys) in TYPED.items()
}
JSON_KEYS = {name: keys for name, (_, json_value, keys) in CASES.items() if json_value is not _NOT_OF_JSON}


def write_json(value: Any) -> str:
    """Return a value as JSON; texts are JSON already."""
    return value if isinstance(value, str) and not value.startswith("~") else json.dumps(value)


@pytest.fixture(scope="module")
def frames(lean: SparkSession) -> dict[str, tuple[DataFrame, Mapping[str, list[str]]]]:
    """Return one entity in typed columns, as VARIANT and as JSON, with the expected keys of each."""
    values = {name: value for name, (value, _, _) in CASES.items()}
    columns = values | {name: value for name, (value, _) in TYPED.items()}
    typed = ", ".join(f"{value} AS `{name}`" for name, value in columns.items())
    fields = ", ".join(f"'{name}', {value}" for name, value in values.items())
    texts = ((name, json_value) for name, (_, json_value, _) in CASES.items())
    entity = ", ".join(f'"{name}": {write_json(text)}' for name, text in texts if text is not _NOT_OF_JSON)
    return {
        "typed": (lean.sql(f"SELECT 'a1' AS _id, {typed}"), TYPED_KEYS),
        "variant": (
            lean.sql(f"SELECT to_variant_object(named_struct('_id', 'a1', {fields})) AS entity"),
            {name: keys for name, (_, _, keys) in CASES.items()},
        ),
        "json": (lean.sql(f"""SELECT r'{{"_id": "a1", {entity}}}' AS entity"""), JSON_KEYS),
    }


@pytest.mark.parametrize(
    ("form", "native"), [("typed", True), ("typed", False), ("variant", False), ("json", False)]
)
def test_keys_are_exact(
    frames: dict[str, tuple[DataFrame, Mapping[str, list[str]]]], form: str, native: bool
) -> None:
    """Numbers are equal by value, other values by type and value; no digit and no microsecond is lost."""
    frame, expected = frames[form]
    settings = {"entity_column": "entity"} if form == "json" else {"values": "columns"}
    rules = [["eq", f"a.{name}", f"a.{name}"] for name in expected]
    config = MergeSourceConfig.parse({"version": 2, "datasets": ["A a"], "equality": rules, **settings})
    source, planned = open_source(frame, 0, config), plan_rules(config)
    keys = build_source_keys(source, planned, native=native)

    (row,) = source.frame.select(keys.concat_keys(planned).alias("keys")).collect()

    keys_by_name: dict[str, list[str]] = {name: [] for name in expected}
    for key in row["keys"]:
        if key["side"] == "left":
            keys_by_name[key["rule"].partition(" ")[0].removeprefix("a.")].append(key["value"])
    assert keys_by_name == expected
