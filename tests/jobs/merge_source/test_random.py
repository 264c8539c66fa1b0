"""Test random first and incremental runs on Spark against the slow oracle: exact rows in order.

``MERGE_RANDOM_RUNS=100 MERGE_RANDOM_SEED=1`` runs other and more workloads.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import MergeError
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.jobs.merge_source import resolution
from tests.conformance.oracles import merge_source as oracle
from tests.conformance.outcomes import Outcomes, run_selected
from tests.conformance.test_merge_source import to_comparable
from tests.jobs.merge_source.pipe import JSON, FeedPipe, MemoryPipe
from tests.long import all_long_but
from tests.random_seeds import list_seeds

SEEDS = list_seeds(8)

STEPS = 3
ALIASES = "abcd"
# Few values, so that they match, and similar values: of other types, other case, transit-coded.
SCALARS = (
    *(1, 2, 1.0, 2.5, 0, -1, "1", "x", "X", "y", "", "æ", "~:n:1", "~f1.00", "~zfoo", "~t2020-01-01"),
    *(True, False, None),
)
FIELD = pa.struct({"k": pa.int64(), "l": pa.string()})
TYPED: tuple[tuple[pa.DataType, tuple[Any, ...]], ...] = (
    (pa.string(), ("1", "x", "X", "y", "~:n:1", "~f1.00")),
    (pa.string(), ("x", "X", "y", "")),
    (pa.int64(), (0, 1, 2)),
    (pa.float64(), (0.1, 1.0, 2.5)),
    (pa.float32(), (Decimal("0.1"), Decimal(1), Decimal("2.5"))),
    (pa.decimal128(10, 2), (Decimal("0.10"), Decimal("1.00"), Decimal("2.50"))),
    (pa.bool_(), (True, False)),
    (pa.date32(), (dt.date(2020, 1, 1), dt.date(2020, 1, 2))),
    (pa.list_(pa.string()), (["x", "y"], ["y"], [], ["x", None], ["~:n:1"])),
    (pa.list_(pa.int64()), ([1, 2], [2], [], [1, None])),
    (FIELD, ({"k": 1}, {"k": 1, "l": "x"}, {"l": "X"}, {})),
)


class Workload:
    """A configuration and its inputs, all drawn from one seed."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)  # noqa: S311 - a workload, no secret
        draw = self.draw
        self.typed = draw.random() < 0.5
        self.aliases = ALIASES[: draw.randint(2, 4)]
        self.shared_ids = draw.random() < 0.25
        self.scalars = [*draw.sample(SCALARS, draw.choice((3, 5, 8))), None]
        self.inputs: dict[str, list[dict[str, Any]]] = {}
        self.tables: dict[str, pa.Table] = {}
        for alias in self.aliases:
            if self.typed:
                self._draw_table(alias)
            else:
                self.inputs[alias.upper()] = [
                    {"_id": id_, **self._draw_entity()} for id_ in self._draw_ids(alias)
                ]
        self.config = self._draw_config()
        if seed % 3 == 0:
            self.config["change_detection"] = "change_feed"

    def change_inputs(self) -> dict[str, Any]:
        """Change some inputs, and return what is written for it: new versions, or a whole typed table."""
        return dict(map(self._retype_dataset if self.typed else self._rewrite_dataset, self._draw_datasets()))

    def _draw_datasets(self) -> list[str]:
        names = sorted(self.inputs)
        return self.draw.sample(names, self.draw.randint(1, len(names)))

    def _rewrite_dataset(self, dataset: str) -> tuple[str, list[dict[str, Any]]]:
        draw = self.draw
        existing_ids = sorted({entity["_id"] for entity in self.inputs[dataset]})
        prefix = "i" if self.shared_ids else dataset.lower()
        ids = [
            *draw.sample(existing_ids, min(len(existing_ids), draw.randint(0, 2))),
            f"{prefix}{draw.randint(0, 14)}",
        ]
        versions = [{"_id": id_, **self._draw_entity()} for id_ in ids]
        self.inputs[dataset] = [*self.inputs[dataset], *versions]
        return dataset, versions

    def _retype_dataset(self, dataset: str) -> tuple[str, pa.Table]:
        """Swap the values of two rows in one column, and delete one row."""
        draw, table, entities = self.draw, self.tables[dataset], self.inputs[dataset]
        if len(entities) > 1:
            name = draw.choice(("x", "y", "_deleted"))
            positions = list(range(len(entities)))
            first, second = draw.sample(positions, 2)
            positions[first], positions[second] = second, first
            table = table.set_column(table.column_names.index(name), name, table.column(name).take(positions))
            moved = [dict(entity) for entity in entities]
            for entity, position in zip(moved, positions, strict=True):
                entity.pop(name, None)
                entity.update({name: entities[position][name]} if name in entities[position] else {})
            entities = moved
        keep_flags = [draw.random() > 0.1 for _ in entities]
        self.tables[dataset] = table.filter(pa.array(keep_flags, pa.bool_()))
        self.inputs[dataset] = [entity for entity, keep in zip(entities, keep_flags, strict=True) if keep]
        return dataset, self.tables[dataset]

    def _draw_config(self) -> dict[str, Any]:
        draw = self.draw
        config: dict[str, Any] = {
            "version": draw.choice((1, 2, 2, 2)),
            "datasets": [f"{alias.upper()} {alias}" for alias in self.aliases],
            "identity": draw.choice(("composite", "composite", "first")),
            "strategy": draw.choice(("default", "compact", "list")),
            "equality": [self._draw_rule() for _ in range(draw.choice((0, 1, 2, 2, 3, 4)))],
        }
        if draw.random() < 0.3:
            config["equality_sets"] = [[self._draw_side() for _ in range(draw.randint(1, 4))]]
            config["equality_sets_mode"] = draw.choice(("neighbours", "all_pairs"))
        if config["strategy"] == "list":
            config["include_internal_properties"] = draw.random() < 0.3 and not self.typed
        if config["version"] == 2 and draw.random() < 0.1:
            config["max_merged"] = draw.randint(2, 4)
        return config

    def _draw_rule(self) -> list[Any]:
        draw = self.draw
        if draw.random() < 0.4:
            return ["eq", self._draw_side(), self._draw_side()]
        left, right = draw.choice(self.aliases), draw.choice(self.aliases)
        left_name, right_name = draw.choice(
            (("x", "x"), ("y", "y"), ("x", "y"), ("n.k", "n.k"), ("_id", "_id"))
        )
        return ["eq", f"{left}.{left_name}", f"{right}.{right_name}"]

    def _draw_side(self) -> Any:
        draw, alias = self.draw, self.draw.choice(self.aliases)
        paths = [f"{alias}.{name}" for name in ("x", "x", "y", "z", "n.k", "n.l", "_id")]
        path, other_path = draw.choice(paths), draw.choice(paths)
        calls = (
            ["lower", path],
            ["upper", path],
            ["tuples", path, other_path],
            ["combine", path, other_path],
            ["first", path],
        )
        return draw.choice(calls) if draw.random() < 0.4 else path

    def _draw_ids(self, alias: str) -> list[str]:
        prefix = "i" if self.shared_ids else alias
        ids = [f"{prefix}{number}" for number in range(self.draw.choice((0, 1, 5, 8, 10, 10)))]
        self.draw.shuffle(ids)
        # Some have an earlier version.
        return [id_ for id_ in ids if self.draw.random() < 0.15] + ids if not self.typed else ids

    def _draw_entity(self) -> dict[str, Any]:
        draw = self.draw
        entity = {name: self._draw_value() for name in ("x", "y", "z") if draw.random() < 0.6}
        if draw.random() < 0.3:
            inner = {name: draw.choice(self.scalars) for name in ("k", "l") if draw.random() < 0.7}
            entity["n"] = draw.choice(
                (inner, [inner, {"k": draw.choice(self.scalars)}, 3], draw.choice(self.scalars))
            )
        for name, chance, values in (
            ("_deleted", 0.15, (True, True, False, "true", 1)),
            ("_filtered", 0.05, (True, False)),
            ("$replaced", 0.1, (True, False)),
            ("$ids", 0.1, (["o1", "o2"], "o1", [], None, ["o2", "o2"])),
            ("_inner", 0.1, (1, "x")),
            ("$other", 0.1, (1, [1])),
        ):
            if draw.random() < chance:
                entity[name] = draw.choice(values)
        return entity

    def _draw_value(self) -> Any:
        draw = self.draw
        if draw.random() < 0.25:
            items = [draw.choice(self.scalars) for _ in range(draw.randint(0, 3))]
            return (
                [*items, draw.choice(([1], {"k": 1}, {"k": 1.0, "l": None}))]
                if draw.random() < 0.3
                else items
            )
        return {"k": draw.choice((1, 1.0, "x"))} if draw.random() < 0.05 else draw.choice(self.scalars)

    def _draw_table(self, alias: str) -> None:
        draw, ids = self.draw, self._draw_ids(alias)
        entities: list[dict[str, Any]] = [{"_id": id_} for id_ in ids]
        columns: dict[str, pa.Array] = {"_id": pa.array(ids, pa.string())}
        for name in ("x", "y", "z", "n"):
            kind, values = (
                (FIELD, TYPED[-1][1]) if name == "n" and draw.random() < 0.8 else draw.choice(TYPED)
            )
            drawn = [draw.choice(values) if draw.random() < 0.7 else None for _ in ids]
            stored_values = [
                float(value) if kind == pa.float32() and value is not None else value for value in drawn
            ]
            columns[name] = pa.array(stored_values, kind)
            for entity, value in zip(entities, drawn, strict=True):
                if value is not None:
                    entity[name] = value
        for name, chance in (("_deleted", 0.2), ("$replaced", 0.1)):
            flags = [draw.random() < chance for _ in ids]
            columns[name] = pa.array(flags, pa.bool_())
            for entity, flag in zip(entities, flags, strict=True):
                entity[name] = flag
        if draw.random() < 0.3:
            id_lists = [draw.choice((None, [], ["o1"], ["o1", "o2"])) for _ in ids]
            columns["$ids"] = pa.array(id_lists, pa.list_(pa.string()))
            for entity, original_ids in zip(entities, id_lists, strict=True):
                if original_ids is not None:
                    entity["$ids"] = original_ids
        self.inputs[alias.upper()] = entities
        self.tables[alias.upper()] = pa.table(columns)


