"""Test that the pickled fold has all that Spark's workers need, so that they need no copy of the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
