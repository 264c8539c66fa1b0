"""Test what a merge source makes of each type: compared, merged in both forms, changed, and explained."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.undo.job import run as run_undo
from tests.jobs.merge_source.pipe import MemoryPipe, Pipe
from tests.values.catalog import ALL, SIMPLE, Kind
from tests.values.merging import (
    BY_NAME,
    READERS,
    build_payload,
    build_sparse,
    fold_value,
    list_cells,
    list_values,
    require_exact,
    sort_value,
)
from tests.values.neighbours import parse_shown, read_base64, to_plain
from tests.values.outcomes import EXACT, REFUSED, read_outcomes

pytestmark = pytest.mark.spark
OUTCOMES = read_outcomes("merge_source")
ENTITY_KINDS = [kind for kind in ALL if not OUTCOMES.find_outcome(kind.name, "entity").startswith(REFUSED)]
# A type of each family, as the column that orders versions.
UNORDERED = [kind for kind in ALL if OUTCOMES.find_outcome(kind.name, "sequence").startswith(REFUSED)]


# The entity that has a value of every type, which is among the examples of a plan.
WHOLE = "!"


def build_whole(payload: pa.Table) -> pa.Table:
    """Return entities that have a property of each type."""
    ids = [f"{number:02}" for number in range(payload.num_rows)]
    return payload.add_column(0, "_id", pa.array(ids, pa.string()))


@dataclass(frozen=True)
class Merged:
    """The payload, its entities by type, and what readers see of its columns."""

    payload: pa.Table
    entities: dict[str, list[Any]]
    columns: dict[str, pa.Table]


@pytest.fixture(scope="module")
def merged(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Merged:
    """Return the values of all types, merged into entities and into columns."""
    payload, folder = build_payload(), tmp_path_factory.mktemp("merged")
    names = ["_id", *(kind.name for kind in ENTITY_KINDS)]
    entities = MemoryPipe(spark, folder, datasets=["A a"])
    entities.write_rows("A", build_whole(payload).select(names))
    entities.run_job()
    texts = [
        f"variant_get(entity, '$.{kind.name}', '{_name_type(kind)}') AS `{kind.name}`"
        for kind in ENTITY_KINDS
    ]
    rows = entities.target_rows().orderBy("_id").selectExpr(*texts).toArrow()
    columns = Pipe(spark, folder, datasets=["B b"], values="columns")
    columns.write_rows("B", build_whole(payload))
    columns.run_job()
    read = {name: read_table(columns.target) for name, read_table in READERS.items()}
    return Merged(payload, {name: rows[name].to_pylist() for name in rows.column_names}, read)


def _name_type(kind: Kind) -> str:
    """Return the type of a property in an entity, where the keys of maps are texts."""
    return re.sub(r"map<(decimal\(\d+,\d+\)|\w+)", "map<string", kind.spark)


def _name_keys(value: Any) -> Any:
    """Return a value whose maps have texts as keys, as Spark writes them."""
    if isinstance(value, list):
        return [_name_keys(item) for item in value]
    if isinstance(value, tuple):
        key = value[0]
        if isinstance(key, datetime):
            text = key.isoformat(" ").removesuffix("+00:00")
            return text.rstrip("0") if "." in text else text, value[1]
        return f"{key:f}" if isinstance(key, Decimal) else str(key), value[1]
    return value


@pytest.mark.parametrize(("name", "use"), list_cells(OUTCOMES, ALL, "entity", "columns", "read back"))
def test_values_are_merged_as_they_are(merged: Merged, name: str, use: str) -> None:
    """An output of one member has its values, in an entity and in a column that other libraries read."""
    kind, outcome = BY_NAME[name], OUTCOMES.find_outcome(name, use)
    values = merged.payload[name].to_pylist()
    if use == "entity":
        assert outcome in {EXACT, "keys as text"}
        expected = values if outcome == EXACT else [_name_keys(value) for value in values]
        assert [fold_value(value) for value in merged.entities[name]] == list(map(fold_value, expected))
        return
    require_exact(OUTCOMES, name, use)
    is_list = name.startswith("array_")
    arrow = kind.arrow if is_list else pa.list_(kind.arrow)
    shown = [fold_value(value if is_list or value is None else [value]) for value in values]
    readers = ["delta-rs"] if use == "columns" else list(READERS)
    actual = {reader: list_values(merged.columns[reader], name, arrow, "_id") for reader in readers}
    assert actual == dict.fromkeys(readers, shown)


@pytest.mark.parametrize(("name", "use"), list_cells(OUTCOMES, ALL, "entity", refused=True))
def test_types_that_an_entity_lacks_are_refused(
    spark: SparkSession, tmp_path: Path, name: str, use: str
) -> None:
    """A map whose keys have no texts is refused with the column and the type."""
    kind = BY_NAME[name]
    pipe = MemoryPipe(spark, tmp_path, datasets=["A a"])
    pipe.write_rows("A", build_sparse([("a", kind, kind.values[0])]))
    with pytest.raises(DataError, match=OUTCOMES.find_outcome(name, use).removeprefix(REFUSED)) as error:
        pipe.run_job()
    assert f"column '{name}' contains MAP<BINARY" in str(error.value)


def list_changes() -> Iterator[tuple[Kind, Any, Any]]:
    """Yield a value of each type, and its neighbour."""
    for kind in ALL:
        first, second = kind.values[-2:] if kind.name.startswith("map_") else kind.values[:2]
        yield kind, first, second


@dataclass(frozen=True)
class Changed:
    """The entities that a change wrote, and the reports of the runs."""

    updated: set[str]
    reports: list[dict[str, Any]]


@pytest.fixture(scope="module", params=["entity", "columns"])
def changed(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Changed:
    """Return what a run writes if one value of each entity changes to its neighbour."""
    changes = [case for case in list_changes() if request.param == "columns" or case[0] in ENTITY_KINDS]
    pipe = MemoryPipe(spark, tmp_path_factory.mktemp("changed"), datasets=["A a"], values=request.param)
    reports = []
    for at in (1, 2, 2):
        pipe.write_rows(
            "A", build_sparse([(case[0].name, case[0], case[at]) for case in changes]), "overwrite"
        )
        reports.append(pipe.run_job())
    written = pipe.target_rows().where(f"_updated >= {len(changes)}").selectExpr("`$ids`[0] AS id").toArrow()
    return Changed(set(written["id"].to_pylist()), reports)


@pytest.mark.parametrize(("name", "use"), list_cells(OUTCOMES, ALL, "change"))
def test_a_change_to_the_neighbour_is_seen(changed: Changed, name: str, use: str) -> None:
    """The smallest change is one changed output, and the same value again is none."""
    require_exact(OUTCOMES, name, use)
    count = changed.reports[0]["rows"]["inserted"]
    assert changed.reports[1]["rows"] == {"inserted": 0, "updated": count, "deleted": 0, "unchanged": 0}
    assert changed.reports[2]["changed"] is False
    assert name in changed.updated or (len(changed.updated) == count == len(ENTITY_KINDS))


ORDERED = [*SIMPLE, BY_NAME["array_timestamp"], BY_NAME["struct_decimal_38_18"]]


@pytest.fixture(scope="module")
def versions(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Return the version that was taken of an entity of each type of sequence."""
    datasets = [f"{kind.name} d{at}" for at, kind in enumerate(ORDERED)]
    pipe = MemoryPipe(spark, tmp_path_factory.mktemp("versions"), datasets=datasets, sequence_column="at")
    for kind in ORDERED:
        values = list(reversed(kind.values))
        columns = {"_id": [kind.name] * len(values), "n": pa.array(range(len(values)), pa.int64())}
        pipe.write_rows(kind.name, pa.table(columns | {"at": pa.array(values, kind.arrow)}))
    pipe.run_job()
    texts = ("`$ids`[0] AS id", "variant_get(entity, '$.n', 'bigint') AS n")
    return dict(map(tuple, pipe.target_rows().selectExpr(*texts).collect()))


