"""Test what loads make of every type: each cell of outcomes/merge_load.csv, for each strategy.

The rows of all types are columns of one table, so that a strategy needs one run for each step. The types that
only Spark has are loaded one by one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import ConfigError, DataError
from airflow_merge_provider.explain.merge_load import explain_row
from tests.conformance.lean import lean_session
from tests.jobs.merge_load.loads import Loads
from tests.key_values import write_key
from tests.long import all_long_but
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

OUTCOMES = read_outcomes("merge_load")
KINDS = {kind.name: kind for kind in ALL}
STRATEGIES: dict[str, tuple[str, str]] = {
    "upsert": ("upsert", "primary_key"),
    "delete-insert": ("delete-insert", "primary_key"),
    "groups": ("delete-insert", "merge_key"),
    "history": ("scd2", "natural_key"),
}
EXPLAINED = 5


class LoadSteps(Steps):
    """The runs of a strategy over all types."""

    def __init__(
        self, spark: SparkSession, folder: Path, strategy: str, kinds: tuple[Kind, ...] = ALL
    ) -> None:
        super().__init__()
        self.rows = Neighbours(kinds)
        self.name, self.folder = strategy, folder
        self.strategy, self.key = STRATEGIES[strategy]
        self._loads = partial(Loads, spark)

    @property
    def keyed(self) -> tuple[Kind, ...]:
        """The types that a key can have."""
        outcomes = ((kind, OUTCOMES.find_outcome(kind.name, "key")) for kind in self.rows.kinds)
        return tuple(kind for kind, outcome in outcomes if not outcome.startswith(REFUSED))

    def open_loads(self, name: str, *keys: str) -> Loads:
        return self._loads(self.folder / name, self.strategy, **{self.key: list(keys)})

    def load_rows(self, loads: Loads, day: int, rows: pa.Table | None = None, **more: Any) -> dict[str, Any]:
        at = {"boundary_timestamp": f"2024-01-0{day}"} if self.strategy == "scd2" else {}
        return loads.load_rows(rows, **at, **more)

    def read_columns(self, loads: Loads, reader: str = "delta-rs") -> dict[str, list[Any]]:
        """Return the rows that are valid now, in the order of their IDs."""
        columns = read_table(loads.target, reader)
        if "valid_to" not in columns:
            return columns
        valid = [position for position, end in enumerate(columns["valid_to"]) if end is None]
        return {name: [values[position] for position in valid] for name, values in columns.items()}

    def _wide(self) -> Loads:
        loads = self.open_loads("wide", ID)
        self.load_rows(loads, 1, self.rows.before)
        return loads

    def _payload(self) -> dict[str, dict[str, list[Any]]]:
        loads = self.find_result("wide")
        return {reader: self.read_columns(loads, reader) for reader in READERS}

    def _plan(self) -> tuple[dict[str, Any], dict[str, list[Any]]]:
        self.find_result("payload")
        loads = self.find_result("wide")
        report = self.load_rows(loads, 2, self.rows.after, until="transform", save_plan=True)
        return report, read_table(f"{loads.target}__plan", by="after")

    def _comparison(self) -> tuple[dict[str, Any], dict[str, list[Any]]]:
        self.find_result("plan")
        loads = self.find_result("wide")
        return self.load_rows(loads, 2, self.rows.after), self.read_columns(loads)

    def _equal(self) -> tuple[dict[str, Any], list[str]]:
        """Return the report of a run with equal rows, and the IDs of the rows that its plan changes."""
        self.find_result("comparison")
        loads = self.find_result("wide")
        self.load_rows(loads, 3, self.rows.equal, until="transform", save_plan=True)
        changed = read_table(f"{loads.target}__plan", by="after")["after"]
        version = loads.read_version()
        report = self.load_rows(loads, 3)
        # A run that changes no row commits the version of its source.
        assert not report["changed"] or loads.read_version() != version
        return report, [json.loads(row)[ID] for row in changed if row]

    def _explain(self) -> list[tuple[int, dict[str, Any], list[str]]]:
        """Return explanations of some rows, with the positions of the rows."""
        self.find_result("equal")
        loads = self.find_result("wide")
        explanations = []
        for position in range(0, len(self.rows.ids), len(self.rows.ids) // EXPLAINED):
            key = json.dumps({ID: name_row(*self.rows.ids[position])})
            explanation = explain_row("t", key, warehouse=str(loads.folder))
            explanations.append((position, explanation.as_object(), list(explanation.format_lines())))
        return explanations

    def _undo(self) -> dict[str, list[Any]]:
        self.find_result("explain")
        loads = self.find_result("wide")
        undo_newest(loads.spark, loads.folder, "t")
        # The run that is undone is not the one that explains the rows.
        explain_row("t", json.dumps({ID: name_row(*self.rows.ids[0])}), warehouse=str(loads.folder))
        return self.read_columns(loads)

    def _keys(self) -> tuple[dict[str, Any], dict[str, list[Any]]]:
        """Load rows that differ in one column of the key, then new values for them, in other equal forms."""
        kinds = self.keyed
        loads = self.open_loads("keys", *(kind.name for kind in kinds))
        rows = build_keys(kinds, "a")
        self.load_rows(loads, 1, rows)
        other = flip_table(rows).set_column(rows.num_columns - 1, "v", [["b"] * rows.num_rows])
        report = self.load_rows(loads, 2, other)
        return report, self.read_columns(loads)

    def _repeated(self) -> str:
        """Return the error of two different rows of one key."""
        kinds = self.keyed
        rows = build_keys(kinds, "a").slice(0, 1)
        loads = self.open_loads("repeated", *(kind.name for kind in kinds))
        with pytest.raises(DataError) as error:
            self.load_rows(loads, 1, pa.concat_tables([rows, rows.set_column(len(kinds) + 1, "v", [["b"]])]))
        return str(error.value)

    def _refused_keys(self) -> dict[str, str]:
        """Return the problems of all types that keys cannot have, which one error names, by column."""
        kinds = [kind for kind in self.rows.kinds if kind not in self.keyed]
        loads = self.open_loads("refused", *(kind.name for kind in kinds))
        loads.write_source(self.rows.before)
        return list_problems(loads)

    def _texts(self) -> Path:
        """Return a folder with a table without a key, whose rows have the values of the simple types."""
        loads = self._loads(self.folder / "texts", "delete-insert")
        loads.load_rows(Neighbours(SIMPLE).before)
        return loads.folder

    def _nested_keys(self) -> Path:
        """Return a folder with a table without a key, which has all types."""
        loads = self._loads(self.folder / "nested", "delete-insert")
        loads.load_rows(self.rows.before.slice(0, 1))
        return loads.folder


FindSteps = Callable[[str, str], LoadSteps]


def list_problems(loads: Loads) -> dict[str, str]:
    """Return the problems of a load by the columns that their messages name."""
    with pytest.raises(DataError) as error:
        loads.load_rows()
    assert loads.read_version() is None
    return {problem.message.split("'")[1]: str(problem) for problem in error.value.problems}


@pytest.fixture(scope="module")
def find_steps(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the runs of a strategy that a type has part in."""
    # A test that names the session itself collects garbage after every few tests.
    spark = lean_session(request.getfixturevalue("spark"))
    steps: dict[tuple[str, bool], LoadSteps] = {}

    def find(strategy: str, name: str) -> LoadSteps:
        key = strategy, is_short(name)
        if key not in steps:
            kinds = SHORT if key[1] else ALL
            steps[key] = LoadSteps(spark, tmp_path_factory.mktemp(strategy), strategy, kinds)
        return steps[key]

    return find


