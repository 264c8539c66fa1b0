"""What users do to tables between joins: restore, delete, move, name differently; and retries."""

from __future__ import annotations

import shutil

import pytest

from airflow_merge_provider.core.errors import ConfigError
from tests.jobs.joiner.conftest import MakeLake
from tests.jobs.joiner.lake import TARGET, Lake
from tests.jobs.joiner.test_runs import LEFT, ONE_MORE


def sql(join: Lake, statement: str) -> None:
    join.spark.sql(statement.format(target=f"delta.`{join.folder / TARGET}`")).collect()


@pytest.mark.parametrize("has_input", [False, True])
def test_a_restored_target_is_joined_again(lake: MakeLake, has_input: bool) -> None:
    """The state goes back with the rows, so the inputs are not what the target rests on."""
    join = lake()
    join.run()
    join.write("purchases", ONE_MORE, mode="append")
    join.run()
    expected = join.rows()
    sql(join, "RESTORE TABLE {target} TO VERSION AS OF 0")
    if has_input:
        join.write("purchases", ONE_MORE, mode="append")
        expected = sorted([*expected, (3, "Cathie", 27)], key=repr)

    assert join.run()["changed"]

    assert join.rows() == expected
    assert not join.run()["changed"]


@pytest.mark.parametrize("statement", ["DELETE FROM {target} WHERE id = 2", "UPDATE {target} SET name = 'x'"])
def test_rows_that_a_user_changed_are_joined_again(lake: MakeLake, statement: str) -> None:
    """A run over the same inputs does not say that nothing has changed."""
    join = lake()
    join.run()
    sql(join, statement)

    report = join.run()

    assert report["changed"]
    assert any("another writer has changed rows" in each for each in report["warnings"])
    assert join.rows() == LEFT


def test_appended_rows_that_a_user_changed_are_not_appended_again(lake: MakeLake) -> None:
    """They cannot be told from those of other runs; the report says that they were changed."""
    join = lake(write_mode="append")
    join.run()
    sql(join, "DELETE FROM {target} WHERE id = 2")

    report = join.run()

    assert not report["changed"]
    assert any("another writer has changed rows" in each for each in report["warnings"])


def test_maintenance_is_no_change(lake: MakeLake) -> None:
    """OPTIMIZE leaves every row as it is."""
    join = lake()
    join.run()
    sql(join, "OPTIMIZE {target}")

    report = join.run()

    assert (report["changed"], report["warnings"]) == (False, [])


def test_moved_inputs_are_the_same(lake: MakeLake, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A copied warehouse is not joined again."""
    join = lake()
    join.run()
    elsewhere = tmp_path_factory.mktemp("moved") / "warehouse"
    shutil.copytree(join.folder, elsewhere)
    join.folder = elsewhere

    assert not join.run()["changed"]


def test_the_target_is_no_input_whatever_its_spelling(lake: MakeLake) -> None:
    """A run would replace what it reads."""
    join = lake()
    join.run()

    with pytest.raises(ConfigError, match="is one of the inputs"):
        join.run(target=f"{join.folder}/{TARGET}/../customers")


@pytest.mark.parametrize("write_mode", ["overwrite", "append"])
def test_a_retry_reports_its_commit_whatever_came_after(lake: MakeLake, write_mode: str) -> None:
    """The inputs have grown and another run has committed since; nothing is written."""
    join = lake(write_mode=write_mode)
    own = join.run("own")
    join.write("purchases", ONE_MORE, mode="append")
    join.run("other")
    version = join.version()

    for more in ({}, {"full_refresh": True}):
        again = join.run("own", **more)
        assert (again["changed"], again["target"]["version"]) == (True, own["target"]["version"])
    assert join.version() == version
