"""Test what joins make of the types that only Spark has: their cells of outcomes/joiner.csv."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import ConfigError, DataError
from airflow_merge_provider.explain.joiner import explain_joined_row
from tests.conformance.lean import lean_session
from tests.jobs.joiner.lake import Lake
from tests.values.catalog import SPARK_ONLY
from tests.values.neighbours import (
    ID,
    read_table,
)
from tests.values.outcomes import REFUSED, read_outcomes
from tests.values.special import (
    SPECIAL,
    SPECIAL_KEYS,
    UNSTORABLE,
    build_special,
    check_special_explanation,
    check_special_payload,
    check_special_plan,
    check_special_undo,
    expect_special,
    read_special,
    write_special,
    write_special_keys,
    write_unstorable,
)
from tests.values.steps import Steps, undo_newest
from tests.values.test_joiner import INPUTS, join_by

# tests/values/test_special_loads.py has the same types and uses.
pytestmark = [pytest.mark.spark, pytest.mark.long]

OUTCOMES = read_outcomes("joiner")
CELLS = [(kind.name, use) for kind in SPARK_ONLY for use in OUTCOMES.uses]


class SpecialJoinSteps(Steps):
    """The runs of joins over the types that only Spark has."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        super().__init__()
        self._spark, self._folder = spark, folder

    def open_lake(self, name: str, *keys: str, **more: Any) -> Lake:
        settings = {"inputs": INPUTS, "join_keys": join_by(*keys), "required_inputs": "a, b", **more}
        return Lake(self._spark, self._folder / name, **settings)

    def _loaded(self) -> Lake:
        fields = ", ".join(f"a.{name}" for name in (ID, *(kind.name for kind in SPECIAL)))
        lake = self.open_lake("special", ID, selected_fields=fields)
        lake.write_rows("b", pa.table({ID: list(build_special(0, lambda kind: [*kind.values, None]))}))
        write_special(self._spark, lake.folder / "a", 0)
        lake.run_job()
        return lake

    def _payload(self) -> dict[str, dict[str, Any]]:
        return read_special(self._spark, self.find_result("loaded").folder / "joined")

    def _plan(self) -> tuple[dict[str, Any], dict[str, list[Any]]]:
        self.find_result("payload")
        lake = self.find_result("loaded")
        write_special(self._spark, lake.folder / "a", 1)
        report = lake.run_job(until="transform", save_plan=True)
        return report, read_table(lake.folder / "joined__plan", by="after")

    def _comparison(self) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
        self.find_result("plan")
        lake = self.find_result("loaded")
        lake.run_job()
        rows = read_special(self._spark, lake.folder / "joined")
        write_special(self._spark, lake.folder / "a", 1)
        return rows, lake.run_job(until="transform")["plan"]["kinds"]

    def _explain(self) -> dict[str, dict[str, Any]]:
        self.find_result("comparison")
        lake = self.find_result("loaded")
        ids = build_special(1, lambda kind: [*kind.values, None])
        explained = (explain_joined_row("joined", id_, warehouse=str(lake.folder)) for id_ in ids)
        return {row[ID]: row for explanation in explained for row in explanation.as_object()["rows"]}

    def _undo(self) -> dict[str, dict[str, Any]]:
        self.find_result("explain")
        lake = self.find_result("loaded")
        undo_newest(lake.spark, lake.folder, "joined")
        return read_special(self._spark, lake.folder / "joined")

    def _key(self) -> Lake:
        """Join each pair of texts with itself."""
        lake = self.open_lake(
            "keys", "char_5", "varchar_8", selected_fields="a.char_5, a.varchar_8, b.char_5 as other"
        )
        for name in INPUTS:
            write_special_keys(self._spark, lake.folder / name, "a")
        lake.run_job()
        return lake

    def _unstorable(self) -> dict[str, str]:
        """Return the problems of the types that no table can hold, by the name of the column."""
        lake = self.open_lake("unstorable", ID, selected_fields="*")
        lake.settings["inputs"] = {**INPUTS, "a": {"dataset": "a", "format": "parquet"}}
        lake.write_rows("b", pa.table({ID: pa.array([1], pa.int32())}))
        fields = [ID, *UNSTORABLE]
        with write_unstorable(self._spark, lake.folder / "a"):
            lake.settings["selected_fields"] = ", ".join(f"a.{name}" for name in fields)
            return list_problems(lake)

    def _untyped(self) -> dict[str, str]:
        """Return the problem of a column of no type, by its name."""
        self.find_result("undo")
        lake = self.find_result("loaded")
        return list_problems(lake, selected_fields=f"a.{ID}, a.void")

    def _incomparable(self) -> str:
        self.find_result("undo")
        lake = self.find_result("loaded")
        key = {"inputs": {"a": "a", "b": "a"}, "join_keys": join_by("variant")}
        with pytest.raises(ConfigError) as error:
            lake.run_job(selected_fields=f"a.{ID}", **key)
        return str(error.value)


