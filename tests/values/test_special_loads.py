"""Test what loads make of the types that only Spark has: their cells of outcomes/merge_load.csv."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.explain.merge_load import explain_row
from tests.conformance.lean import lean_session
from tests.jobs.merge_load.loads import Loads
from tests.values.catalog import SPARK_ONLY
from tests.values.neighbours import (
    ID,
    read_table,
)
from tests.values.outcomes import REFUSED, read_outcomes
from tests.values.special import (
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
from tests.values.test_loads import list_problems

pytestmark = pytest.mark.spark

OUTCOMES = read_outcomes("merge_load")
CELLS = [
    pytest.param(kind.name, use, marks=() if use in {"key", "payload"} else pytest.mark.long)
    for kind in SPARK_ONLY
    for use in OUTCOMES.uses
]


class SpecialSteps(Steps):
    """The runs of an upsert of the types that only Spark has, from a table that Spark writes."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        super().__init__()
        self._spark, self._folder = spark, folder

    def open_loads(self, name: str, *keys: str, **more: Any) -> Loads:
        return Loads(self._spark, self._folder / name, "upsert", primary_key=list(keys), **more)

    def _loaded(self) -> tuple[Loads, list[str]]:
        loads = self.open_loads("special", ID)
        write_special(self._spark, loads.folder / "s", 0)
        return loads, loads.load_rows()["warnings"]

    def _payload(self) -> dict[str, dict[str, Any]]:
        return read_special(self._spark, self.find_result("loaded")[0].target)

    def _plan(self) -> tuple[dict[str, Any], dict[str, list[Any]]]:
        self.find_result("payload")
        loads, _ = self.find_result("loaded")
        write_special(self._spark, loads.folder / "s", 1)
        report = loads.load_rows(until="transform", save_plan=True)
        return report, read_table(f"{loads.target}__plan", by="after")

    def _comparison(self) -> tuple[dict[str, Any], dict[str, dict[str, Any]], dict[str, Any]]:
        self.find_result("plan")
        loads, _ = self.find_result("loaded")
        report, rows = loads.load_rows(), read_special(self._spark, loads.target)
        write_special(self._spark, loads.folder / "s", 1)
        return report, rows, loads.load_rows()

    def _explain(self) -> dict[str, dict[str, Any]]:
        self.find_result("comparison")
        loads, _ = self.find_result("loaded")
        ids = build_special(1, lambda kind: [*kind.values, None])
        explained = (explain_row("t", json.dumps({ID: id_}), warehouse=str(loads.folder)) for id_ in ids)
        return {row[ID]: row for explanation in explained for row in explanation.as_object()["rows"]}

    def _undo(self) -> dict[str, dict[str, Any]]:
        self.find_result("explain")
        loads, _ = self.find_result("loaded")
        undo_newest(loads.spark, loads.folder, "t")
        return read_special(self._spark, loads.target)

    def _key(self) -> tuple[Loads, dict[str, Any], list[tuple[Any, ...]]]:
        """Load each pair of texts as a key, twice with other values."""
        loads, report = self.open_loads("keys", "char_5", "varchar_8"), {}
        for value in ("a", "b"):
            write_special_keys(self._spark, loads.folder / "s", value)
            report = loads.load_rows()
        return loads, report, [*zip(*read_table(loads.target, by="char_5").values(), strict=True)]

    def _texts(self) -> Loads:
        """Return a load into a table without a key."""
        loads = Loads(self._spark, self._folder / "texts", "delete-insert")
        write_special(self._spark, loads.folder / "s", 0)
        loads.load_rows()
        return loads

    def _unstorable(self) -> dict[str, str]:
        """Return the problems of the types that no table can hold, by the name of the column."""
        loads = self.open_loads("unstorable", ID, source={"dataset": "s", "format": "parquet"})
        with write_unstorable(self._spark, loads.folder / "s"):
            return list_problems(loads)

    def _incomparable(self) -> dict[str, str]:
        """Return the problems of a key of types without a comparison, by the name of the column."""
        loads = self.open_loads("incomparable", "variant", "void")
        write_special(self._spark, loads.folder / "s", 0)
        return list_problems(loads)


@pytest.fixture(scope="module")
def special(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SpecialSteps:
    """Return the runs over the types that only Spark has."""
    return SpecialSteps(lean_session(request.getfixturevalue("spark")), tmp_path_factory.mktemp("special"))


def check_special_comparison(steps: SpecialSteps, name: str) -> None:
    report, rows, same = steps.find_result("comparison")
    expected, before = expect_special(1, name), expect_special(0, name)
    assert {id_: row[name] for id_, row in rows.items()} == expected
    # Two of the values of CHAR are one.
    assert report["rows"]["updated"] == len(rows) - 1
    assert expected != before
    assert not same["changed"]


def check_special_key(steps: SpecialSteps, name: str) -> None:
    loads, report, rows = steps.find_result("key")
    assert report["rows"]["updated"] == len(rows)
    assert {(char, text) for char, text, _ in rows} == SPECIAL_KEYS
    for char, text in SPECIAL_KEYS:
        key = json.dumps({"char_5": char, "varchar_8": text})
        (row,) = explain_row("t", key, warehouse=str(loads.folder)).rows
        assert row[name] == {"char_5": char, "varchar_8": text}[name]


SPECIAL_CHECKS: dict[str, Callable[[SpecialSteps, str], None]] = {
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
def test_a_type_of_spark_alone_in_a_use(special: SpecialSteps, name: str, use: str) -> None:
    """The outcome of the table is what users get."""
    outcome = OUTCOMES.find_outcome(name, use)
    refused = outcome.removeprefix(REFUSED)
    if outcome == "left out":
        _, warnings = special.find_result("loaded")
        assert [text for text in warnings if f"column '{name}' of" in text and "is left out" in text]
        special.find_result("payload")
    elif name in UNSTORABLE:
        assert (
            f"{refused} '{name}' of type {UNSTORABLE[name].spark}" in special.find_result("unstorable")[name]
        )
    elif outcome.startswith(REFUSED) and use == "key":
        assert refused in special.find_result("incomparable")[name]
    elif outcome.startswith(REFUSED):
        with pytest.raises(ConfigError, match=re.escape(refused)):
            explain_row("t", json.dumps({name: "1"}), warehouse=str(special.find_result("texts").folder))
    else:
        SPECIAL_CHECKS[use](special, name)
