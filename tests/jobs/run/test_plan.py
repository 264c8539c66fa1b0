"""Test that a plan is what the run then does, and that a saved plan is applied exactly or not at all."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from airflow_merge_provider.core.change_plan.saved_plan import PlanChoice
from airflow_merge_provider.core.change_plan.summary import format_changes
from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.risk import RiskError
from airflow_merge_provider.jobs.run.change_set import replace_all_rows, summarize_changes
from tests.campaigns.plans import PlannedRuns, count_images
from tests.campaigns.workloads import Workload, build_workload

pytestmark = pytest.mark.spark

CASES = [("merge_load", 6), ("merge_engine", 7), ("joiner", 4)]
LONG_CASES = [
    pytest.param(capability, seed, marks=pytest.mark.long)
    for capability, seed in (
        ("merge_load", 2),
        ("merge_load", 4),
        ("merge_engine", 6),
        ("merge_source", 2),
        ("merge_source", 5),
    )
]


@pytest.fixture
def runs(spark: SparkSession, tmp_path: Path) -> PlannedRuns:
    runs = PlannedRuns(spark, build_workload("merge_load", 6), tmp_path)
    runs.write_sources(1)
    return runs


@pytest.mark.parametrize(("capability", "seed"), [*CASES, *LONG_CASES])
def test_a_plan_is_what_the_run_does(spark: SparkSession, tmp_path: Path, capability: str, seed: int) -> None:
    """The rows before and after are those of the target, and the counts are those of the rows."""
    runs = PlannedRuns(spark, build_workload(capability, seed), tmp_path)
    runs.write_sources(1)
    runs.run(1)
    runs.write_sources(2)
    before = runs.read_target()
    planned = runs.plan(2)
    changes = runs.list_plan()
    assert runs.read_target() == before

    report = runs.run(2)

    lost, gained = count_images(changes)
    assert changes
    assert not lost - before
    assert before - lost + gained == runs.read_target()
    assert planned["rows"] == report["rows"]
    assert planned["plan"]["kinds"].items() <= _count_kinds(changes).items()
    assert sum(planned["plan"]["reasons"].values()) == len(changes)
    assert set(planned["plan"]["reasons"]) <= list_documented_reasons()
    assert set(changes[0]) == {"kind", "reason", "detail", "before", "after", "state"}


def test_a_plan_that_is_not_saved_writes_nothing(runs: PlannedRuns) -> None:
    """The report has counts and examples; no table is written."""
    report = runs.plan(1, save=False)

    assert report["plan"]["saved"] is None
    assert report["plan"]["examples"]
    assert [path.name for path in runs.folder.iterdir() if runs.target in path.name] == []


def test_a_plan_of_a_fold_names_the_winning_records(spark: SparkSession, tmp_path: Path) -> None:
    """The detail of an example names the record that provides each changed value."""
    write_rows(tmp_path / "changes", [(1, 1, "a", None), (2, 1, "z", None)])
    config = {
        "target": "t", "source": "changes", "primary_key": "k", "merge_engine": "partial-update",
        "options": {"sequence.field": "s"},
    }  # fmt: skip
    runs = PlannedRuns(spark, Workload("merge_engine", 0, config, lambda *_: None), tmp_path)
    runs.run(1)
    write_rows(tmp_path / "changes", [(1, 3, None, "y"), (1, 2, "b", "x"), (3, 1, "c", None)])

    report = runs.plan(2, save=False)

    details = {example["after"]["k"]: example["detail"] for example in report["plan"]["examples"]}
    assert set(details) == {1, 3}
    assert "v: " in details[1]
    assert "(record 2 of 3)" in details[1].split("; ")[1]
    assert "(record 3 of 3)" in details[1].split("; ")[2]


def test_a_plan_warns_of_the_change_limit(runs: PlannedRuns) -> None:
    """A plan of a run that would be stopped has the same changes, and a warning."""
    runs.run(1)
    runs.write_sources(2)

    report = runs.run(2, until="transform", max_change_ratio=0.01)

    assert report["plan"]["examples"]
    assert [warning for warning in report["warnings"] if "the limit is 0.01" in warning]


@pytest.mark.parametrize(
    ("capability", "seed"),
    [
        ("merge_load", 2),
        pytest.param("merge_engine", 6, marks=pytest.mark.long),
        pytest.param("joiner", 4, marks=pytest.mark.long),
    ],
)
def test_a_saved_plan_is_applied_although_its_sources_have_grown(
    spark: SparkSession, tmp_path: Path, capability: str, seed: int
) -> None:
    """The run commits the rows of the plan; the next run does the rest."""
    runs = PlannedRuns(spark, build_workload(capability, seed), tmp_path)
    runs.write_sources(1)
    runs.run(1)
    runs.write_sources(2)
    planned = runs.plan(2)
    before, changes = runs.read_target(), runs.list_plan()
    runs.write_sources(3)

    report = runs.apply(3, "applying")

    lost, gained = count_images(changes)
    assert runs.read_target() == before - lost + gained
    assert (report["rows"], report["approved_by"]) == (planned["rows"], "ada")
    again = runs.apply(3, "applying")
    assert again["target"]["version"] == report["target"]["version"]
    assert again["approved_by"] == "ada"
    assert runs.run(3)["run_mode"] == "incremental" or capability == "joiner"


@pytest.mark.long
def test_an_approved_plan_is_applied_although_another_one_was_saved(runs: PlannedRuns) -> None:
    """Of two plans that wait for an approval, each is applied as it was shown, or it is outdated."""
    runs.run(1)
    runs.write_sources(2)
    first_version = runs.plan(2)["plan"]["saved"]["version"]
    before, changes = runs.read_target(), runs.list_plan()
    runs.write_sources(3)
    second_version = runs.plan(3)["plan"]["saved"]["version"]

    report = runs.run(3, "first", apply_plan=PlanChoice(version=first_version, approved_by="ada"))

    lost, gained = count_images(changes)
    assert first_version < second_version
    assert changes
    assert runs.read_target() == before - lost + gained
    assert report["approved_by"] == "ada"
    with pytest.raises(RiskError, match="outdated: the target was at version 0 and is at version 1 now"):
        runs.run(3, "second", apply_plan=PlanChoice(version=second_version, approved_by="eva"))
    assert runs.version == report["target"]["version"]


@pytest.mark.long
def test_a_plan_is_outdated_if_rows_that_it_keeps_have_changed(runs: PlannedRuns) -> None:
    """Its changes are still the same ones, but a person has approved the table that they lead to."""
    runs.run(1)
    runs.write_sources(2)
    first_version = runs.plan(2)["plan"]["saved"]["version"]
    before, (lost, gained) = runs.read_target(), count_images(runs.list_plan())
    columns = json.loads(next(iter(before - lost)))
    runs.run_sql(
        "DELETE FROM {t} WHERE " + " AND ".join(f"`{name}` <=> '{value}'" for name, value in columns.items())
    )
    deleted, rows = runs.version, runs.read_target()

    with pytest.raises(RiskError, match="outdated: the target was at version 0 and is at version 1 now"):
        runs.apply(2, "applying")

    assert len(columns) > 1
    assert (runs.version, runs.read_target()) == (deleted, rows)
    runs.run_sql("RESTORE TABLE {t} TO VERSION AS OF 0")
    runs.run_sql("OPTIMIZE {t}")
    runs.run(2, "again", apply_plan=PlanChoice(version=first_version))
    assert runs.read_target() == before - lost + gained


@pytest.mark.long
def test_an_outdated_plan_is_planned_again(runs: PlannedRuns) -> None:
    """A run whose changes are not those of the plan commits nothing, and plans the newest sources."""
    runs.run(1)
    runs.write_sources(2)
    runs.plan(2)
    runs.write_sources(3)
    runs.run(3)
    runs.write_sources(4)
    version, rows = runs.version, runs.read_target()

    with pytest.raises(RiskError, match="outdated: the target was at version 0 and is at") as error:
        runs.apply(4, "applying")

    assert (runs.version, runs.read_target()) == (version, rows)
    report = error.value.report.as_json()
    assert (report["plan"]["saved"]["version"], report["sources"]["rows"]["version"]) == (1, 3)
    applied = runs.apply(4, "again")
    assert (applied["changed"], applied["sources"]["rows"]["version"]) == (True, 3)


def test_a_plan_whose_work_is_done_does_nothing(runs: PlannedRuns) -> None:
    """If another run has made the changes of the plan, the run that applies it has nothing to do."""
    runs.run(1)
    runs.write_sources(2)
    runs.plan(2)
    runs.run(2)

    assert runs.apply(2, "applying")["run_mode"] == "noop"


@pytest.mark.parametrize(
    ("capability", "seed"),
    [
        ("merge_load", 7001),
        ("merge_engine", 7000),
        pytest.param("merge_source", 7000, marks=pytest.mark.long),
    ],
)
def test_an_outdated_plan_with_nothing_left_to_do_is_done(
    spark: SparkSession, tmp_path: Path, capability: str, seed: int
) -> None:
    """If another run has done the work of the plan and more, nothing is left, which is not an error."""
    runs = PlannedRuns(spark, build_workload(capability, seed), tmp_path)
    runs.write_sources(1)
    runs.plan(1)
    runs.write_sources(2)
    runs.run(2)
    version, rows = runs.version, runs.read_target()

    report = runs.apply(2, "applying")

    assert (report["run_mode"], report["changed"], report["dry_run"]) == ("noop", False, False)
    assert (runs.version, runs.read_target()) == (version, rows)


def test_a_plan_that_cannot_be_repeated_is_planned_again(spark: SparkSession, tmp_path: Path) -> None:
    """A target that is ahead of the sources of the plan makes it outdated, as other changes do."""
    runs = PlannedRuns(spark, build_workload("merge_engine", 7000), tmp_path)
    runs.write_sources(1)
    runs.plan(1)
    runs.write_sources(2)
    runs.run(2)
    runs.write_sources(3)
    version, rows = runs.version, runs.read_target()

    with pytest.raises(
        RiskError, match=r"plan: the plan is outdated: the changes of .* cannot be determined"
    ):
        runs.apply(3, "applying")

    assert (runs.version, runs.read_target()) == (version, rows)
    newest = DeltaTable(str(tmp_path / "changes")).version()
    assert runs.apply(3, "again")["sources"]["changes"]["version"] == newest


def test_a_plan_whose_sources_were_cleaned_cannot_be_applied(runs: PlannedRuns) -> None:
    """If VACUUM has removed the version of a source that the plan has read, nothing is committed."""
    runs.plan(1)
    source = DeltaTable(str(runs.folder / "rows"))
    source.delete()
    source.vacuum(0, dry_run=False, enforce_retention_duration=False)
    runs.write_sources(2)

    with pytest.raises(PySparkException, match="FILE_NOT_EXIST"):
        runs.apply(2, "applying")

    assert runs.version is None


def test_a_full_refresh_pairs_rows_by_their_keys(spark: SparkSession) -> None:
    """A lost row and a gained row of one key are one updated row."""
    before, after = (
        spark.createDataFrame(rows, "k INT, v STRING")
        for rows in ([(1, "a"), (2, "b"), (3, "c")], [(1, "a"), (2, "x"), (4, "d")])
    )

    rows = replace_all_rows(before, after, ["k"]).rows.select("kind", "before.k", "after.k").collect()

    assert sorted(map(tuple, rows), key=str) == [
        ("deleted", 3, None), ("inserted", None, 4), ("updated", 2, 2)
    ]  # fmt: skip


def test_a_plan_has_twenty_examples_of_a_kind(spark: SparkSession) -> None:
    """It counts all rows, and in how many of them each column differs."""
    before = spark.range(0, 30, 1, 1).selectExpr("id", "'a' AS city", "named_struct('n', 1.50BD) AS nested")
    values = [
        "'b' AS city",
        "CASE WHEN id > 9 THEN nested END AS nested",
        "CASE WHEN id > 2 THEN id END AS new",
    ]
    after = before.selectExpr("id", *values)
    with replace_all_rows(before, after, ["id"]).hold_text() as text_rows:
        summary = summarize_changes(text_rows)

    assert (summary.count, len(summary.examples)) == (30, 20)
    assert list(summary.columns.items()) == [("city", 30), ("new", 27), ("nested", 10)]
    assert list(format_changes(summary))[1] == "columns: city in 30 rows, new in 27 rows, nested in 10 rows"


def test_a_plan_of_other_files_or_settings_is_outdated(spark: SparkSession, tmp_path: Path) -> None:
    """Files have no versions: another change makes the plan outdated; another configuration does, too."""
    (tmp_path / "in").mkdir()
    source = {"dataset": "in", "format": "json"}
    config = {"target": "t", "source": source, "strategy": "upsert", "primary_key": "k"}
    runs = PlannedRuns(spark, Workload("merge_load", 0, config, lambda *_: None), tmp_path)
    (tmp_path / "in" / "1.json").write_text('{"k": 1, "v": "a"}')
    runs.plan(1)
    (tmp_path / "in" / "2.json").write_text('{"k": 2, "v": "b"}')

    with pytest.raises(RiskError, match="outdated: the changes are not those of the plan"):
        runs.apply(1, "applying")

    other = PlannedRuns(
        spark, Workload("merge_load", 0, {**config, "on_empty": "skip"}, lambda *_: None), tmp_path
    )
    with pytest.raises(RiskError, match=r"outdated: the configuration has changed \(on_empty\)"):
        other.apply(1, "other settings")
    assert runs.version is None
    assert other.apply(1, "again")["rows"]["inserted"] == 2


def test_a_plan_that_does_not_exist_is_an_error(runs: PlannedRuns) -> None:
    """The error says how to save one."""
    with pytest.raises(DataError, match=r"has no saved plan \(save one with plan='save'"):
        runs.apply(1)


@pytest.mark.long
def test_another_plan_at_the_same_version_is_not_the_approved_one(runs: PlannedRuns) -> None:
    """A plan table that was deleted and created again has the version that a person has approved."""
    runs.run(1)
    runs.write_sources(2)
    approved = runs.plan(2)["plan"]
    shutil.rmtree(runs.folder / f"{runs.target}__plan")
    runs.write_sources(3)
    other = runs.plan(3)["plan"]
    choice = PlanChoice(version=approved["saved"]["version"], digest=approved["digest"], approved_by="ada")
    version = runs.version

    with pytest.raises(DataError, match=f"is another plan .{other['digest'][:12]}. than the approved one"):
        runs.run(3, "applying", apply_plan=choice)

    assert other["saved"]["version"] == approved["saved"]["version"]
    assert runs.version == version


def test_a_run_that_needs_approval_stops_with_a_saved_plan(runs: PlannedRuns) -> None:
    """Nothing is committed before the plan is applied."""
    with pytest.raises(RiskError, match="the run needs the approval of a person") as error:
        runs.run(1, approval="always")
    assert runs.version is None

    saved = error.value.report.as_json()["plan"]["saved"]
    report = runs.run(1, approval="always", apply_plan=PlanChoice(version=saved["version"]))

    assert report["changed"]


def write_rows(path: Path, rows: list[tuple[int, int, str | None, str | None]]) -> None:
    schema = pa.schema([("k", pa.int64()), ("s", pa.int64()), ("v", pa.string()), ("w", pa.string())])
    records = [dict(zip(schema.names, row, strict=True)) for row in rows]
    write_deltalake(str(path), pa.Table.from_pylist(records, schema), mode="append")


def list_documented_reasons() -> set[str]:
    """Return the words of the table of reasons in docs/plan.md."""
    page = (Path(__file__).parents[3] / "docs/plan.md").read_text(encoding="utf-8")
    table = page.partition("| operator | reasons |")[2].partition("\n\n")[0]
    return {word for line in table.splitlines()[2:] for word in re.findall(r"`([^`]+)`", line.split("|")[2])}


def _count_kinds(changes: list[dict[str, Any]]) -> dict[str, int]:
    counts = Counter(change["kind"] for change in changes)
    return {kind: counts[kind] for kind in ("inserted", "updated", "deleted", "kept")}
