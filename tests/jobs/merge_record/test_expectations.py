"""Test expectations on the records of files: what a run merges, rejects and reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import DataError
from tests.jobs.merge_record.landing import Landing

POSITIVE = {"condition": "n > 0", "action": "quarantine"}


def test_a_file_with_records_that_fail_is_rejected_alone(lean: SparkSession, tmp_path: Path) -> None:
    """The other files of its bin are merged; the file goes to failure whole, with the reason."""
    landing = Landing(tmp_path, lean, expect={"positive": POSITIVE})
    landing.put_records("a", {"id": 1, "n": 1})
    landing.put_records("b", {"id": 2, "n": 0}, {"id": 3, "n": 5}, at=1)
    landing.put_records("c", {"id": 4, "n": None}, {"id": 5, "n": 7}, at=2)

    report = landing.run_job(at=3)

    assert landing.list_names("failure") == ["b"]
    attributes = landing.read_attributes(tmp_path / "failure" / "b")
    assert attributes["failure.code"] == "EXPECTATION"
    assert attributes["failure.reason"] == (
        "b is rejected: 1 of 2 records does not meet expect.positive: n > 0"
    )
    assert landing.read_ids() == [[1, 4, 5]]
    assert report["details"]["reasons"] == {"FULL_ENOUGH": 1, "EXPECTATION": 1}
    (result,) = report["expectations"]
    assert (result["source"], result["rows"], result["failed"]) == ("in", 5, 1)
    assert result["examples"] == [{"file": "b", "id": 2, "n": 0}]
    assert report["warnings"][-1].endswith("; their files are moved to the failure folder")


def test_a_failed_expectation_stops_the_run_before_it_writes(lean: SparkSession, tmp_path: Path) -> None:
    """The error names all expectations that fail, and no file is moved."""
    expect = {"positive": "n > 0", "known": {"accepted_values": {"id": [1]}}}
    landing = Landing(tmp_path, lean, expect=expect)
    landing.put_records("a", {"id": 1, "n": 0})
    landing.put_records("b", {"id": 2, "n": 1}, at=1)

    for until in ("plan", "commit"):
        with pytest.raises(DataError) as caught:
            landing.run_job(at=3, until=until)

        assert [problem.path for problem in caught.value.problems] == ["expect.positive", "expect.known"]
        assert "1 of 2 rows of the source 'in' does not meet: n > 0" in str(caught.value)
    assert landing.list_names("in") == ["a", "b"]
    assert landing.list_names("merged") == landing.list_names("failure") == []


def test_a_warning_counts_and_merges(lean: SparkSession, tmp_path: Path) -> None:
    """With the action warn all records are merged, and a retry of the run reports the same."""
    landing = Landing(tmp_path, lean, expect={"known": {"not_null": "n", "action": "warn"}})
    landing.put_records("a", {"id": 1, "n": None}, {"id": 2, "n": 1})

    report = landing.run_job(at=3, run_id="once")
    retry = landing.run_job(at=4, run_id="once")

    assert landing.read_ids() == [[1, 2]]
    assert [item["failed"] for item in report["expectations"]] == [1]
    assert report["warnings"][-1].startswith("expect.known: 1 of 2 rows of the source 'in' does not meet")
    assert [(item["rows"], item["failed"]) for item in retry["expectations"]] == [(2, 1)]


def test_files_in_open_bins_are_checked_when_their_bin_is_merged(lean: SparkSession, tmp_path: Path) -> None:
    """A file that waits is not checked; once its bin is full, it is rejected and the bin stays without it."""
    landing = Landing(tmp_path, lean, expect={"positive": POSITIVE}, min_records=2, max_records=2)
    landing.put_records("a", {"id": 1, "n": -1})

    assert landing.run_job(at=1)["expectations"] == []

    landing.put_records("b", {"id": 2, "n": 1}, at=2)
    report = landing.run_job(at=3)
    assert (landing.list_names("failure"), report["counts"]["open_files"]) == (["a"], 1)

    landing.put_records("c", {"id": 3, "n": 2}, at=4)
    landing.run_job(at=5)
    assert landing.read_ids() == [[2, 3]]


def test_a_file_without_the_column_fails(lean: SparkSession, tmp_path: Path) -> None:
    """A file that lacks the column of an expectation is rejected with this reason, whatever the kind."""
    expect = {"positive": POSITIVE, "known": {"not_null": "n", "action": "quarantine"}}
    landing = Landing(tmp_path, lean, expect=expect)
    landing.put_records("a", {"id": 1, "n": 1})
    landing.put_records("b", {"id": 2}, at=1)
    landing.put_file("empty", "", at=2)

    report = landing.run_job(at=3)

    assert landing.list_names("failure") == ["b"]
    reason = landing.read_attributes(tmp_path / "failure" / "b")["failure.reason"]
    assert "1 of 1 record does not meet expect.known: n not null (no column 'n')" in reason
    assert "expect.positive: n > 0 (a column is missing: " in reason
    assert any("the records of 1 file do not meet it, such as b" in text for text in report["warnings"])


def test_a_set_of_fragments_fails_with_its_rejected_file(lean: SparkSession, tmp_path: Path) -> None:
    """A set cannot be complete without the file, so it goes to failure as a whole."""
    landing = Landing(tmp_path, lean, expect={"positive": POSITIVE}, merge_strategy="defragment")
    for index, number in enumerate((1, -1)):
        fragment = {"identifier": "x", "count": "2", "index": str(index)}
        attributes: Any = {f"fragment.{name}": value for name, value in fragment.items()}
        landing.put_records(f"f{index}", {"n": number}, at=index, **attributes)

    landing.run_job(at=3)

    assert landing.list_names("failure") == ["f0", "f1"]
    assert landing.read_attributes(tmp_path / "failure" / "f0")["failure.culprit"] == "f1"


def test_a_file_is_rejected_with_all_of_its_parts(lean: SparkSession, tmp_path: Path) -> None:
    """A file that partition_by splits is checked as a whole, so that no part of it is merged alone."""
    landing = Landing(tmp_path, lean, expect={"positive": POSITIVE}, partition_by={"kind": "k"})
    landing.put_records("a", {"id": 1, "k": "x", "n": 1}, {"id": 2, "k": "y", "n": 0})
    landing.put_records("b", {"id": 3, "k": "x", "n": 2}, at=1)

    landing.run_job(at=3)

    assert landing.list_names("failure") == ["a"]
    assert landing.read_ids() == [[3]]


def test_an_invalid_condition_is_one_error(lean: SparkSession, tmp_path: Path) -> None:
    """Spark checks conditions: one that it cannot read stops the run, with the name of the expectation."""
    landing = Landing(tmp_path, lean, expect={"positive": {"condition": "n >", "action": "quarantine"}})
    landing.put_records("a", {"n": 1})

    with pytest.raises(DataError, match=r"expect\.positive: 'n >' is not a valid condition"):
        landing.run_job(at=1)

    assert landing.list_names("in") == ["a"]


def test_rejected_files_return_with_an_undo(lean: SparkSession, tmp_path: Path) -> None:
    """After an undo the file waits again, and is merged by a run without the expectation."""
    landing = Landing(tmp_path, lean, expect={"positive": POSITIVE})
    landing.put_records("a", {"id": 1, "n": 1})
    landing.put_records("b", {"id": 2, "n": 0}, at=1)
    landing.run_job(at=3)

    landing.undo_runs()
    landing.run_job(at=5, expect=None)

    assert landing.read_ids() == [[1, 2]]
    assert landing.list_names("failure") == []
