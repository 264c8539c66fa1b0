"""Test random joins of up to four inputs on Spark against the definition: rows as bags, and the indicator.

``MERGE_RANDOM_RUNS=300 MERGE_RANDOM_SEED=1`` runs other and more joins.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from threading import local
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.joiner.config import JoinerConfig
from airflow_merge_provider.core.joiner.plan import plan_join
from airflow_merge_provider.jobs.joiner.target import read_schema
from airflow_merge_provider.jobs.joiner.transform import find_unmatched, join_frames
from airflow_merge_provider.jobs.spark.staging import create_dataframe
from tests.conformance.lean import lean_session
from tests.conformance.oracles import joiner as oracle
from tests.long import all_long_but
from tests.random_seeds import list_seeds

SEEDS = list_seeds(50)

NAMES = ("k", "K", "key two", "a.b", "ключ", "select")
# Few values, so that keys match; similar values of one type that differ.
KINDS: tuple[tuple[pa.DataType, tuple[Any, ...]], ...] = (
    (pa.int32(), (0, 1, 2)),
    (pa.string(), ("", "a", "A", "a ")),
    (pa.float64(), (0.1, 1.0, 2.5)),
    (pa.bool_(), (True, False)),
    (pa.decimal128(5, 2), (Decimal("1.50"), Decimal("0.00"))),
    (pa.binary(), (b"", b"\x00", b"a")),
)


class Workload:
    """Inputs, a configuration, and the same in the terms of the definition."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)  # noqa: S311 - a workload, no secret
        self.stages = [f"s {number}" if draw.random() < 0.2 else f"s{number}" for number in range(4)]
        self.stages = self.stages[: draw.choice((2, 2, 3, 3, 4))]
        self.kinds = [draw.choice(KINDS) for _ in range(draw.choice((1, 1, 2)))]
        names = {stage: draw.sample(NAMES, len(self.kinds)) for stage in self.stages}
        self.keys = names
        self.required = {stage for stage in self.stages if draw.random() < 0.45}
        self.nulls_match = draw.random() < 0.5
        self.nullable = {stage: draw.random() < 0.6 for stage in self.stages}
        self.rows = {stage: self._draw_rows(draw, stage) for stage in self.stages}
        columns = [(stage, field) for stage in self.stages for field in (*names[stage], "value")]
        self.columns = draw.sample(columns, draw.randint(1, len(columns)))
        self.with_unmatched = bool(self.required) and draw.random() < 0.4
        self.config = self._draw_config(draw)

    def build_frames(self, spark: SparkSession) -> dict[str, DataFrame]:
        frames = {}
        for stage in self.stages:
            nullable = self.nullable[stage]
            keys = [
                pa.field(name, kind, nullable)
                for name, (kind, _) in zip(self.keys[stage], self.kinds, strict=True)
            ]
            schema = pa.schema([*keys, pa.field("value", pa.string(), nullable=False)])
            content = pa.Table.from_pylist(self.rows[stage], schema)
            frames[stage] = create_dataframe(spark, content)
        return frames

    def join_expected(self) -> tuple[Counter[Any], Counter[Any] | None]:
        """Return the expected rows of the target, and the expected unmatched rows."""
        rows = oracle.join_inputs(
            self.rows, self.keys, self.required, self.columns, nulls_match=self.nulls_match
        )
        lost = oracle.list_left_out(self.rows, self.keys, self.required, nulls_match=self.nulls_match)
        unmatched = Counter((stage, row["value"]) for stage, row in lost) if self.with_unmatched else None
        return Counter(rows), unmatched

    def _draw_rows(self, draw: random.Random, stage: str) -> list[dict[str, Any]]:
        kinds = dict(zip(self.keys[stage], self.kinds, strict=True))

        def draw_value(values: tuple[Any, ...]) -> Any:
            return None if self.nullable[stage] and draw.random() < 0.25 else draw.choice(values)

        count = draw.choice((0, 1, 3, 5))
        return [
            {
                **{name: draw_value(values) for name, (_, values) in kinds.items()},
                "value": f"{stage}{draw.randint(0, count)}",
            }
            for _ in range(count)
        ]

    def _draw_config(self, draw: random.Random) -> dict[str, Any]:
        clauses = [
            {stage: self.keys[stage][position] for stage in draw.sample(self.stages, len(self.stages))}
            for position in range(len(self.kinds))
        ]
        config: dict[str, Any] = {
            "inputs": {stage: f"t{position}" for position, stage in enumerate(self.stages)},
            "join_keys": clauses,
            "required_inputs": draw.sample(sorted(self.required), len(self.required)),
            "join_null_keys": self.nulls_match,
            "selected_fields": [
                {"input": stage, "field": field, "as": f"c{position}"}
                for position, (stage, field) in enumerate(self.columns)
            ],
            "indicator": "there",
            "key_columns": [f"key{position}" for position in range(len(self.kinds))],
        }
        if len(self.stages) == 2 and self.required and draw.random() < 0.4:
            skewed = draw.choice(sorted(self.required))
            factor = draw.randint(1, 4)
            config |= {"distribution_enabled": True, "distribution_factor": factor}
            config["distribution_stage_name"] = skewed
        elif draw.random() < 0.4:
            config["in_memory_inputs"] = draw.sample(self.stages, draw.randint(1, len(self.stages)))
        return config


def run_join(spark: SparkSession, seed: int) -> tuple[Counter[Any], Counter[Any] | None]:
    """Run the join on Spark, in half of the cases without broadcasts of Spark's own choice."""
    work = Workload(seed)
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1" if seed % 2 else "10MB")
    frames = work.build_frames(spark)
    schemas = {stage: read_schema(frame) for stage, frame in frames.items()}
    planned = plan_join(JoinerConfig.parse(work.config, schemas), schemas)
    rows = join_frames(frames, planned).toArrow()
    columns = [column.to_pylist() for column in rows.columns]
    row_counts = Counter((*row[:-1], tuple(row[-1])) for row in zip(*columns, strict=True))
    if not work.with_unmatched:
        return row_counts, None
    lost = find_unmatched(frames, planned).collect()
    return row_counts, Counter((row["input"], json.loads(row["row"])["value"]) for row in lost)


@pytest.fixture(scope="module")
def results(spark: SparkSession) -> Callable[[range], dict[int, Any]]:
    """Run joins two at a time, each thread in a session of its own."""
    mine = local()

    def run_seed(seed: int) -> Any:
        if not hasattr(mine, "session"):
            mine.session = lean_session(spark)
            mine.session.conf.set("spark.sql.caseSensitive", "true")
        try:
            return run_join(mine.session, seed)
        except Exception as error:  # noqa: BLE001 - one join must not end the others
            return error

    def all_of(seeds: range) -> dict[int, Any]:
        with ThreadPoolExecutor(max_workers=2) as pool:
            return dict(zip(seeds, pool.map(run_seed, seeds), strict=True))

    return all_of


BATCHES = [range(first, min(first + 10, SEEDS.stop)) for first in range(SEEDS.start, SEEDS.stop, 10)]


@pytest.mark.parametrize(
    "seeds", all_long_but(BATCHES, *BATCHES[:2]), ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}"
)
def test_random_joins_are_what_the_definition_says(
    seeds: range, results: Callable[[range], dict[int, Any]]
) -> None:
    """Random joins have the rows of the definition, with any requirements, hints, salting and nulls."""
    results_by_seed = results(seeds)

    wrong = {
        seed: Workload(seed).config
        for seed in seeds
        if results_by_seed[seed] != Workload(seed).join_expected()
    }
    assert wrong == {}, [results_by_seed[seed] for seed in wrong]
