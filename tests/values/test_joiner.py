"""Test what joins make of every type: each cell of outcomes/joiner.csv.

The rows of all types are fields of one input, so that one join is enough for each step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.explain.joiner import explain_joined_row
from tests.conformance.lean import lean_session
from tests.jobs.joiner.lake import Lake
from tests.key_values import write_key
from tests.values.catalog import ALL, SHORT, SIMPLE, Kind
from tests.values.neighbours import (
    ID,
    READERS,
    Neighbours,
    build_keys,
    check_images,
    flip_table,
    is_short,
    list_cells,
    list_expected,
    list_values,
    name_row,
    read_hexadecimal,
    read_table,
    write_plain,
    write_shown,
)
from tests.values.outcomes import REFUSED, read_outcomes
from tests.values.steps import Steps, undo_newest

pytestmark = pytest.mark.spark

OUTCOMES = read_outcomes("joiner")
KINDS = {kind.name: kind for kind in ALL}
EXPLAINED = 5
INPUTS = {"a": "a", "b": "b"}


def join_by(*names: str) -> str:
    """Return the key of a join by fields that both inputs have."""
    return " & ".join(f"a.{name} = b.{name}" for name in names)


class JoinSteps(Steps):
    """The runs of joins over all types."""

    def __init__(self, spark: SparkSession, folder: Path, kinds: tuple[Kind, ...] = ALL) -> None:
        super().__init__()
        self.rows = Neighbours(kinds)
        self._spark, self._folder = spark, folder

    @property
    def keyed(self) -> tuple[Kind, ...]:
        """The types that a key can have."""
        outcomes = ((kind, OUTCOMES.find_outcome(kind.name, "key")) for kind in self.rows.kinds)
        return tuple(kind for kind, outcome in outcomes if not outcome.startswith(REFUSED))

    def open_lake(self, name: str, *keys: str, **more: Any) -> Lake:
        settings = {"inputs": INPUTS, "join_keys": join_by(*keys), "required_inputs": "a, b", **more}
        return Lake(self._spark, self._folder / name, selected_fields="*, b.n as n", **settings)

    def _wide(self) -> Lake:
        lake = self.open_lake("wide", ID)
        ids = self.rows.before[ID]
        lake.write_rows("a", self.rows.before)
        lake.write_rows("b", pa.table({ID: ids, "n": range(len(ids))}))
        lake.settings["selected_fields"] = ", ".join(f"a.{name}" for name in self.rows.before.column_names)
        lake.run_job()
        return lake

    def _payload(self) -> dict[str, dict[str, list[Any]]]:
        lake = self.find_result("wide")
        return {reader: read_table(lake.folder / "joined", reader) for reader in READERS}

    def _plan(self) -> tuple[dict[str, Any], dict[str, list[Any]]]:
        self.find_result("payload")
        lake = self.find_result("wide")
        lake.write_rows("a", self.rows.after)
        report = lake.run_job(until="transform", save_plan=True)
        return report, read_table(lake.folder / "joined__plan", by="after")

    def _comparison(self) -> tuple[dict[str, list[Any]], list[str]]:
        """Return the rows after the change, and the IDs of the rows that a plan with equal rows changes."""
        self.find_result("plan")
        lake = self.find_result("wide")
        lake.run_job()
        columns = read_table(lake.folder / "joined")
        lake.write_rows("a", flip_table(self.rows.after))
        lake.run_job(until="transform", save_plan=True)
        return columns, [
            json.loads(row)[ID] for row in read_table(lake.folder / "joined__plan", by="after")["after"]
        ]

    def _explain(self) -> list[tuple[int, dict[str, Any]]]:
        """Return explanations of some rows, with the positions of the rows."""
        self.find_result("comparison")
        lake = self.find_result("wide")
        explanations = []
        for position in range(0, len(self.rows.ids), len(self.rows.ids) // EXPLAINED):
            key = json.dumps({ID: name_row(*self.rows.ids[position])})
            explanation = explain_joined_row("joined", key, warehouse=str(lake.folder))
            explanations.append((position, explanation.as_object()))
        return explanations

    def _undo(self) -> dict[str, list[Any]]:
        self.find_result("explain")
        lake = self.find_result("wide")
        undo_newest(lake.spark, lake.folder, "joined")
        # The run that is undone is not the one that explains the rows.
        explain_joined_row(
            "joined", json.dumps({ID: name_row(*self.rows.ids[0])}), warehouse=str(lake.folder)
        )
        return read_table(lake.folder / "joined")

    def _keys(self) -> tuple[Lake, dict[str, list[Any]]]:
        """Join rows that differ in one field of the key, in other equal forms."""
        lake = self.open_lake("keys", *(kind.name for kind in self.keyed))
        rows = build_keys(self.keyed, "a", with_nulls=True)
        lake.write_rows("a", rows.rename_columns({ID: "left"}))
        lake.write_rows("b", flip_table(rows).select([*(kind.name for kind in self.keyed), ID]))
        lake.settings["selected_fields"] = ", ".join(
            [*(f"a.{kind.name}" for kind in self.keyed), "a.left", f"b.{ID}"]
        )
        lake.run_job()
        return lake, read_table(lake.folder / "joined")

    def _unmatched(self) -> dict[str, dict[str, Any]]:
        """Return the rows without a partner, as the table of them shows them, by their IDs."""
        lake = self.open_lake("unmatched", ID, unmatched="rest")
        lake.write_rows("a", self.rows.before)
        lake.write_rows("b", pa.table({ID: ["none"], "n": [0]}))
        lake.settings["selected_fields"] = f"a.{ID}"
        lake.run_job()
        rows = read_table(lake.folder / "rest", by="row")
        shown = [json.loads(row, parse_float=Decimal) for row in rows["row"]]
        pairs = zip(rows["input"], shown, strict=True)
        return {row[ID]: row for stage, row in pairs if stage == "a"}

    def _texts(self) -> Lake:
        """Return a join by all simple types."""
        lake = self.open_lake("texts", *(kind.name for kind in SIMPLE))
        rows = build_keys(SIMPLE, "a", with_nulls=True)
        lake.write_rows("a", rows)
        lake.write_rows("b", rows)
        lake.settings["selected_fields"] = ", ".join(f"a.{kind.name}" for kind in SIMPLE) + f", a.{ID}"
        lake.run_job()
        return lake

    def _incomparable(self) -> str:
        """Return the error of keys of all types that cannot be compared."""
        kinds = [kind.name for kind in self.rows.kinds if kind not in self.keyed]
        lake = self.open_lake("incomparable", *kinds)
        for name in INPUTS:
            lake.write_rows(name, self.rows.before.slice(0, 1))
        lake.settings["selected_fields"] = f"a.{ID}"
        with pytest.raises(ConfigError) as error:
            lake.run_job()
        return str(error.value)


@pytest.fixture(scope="module")
def find_steps(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the runs that a type has part in."""
    # A test that names the session itself collects garbage after every few tests.
    spark = lean_session(request.getfixturevalue("spark"))
    steps: dict[bool, JoinSteps] = {}

    def find(name: str) -> JoinSteps:
        key = is_short(name)
        if key not in steps:
            steps[key] = JoinSteps(spark, tmp_path_factory.mktemp("joins"), SHORT if key else ALL)
        return steps[key]

    return find