def list_problems(lake: Lake, **more: Any) -> dict[str, str]:
    """Return the problems of a join by the columns that their messages name."""
    version = lake.read_version()
    with pytest.raises(DataError) as error:
        lake.run_job(**more)
    assert lake.read_version() == version
    return {problem.message.split("'")[1]: str(problem) for problem in error.value.problems}


@pytest.fixture(scope="module")
def special(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SpecialJoinSteps:
    """Return the runs over the types that only Spark has."""
    spark = lean_session(request.getfixturevalue("spark"))
    return SpecialJoinSteps(spark, tmp_path_factory.mktemp("special"))


def check_special_comparison(steps: Steps, name: str) -> None:
    """Check that a neighbouring value is written, and that a plan of equal values has no change."""
    rows, changes = steps.find_result("comparison")
    assert {id_: row[name] for id_, row in rows.items()} == expect_special(1, name)
    assert not sum(changes.values())


def check_special_key(steps: Steps, name: str) -> None:
    """Check that texts find themselves and no others, and are found as text."""
    lake = steps.find_result("key")
    columns = read_table(lake.folder / "joined", by="char_5")
    assert columns["char_5"] == columns["other"]
    pairs = set(zip(columns["char_5"], columns["varchar_8"], strict=True))
    assert (pairs, len(columns["other"])) == (SPECIAL_KEYS, len(SPECIAL_KEYS))
    for char, text in pairs:
        key = json.dumps({"char_5": char, "varchar_8": text})
        (row,) = explain_joined_row("joined", key, warehouse=str(lake.folder)).rows or ()
        assert row[name] == {"char_5": char, "varchar_8": text}[name]


SPECIAL_CHECKS: dict[str, Callable[[Steps, str], None]] = {
    "key": check_special_key,
    "payload": check_special_payload,
    "comparison": check_special_comparison,
    "plan": check_special_plan,
    "report": check_special_plan,
    "explain": check_special_explanation,
    "key as text": check_special_key,
    "undo": check_special_undo,
}


@pytest.mark.parametrize(("name", "use"), CELLS)
def test_a_type_of_spark_alone_in_a_use(special: SpecialJoinSteps, name: str, use: str) -> None:
    """The outcome of the table is what users get."""
    outcome = OUTCOMES.find_outcome(name, use)
    refused = outcome.removeprefix(REFUSED)
    if name in UNSTORABLE:
        assert (
            f"{refused} '{name}' of type {UNSTORABLE[name].spark}" in special.find_result("unstorable")[name]
        )
    elif name == "void":
        assert f"{refused} 'void' of type void" in special.find_result("untyped")[name]
    elif outcome.startswith(REFUSED):
        message = special.find_result("incomparable")
        assert f"a.{name} is {name} and b.{name} is {name}: {refused}" in message
    else:
        SPECIAL_CHECKS[use](special, name)
