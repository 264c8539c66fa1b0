"""Test runs over a landing folder: bins that stay open across runs, moved files, and reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.core.errors import ConfigError, DataError
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.jobs.merge_record.files.listing import FileQueue
from airflow_merge_provider.jobs.merge_record.job import _resolve_config
from tests.jobs.merge_record.landing import Landing


def test_the_seeds_example_is_merged_as_it_says(tmp_path: Path) -> None:
    """Four files of five records become one file, and their sources go to original with its uuid."""
    landing = Landing(tmp_path, min_records=3, max_records=5)
    for number, ids in enumerate(([1], [2, 3], [4], [5])):
        landing.put_records(f"{number}.json", *({"id": id_} for id_ in ids), at=number)

    report = landing.run_job(at=10)

    (output,) = landing.list_outputs()
    attributes = landing.read_attributes(output)
    assert landing.read_ids() == [[1, 2, 3, 4, 5]]
    assert report["details"]["merged"][0]["uri"] == str(output)
    assert report["target"]["uri"] == str(tmp_path / "merged")
    assert report["rows"]["inserted"] == 5
    assert list(report["sources"]) == ["in"]
    assert (report["changed"], report["details"]["reasons"]) == (True, {"FULL": 1})
    assert attributes["merge.completion.reason"] == "Bin is full"
    assert (attributes["record.count"], attributes["merge.count"]) == ("5", "4")
    assert attributes["filename"] == output.name
    assert landing.list_names("in") == []
    assert landing.list_names("original") == [f"{number}.json" for number in range(4)]
    original = landing.read_attributes(tmp_path / "original" / "0.json")
    assert original["merge.uuid"] == attributes["uuid"] == report["details"]["merged"][0]["merge_uuid"]


def test_a_bin_lives_on_until_it_is_old(tmp_path: Path) -> None:
    """After three runs without new files, a bin is merged by the first run after its expiry."""
    landing = Landing(tmp_path, min_records=5, max_bin_age="30 secs")
    landing.put_records("a.json", {"id": 1}, at=0)
    reports = [landing.run_job(at=at) for at in (1, 10, 30, 31)]

    assert [report["counts"]["open_bins"] for report in reports] == [1, 1, 1, 0]
    assert [report["changed"] for report in reports] == [False, False, False, True]
    assert (
        reports[0]["details"]["next_expiry"]
        == reports[1]["details"]["next_expiry"]
        == "2023-11-14T22:13:50+00:00"
    )
    assert landing.read_ledger()[0]["code"] == "AGE"
    assert landing.list_names("in") == []


def test_a_run_with_nothing_to_do_writes_nothing(tmp_path: Path) -> None:
    """A run without work writes no file, not even a state, and emits no event."""
    landing = Landing(tmp_path, min_records=5)
    landing.put_records("a.json", {"id": 1})
    landing.run_job()
    state = (tmp_path / "state" / "state-000000000001.json").read_bytes()

    report = landing.run_job(at=5)

    assert report["changed"] is False
    assert (tmp_path / "state" / "state-000000000001.json").read_bytes() == state


def test_a_task_that_is_tried_again_after_its_end_tells_the_same(tmp_path: Path) -> None:
    """A retry of a completed run reports that run; another run has nothing to do."""
    landing = Landing(tmp_path)
    landing.put_records("a.json", {"id": 1})
    first = landing.run_job(run_id="r")

    again = landing.run_job(run_id="r")

    assert (again["details"]["merged"], again["changed"]) == (first["details"]["merged"], True)
    assert landing.run_job(run_id="other")["changed"] is False


def test_a_dry_run_tells_and_touches_nothing(tmp_path: Path) -> None:
    """A dry run reports its plan and moves no files."""
    landing = Landing(tmp_path)
    landing.put_records("a.json", {"id": 1})

    report = landing.run_job(until="transform")

    assert (report["dry_run"], report["changed"], report["counts"]["merged"]) == (True, False, 1)
    assert report["plan"]["kinds"] == {"inserted": 1, "failed": 0, "kept": 0}
    (example,) = report["plan"]["examples"]
    assert (example["reason"], len(example["after"]["files"])) == ("FULL_ENOUGH", 1)
    assert landing.list_names("") == ["in/a.json"]
    landing.put_records("bad.json", {"bad": 1}, k="x")
    grouping = {"correlation_attribute_name": "k", "attribute_sources": ["sidecar"]}
    plan = Landing(tmp_path, min_records=5, **grouping).run_job(until="transform")["plan"]
    assert plan["kinds"] == {"inserted": 0, "failed": 1, "kept": 1}
    reasons = {example["kind"]: example["reason"] for example in plan["examples"]}
    assert reasons == {"failed": "MALFORMED", "kept": "open"}
    assert any("bad.json" in str(example) for example in plan["examples"] if example["kind"] == "failed")


def test_kept_sources_are_merged_once(tmp_path: Path) -> None:
    """Kept sources stay in place and are merged once; a changed one is a new arrival."""
    landing = Landing(tmp_path, original_action="keep")
    landing.put_records("a.json", {"id": 1})
    landing.run_job()
    assert landing.run_job(at=1)["changed"] is False

    landing.put_records("a.json", {"id": 2}, at=2)
    landing.run_job(at=2)

    assert landing.read_ids() == [[1], [2]]
    assert landing.list_names("in") == ["a.json"]


def test_deleted_sources_take_their_sidecars_along(tmp_path: Path) -> None:
    """Deleted sources are deleted with their sidecars; only the ledger lists them."""
    landing = Landing(tmp_path, original_action="delete")
    landing.put_records("a.json", {"id": 1}, k="v")
    landing.run_job()

    assert not any((tmp_path / "in").iterdir())
    assert landing.read_ledger()[0]["sources"][0]["uri"] == str(tmp_path / "in" / "a.json")


def test_names_that_return_do_not_replace_their_predecessors(tmp_path: Path) -> None:
    """A second data.json is stored next to the first one in original."""
    landing = Landing(tmp_path)
    for number in range(2):
        landing.put_records("x/data.json", {"id": number}, at=number)
        landing.run_job(at=number)

    first, second = landing.list_names("original")
    assert second == "x/data.json"
    assert first.startswith("x/data-")
    assert first.endswith(".json")


def test_a_failed_bin_goes_to_failure_with_its_culprit(tmp_path: Path) -> None:
    """A failed bin goes to failure with all its files, also of earlier runs; sidecars have the reason."""
    landing = Landing(tmp_path, min_records=5)
    landing.put_records("a.json", {"id": 1}, x="y")
    landing.run_job()
    landing.put_records("b.json", {"bad": 1}, at=1)

    report = landing.run_job(at=1)

    assert landing.list_names("failure") == ["a.json", "b.json"]
    attributes = landing.read_attributes(tmp_path / "failure" / "a.json")
    assert (attributes["failure.culprit"], attributes["failure.code"], attributes["x"]) == (
        "b.json",
        "MALFORMED",
        "y",
    )
    assert (report["changed"], report["counts"]["failed"], landing.list_outputs()) == (False, 1, [])
    assert landing.read_ledger()[0]["outcome"] == "failed"


def test_a_file_that_changes_or_vanishes_leaves_its_bin(tmp_path: Path) -> None:
    """A changed file leaves its bin as a new arrival; a missing one is reported as lost."""
    landing = Landing(tmp_path, min_records=3)
    for name in "ab":
        landing.put_records(f"{name}.json", {"id": name})
    landing.run_job()
    landing.put_records("a.json", {"id": "a2"}, {"id": "a3"}, at=2)
    (tmp_path / "in" / "b.json").unlink()
    landing.put_records("c.json", {"id": "c"}, at=3)

    report = landing.run_job(at=3)

    assert landing.read_ids() == [["a2", "a3", "c"]]
    assert report["counts"]["lost_files"] == 1
    assert any("changed or no longer exist" in warning for warning in report["warnings"])
    assert {line["outcome"] for line in landing.read_ledger()} == {"merged", "lost"}


def test_changed_grouping_dissolves_bins_and_changed_thresholds_do_not(tmp_path: Path) -> None:
    """A changed grouping dissolves open bins, changed thresholds do not.

    Files of dissolved bins are binned anew by the current configuration.
    """
    landing = Landing(tmp_path, min_records=5)
    landing.put_records("a.json", {"id": 1}, k="1")
    landing.put_records("b.json", {"id": 2}, k="2")
    landing.run_job()

    regrouped = landing.run_job(at=1, correlation_attribute_name="k")
    assert regrouped["counts"]["open_bins"] == 2
    assert any("dissolved" in warning for warning in regrouped["warnings"])

    merged = landing.run_job(at=2, correlation_attribute_name="k", min_records=1)
    assert merged["details"]["reasons"] == {"FULL_ENOUGH": 2}
    assert landing.read_ids() == [[1], [2]]


def test_a_full_refresh_bins_everything_anew(tmp_path: Path) -> None:
    """A full refresh dissolves open bins and bins their files anew."""
    landing = Landing(tmp_path, min_records=5)
    landing.put_records("a.json", {"id": 1})
    landing.run_job()

    report = landing.run_job(at=1, full_refresh=True)

    assert report["counts"]["open_files"] == 1
    assert '"seq":2' in (tmp_path / "state" / "state-000000000002.json").read_text()


def test_files_that_are_not_ready_are_left_alone(tmp_path: Path) -> None:
    """Files that are not ready are skipped: hidden and temporary names, and files younger than settle_time.

    Sidecars without a file are skipped too.
    """
    landing = Landing(tmp_path, settle_time="10 secs")
    for name in ("_a.json", ".b.json", "c.json.tmp", "d.json._COPYING_", "_temporary/e.json", "_SUCCESS"):
        landing.put_records(name, {"id": name})
    landing.put_file("f.json.attributes.json", "{}")
    landing.put_records("young.json", {"id": "young"}, at=95)
    landing.put_records("old.json", {"id": "old"}, at=90)

    landing.run_job(at=100)

    assert landing.read_ids() == [["old"]]
    assert "young.json" in landing.list_names("in")


def test_attributes_come_from_everywhere_the_strongest_last(tmp_path: Path) -> None:
    """Attributes come from file, path, sidecar and computation; later ones override earlier ones.

    An invalid sidecar makes its file unreadable.
    """
    landing = Landing(tmp_path, attributes={"both": "${store}/${day}"}, correlation_attribute_name="both")
    landing.put_records("store=1/day=2/a.json", {"id": 1})
    landing.put_records("store=1/day=3/b.json", {"id": 2}, day="2")
    landing.put_file("c.json", '{"id": 3}\n', day="4")
    (tmp_path / "in" / "c.json.attributes.json").write_text('{"nested": {}}')

    landing.engine.find_arrivals = _wrong_sidecars(landing.engine.find_arrivals)
    landing.run_job()

    (output,) = landing.list_outputs()
    attributes = landing.read_attributes(output)
    assert landing.read_ids() == [[1, 2]]
    assert (attributes["both"], attributes["store"]) == ("1/2", "1")
    assert "file.size" in landing.read_attributes(tmp_path / "original" / "store=1/day=2/a.json")


def _wrong_sidecars(arrivals: Any) -> Any:
    """Leave out the files that the Spark side rejects because of their sidecars."""
    return lambda source, queue, config, now: arrivals(
        source, FileQueue(tuple(file for file in queue.files if file.wrong is None), False), config, now
    )


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("modified", [[2, 10, 1, 3, "nan"]]),
        ("path", [[1, 2, 3, 10, "nan"]]),
        ("attribute:n", [[1, 2, 10, "nan", 3]]),
    ],
)
def test_the_order_of_arrival(order: Any, expected: Any, tmp_path: Path) -> None:
    """Files are ordered by time, path or attribute: numbers as numbers, files without the attribute last."""
    landing = Landing(tmp_path, arrival_order=order, attribute_sources=["sidecar"])
    landing.put_records("a.json", {"id": 1}, at=5, n="1")
    landing.put_records("b.json", {"id": 2}, at=1, n="2")
    landing.put_records("c.json", {"id": 3}, at=6)
    landing.put_records("d.json", {"id": 10}, at=1, n="10")
    landing.put_records("e.json", {"id": "nan"}, at=7, n="nan")

    landing.run_job(at=10)

    assert landing.read_ids() == expected


def test_eviction_is_told(tmp_path: Path) -> None:
    """With more groups than bins the report has a warning and the number of evicted bins."""
    landing = Landing(tmp_path, min_records=5, max_bins=2, correlation_attribute_name="k")
    for number in range(5):
        landing.put_records(f"{number}.json", {"id": number}, at=number, k=str(number))

    report = landing.run_job(at=10)

    assert report["details"]["reasons"] == {"EVICTED": 3}
    assert any("3 bins were ended by max_bins 2" in warning for warning in report["warnings"])


@pytest.mark.parametrize(
    ("kind", "message"),
    [("what", "unknown type 'what'"), ({"array": {"fields": []}}, "field 'a.element' is")],
)
def test_a_job_without_places_is_refused(kind: Any, message: str) -> None:
    """A job without locations is rejected with a list of all missing ones; so are wrong types."""
    schema = {"fields": [{"name": "a", "type": kind}]}
    request = JobRequest(
        job="merge_record",
        config={
            "reader": {"format": "json", "schema": schema},
            "writer": {"format": "csv", "schema": {"fields": [{"name": "a", "type": "bytes"}]}},
        },
        run=RunToken(dag_id="d", run_id="r", task_id="t"),
        started_at=0,
    )

    with pytest.raises(ConfigError) as refused:
        _resolve_config(request)

    assert {problem.path for problem in refused.value.problems} == {
        "source", "merged", "failure", "state_path", "reader.schema", "writer.schema",
    }  # fmt: skip
    assert f"reader.schema: {message}" in str(refused.value)


def test_the_state_stays_small_and_planning_fast(tmp_path: Path) -> None:
    """The state of a thousand open files takes less than two megabytes, and planning is fast."""
    landing = Landing(tmp_path, min_records=10_000, max_records="unlimited")
    for number in range(1000):
        landing.put_records(f"{number}.json", {"id": number})

    report = landing.run_job()

    assert (tmp_path / "state" / "state-000000000001.json").stat().st_size < 2_000_000
    assert report["seconds"]["plan"] < 1
    assert (
        json.loads((tmp_path / "state" / "state-000000000001.json").read_text())["state"]["generation"] == 1
    )


def test_a_source_folder_that_does_not_exist_is_said(tmp_path: Path) -> None:
    """A run and a plan warn of a folder that does not exist, or fail if they are told to."""
    landing = Landing(tmp_path)
    text = f"source: {tmp_path}/in does not exist (check the path, or create it)"

    assert landing.run_job()["warnings"] == [text]
    assert landing.run_job(until="transform")["warnings"] == [text]
    with pytest.raises(DataError, match="in does not exist"):
        landing.run_job(fail_on="missing-source")
    landing.put_records("a.json", {"id": 1})
    assert landing.run_job(fail_on="missing-source")["warnings"] == []