def check_key(steps: JoinSteps, kind: Kind) -> None:
    """Check that each row has found itself and no other, and has kept its key."""
    _, columns = steps.find_result("keys")
    rows = build_keys(steps.keyed, "a", with_nulls=True)
    assert columns["left"] == columns[ID]
    assert len(columns[ID]) == rows.num_rows
    assert list_values(kind, columns) == list_expected(kind, rows)


def check_payload(steps: JoinSteps, kind: Kind) -> None:
    """Check that each reader sees the values of the input."""
    for reader, columns in steps.find_result("payload").items():
        assert list_values(kind, columns) == list_expected(kind, steps.rows.before), reader


def check_comparison(steps: JoinSteps, kind: Kind) -> None:
    """Check that a neighbouring value is written, and that a plan of equal values has no change."""
    columns, changed = steps.find_result("comparison")
    assert list_values(kind, columns) == list_expected(kind, steps.rows.after)
    assert not [id_ for id_ in changed if id_.rpartition(" ")[0] == kind.name]
    assert not changed


def check_plan(steps: JoinSteps, kind: Kind) -> None:
    """Check that the rows of the plan have both values of each changed row."""
    report, plan = steps.find_result("plan")
    assert report["plan"]["kinds"]["updated"] == len(steps.rows.ids)
    check_images(steps.rows, plan, kind)


