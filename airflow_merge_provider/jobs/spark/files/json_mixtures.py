"""Fields of JSON records that have values of several types, of which Spark makes texts in silence.

Source: docs/values.md, Types of text files.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from pyspark.sql import DataFrame, functions as F
from pyspark.sql.types import ArrayType, DataType, StructType, VariantType

from airflow_merge_provider.core.dataset import parse_hadoop_path
from airflow_merge_provider.jobs.spark.files.file_problem import FileProblem

# What the types of a VARIANT are in JSON, by how their names begin.
_WORDS = {"STRING": "a text", "BOOLEAN": "a boolean", "ARRAY": "a list", "OBJECT": "a record"}
_NUMBER = "a number"
_HINT = "write values of one type, or set the option primitivesAsString to true, which makes texts of all"


def find_mixed_field(ddl: str) -> tuple[str, ...] | None:
    """Return the names that lead to a field of several types, in a type that was inferred from a VARIANT.

    The last one is the field, or the list that contains it.
    """
    if "VARIANT" not in re.sub("`[^`]*`", "", ddl):
        return None
    kind = StructType.fromDDL(f"record {ddl.replace('OBJECT<', 'STRUCT<')}")
    return _find_variant(kind.fields[0].dataType, ()) if isinstance(kind, StructType) else None


def _find_variant(kind: DataType, names: tuple[str, ...]) -> tuple[str, ...] | None:
    if isinstance(kind, VariantType):
        return names
    if isinstance(kind, ArrayType):
        return None if _find_variant(kind.elementType, ()) is None else names
    if not isinstance(kind, StructType):
        return None
    paths = (_find_variant(field.dataType, (*names, field.name)) for field in kind.fields)
    return next((path for path in paths if path is not None), None)


def describe_mixture(records: DataFrame, names: tuple[str, ...]) -> FileProblem:
    """Return the problem of a field of several types, with a file of each of two types.

    :param records: the columns ``path``, and ``record`` as a VARIANT.
    """
    path = "$" + "".join(f"['{name}']" for name in names)
    kind = F.schema_of_variant(F.try_variant_get("record", path, "variant"))
    word = F.lit(_NUMBER)
    for beginning, text in _WORDS.items():
        word = F.when(kind.startswith(beginning), F.lit(text)).otherwise(word)
    kinds = records.select("path", F.when(kind != "VOID", word).alias("word"))
    rows = kinds.where("word IS NOT NULL").groupBy("word").agg(F.min("path").alias("path")).sort("word")
    places = [f"{row.word} in {parse_hadoop_path(unquote(row.path))}" for row in rows.collect()]
    name = ".".join(names)
    if len(places) == 1:
        return FileProblem(f"field {name!r} is {places[0]}, with items of several types", _HINT)
    return FileProblem(f"field {name!r} is {places[0]}, but {places[1]}", _HINT)
