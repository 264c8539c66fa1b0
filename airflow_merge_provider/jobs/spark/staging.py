"""Pass tables in the driver's memory to Spark: as a file if Spark is local, which is much faster."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.utils import is_remote

from airflow_merge_provider.core.child_process import make_work_folder
from airflow_merge_provider.jobs.spark.session import is_local
from airflow_merge_provider.jobs.spark.sql import quote_name

_TYPES = {pa.int64(): "bigint", pa.string(): "string", pa.bool_(): "boolean"}


@contextmanager
def stage_table(spark: SparkSession, rows: pa.Table) -> Iterator[DataFrame]:
    """Yield rows as a DataFrame that can be read inside the block."""
    if not is_local(spark):
        yield create_dataframe(spark, rows)
        return
    with make_work_folder() as folder:
        file = folder / "rows.parquet"
        pq.write_table(rows, file, compression="none", use_dictionary=False)
        yield spark.read.schema(_format_schema(rows)).parquet(file.as_uri())


def create_dataframe(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Return an Arrow table as a DataFrame; Spark Connect does not infer the schema of an empty one."""
    if rows.num_rows:
        return spark.createDataFrame(rows)
    return spark.createDataFrame([], from_arrow_schema(rows.schema))


def shorten_plan(rows: DataFrame, stack: ExitStack) -> DataFrame:
    """Return rows with a plan of one step, which is valid as long as ``stack`` is open.

    Spark Connect sends the whole plan with every request and limits how deep it nests. Observed metrics of
    the plan have to be read before.
    """
    if not is_remote():
        return rows
    view = f"merge_{uuid.uuid4().hex}"
    rows.createOrReplaceTempView(view)
    stack.callback(rows.sparkSession.catalog.dropTempView, view)
    return rows.sparkSession.table(view)


def _format_schema(rows: pa.Table) -> str:
    return ", ".join(f"{quote_name(field.name)} {_TYPES[field.type]}" for field in rows.schema)