def check_key(steps: LoadSteps, kind: Kind) -> None:
    """Check that each row has got the new value of its own key, and that its key is what it was."""
    report, columns = steps.find_result("keys")
    expected = build_keys(steps.keyed, "b")
    count = expected.num_rows
    assert (report["rows"]["deleted"], len(columns[ID])) == (0, count)
    assert columns["v"] == ["b"] * count
    by_id = dict(zip(expected[ID].to_pylist(), expected[kind.name].to_pylist(), strict=True))
    for id_, value in zip(columns[ID], columns[kind.name], strict=True):
        assert write_plain(value, kind) == write_plain(by_id[id_], kind)


def check_payload(steps: LoadSteps, kind: Kind) -> None:
    """Check that each reader sees the values of the source."""
    for reader, columns in steps.find_result("payload").items():
        assert list_values(kind, columns) == list_expected(kind, steps.rows.before), reader


def check_comparison(steps: LoadSteps, kind: Kind) -> None:
    """Check that a neighbouring value is written, and that equal values are not."""
    _, columns = steps.find_result("comparison")
    assert list_values(kind, columns) == list_expected(kind, steps.rows.after)
    report, changed = steps.find_result("equal")
    assert not [id_ for id_ in changed if id_.rpartition(" ")[0] == kind.name]
    assert not report["changed"]


