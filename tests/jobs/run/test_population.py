"""Test when a run marks its table as populated: after the commit, once, repaired by later runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import ConfigError, ConflictError, DataError
from airflow_merge_provider.core.population import Population
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.previous_run import load_previous_run
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.delta.table import SparkLog
from airflow_merge_provider.jobs.delta.writer import WriteOptions
from airflow_merge_provider.jobs.merge_load import job as merge_load
from airflow_merge_provider.jobs.run.population import run_with_population
from airflow_merge_provider.jobs.run.retry import commit_run, run_attempt
from tests.fakes import build_report
from tests.jobs import probe
from tests.tables import FLAGGED, OURS, create_table


@pytest.fixture
def flagged(spark: SparkSession, tmp_path: Path) -> Any:
    """Run the probe over a source that this package writes, and return its report."""

    def run_flagged(
        mode: Any = "if-source-populated", run: Any = "r1", job: Any = probe.run, **changed_fields: Any
    ) -> Any:
        request = probe.build_request(str(tmp_path / "source"), str(tmp_path / "target"), run)
        fields = {
            "target": str(tmp_path / "target"),
            "datasets": (str(tmp_path / "source"),),
            **changed_fields,
        }
        population = Population(set_initial_offset=mode, **fields)
        return run_with_population(
            spark, request.model_copy(update={"population": population}), Progress(), job
        ).as_json()

    return run_flagged


def make_source(tmp_path: Path, properties: Any = OURS) -> None:
    write_deltalake(tmp_path / "source", pa.table({"id": [1], "amount": [2]}))
    set_properties(tmp_path / "source", properties)


def set_properties(path: Any, properties: Any) -> None:
    DeltaTable(path).alter.set_table_properties(properties, raise_if_not_exists=False)


def read_flag(tmp_path: Path) -> Any:
    return DeltaTable(tmp_path / "target").metadata().configuration.get("merge.populated")


def run_without_flag(spark: SparkSession, request: Any, progress: Any) -> Any:
    return build_report(changed=False)


def test_the_flag_follows_the_source(flagged: Any, tmp_path: Path) -> None:
    """The target becomes populated, once, by the next run after its source, even if it finds no changes."""
    make_source(tmp_path)

    assert flagged()["populated"] is False
    assert read_flag(tmp_path) is None
    set_properties(tmp_path / "source", FLAGGED)
    report = flagged(run="r2", job=run_without_flag)
    assert (report["populated"], report["became_populated"], read_flag(tmp_path)) == (True, True, "true")
    version = DeltaTable(tmp_path / "target").version()
    report = flagged(run="r3", job=run_without_flag)
    assert (report["populated"], report["became_populated"]) == (True, False)
    assert DeltaTable(tmp_path / "target").version() == version


def test_tables_of_others_files_and_marks_count_as_they_do_for_the_sensor(
    flagged: Any, tmp_path: Path
) -> None:
    """Rows, files and marks by hand make a source populated, as for the sensor; an empty table does not."""
    make_source(tmp_path)
    create_table(tmp_path / "empty", rows=0)
    create_table(tmp_path / "full")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "1.json").write_text("{}")
    full, empty = str(tmp_path / "full"), str(tmp_path / "empty")
    files = {"dataset": str(tmp_path / "files"), "format": "json"}
    nothing = str(tmp_path / "nothing")

    assert flagged(datasets=(full, files, empty))["populated"] is False
    assert (
        flagged(datasets=(nothing,), ignore_non_existent_datasets=False, job=run_without_flag)["populated"]
        is False
    )
    assert (
        flagged(datasets=(full, files, empty, nothing), marked=(empty,), job=run_without_flag)["populated"]
        is True
    )


def test_a_run_that_needs_a_populated_source_does_not_start(flagged: Any, tmp_path: Path) -> None:
    """A run that requires a populated source does not start, so it reads and writes nothing."""
    make_source(tmp_path)

    with pytest.raises(DataError, match="not populated yet"):
        flagged(required=True)

    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize(
    ("mode", "flag_after_failure", "flag_after_success"),
    [
        ("never", None, None),
        ("always", None, "true"),
        ("initially", "true", "true"),
        ("onload", "true", "true"),
    ],
)
def test_the_mode_decides_how_far_a_run_has_to_come(
    flagged: Any, tmp_path: Path, mode: Any, flag_after_failure: Any, flag_after_success: Any
) -> None:
    """The mode decides whether an existing output is populated after a failed or a successful run."""
    make_source(tmp_path)

    def fail_to_commit(spark: SparkSession, request: Any, progress: Any, error: Any = None) -> None:
        target = Dataset(id="target", path=str(tmp_path / "target"))
        previous = load_previous_run(SparkLog(spark), target, probe.CAPABILITY, request)
        options = WriteOptions.from_request(request)
        commit_run(
            spark, target, probe.CAPABILITY, previous, {}, partial(raise_error, error=error), options=options
        )

    def raise_error(*_: Any, error: Any = None) -> None:
        raise error or DataError("the source is not to be trusted")

    with pytest.raises(DataError):
        flagged(mode, run="r0", job=fail_to_commit)
    assert not (tmp_path / "target").exists()
    flagged("never")
    with pytest.raises(DataError):
        flagged(mode, run="r1", job=raise_error)
    assert read_flag(tmp_path) is None
    # As a load with dispatch_by, whose target is the folder of the tables that it writes.
    with pytest.raises(DataError):
        flagged(mode, run="r4", job=fail_to_commit, target=str(tmp_path))
    assert read_flag(tmp_path) is None
    with pytest.raises(ConflictError, match=r"^Delta has refused it$"):
        # The only commit since the run has found the table is its own, of the flag.
        flagged(mode, run="r2", job=partial(fail_to_commit, error=ConflictError("Delta has refused it")))
    assert read_flag(tmp_path) == flag_after_failure
    flagged(mode, run="r3", job=run_without_flag)
    assert read_flag(tmp_path) == flag_after_success


def test_a_run_that_is_refused_sets_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """A table that is not the run's, or that it must not or cannot write, is as it was."""
    rows = pa.table({"id": [1], "n": [2]})
    write_deltalake(tmp_path / "source", rows)
    write_deltalake(tmp_path / "foreign", rows)
    load = {"strategy": "upsert", "source": "source", "primary_key": "id"}

    def run_load(number: int, config: Any, **fields: Any) -> Any:
        run = RunToken(dag_id="d", run_id=f"r{number}", task_id="t")
        request = JobRequest.model_validate({
            "job": "merge_load", "config": config, "run": run, "started_at": 1, "warehouse": str(tmp_path),
            **fields,
        })  # fmt: skip
        run_load_job = partial(run_attempt, run=merge_load.run)
        return run_with_population(spark, request, Progress(), run_load_job).as_json()

    run_load(0, {**load, "target": "own"})
    history = {"strategy": "scd2", "source": "source", "natural_key": "id"}
    cases: list[tuple[str, dict[str, Any]]] = [
        ("foreign", load),
        ("foreign", {**load, "adopt": True, "primary_key": "m"}),
        ("own", history),
        ("own", {**load, "primary_key": "m"}),
        ("own", {**load, "expect": {"few": {"condition": "n < 2"}}}),
    ]
    for number, (target, config) in enumerate(cases, 1):
        version = DeltaTable(tmp_path / target).version()
        population = Population(target=target, set_initial_offset="initially")
        with pytest.raises((ConfigError, DataError)):
            run_load(number, {**config, "target": target}, population=population)
        assert DeltaTable(tmp_path / target).version() == version
    report = run_load(
        9,
        {**load, "target": "foreign", "adopt": True},
        population=Population(target="foreign", set_initial_offset="initially"),
    )
    assert (report["populated"], report["became_populated"]) == (True, True)


