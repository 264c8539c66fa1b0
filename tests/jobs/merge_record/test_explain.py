"""Test explanations of files: outputs, merged and failed sources, and sources that wait in a bin."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_merge_provider.cli.main import main
from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.explain.merge_record import explain_merged_file
from tests.explanations import check_examples
from tests.jobs.merge_record.landing import Landing


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    """Run a task over files that are merged, that fail with another file, and that wait."""
    landing = Landing(
        tmp_path, min_records=3, max_records=3, max_bin_age="1 hour", correlation_attribute_name="day"
    )
    landing.put_records("a.json", {"id": 1}, day="monday")
    landing.put_records("b.json", {"id": 2}, {"id": 3}, at=1, day="monday")
    landing.put_file("c.json", '{"id": 4}\nbad\n\n', at=2, day="tuesday")
    landing.put_records("d.json", {"id": 5}, at=3, day="sunday")
    landing.run_job(at=10, run_id="manual__1")
    return landing


def test_files_are_explained(landing: Landing, capsys: pytest.CaptureFixture[str]) -> None:
    """The page's examples: a merged source, and a source that waits in a bin."""
    check_examples("merge_record.md", landing.root, capsys)


def test_outputs_and_failures_are_explained(landing: Landing, capsys: pytest.CaptureFixture[str]) -> None:
    """An output is found by its name, a failed file with the reason and the file that made it fail."""
    (output,) = landing.list_outputs()
    warehouse = str(landing.root)

    made_from = explain_merged_file("merged", output.name, warehouse=warehouse).as_object()["events"][0]
    code = main(["explain", "state", "c.json", "--warehouse", warehouse, "--json"])
    failure = json.loads(capsys.readouterr().out)["events"][0]

    assert [Path(source["uri"]).name for source in made_from["sources"]] == ["a.json", "b.json"]
    assert (made_from["code"], made_from["run"]["run_id"]) == ("FULL", "manual__1")
    assert (code, failure["outcome"], failure["culprit"]) == (0, "failed", "c.json")
    assert (
        next(explain_merged_file("state", "c.json", warehouse=warehouse).format_lines()) == "c.json: failed"
    )


def test_unknown_files_and_folders_are_refused(landing: Landing) -> None:
    """A file that no run has seen and a folder of another program are refused with their names."""
    with pytest.raises(DataError, match=r"has read or written a file 'b.jsn' \(did you mean 'b.json'"):
        explain_merged_file("state", "b.jsn", warehouse=str(landing.root))
    with pytest.raises(DataError, match="failure is neither the state_path nor the merged folder"):
        explain_merged_file("failure", "b.json", warehouse=str(landing.root))
    (landing.root / "state" / "ledger" / "000000000001.jsonl").write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match=r"ledger/000000000001\.jsonl is damaged: restore it from a backup"):
        explain_merged_file("state", "b.json", warehouse=str(landing.root))
