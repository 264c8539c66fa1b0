"""Tests of some MergeRecord vectors with complete runs: files, Spark, sidecars and the ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_merge_provider.core.merge_record.properties import from_properties
from tests.conformance.lean import lean_session
from tests.jobs.merge_record.landing import Landing

VECTORS = json.loads((Path(__file__).parent / "vectors" / "merge_record.json").read_text(encoding="utf-8"))[
    "vectors"
]
# One vector for each aspect that only complete runs cover: order, schemas, attributes, failures, later
# triggers.
SAMPLE = (
    "bp-seed-example-1-eight",
    "bp-zero-record-flowfile",
    "cor-two-groups",
    "sch-different-fields",
    "attr-written-overrides-inherited",
    "fail-bin-held-over-triggers",
    "age-expired-when-flowfile-arrives",
    "df-over-triggers",
    "df-schemas-may-differ",
    "ext-index-numeric-order",
    "ext-schema-union",
)
WRITTEN = {"uuid", "path", "mime.type", "filename"}


@pytest.fixture(scope="module")
def lean(spark: SparkSession) -> SparkSession:
    return lean_session(spark)


@pytest.mark.parametrize("id_", SAMPLE)
def test_runs_over_files_give_what_the_vector_expects(id_: str, lean: SparkSession, tmp_path: Path) -> None:
    """Complete runs give the same merged files, originals, failures and open bins as the planner alone."""
    (vector,) = [candidate for candidate in VECTORS if candidate["id"] == id_]
    landing = Landing(tmp_path, lean, **_build_settings(vector))
    merges: list[Any] = []
    report: dict[str, Any] = {}

    for number, trigger in enumerate(vector["triggers"]):
        before = set(landing.list_outputs())
        for index, arrival in enumerate(trigger["arrivals"]):
            _put_file(landing, arrival, trigger["at"] + index / 1000)
        report = landing.run_job(at=trigger["at"] + 0.9)
        merges += [
            _read_merged(landing, path, number) for path in landing.list_outputs() if path not in before
        ]

    expected = vector["expected"]
    expected_merges = [
        [merge["trigger"], merge["records"], _drop_written(merge["attributes"]), merge["reason"]]
        for merge in expected["merged"]
    ]
    assert sorted(map(_format_value, merges)) == sorted(map(_format_value, expected_merges))
    assert landing.list_names("original") == sorted(expected["original"])
    assert landing.list_names("failure") == sorted(expected["failure"])
    assert landing.list_names("in") == sorted(expected["still_queued_or_open"])
    assert report["counts"]["open_bins"] == expected["open_bins"]


def _build_settings(vector: dict[str, Any]) -> dict[str, Any]:
    """Return the properties of a vector; add the schema of the files if records fail or schemas matter."""
    first = next(arrival for trigger in vector["triggers"] for arrival in trigger["arrivals"])
    is_schema_needed = vector["id"].startswith(("bp-zero", "fail-"))
    reader = {"format": "json", "schema": first["schema"] if is_schema_needed else None}
    return {
        "reader": reader,
        "bin_age_from": "first_seen",
        "attribute_sources": ["sidecar"],
        **from_properties(vector["properties"]),
    }


def _put_file(landing: Landing, arrival: dict[str, Any], at: float) -> None:
    records = [json.dumps(record) + "\n" for record in arrival["records"]]
    if "fail_at_record" in arrival:
        records[arrival["fail_at_record"]] = "no record\n"
    landing.put_file(arrival["name"], "".join(records), at=at, **arrival["attributes"])


def _read_merged(landing: Landing, path: Path, trigger: int) -> list[Any]:
    attributes = landing.read_attributes(path)
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [trigger, records, _drop_written(attributes), attributes["merge.completion.reason"]]


def _drop_written(attributes: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in attributes.items() if name not in WRITTEN}


def _format_value(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
