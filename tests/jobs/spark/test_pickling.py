"""Test that functions are pickled once, and that workers need not have this package."""

from __future__ import annotations

import subprocess
import sys

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, udf
from pyspark.sql.types import IntegerType

from airflow_merge_provider.core import errors
from airflow_merge_provider.jobs.spark.pickling import pickle_once


class Witness:
    """Counts how often it is pickled."""

    def __init__(self) -> None:
        self.times = 0

    def __reduce__(self) -> tuple[type, tuple[int]]:
        self.times += 1
        return int, (self.times,)


def test_a_function_is_pickled_once(spark: SparkSession) -> None:
    """Plans that are sent for their columns and for their rows have the function as it was pickled first."""
    witness = Witness()
    count = pickle_once(lambda number: number + int(witness if isinstance(witness, int) else 0))

    frame = spark.range(3).select(udf(count, IntegerType(), useArrow=True)("id").alias("n"))
    frame = frame.select("*", (col("n") + 1).alias("m"))

    assert frame.columns == ["n", "m"]
    assert sorted(row.n for row in frame.collect()) == [1, 2, 3]
    assert witness.times == 1


def test_a_worker_without_this_package_can_call_it() -> None:
    """Functions of the given modules are sent with the function."""
    function = pickle_once(lambda number: errors.format_count(number, "row"), errors)
    code = (
        "import pickle, sys\n"
        "sys.modules['airflow_merge_provider'] = None\n"
        "print(pickle.loads(sys.stdin.buffer.read())(2))"
    )

    sent = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]

    process = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True, check=False)

    assert (process.stdout.decode().strip(), process.stderr.decode()) == ("2 rows", "")
    assert function(1) == "1 row"