def check_report_of_kind(steps: JoinSteps, kind: Kind) -> None:
    """Check that the table of unmatched rows shows their values."""
    shown = steps.find_result("unmatched")
    for position in steps.rows.list_rows(kind.name):
        row = shown[name_row(*steps.rows.ids[position])]
        assert write_shown(row[kind.name], kind) == write_plain(
            steps.rows.before[kind.name][position].as_py(), kind
        )


def check_explain(steps: JoinSteps, kind: Kind) -> None:
    """Check that explanations show the values of rows and of input rows exactly."""
    for position, explanation in steps.find_result("explain"):
        expected = write_plain(steps.rows.after[kind.name][position].as_py(), kind)
        shown = [*explanation["rows"], *explanation["inputs"][0]["rows"]]
        assert [write_shown(row[kind.name], kind, read_hexadecimal) for row in shown] == [expected] * 2


def check_key_text(steps: JoinSteps, kind: Kind) -> None:
    """Check that a key as text finds its row, and no others."""
    lake = steps.find_result("texts")
    base = {one.name: write_key(one.values[0]) for one in SIMPLE}
    for value in (*kind.values, None):
        key = json.dumps({**base, kind.name: None if value is None else write_key(value)})
        explanation = explain_joined_row("joined", key, warehouse=str(lake.folder)).as_object()
        for row in (*explanation["rows"], explanation["inputs"][1]["rows"][0]):
            assert write_shown(row[kind.name], kind, read_hexadecimal) == write_plain(value, kind)
        assert [len(rows["rows"]) for rows in explanation["inputs"]] == [1, 1]


def check_undo(steps: JoinSteps, kind: Kind) -> None:
    """Check that after an undo the rows are those before the run."""
    assert list_values(kind, steps.find_result("undo")) == list_expected(kind, steps.rows.before)


CHECKS: dict[str, Callable[[JoinSteps, Kind], None]] = {
    "key": check_key,
    "payload": check_payload,
    "comparison": check_comparison,
    "plan": check_plan,
    "report": check_report_of_kind,
    "explain": check_explain,
    "key as text": check_key_text,
    "undo": check_undo,
}


@pytest.mark.parametrize(("name", "use"), list_cells(OUTCOMES.uses))
def test_a_type_in_a_use(find_steps: Callable[[str], JoinSteps], name: str, use: str) -> None:
    """The outcome of the table is what users get."""
    steps = find_steps(name)
    kind, outcome = KINDS[name], OUTCOMES.find_outcome(name, use)
    refused = outcome.removeprefix(REFUSED)
    if not outcome.startswith(REFUSED):
        CHECKS[use](steps, kind)
    elif kind not in steps.keyed:
        assert re.search(
            rf"a\.{name} is .* and b\.{name} is .*: {refused}", steps.find_result("incomparable")
        )
    else:
        lake, _ = steps.find_result("keys")
        key = json.dumps({one.name: "1" for one in steps.keyed})
        with pytest.raises(ConfigError, match=rf"column '{name}' of type .* {refused}"):
            explain_joined_row("joined", key, warehouse=str(lake.folder))
