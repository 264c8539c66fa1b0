"""Test joins after tables were restored, deleted from, moved or renamed in spelling, and retries of joins."""

from __future__ import annotations

import shutil

import pytest

from airflow_merge_provider.core.errors import ConfigError
from tests.jobs.joiner.conftest import MakeLake
from tests.jobs.joiner.lake import TARGET, Lake
from tests.jobs.joiner.test_runs import LEFT, ONE_MORE
from tests.long import all_long_but


def run_sql(join: Lake, statement: str) -> None:
    join.spark.sql(statement.format(target=f"delta.`{join.folder / TARGET}`")).collect()


@pytest.mark.parametrize("has_input", all_long_but([False, True], True))
def test_a_restored_target_is_joined_again(lake: MakeLake, has_input: bool) -> None:
    """After a RESTORE of the target the join runs again, because the state is restored with the rows."""
    join = lake()
    join.run_job()
    join.write_rows("purchases", ONE_MORE, mode="append")
    join.run_job()
    expected = join.read_rows()
    run_sql(join, "RESTORE TABLE {target} TO VERSION AS OF 0")
    if has_input:
        join.write_rows("purchases", ONE_MORE, mode="append")
        expected = sorted([*expected, (3, "Cathie", 27)], key=repr)

    assert join.run_job()["changed"]

    assert join.read_rows() == expected
    assert not join.run_job()["changed"]


@pytest.mark.parametrize("statement", ["DELETE FROM {target} WHERE id = 2", "UPDATE {target} SET name = 'x'"])
def test_rows_that_a_user_changed_are_joined_again(lake: MakeLake, statement: str) -> None:
    """The join runs again over the same inputs if a user has changed rows of the target."""
    join = lake()
    join.run_job()
    run_sql(join, statement)

    report = join.run_job()

    assert report["changed"]
    operation = statement.partition(" ")[0]
    warning = f"another writer changed rows of the target: {operation} in version 1"
    assert warning in report["warnings"]
    assert join.read_rows() == LEFT


def test_appended_rows_that_a_user_changed_are_not_appended_again(lake: MakeLake) -> None:
    """Appended rows that a user changed are not appended again; the report has the change.

    They cannot be distinguished from the rows of other runs.
    """
    join = lake(write_mode="append")
    join.run_job()
    run_sql(join, "DELETE FROM {target} WHERE id = 2")

    report = join.run_job()

    assert not report["changed"]
    assert "another writer changed rows of the target: DELETE in version 1" in report["warnings"]


def test_maintenance_is_no_change(lake: MakeLake) -> None:
    """OPTIMIZE does not cause a new join, because it keeps every row."""
    join = lake()
    join.run_job()
    run_sql(join, "OPTIMIZE {target}")

    report = join.run_job()

    assert (report["changed"], report["warnings"]) == (False, [])


def test_moved_inputs_are_the_same(lake: MakeLake, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A copied warehouse is not joined again."""
    join = lake()
    join.run_job()
    elsewhere = tmp_path_factory.mktemp("moved") / "warehouse"
    shutil.copytree(join.folder, elsewhere)
    join.folder = elsewhere

    assert not join.run_job()["changed"]


def test_the_target_is_no_input_whatever_its_spelling(lake: MakeLake) -> None:
    """The target is rejected as an input in any spelling, because a run would replace what it reads."""
    join = lake()
    join.run_job()

    with pytest.raises(ConfigError, match="is one of the inputs"):
        join.run_job(target=f"{join.folder}/{TARGET}/../customers")


@pytest.mark.parametrize("write_mode", ["overwrite", "append"])
def test_a_retry_reports_its_commit_whatever_came_after(lake: MakeLake, write_mode: str) -> None:
    """A retry reports its commit and writes nothing, even after new input rows and another commit."""
    join = lake(write_mode=write_mode)
    report = join.run_job("own")
    join.write_rows("purchases", ONE_MORE, mode="append")
    join.run_job("other")
    version = join.read_version()

    for more in ({}, {"full_refresh": True}):
        again = join.run_job("own", **more)
        assert (again["changed"], again["target"]["version"]) == (True, report["target"]["version"])
    assert join.read_version() == version
