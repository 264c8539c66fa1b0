"""Tests of the lineage of a run: the same datasets in every event, and what a report adds."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.lineage import describe_run
from airflow_merge_provider.core.protocol import DatasetDescription
from airflow_merge_provider.core.run.lineage_model import DatasetCounts, DatasetLineage, RunLineage
from tests.fakes import REPORT, build_report
from tests.unit.core.columns_shown import build_fields

RULES = {"datasets": ["crm c", "erp e"], "equality": [["eq", "c.email", "e.mail"]], "version": 2}
UPSERT = {"strategy": "upsert", "source": "crm", "target": "golden", "primary_key": "_id"}
FOLDERS = {"source": "in", "merged": "out", "failure": "bad", "original": "done", "state_path": "state"}
RECORD_COUNTS = {"merged": 2, "outputs": 30, "files": 7, "failed": 1, "failed_files": 3}

CONFIGS: list[tuple[Any, dict[str, Any], list[str], list[str]]] = [
    (
        "merge_source",
        {**RULES, "target": "golden", "overrides": "decisions", "metrics": "quality"},
        ["crm", "erp", "decisions"],
        ["golden", "quality"],
    ),
    (
        "joiner",
        {
            "inputs": {"a": "crm", "b": "erp", "again": "crm"},
            "join_keys": "a.id = b.id = again.id",
            "required_inputs": "a",
            "target": "joined",
            "unmatched": "left",
        },
        ["crm", "erp"],
        ["joined", "left"],
    ),
    (
        "merge_engine",
        {"source": "crm", "target": "golden", "primary_key": "id", "changelog": "log"},
        ["crm"],
        ["golden", "log"],
    ),
    ("merge_load", UPSERT, ["crm"], ["golden"]),
    ("merge_load", {"strategy": "scd2-check", "target": "golden", "source": "crm"}, ["golden", "crm"], []),
    ("merge_record", {**FOLDERS, "reader": "json"}, ["in"], ["out", "bad", "done"]),
    ("undo", {"target": "golden"}, [], ["golden"]),
]


def describe(job: Any = "merge_load", config: Any = None, **kwargs: Any) -> RunLineage:
    return describe_run(job, config or UPSERT, "/lake", **kwargs)


def list_names(datasets: Any) -> list[str]:
    return [dataset.name.name.removeprefix("/lake/") for dataset in datasets]


@pytest.mark.parametrize(("job", "config", "inputs", "outputs"), CONFIGS)
def test_the_datasets_follow_from_the_configuration(
    job: Any, config: dict[str, Any], inputs: list[str], outputs: list[str]
) -> None:
    """Every dataset that a configuration names is contained once, before and after the run."""
    counts = {**REPORT["counts"], "unmatched": 4, **RECORD_COUNTS}
    report = build_report(counts=counts, details={})

    for lineage in (describe(job, config), describe(job, config, report=report)):
        assert (list_names(lineage.inputs), list_names(lineage.outputs)) == (inputs, outputs)


@pytest.mark.parametrize(("job", "config", "inputs", "outputs"), CONFIGS)
def test_a_dry_run_writes_nothing(
    job: Any, config: dict[str, Any], inputs: list[str], outputs: list[str]
) -> None:
    """A dry run only reads; a dry run of an undo reads its target."""
    lineage = describe(job, config, dry_run=True)

    assert (list_names(lineage.inputs), lineage.outputs) == (inputs or outputs, [])


def test_spellings_of_a_location_are_one_dataset() -> None:
    """A trailing slash, ``..`` and ``s3a`` do not make another name."""
    config = {**UPSERT, "source": "s3a://lake/x/../crm/", "target": "file:///lake//golden/"}

    lineage = describe(config=config)

    assert [dataset.name for dataset in lineage.inputs] == [("s3://lake", "crm")]
    assert [dataset.name for dataset in lineage.outputs] == [("file", "/lake/golden")]


def test_a_report_adds_versions_and_counts() -> None:
    """Inputs have the versions that were read and their rows, the target what was written."""
    lineage = describe("merge_source", {**RULES, "target": "golden"}, report=build_report())

    assert [(dataset.version, dataset.counts.rows) for dataset in lineage.inputs] == [(7, 3), (2, 2)]
    (target,) = lineage.outputs
    assert (target.version, target.counts) == (3, DatasetCounts(rows=3))


def test_a_run_without_work_reads_and_writes_no_rows() -> None:
    """A run without changes still names its datasets and versions."""
    rows = {"inserted": 0, "updated": 0, "deleted": 0, "unchanged": 3}
    report = build_report(run_mode="noop", changed=False, rows=rows)

    lineage = describe(report=report)

    assert lineage.inputs[0].counts == DatasetCounts()
    assert (lineage.outputs[0].version, lineage.outputs[0].counts) == (3, DatasetCounts(rows=0))
    assert lineage.outputs[0].lifecycle_change is None


def test_a_load_counts_the_rows_that_the_log_does_not_count() -> None:
    """If the log of a source has no row count, the rows that the run has loaded are those that it read."""
    source = {"crm": {"uri": "/lake/crm", "version": 7, "rows": None}}

    lineage = describe(report=build_report(sources=source, counts={"loaded": 12}))

    assert lineage.inputs[0].counts.rows == 12


def test_merged_files_are_counted_by_folder() -> None:
    """Each folder has the number of files that the run moved there; merged files have records, too."""
    report = build_report(counts=RECORD_COUNTS, rows={"inserted": 30, "updated": 0})

    lineage = describe("merge_record", {**FOLDERS, "reader": "json"}, report=report)

    assert lineage.inputs[0].counts == DatasetCounts(None, 10)
    assert [dataset.counts for dataset in lineage.outputs] == [
        DatasetCounts(30, 2),
        DatasetCounts(None, 3),
        DatasetCounts(None, 7),
    ]


def test_unmatched_rows_are_counted() -> None:
    """The table of unmatched rows has their number."""
    job, config, _, _ = CONFIGS[1]
    lineage = describe(job, config, report=build_report(counts={"unmatched": 4}))

    assert lineage.outputs[1].counts.rows == 4


JOIN = {"inputs": {"a": "crm", "b": "erp"}, "join_keys": "a.id = b.id", "target": "golden"}


@pytest.mark.parametrize(
    ("job", "config", "full_refresh", "version_before", "change"),
    [
        ("merge_load", UPSERT, False, None, "CREATE"),
        ("merge_load", UPSERT, False, 2, None),
        ("merge_load", UPSERT, True, 2, "OVERWRITE"),
        ("joiner", JOIN, False, 2, "OVERWRITE"),
        ("joiner", {**JOIN, "write_mode": "append"}, False, 2, None),
        ("merge_source", {**RULES, "target": "golden"}, True, 2, None),
        ("merge_source", {**RULES, "target": "golden", "reset": True}, False, 2, "OVERWRITE"),
    ],
)
def test_a_run_may_change_its_target_as_a_whole(
    job: Any, config: Any, full_refresh: bool, version_before: int | None, change: str | None
) -> None:
    """A first run creates the target, and some runs replace all rows; others change some of them."""
    target = {**REPORT["target"], "version_before": version_before}

    lineage = describe(job, config, full_refresh=full_refresh, report=build_report(target=target))

    assert lineage.outputs[0].lifecycle_change == change


def test_an_undo_of_the_first_run_empties_the_target() -> None:
    """Before the first run there were no rows."""
    changes = [
        describe("undo", {"target": "golden"}, report=build_report(
            run_mode="undo", sources={}, details={"restored_version": version}
        )).outputs[0].lifecycle_change
        for version in (-1, 1)
    ]  # fmt: skip

    assert changes == ["TRUNCATE", None]


def test_descriptions_add_schemas_and_locations() -> None:
    """Columns, the location of a catalog table, and the version of a dataset that no report contains."""
    config = {**UPSERT, "source": "lake.crm.People"}
    source = {"lake.crm.People": {"uri": "table:lake.crm.People", "version": 7, "rows": 3}}
    descriptions = {
        "table:lake.crm.People": DatasetDescription(
            fields=tuple(build_fields("_id", "name")), version=7, location="s3a://store/people"
        ),
        "/lake/golden": DatasetDescription(fields=tuple(build_fields("_id", "name", "old"))),
    }

    lineage = describe(config=config, report=build_report(sources=source), descriptions=descriptions)

    (people,), (golden,) = lineage.inputs, lineage.outputs
    assert people.name == ("merge://catalog", "lake.crm.people")
    assert people.location == ("s3://store", "people")
    assert people.version == 7
    assert golden.columns is not None
    assert set(golden.columns.columns) == {"_id", "name"}
    assert lineage.input_names == {"source": people.name}


def test_columns_that_do_not_suit_the_configuration_cost_only_their_lineage() -> None:
    """If another program has dropped a key column, the event still names and counts the datasets."""
    config = {"source": "crm", "target": "golden", "primary_key": "id"}
    descriptions = {"/lake/golden": DatasetDescription(fields=tuple(build_fields("other")))}

    lineage = describe("merge_engine", config, report=build_report(), descriptions=descriptions)

    (golden,) = lineage.outputs
    assert (golden.columns, golden.counts.rows) == (None, 3)


def test_before_the_end_only_names_are_known() -> None:
    """At the start, and if the run fails, datasets have names alone."""
    (source,) = describe().inputs

    assert source == DatasetLineage(source.dataset, source.name)


def test_a_bare_id_without_warehouse_is_refused() -> None:
    """A dataset that cannot be located has no name."""
    with pytest.raises(ConfigError):
        describe_run("merge_load", UPSERT, None)