def run_workload(spark: SparkSession, seed: int, folder: Path) -> list[Any]:
    """Run a first load and changes in memory; datasets with change data feeds are on Delta."""
    workload = Workload(seed)
    feeds = workload.config.get("change_detection") == "change_feed"
    pipe = (FeedPipe if feeds else MemoryPipe)(spark, folder, **workload.config)
    initial_inputs: dict[str, Any] = workload.tables if workload.typed else workload.inputs
    results: list[Any] = []
    for step in range(STEPS):
        for dataset, rows in (workload.change_inputs() if step else initial_inputs).items():
            if workload.typed:
                pipe.write_rows(dataset, rows, "overwrite")
            else:
                pipe.write_json(dataset, rows)
        try:
            pipe.run_job(**({} if workload.typed else JSON))
            results.append(pipe.read_new_rows())
        except MergeError as error:
            results.append(error)
    return results


@pytest.fixture(scope="module")
def outcomes(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Outcomes]:
    folder = tmp_path_factory.mktemp("random")

    def run_seed(session: SparkSession, seed: int) -> list[Any]:
        return run_workload(session, seed, folder / str(seed))

    with pytest.MonkeyPatch.context() as patch:
        # Simulates a large target: only affected rows are read.
        patch.setattr(resolution, "_FULL_READ_MAX_ROWS", 0)
        with run_selected(spark, request, {"test_random_runs_are_those_of_the_oracle": run_seed}) as results:
            yield results


@pytest.mark.parametrize("seed", all_long_but(SEEDS, *SEEDS[:1]))
def test_random_runs_are_those_of_the_oracle(seed: int, outcomes: Outcomes) -> None:
    """A first run and two changes write the numbered rows of the oracle in order, or fail as it does."""
    workload = Workload(seed)
    print(f"workload {seed}:", workload.config)
    MergeSourceConfig.parse({**workload.config, "target": "T"})

    results = outcomes["test_random_runs_are_those_of_the_oracle", seed].result()

    history = oracle.History(workload.config)
    for step, result in enumerate(results):
        if step:
            workload.change_inputs()
        refused, expected = "", list[Any]()
        try:
            expected = history.run_once(workload.inputs)
        except oracle.RefusedError as error:
            refused = str(error)
        if refused:
            assert refused in str(result), step
            continue
        assert isinstance(result, list), (step, result)
        assert [to_comparable(entity) for entity in result] == [
            to_comparable(entity) for entity in expected
        ], step