@pytest.mark.parametrize(("name", "use"), [(kind.name, "sequence") for kind in ORDERED])
def test_the_newest_version_has_the_largest_sequence(versions: dict[str, int], name: str, use: str) -> None:
    """Of neighbours, the larger one is the newer version."""
    require_exact(OUTCOMES, name, use)
    values = list(reversed(BY_NAME[name].values))
    if name in {"array_timestamp", "struct_decimal_38_18"}:
        # NULL is smaller than any value in them.
        newest = max(range(len(values)), key=lambda at: repr_order(values[at]))
    else:
        newest = max(range(len(values)), key=lambda at: sort_value(values[at]))
    assert versions[name] == newest


def repr_order(value: Any) -> list[tuple[bool, Any]]:
    """Return a key that sorts lists and records: NULL comes first."""
    items = value.values() if isinstance(value, Mapping) else value
    return [(item is not None, item) if item is not None else (False, 0) for item in items]


@pytest.mark.parametrize(("name", "use"), [(kind.name, "sequence") for kind in UNORDERED])
def test_a_sequence_without_order_is_refused(
    spark: SparkSession, tmp_path: Path, name: str, use: str
) -> None:
    """A column whose type has no order cannot order versions: the error has the column and the type."""
    kind = BY_NAME[name]
    pipe = MemoryPipe(spark, tmp_path, datasets=["A a"], sequence_column="at", values="columns")
    pipe.write_rows("A", pa.table({"_id": ["a"], "at": pa.array([kind.values[0]], kind.arrow)}))
    with pytest.raises(DataError, match=r"column 'at' is .*MAP<.*, which has no order") as refused:
        pipe.run_job()
    assert OUTCOMES.find_outcome(name, use).removeprefix(REFUSED) in str(refused.value)