def test_a_reset_decides_anew(flagged: Any, tmp_path: Path) -> None:
    """After a reset the output is not populated if its source is not populated any more."""
    make_source(tmp_path, FLAGGED)
    assert flagged()["populated"] is True
    assert (DeltaTable(tmp_path / "target").version(), read_flag(tmp_path)) == (0, "true")
    set_properties(tmp_path / "source", {"merge.populated": "false"})

    assert flagged(run="r2", job=run_without_flag)["populated"] is True
    assert flagged(run="r3", job=run_without_flag, reset=True)["populated"] is False

    assert read_flag(tmp_path) is None


def test_a_dry_run_sets_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """A dry run stops before the commit and does not set the flag."""
    population = Population(target=str(tmp_path / "target"), set_initial_offset="always")
    request = probe.build_request("s", "t").model_copy(
        update={"population": population, "until": "transform"}
    )

    assert run_with_population(spark, request, Progress(), run_without_flag) == run_without_flag(
        spark, request, None
    )


def test_the_request_file_carries_it() -> None:
    """The request file transfers the settings from the Airflow side to the Spark side."""
    population = Population(target="t", datasets=("A", {"dataset": "B", "format": "json"}))
    request = probe.build_request("s", "t").model_copy(update={"population": population})

    assert JobRequest.model_validate_json(request.model_dump_json()) == request