def check_plan(steps: LoadSteps, kind: Kind) -> None:
    """Check that the rows of the plan have both values of each changed row."""
    _, plan = steps.find_result("plan")
    check_images(steps.rows, plan, kind)


def check_report_of_kind(steps: LoadSteps, kind: Kind) -> None:
    """Check that the report counts changed rows, and that its examples and errors show their values."""
    report, _ = steps.find_result("comparison")
    rows = report["rows"]
    assert rows["updated"] == len(steps.rows.ids) or steps.name == "groups"
    plan, _ = steps.find_result("plan")
    positions = {name_row(*id_): position for position, id_ in enumerate(steps.rows.ids)}
    assert plan["plan"]["examples"]
    for example in plan["plan"]["examples"]:
        for row, tables in (
            (example["before"], (steps.rows.before, steps.rows.after)),
            (example["after"], (steps.rows.after,)),
        ):
            if row is not None:
                values = [table[kind.name][positions[row[ID]]].as_py() for table in tables]
                expected = [write_plain(value, kind) for value in values]
                assert write_shown(row.get(kind.name), kind) in expected
    if kind in SIMPLE and steps.strategy == "upsert":
        shown = re.search(rf"[ ,]{kind.name}='(.*?)'[,; ]", steps.find_result("repeated"))
        assert shown is not None
        value = {"true": True, "false": False}.get(shown[1], shown[1])
        assert write_shown(value, kind) == write_plain(kind.values[0], kind)


def check_explain(steps: LoadSteps, kind: Kind) -> None:
    """Check that explanations show the values of rows exactly, and that neighbours differ in their texts."""
    for position, explanation, lines in steps.find_result("explain"):
        name, _ = steps.rows.ids[position]
        expected = [
            write_plain(table[kind.name][position].as_py(), kind)
            for table in (steps.rows.before, steps.rows.after)
        ]
        if "versions" in explanation:
            shown = [version["values"] for version in explanation["versions"]]
        else:
            shown = [row for change in explanation["changes"] for row in change["added"]]
        values = [write_shown(row[kind.name], kind, read_hexadecimal) for row in shown]
        assert values == expected
        if name == kind.name and "versions" not in explanation:
            assert any(line.startswith(f"    {name}: ") and " → " in line for line in lines)


def check_key_text(steps: LoadSteps, kind: Kind) -> None:
    """Check that a value as text finds the rows with this value, and no others."""
    folder = steps.find_result("texts")
    rows = Neighbours(SIMPLE)
    texts = [write_plain(value, kind) for value in rows.before[kind.name].to_pylist()]
    for value in (*kind.values, None):
        key = {kind.name: None if value is None else write_key(value)}
        explanation = explain_row("t", json.dumps(key), warehouse=str(folder))
        values = [write_plain(row[kind.name], kind) for row in explanation.rows]
        assert values == [write_plain(value, kind)] * texts.count(write_plain(value, kind))


def check_undo(steps: LoadSteps, kind: Kind) -> None:
    """Check that after an undo the rows are those before the run."""
    assert list_values(kind, steps.find_result("undo")) == list_expected(kind, steps.rows.before)


CHECKS: dict[str, Callable[[LoadSteps, Kind], None]] = {
    "key": check_key,
    "payload": check_payload,
    "comparison": check_comparison,
    "plan": check_plan,
    "report": check_report_of_kind,
    "explain": check_explain,
    "key as text": check_key_text,
    "undo": check_undo,
}


@pytest.mark.parametrize("strategy", all_long_but(STRATEGIES, "upsert"))
@pytest.mark.parametrize(("name", "use"), list_cells(OUTCOMES.uses))
def test_a_type_in_a_use(
    find_steps: Callable[[str, str], LoadSteps], name: str, use: str, strategy: str
) -> None:
    """The outcome of the table is what users get."""
    steps, kind, outcome = find_steps(strategy, name), KINDS[name], OUTCOMES.find_outcome(name, use)
    if not outcome.startswith(REFUSED):
        CHECKS[use](steps, kind)
    elif use == "key":
        assert outcome.removeprefix(REFUSED) in steps.find_result("refused_keys")[name]
    else:
        with pytest.raises(ConfigError, match=re.escape(outcome.removeprefix(REFUSED))):
            explain_row("t", json.dumps({name: "1"}), warehouse=str(steps.find_result("nested_keys")))