@dataclass(frozen=True)
class Planned:
    """The examples of a plan, and the columns after an undo of the run that followed."""

    examples: list[dict[str, Any]]
    undone: pa.Table
    changes: dict[str, tuple[Any, Any]]


@pytest.fixture(scope="module")
def planned(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Planned:
    """Return the plan of a change of a value of each type, and what an undo of it leaves."""
    changes = list(list_changes())
    pipe = Pipe(spark, tmp_path_factory.mktemp("planned"), datasets=["A a"], values="columns")
    for step in (1, 2):
        sparse = build_sparse([(case[0].name, case[0], case[step]) for case in changes])
        one_of_each = {case[0].name: pa.array([case[step]], case[0].arrow) for case in changes}
        rows = pa.table({"_id": [WHOLE], **one_of_each}).select(sparse.column_names)
        pipe.write_rows("A", pa.concat_tables([rows, sparse]), "overwrite")
        if step == 1:
            pipe.run_job()
    plan = pipe.run_job(until="transform")["plan"]
    assert plan["kinds"]["updated"] == len(changes) + 1
    pipe.run_job()
    run = RunToken(dag_id="tests", run_id="undo", task_id="undo")
    config = {"target": str(pipe.target)}
    run_undo(spark, JobRequest(job="undo", config=config, run=run, started_at=99), Progress(out=str))
    undone = READERS["delta-rs"](pipe.target)
    return Planned(plan["examples"], undone, {kind.name: (first, second) for kind, first, second in changes})


@pytest.mark.long
@pytest.mark.parametrize(("name", "use"), list_cells(OUTCOMES, ALL, "plan", "report", "undo"))
def test_plans_and_undos_have_the_values(planned: Planned, name: str, use: str) -> None:
    """A plan counts the change of each type and shows it, and an undo gives the value back."""
    require_exact(OUTCOMES, name, use)
    is_list, arrow = name.startswith("array_"), BY_NAME[name].arrow
    arrow = arrow if is_list else pa.list_(arrow)
    values = [value if is_list else [value] for value in planned.changes[name]]
    if use == "undo":
        rows = planned.undone.select(["$ids", name]).to_pylist()
        (value,) = (row[name] for row in rows if row["$ids"] == [name])
        assert fold_value(value) == fold_value(pa.array(values, arrow)[0].as_py())
        return
    if use == "report":
        (example,) = (one for one in planned.examples if one["after"]["$ids"] == [WHOLE])
        shown = [parse_shown(example[side][name], arrow, read_base64) for side in ("before", "after")]
        assert repr(shown) == repr([to_plain(value, arrow) for value in values])
        return
    for example in planned.examples:
        if example["after"]["$ids"] == [name]:
            assert example["before"].get(name) != example["after"].get(name)
