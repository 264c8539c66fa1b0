"""Read datasets of plain files, so that each value comes out or is refused.

Source: docs/values.md, Types of text files.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any
from urllib.parse import unquote

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession, functions as F
from pyspark.sql.types import StringType, StructField, StructType

from airflow_merge_provider.core.dataset import Dataset, escape_pattern, parse_hadoop_path
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.expressions import add_columns
from airflow_merge_provider.jobs.spark.files.containers import (
    CONTAINERS,
    check_values,
    explain_error,
    read_containers,
)
from airflow_merge_provider.jobs.spark.files.file_problem import FileProblem
from airflow_merge_provider.jobs.spark.files.raw_texts import check_texts, find_first_lines
from airflow_merge_provider.jobs.spark.formats import (
    CORRUPT,
    build_reader_options,
    complete_options,
    find_option,
    spark_format,
)
from airflow_merge_provider.jobs.spark.sql import quote_column
from airflow_merge_provider.jobs.spark.text_values import TEXT_FORMATS, TextValues

# What to do about a value that the type does not hold which Spark inferred.
_HINTS = {
    "csv": " (correct it, or leave out the option inferSchema)",
    "json": " (correct it, or set the option prefersDecimal or primitivesAsString to true)",
    "xml": " (correct it, or leave out the option inferSchema)",
}
_SAME_COLUMNS = "give the files the same columns, or read them separately"
_TABLE_HINT = " (correct it, or set another type for it in the table, such as STRING)"
_EXAMPLE_MAX_LENGTH = 100
_BOM = "\ufeff"
# The end of a file's lines, empty if Spark has to find it, and its header.
_Structure = tuple[str, str]


def read_files(spark: SparkSession, dataset: Dataset) -> DataFrame:
    """Return the rows of the files in a folder.

    :raises DataError: if files have different columns or types, or what Spark would change in silence.
    """
    location = escape_pattern(str(dataset.path))
    options = build_reader_options(dataset.format, dataset.options)
    if dataset.format in CONTAINERS:
        return read_containers(spark, dataset, options)
    if dataset.format != "csv":
        # Spark finds the ends of lines in UTF-8 only. Values of JSON have no line breaks.
        line_end = "\n" if dataset.format == "json" and find_option(options, "encoding") else ""
        return _read_part(spark, dataset, _set_line_end(options, line_end), [location])
    structures = _find_structures(spark, dataset, options)
    if len(structures) <= 1:
        line_end = next((line_end for line_end, _ in structures), "")
        return _read_part(spark, dataset, _set_line_end(options, line_end), [location])
    _check_columns(dataset, structures, options)
    parts = [
        _read_part(
            spark, dataset, {**_set_line_end(options, line_end), "basePath": str(dataset.path)}, locations
        )
        for (line_end, _), locations in structures.items()
    ]
    if len({frozenset((field.name, field.dataType) for field in part.schema) for part in parts}) > 1:
        message = "Spark infers different types from files with different headers or line ends"
        raise FileProblem(message, "leave out the option inferSchema").build_error(dataset)
    return reduce(DataFrame.unionByName, parts)


def read_catalog_table(spark: SparkSession, dataset: Dataset) -> DataFrame:
    """Return the rows of a catalog table of files; the texts of its files have to be values of its types."""
    name = sql.quote_table(dataset)
    rows = spark.table(name)
    if dataset.format not in (*TEXT_FORMATS, *CONTAINERS):
        return rows
    table: dict[str, Any] = json.loads(spark.sql(f"DESCRIBE EXTENDED {name} AS JSON").collect()[0][0])
    kind, location = str(table.get("provider", "")).lower(), table.get("location")
    if kind in CONTAINERS and location:
        return check_values(spark, replace(dataset, format=kind), dataset.options, rows)
    if kind not in TEXT_FORMATS or not location:
        return rows
    table_options = {**table.get("storage_properties", {}), **dataset.options}
    options = build_reader_options(kind, table_options)
    values = TextValues(kind, table_options, hint=_TABLE_HINT)
    reader = spark.read.format(kind).options(**_keep_bad_records(options))
    path = parse_hadoop_path(unquote(location))
    check_texts(spark, replace(dataset, format=kind, path=path), options)
    return _read_texts(reader, [escape_pattern(path)], rows.schema, values, options, dataset)


def _read_part(
    spark: SparkSession, dataset: Dataset, options: Mapping[str, str], locations: Sequence[str]
) -> DataFrame:
    """Return the rows of text files that are read in one way."""
    reader = spark.read.format(spark_format(spark, dataset.format)).options(**_keep_bad_records(options))
    if dataset.format in ("xml", "text"):
        check_texts(spark, dataset, options)
    try:
        schema = reader.load([*locations]).schema
    except PySparkException as error:
        if (problem := explain_error(error)) is None:
            raise
        raise problem.build_error(dataset) from error
    if dataset.format == "json":
        check_texts(spark, dataset, options, schema)
    if dataset.format not in TEXT_FORMATS:
        return reader.load([*locations])
    values = TextValues(dataset.format, dataset.options, is_inferred=True, hint=_HINTS[dataset.format])
    schema = StructType([field for field in schema.fields if field.name != CORRUPT])
    return _read_texts(reader, [*locations], schema, values, options, dataset)


def _read_texts(
    reader: DataFrameReader,
    locations: list[str],
    schema: StructType,
    values: TextValues,
    options: Mapping[str, str],
    dataset: Dataset,
) -> DataFrame:
    """Return the values of texts; what is done with a text that is no value is a matter of the mode."""
    text_schema = values.build_schema(schema)
    mode = find_option(options, "mode").upper()
    if mode == "FAILFAST":
        text_schema = StructType([*text_schema.fields, StructField(CORRUPT, StringType())])
    texts = reader.schema(text_schema).load(locations)
    if mode == "DROPMALFORMED":
        texts = texts.where(F.coalesce(*values.describe_columns(schema).values(), F.lit(None)).isNull())
    if mode != "FAILFAST":
        return add_columns(texts, values.convert_columns(schema))
    file_path = texts.metadataColumn("_metadata").getField("file_path")
    prefix = F.concat(F.lit(f"{dataset.id}: "), file_path, F.lit(": "))
    error = F.raise_error(F.concat(prefix, _describe_record(schema))).cast("boolean")
    records = texts.where(F.when(F.col(CORRUPT).isNull(), F.lit(True)).otherwise(error))
    return values.convert_strictly(records.drop(CORRUPT), schema, prefix)


def _describe_record(schema: StructType) -> Column:
    """Return the text of a record that cannot be read, and the columns that are empty in it."""
    names = (F.when(quote_column(name).isNull(), F.lit(name)) for name in schema.names)
    text = F.left(CORRUPT, F.lit(_EXAMPLE_MAX_LENGTH))
    return F.concat(
        F.lit("the record '"),
        text,
        F.lit("' cannot be read, columns without a value: "),
        F.concat_ws(", ", *names),
        F.lit(" (correct it, or set the option mode to PERMISSIVE to read NULL)"),
    )


def _keep_bad_records(options: Mapping[str, str]) -> dict[str, str]:
    """Return options by which Spark puts a record that it cannot read in a column."""
    if find_option(options, "mode").upper() != "FAILFAST":
        return dict(options)
    other_options = {name: value for name, value in options.items() if name.lower() != "mode"}
    own_options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, "columnPruning": "false"}
    return {**other_options, **own_options}


def _find_structures(
    spark: SparkSession, dataset: Dataset, options: Mapping[str, str]
) -> dict[_Structure, list[str]]:
    """Return the locations of CSV files by how their first line ends and which header it is.

    Spark would find the line end of each file, but change those in values, and bind the columns of all files
    by the header of one.

    :raises DataError: if a file has bytes that are no text.
    """
    has_header = find_option(options, "header", "false").lower() == "true"
    structures: dict[_Structure, list[str]] = {}
    for path, line in find_first_lines(spark, dataset, options).items():
        line_end = "\r\n" if line.endswith("\r") else ""
        header = line.removesuffix("\r").removeprefix(_BOM) if has_header else ""
        location = escape_pattern(parse_hadoop_path(unquote(path)))
        structures.setdefault((line_end, header), []).append(location)
    return structures


def _check_columns(
    dataset: Dataset, structures: Mapping[_Structure, Sequence[str]], options: Mapping[str, str]
) -> None:
    """Refuse CSV files that have not the same columns; their order may differ."""
    quote = find_option(options, "quote", '"')
    dialect = {"delimiter": find_option(options, "sep", ","), "quotechar": quote or None}
    headers = {header: paths[0] for (_, header), paths in structures.items()}
    (first, path), *other_headers = (
        (next(csv.reader([header], **dialect), []), path)  # type: ignore[arg-type] # the names of its parameters
        for header, path in headers.items()
    )
    for names, other_path in other_headers:
        if sorted(names) != sorted(first):
            message = f"{other_path} has the columns {', '.join(names)}, but {path} has {', '.join(first)}"
            raise FileProblem(message, _SAME_COLUMNS).build_error(dataset)


def _set_line_end(options: Mapping[str, str], line_end: str) -> dict[str, str]:
    return complete_options({"lineSep": line_end} if line_end else {}, options)
