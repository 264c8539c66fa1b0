"""Test that the pickled fold has all that Spark's workers need, so that they need no copy of the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
from pyspark import cloudpickle

from airflow_merge_provider.core.merge_engine.checks import plan_fold
from airflow_merge_provider.core.merge_engine.columns import Column
from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.jobs.merge_engine import python_fold

WORKER = """
import pickle, sys
import pyarrow as pa
sys.modules["airflow_merge_provider"] = None
walk = pickle.load(open(sys.argv[1], "rb"))
values = pa.struct([("v", pa.string())])
flags = [("adds", pa.bool_()), ("deletes", pa.bool_()), ("stored", pa.bool_())]
records = pa.list_(pa.struct([("at", pa.int32()), *flags, ("values", values)]))
record = lambda at, v: {"at": at, "adds": True, "deletes": False, "stored": False, "values": {"v": v}}
history = pa.array([[record(2, "b"), record(1, "a")]], records)
batch = pa.RecordBatch.from_pydict({"k": pa.array([1]), "#history": history})
print(next(walk(iter([batch]))).to_pylist()[0]["v"])
"""


def test_the_fold_works_where_the_package_is_not(tmp_path: Path) -> None:
    """A worker that cannot import the package folds with what the driver has sent."""
    options = {"fields.v.aggregate-function": "listagg"}
    config = MergeEngineConfig.parse(
        {"primary_key": ["k"], "merge_engine": "aggregation", "options": options}
    )
    plan = plan_fold(config, [Column("k", "long"), Column("v", "string")])
    sent = tmp_path / "walk.pickle"
    sent.write_bytes(cloudpickle.dumps(python_fold._build_folder(plan)))  # type: ignore[no-untyped-call]

    worker = subprocess.run([sys.executable, "-c", WORKER, sent], capture_output=True, text=True, check=False)

    assert (worker.stdout, worker.stderr) == ("a,b\n", "")


def test_times_that_python_lacks_are_folded() -> None:
    """Dates and times outside of the years 1 to 9999 are ordered, compared and returned as they are."""
    options = {
        "fields.last.aggregate-function": "listagg",
        "fields.days.aggregate-function": "collect",
        "fields.days.distinct": "true",
        "fields.times.aggregate-function": "merge_map",
    }
    config = MergeEngineConfig.parse(
        {"primary_key": ["k"], "merge_engine": "aggregation", "options": options}
    )
    list_type = {"type": "array", "elementType": "date", "containsNull": True}
    map_type = {"type": "map", "keyType": "timestamp", "valueType": "date", "valueContainsNull": True}
    columns = [Column("k", "long"), Column("last", "string"), Column("days", list_type)]
    plan = plan_fold(config, [*columns, Column("times", map_type)])
    days, moments = pa.list_(pa.date32()), pa.map_(pa.timestamp("us", "UTC"), pa.date32())
    far_day, far_time = 3_672_485, 317_284_084_800_000_000
    numbers = pa.struct(
        [("last", pa.string()), ("days", pa.list_(pa.int32())), ("times", pa.map_(pa.int64(), pa.int32()))]
    )
    values = [
        {"last": "a", "days": [far_day], "times": [(far_time, far_day), (-far_time, None)]},
        {"last": "b", "days": [far_day, -far_day], "times": [(far_time, 0)]},
    ]
    flags = {"adds": [True] * 2, "deletes": [False] * 2, "stored": [False] * 2}
    kinds = pa.struct([("last", pa.string()), ("days", days), ("times", moments)])
    records = pa.StructArray.from_arrays(
        [pa.array([1, 2]), *map(pa.array, flags.values()), pa.array(values, numbers).cast(kinds)],
        names=["at", *flags, "values"],
    )
    history = pa.ListArray.from_arrays([0, 2], records)
    batch = pa.RecordBatch.from_pydict({"k": pa.array([1]), "#history": history})

    (folded,) = python_fold._build_folder(plan)(iter([batch]))

    assert folded["days"].cast(pa.list_(pa.int32())).to_pylist() == [[far_day, -far_day]]
    assert folded["times"].cast(numbers.field("times").type).to_pylist() == [
        [(far_time, 0), (-far_time, None)]
    ]
    assert (folded["days"].type, folded["times"].type) == (days, moments)
