"""A sample of the MergeRecord vectors through whole runs: files, Spark, sidecars and the ledger."""

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
# One for each thing that only whole runs can get wrong: order, schemas, attributes, failures, later triggers.
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
    """The same merged files, originals, failures and open bins as planning alone."""
    (vector,) = [each for each in VECTORS if each["id"] == id_]
    landing = Landing(tmp_path, lean, **_settings(vector))
    found: list[Any] = []

    for number, trigger in enumerate(vector["triggers"]):
        before = set(landing.outputs())
        for place, arrival in enumerate(trigger["arrivals"]):
            _put(landing, arrival, trigger["at"] + place / 1000)
        report = landing.run(at=trigger["at"] + 0.9)
        found += [_merged(landing, path, number) for path in landing.outputs() if path not in before]

    expected = vector["expected"]
    wanted = [
        [each["trigger"], each["records"], _without(each["attributes"]), each["reason"]]
        for each in expected["merged"]
    ]
    assert sorted(map(_text, found)) == sorted(map(_text, wanted))
    assert landing.names("original") == sorted(expected["original"])
    assert landing.names("failure") == sorted(expected["failure"])
    assert landing.names("in") == sorted(expected["still_queued_or_open"])
    assert report["counts"]["open_bins"] == expected["open_bins"]


def _settings(vector: dict[str, Any]) -> dict[str, Any]:
    """Give the vector's properties; where records fail or schemas are part of it, the files' own schema."""
    first = next(arrival for trigger in vector["triggers"] for arrival in trigger["arrivals"])
    own = vector["id"].startswith(("bp-zero", "fail-"))
    reader = {"format": "json", "schema": first["schema"] if own else None}
    return {
        "reader": reader,
        "bin_age_from": "first_seen",
        "attribute_sources": ["sidecar"],
        **from_properties(vector["properties"]),
    }


def _put(landing: Landing, arrival: dict[str, Any], at: float) -> None:
    records = [json.dumps(each) + "\n" for each in arrival["records"]]
    if "fail_at_record" in arrival:
        records[arrival["fail_at_record"]] = "no record\n"
    landing.put(arrival["name"], "".join(records), at=at, **arrival["attributes"])


def _merged(landing: Landing, path: Path, trigger: int) -> list[Any]:
    attributes = landing.attributes(path)
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [trigger, records, _without(attributes), attributes["merge.completion.reason"]]


def _without(attributes: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in attributes.items() if name not in WRITTEN}


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
