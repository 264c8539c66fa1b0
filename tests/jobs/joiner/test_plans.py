"""Test plans of joins: each input is read once and shuffled once, however many inputs there are."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.joiner.config import JoinerConfig
from airflow_merge_provider.core.joiner.plan import plan_join
from airflow_merge_provider.core.run.table_log import PinnedDataset
from airflow_merge_provider.jobs.delta.table import pin_dataset, read_dataset
from airflow_merge_provider.jobs.joiner.counting import count_input_records
from airflow_merge_provider.jobs.joiner.job import prepare_join
from airflow_merge_provider.jobs.joiner.target import read_schema
from airflow_merge_provider.jobs.joiner.transform import join_frames
from tests.conformance.lean import lean_session
from tests.jobs.joiner.conftest import MakeLake


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """Return a session that does not choose broadcast joins by itself."""
    session = lean_session(spark)
    session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    session.conf.set("spark.sql.shuffle.partitions", "3")
    return session


def build_frames(session: SparkSession, stages: str, *, nullable: bool) -> dict[str, DataFrame]:
    schema = pa.schema([pa.field("k", pa.int64(), nullable), pa.field("v", pa.string())])
    rows = pa.table({"k": [1, 2, 3], "v": ["x", "y", "z"]}, schema)
    return {stage: session.createDataFrame(rows).repartition(2) for stage in stages}


def read_plan(inputs: dict[str, DataFrame], capsys: pytest.CaptureFixture[str], **more: Any) -> str:
    schemas = {stage: read_schema(frame) for stage, frame in inputs.items()}
    keys = "=".join(f"{stage}.k" for stage in inputs)
    raw = {"inputs": {stage: stage for stage in inputs}, "join_keys": keys, **more}
    join_frames(inputs, plan_join(JoinerConfig.parse(raw, schemas), schemas)).explain()
    return capsys.readouterr().out


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize("required", ["a,b,c,d", "c", "b,d"])
def test_every_input_is_shuffled_once(
    session: SparkSession, capsys: pytest.CaptureFixture[str], required: str, nullable: bool
) -> None:
    """Each input is shuffled once: the result of a step keeps the partitioning by key for the next step.

    This also holds where nulls match.
    """
    plan_text = read_plan(build_frames(session, "abcd", nullable=nullable), capsys, required_inputs=required)

    assert plan_text.count("SortMergeJoin") == 3
    assert plan_text.count("Exchange hashpartitioning") == 4
    assert ("isnull" in plan_text) is nullable


def test_inputs_in_memory_are_not_shuffled(session: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither inputs in memory nor the inputs that they are joined with are shuffled."""
    inputs = build_frames(session, "abc", nullable=True)

    plan_text = read_plan(inputs, capsys, required_inputs="a,b", in_memory_inputs="a,c")

    assert plan_text.count("BroadcastHashJoin") == 2
    assert "Exchange hashpartitioning" not in plan_text


def test_a_table_is_counted_by_its_log(lake: MakeLake, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of a table are counted by its log without opening data files, even with deletion vectors."""
    join = lake()
    table_name = f"delta.`{join.folder}/customers`"
    join.spark.sql(
        f"ALTER TABLE {table_name} SET TBLPROPERTIES (delta.enableDeletionVectors = true)"
    ).collect()
    join.spark.sql(f"DELETE FROM {table_name} WHERE id = 2").collect()
    original_dataset, changed_dataset = (
        PinnedDataset(Dataset("c", path=f"{join.folder}/customers"), version) for version in (0, 2)
    )

    for pinned, rows in ((original_dataset, 3), (changed_dataset, 2)):
        frame = read_dataset(join.spark, pinned)
        frame.groupBy().count().explain()
        assert "FileScan" not in capsys.readouterr().out
        assert count_input_records(join.spark, {"c": frame}, {"c": pinned}) == {"c": rows}


@pytest.mark.parametrize(
    ("customers", "purchases", "plain"),
    [([1, 2], [1, None], True), ([1, None], [1, 2], True), ([1, None], [2, None], False)],
    ids=["left has none", "right has none", "both have one"],
)
def test_keys_without_nulls_are_compared_plainly(
    lake: MakeLake, customers: list[int | None], purchases: list[int | None], plain: bool
) -> None:
    """Null-safe equality, which costs more, is used only if nulls can match according to statistics."""
    join = lake(required_inputs="customers,purchases", selected_fields="customers.id, purchases.customer")
    join.write_rows("customers", pa.table({"id": pa.array(customers, pa.int64())}))
    join.write_rows("purchases", pa.table({"customer": pa.array(purchases, pa.int64())}))
    config = join.build_request("1").config
    datasets = {name: Dataset(name, path=f"{join.folder}/{name}") for name in ("customers", "purchases")}
    pinned = {name: pin_dataset(join.spark, dataset) for name, dataset in datasets.items()}

    prepared_join = prepare_join(join.spark, config, pinned)

    nulls = prepared_join.plan.null_keys
    assert (nulls["customers"][0] and nulls["purchases"][0]) is not plain
    join.run_job()
    both = {value for value in customers if value in purchases}
    assert {row[0] for row in join.read_rows()} == both
