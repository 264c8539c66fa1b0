"""Problems of files, such as names that Spark takes for one, and the error of a file that cannot be read.

Source: docs/values.md, Files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from airflow_merge_provider.core.change_plan.shown_rows import mask_error
from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.jobs.spark.causes import error_condition, list_causes
from airflow_merge_provider.jobs.spark.session import override_settings

# Settings with which names that differ in case only are different ones.
EXACT_NAMES = {"spark.sql.caseSensitive": "true"}
_REASON_MAX_LENGTH = 500
WRITE_AGAIN = "write the file again, or remove it"


@dataclass(frozen=True, slots=True)
class FileProblem:
    """What is wrong with a file, and what to do about it."""

    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def build_error(self, dataset: Dataset) -> DataError:
        """Return the error of a dataset that has this problem."""
        return DataError.from_problems([Problem(dataset.id, "files", self.message, self.hint)])


def find_equal_names(kind: DataType, path: str = "") -> tuple[str, str] | None:
    """Return the paths of two fields of a record whose names differ in case only, also inside a type."""
    if isinstance(kind, ArrayType):
        return find_equal_names(kind.elementType, f"{path}element.")
    if isinstance(kind, MapType):
        return find_equal_names(kind.valueType, f"{path}value.")
    if not isinstance(kind, StructType):
        return None
    first_names: dict[str, str] = {}
    for name in kind.names:
        first_name = first_names.setdefault(name.casefold(), name)
        if first_name != name:
            return f"{path}{first_name}", f"{path}{name}"
    pairs = (find_equal_names(field.dataType, f"{path}{field.name}.") for field in kind.fields)
    return next((pair for pair in pairs if pair is not None), None)


def describe_repeated_names(
    spark: SparkSession, error: PySparkException, infer: Callable[[], StructType]
) -> FileProblem | None:
    """Return the problem of files in which Spark finds a field twice; None for another error."""
    if not error_condition(error).startswith("COLUMN_ALREADY_EXISTS"):
        return None
    with override_settings(spark, EXACT_NAMES), suppress(PySparkException):
        if pair := find_equal_names(infer()):
            return describe_pair(pair)
    name = (error.getMessageParameters() or {}).get("columnName", "").strip("`")
    return FileProblem(f"a record has the field {name!r} more than once", "give the fields different names")


def describe_pair(pair: tuple[str, str], locations: Iterable[str] = ()) -> FileProblem:
    """Return the problem of two fields that Spark takes for one.

    :param locations: a file that has the one, and a file that has the other one, if they are known.
    """
    suffixes = [f" in {location}" if location else "" for location in (*locations, "", "")]
    fields = " and ".join(f"{path!r}{suffix}" for path, suffix in zip(pair, suffixes, strict=False))
    message = f"records have the fields {fields}, whose names differ in case only"
    return FileProblem(message, "give the fields different names, or one name")


class UnreadableError(Exception):
    """Raised if a file is not valid for its reader; the message contains the reason."""


def describe_damage(part: str, error: Exception) -> str:
    """Return the problem of a file whose content a reader in Python refuses, with its reason, in one line.

    :param part: what cannot be read, such as "its Parquet footer is damaged".
    """
    lines = str(error).strip().splitlines()
    reason = mask_error(lines[0], error)[:_REASON_MAX_LENGTH] if lines else type(error).__name__
    return f"{part}: {reason} ({WRITE_AGAIN})"


def describe_spark_error(error: BaseException) -> str:
    """Return the problem of a file that Spark cannot read, without errors of Spark, which name no remedy."""
    if cause := next((cause for cause in list_causes(error) if cause.problem), None):
        return cause.shown_line.removeprefix(f"[{cause.condition}] ")[:_REASON_MAX_LENGTH]
    return f"Spark cannot read all of it ({WRITE_AGAIN}; the log of the run has the error of Spark)"
