"""Text files with a schema: each value comes out of MergeRecord, and a text that is no value fails its file.

Python writes the files, and Arrow reads what comes out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import ConfigError
from tests.jobs.merge_record.landing import Landing
from tests.values.catalog import NESTED, SIMPLE, Kind
from tests.values.outcomes import EXACT, REFUSED, read_outcomes
from tests.values.text_files import format_record, format_text, is_same, list_texts_beyond, select_value

OUTCOMES = read_outcomes("schemas")
ROWS = 14
# Maps with other keys are neither JSON nor XML.
_NESTED = tuple(kind for kind in NESTED if not kind.name.startswith("map_") or "map_string_" in kind.name)
_MAPS = tuple(kind for kind in _NESTED if "map" in kind.name)
KINDS = {
    "csv": SIMPLE,
    "json": (*SIMPLE, *_NESTED),
    "xml": tuple(kind for kind in (*SIMPLE, *_NESTED) if "binary" not in kind.name and kind not in _MAPS),
}
# Types that a format does not hold at all.
UNHELD = {
    "csv": tuple(kind for kind in NESTED if kind.name in ("array_int", "struct_int", "map_string_int")),
    "xml": (*(kind for kind in (*SIMPLE, *_NESTED) if kind.name.endswith("binary")), *_MAPS),
}
OPTIONS: dict[str, dict[str, str]] = {"xml": {"rowTag": "r"}}
Record = dict[str, Any]


@dataclass
class Run:
    """What a run made of the files of one format.

    ``values`` are the values by kind and row, ``merged`` the records that came out, by the names of their
    files, and ``reasons`` says why files failed.
    """

    values: dict[str, list[Any]]
    merged: dict[str, Record]
    reasons: dict[str, str]


def merge_files(format_name: str, kinds: tuple[Kind, ...], spark: SparkSession, root: Path) -> Run:
    """Merge a file of each row of values, and a file of each text beyond a kind."""
    columns = ", ".join(f"{kind.name} {kind.spark}" for kind in kinds)
    reader = {
        "format": format_name,
        "schema": f"f STRING, {columns}",
        "options": OPTIONS.get(format_name, {}),
    }
    landing = Landing(
        root, spark, reader=reader, writer="parquet", failure_scope="flowfile", max_records="unlimited"
    )
    values = {}
    for kind in kinds:
        drawn = [select_value(format_name, value) for value in kind.draw_values(7, ROWS)]
        values[kind.name] = [*drawn, *[None] * (ROWS - len(drawn))]
    for number in range(ROWS):
        row = {kind.name: values[kind.name][number] for kind in kinds}
        landing.put_file(f"row-{number}", format_record(format_name, f"row-{number}", kinds, row))
    for kind in kinds:
        for index, text in enumerate(list_texts_beyond(kind)):
            name = f"{kind.name}-{index}"
            landing.put_file(
                name, format_record(format_name, name, kinds, {kind.name: kind.values[-1]}, text)
            )
    try:
        landing.run_job(at=1, flush=True)
    except (PySparkException, ConfigError) as error:
        return Run(values, {}, dict.fromkeys((f"row-{number}" for number in range(ROWS)), str(error)))
    tables = [parquet.read_table(path) for path in landing.list_outputs()]
    failed = (line for line in landing.read_ledger() if line["outcome"] == "failed")
    return Run(
        values,
        {row["f"]: row for table in tables for row in table.to_pylist()},
        {line["sources"][0]["uri"].rpartition("/")[2]: line["reason"] for line in failed},
    )


@pytest.fixture(scope="module")
def runs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """Return a function that returns the run of a format, which happens once."""
    return cache(lambda name: merge_files(name, KINDS[name], spark, tmp_path_factory.mktemp(name)))


def list_cells(kinds: dict[str, tuple[Kind, ...]], use: str = "{}") -> list[Any]:
    """Return the kinds of formats with a use of each format, as parameters of a test."""
    return [
        pytest.param(use.format(name), kind, id=f"{name}-{kind.name}")
        for name, group in kinds.items()
        for kind in group
    ]


@pytest.mark.parametrize(("use", "kind"), list_cells(KINDS))
def test_values_come_out_of_text_files(runs: Callable[[str], Run], use: str, kind: Kind) -> None:
    """Each value of each type comes out equal, from files that the driver gathers and that Spark reads."""
    run = runs(use)
    assert OUTCOMES.find_outcome(kind.name, use) == EXACT
    expected = pa.array(run.values[kind.name], kind.arrow).to_pylist()
    assert any(value is not None for value in expected)
    for number, value in enumerate(expected):
        name = f"row-{number}"
        assert name in run.merged, run.reasons[name]
        assert is_same(run.merged[name][kind.name], value)


@pytest.mark.parametrize(("use", "kind"), list_cells(KINDS, "{} beyond"))
def test_texts_beyond_a_type_fail_their_file(runs: Callable[[str], Run], use: str, kind: Kind) -> None:
    """A file with such a text fails alone, and the reason names the column, the text and the type."""
    format_name = use.partition(" ")[0]
    run, outcome = runs(format_name), OUTCOMES.find_outcome(kind.name, use)
    for index, text in enumerate(list_texts_beyond(kind)):
        name = f"{kind.name}-{index}"
        if outcome == EXACT:
            assert name in run.merged, run.reasons[name]
            assert text in (
                repr(run.merged[name][kind.name])
                if kind in NESTED
                else format_text(run.merged[name][kind.name])
            )
        else:
            assert name not in run.merged, run.merged[name][kind.name]
            assert outcome.removeprefix(REFUSED) in run.reasons[name]
            # Spark formats the numbers of a record of JSON that it cannot read.
            assert text in run.reasons[name] or format_name == "json"
            assert f"column '{kind.name}" in run.reasons[name] or "such as" in outcome


@pytest.mark.parametrize(("use", "kind"), list_cells(UNHELD))
def test_types_that_a_format_does_not_hold_are_refused(
    spark: SparkSession, tmp_path: Path, use: str, kind: Kind
) -> None:
    """The file fails, or the run before it reads one."""
    run = merge_files(use, (kind,), spark, tmp_path)

    outcome = OUTCOMES.find_outcome(kind.name, use)
    texts = [repr(value) for value in run.values[kind.name]]
    held = [
        number
        for number, text in enumerate(texts)
        if text != "None" and ("b'" in text or "binary" not in kind.name)
    ]
    assert held
    reasons = {texts[number]: run.reasons.get(f"row-{number}", "") for number in held}
    # XML has no control characters, so Spark does not read a record with one.
    texts_of_refusal = (outcome.removeprefix(REFUSED), "cannot be read")
    assert [
        reason for reason in reasons.values() if not any(map(reason.__contains__, texts_of_refusal))
    ] == []
