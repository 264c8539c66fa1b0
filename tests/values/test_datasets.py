"""Test what datasets have of each type in the files of many programs: an equal value, or a refusal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.jobs.delta.table import pin_dataset, read_dataset
from tests.conformance.lean import lean_session
from tests.values.catalog import ALL
from tests.values.file_writers import write_file
from tests.values.files import (
    build_all,
    build_parameters,
    find_kind,
    find_plain_type,
    normalize,
    run_once,
    shorten_times,
    widen_type,
)
from tests.values.outcomes import EXACT, REFUSED, read_outcomes

OUTCOMES = read_outcomes("datasets")
CELLS = [(kind.name, use) for use in OUTCOMES.uses for kind in ALL if OUTCOMES.find_outcome(kind.name, use)]
_AS_TIMESTAMP = "as timestamp"
_CHANGES: dict[str, Callable[[Any], str]] = {
    EXACT: str,
    "as int": lambda kind: str(widen_type(kind)),
    _AS_TIMESTAMP: lambda kind: str(kind).replace("timestamp[us]", "timestamp[us, tz=UTC]"),
}
# The columns that come out of the files of a use, and the errors of the others.
Results = Callable[[str], Mapping[str, pa.ChunkedArray | str]]

pytestmark = pytest.mark.spark


def build_source(use: str) -> pa.Table:
    """Return the rows of a file; those of ORC have no times that pyarrow cannot read or write for Spark."""
    table = build_all()
    return shorten_times(table) if use.startswith("orc") else table


def read_use(spark: SparkSession, root: Path, use: str) -> Mapping[str, pa.ChunkedArray | str]:
    """Return the columns of a file that a program has written, or why they are refused."""
    names = [name for name, of in CELLS if of == use]
    refused = [name for name in names if OUTCOMES.find_outcome(name, use).startswith(REFUSED)]
    results: dict[str, Any] = {}
    for folder, columns in (("exact", [name for name in names if name not in refused]), ("refused", refused)):
        path = root / use / folder
        path.mkdir(parents=True)
        if not columns:
            continue
        (path / "file").write_bytes(write_file(use, build_source(use).select(columns), spark, root / use))
        reference = {"dataset": str(path), "format": use.partition(" of ")[0]}
        rows = read_dataset(spark, pin_dataset(spark, resolve_dataset(reference, None)))
        if folder == "exact":
            table = rows.toArrow()
            results |= dict(zip(table.column_names, table.columns, strict=True))
        else:
            results |= {name: find_error(rows, name) for name in columns}
    return results


def find_error(rows: DataFrame, name: str) -> str:
    """Return why a column of a dataset cannot be read."""
    with pytest.raises(PySparkException) as error:
        rows.select(name).collect()
    return str(error.value)


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Return what datasets have of the files of a program, which are read once."""
    lean = lean_session(request.getfixturevalue("spark"))
    return run_once(partial(read_use, lean, tmp_path_factory.mktemp("datasets")))


@pytest.mark.parametrize(("kind", "use"), build_parameters(CELLS, ("orc",)))
def test_a_value_of_a_dataset_comes_out_or_is_refused(results: Results, kind: str, use: str) -> None:
    """A column has the values of the file and their type, or the error names file, column and remedy."""
    outcome, column = OUTCOMES.find_outcome(kind, use), results(use)[kind]
    if isinstance(column, str):
        assert outcome.removeprefix(REFUSED) in column
        assert "/refused/file: " in column
        assert f"column '{kind}" in column
        return
    assert not outcome.startswith(REFUSED)
    assert str(find_plain_type(column.type)) == _CHANGES[outcome](find_kind(kind).arrow)
    has_zones = outcome != _AS_TIMESTAMP
    values = build_source(use)[kind].to_pylist()
    assert normalize(column.to_pylist(), has_zones=has_zones) == normalize(values, has_zones=has_zones)
