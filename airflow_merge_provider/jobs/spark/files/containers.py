"""Read datasets of Parquet, ORC and Avro files, so that each value comes out or is refused.

Source: docs/values.md, Files.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from functools import partial

from pyspark.errors import IllegalArgumentException, NumberFormatException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, functions as F
from pyspark.sql.types import (
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StructField,
    StructType,
)

from airflow_merge_provider.core.dataset import Dataset, escape_pattern
from airflow_merge_provider.core.file_options import find_option
from airflow_merge_provider.jobs.spark.causes import error_condition, raise_problem
from airflow_merge_provider.jobs.spark.errors import first_line
from airflow_merge_provider.jobs.spark.expressions import cast_to
from airflow_merge_provider.jobs.spark.files.container_files import (
    describe_difference,
    find_avro_problem,
    find_location,
    find_parquet_problem,
    find_type_problem,
    list_files,
    parse_avro_schema,
    read_arrow_schema,
    read_avro_schema,
    read_headers,
    read_orc_writer,
)
from airflow_merge_provider.jobs.spark.files.file_problem import (
    FileProblem,
    describe_pair,
    describe_repeated_names,
    find_equal_names,
)
from airflow_merge_provider.jobs.spark.files.value_problems import (
    Rule,
    describe_value,
    find_invalid_text,
    find_old_day,
)
from airflow_merge_provider.jobs.spark.formats import spark_format
from airflow_merge_provider.jobs.spark.parallel import run_in_parallel
from airflow_merge_provider.jobs.spark.sql import quote_column

CONTAINERS = ("parquet", "orc", "avro")
# With this option, the user says which calendar the files have.
_CALENDAR = "orc.proleptic.gregorian.default"
_AVRO_SCHEMAS = ("avroSchema", "avroSchemaUrl")
_OPTIONS = "correct the options of the dataset"
_FILE_SCHEME = "^file:/+"
_NOT_NULL = re.compile(r'(?<!\\)"(nullable|containsNull|valueContainsNull)":false')
# Pairs of types of which the second has all values of the first.
_WIDER: dict[tuple[type[DataType], type[DataType]], DataType] = {
    (IntegerType, LongType): LongType(),
    (FloatType, DoubleType): DoubleType(),
}


def read_containers(spark: SparkSession, dataset: Dataset, options: Mapping[str, str]) -> DataFrame:
    """Return the rows of the files of a folder.

    :raises DataError: if Spark does not read a type, or if a column has different types in two files.
    """
    location = escape_pattern(str(dataset.path))
    reader = spark.read.format(spark_format(spark, dataset.format)).options(**options)
    if dataset.format == "avro" and (schema := _find_avro_schema(spark, dataset, options)) is not None:
        reader = reader.schema(schema)
    rows = reader.load(location)
    try:
        rows.schema  # noqa: B018 - finds the columns
    except PySparkException as error:
        problem = (
            explain_error(error)
            or describe_repeated_names(spark, error, lambda: reader.load(location).schema)
            or _explain_types(spark, dataset)
        )
        if problem is None:
            raise
        raise problem.build_error(dataset) from error
    return check_values(spark, dataset, options, rows)


def check_values(
    spark: SparkSession, dataset: Dataset, options: Mapping[str, str], rows: DataFrame
) -> DataFrame:
    """Return the rows of files, in which a value that Spark would change is an error.

    :raises DataError: if a column of INT96 has such a value.
    """
    if dataset.format == "parquet":
        for uri, problem in (read_headers(spark, rows.inputFiles(), find_parquet_problem) or {}).items():
            _refuse_problem(dataset, uri, problem)
    file_path = rows.metadataColumn("_metadata").getField("file_path")
    rules: dict[Rule, Column] = {find_invalid_text: F.lit(True)}
    if dataset.format == "orc":
        is_foreign = _is_foreign(spark, dataset, rows)
        rules |= {} if find_option(options, _CALENDAR) else {find_old_day: is_foreign}
    prefix = F.concat(F.lit(f"{dataset.id}: "), file_path, F.lit(": "))
    return rows.select(*[_check_column(field, rules, prefix) for field in rows.schema.fields])


def _check_column(field: StructField, rules: Mapping[Rule, Column], prefix: Column) -> Column:
    value = quote_column(field.name)
    described = {rule: describe_value(value, field.dataType, field.name, rule) for rule in rules}
    problems = [F.when(rules[rule], text) for rule, text in described.items() if text is not None]
    if not problems:
        return value
    problem = F.coalesce(*problems)
    error = cast_to(raise_problem(prefix, problem), field.dataType)
    return F.when(problem.isNull(), value).otherwise(error).alias(field.name, metadata=field.metadata)


def _is_foreign(spark: SparkSession, dataset: Dataset, rows: DataFrame) -> Column:
    """Return whether a row is from an ORC file that Spark has not written."""
    if not any(name in rows.schema.simpleString() for name in ("date", "timestamp")):
        return F.lit(False)
    headers = read_headers(spark, rows.inputFiles(), read_orc_writer)
    if headers is None:
        return F.lit(True)
    foreign = []
    for uri, header in headers.items():
        is_of_spark, problem = header or (False, None)
        _refuse_problem(dataset, uri, problem)
        if not is_of_spark:
            foreign.append(_normalize_uri(uri))
    file_path = rows.metadataColumn("_metadata").getField("file_path")
    is_foreign = F.regexp_replace(file_path, _FILE_SCHEME, "file:/").isin(foreign)
    return F.lit(True) if len(foreign) == len(headers) else is_foreign


def _refuse_problem(dataset: Dataset, uri: str, problem: FileProblem | None) -> None:
    if problem is not None:
        message = f"{find_location(uri)}: {problem.message}"
        raise FileProblem(message, problem.hint).build_error(dataset)


def _normalize_uri(uri: str) -> str:
    """Return the URI of a file as ``_metadata.file_path`` has it."""
    return re.sub(_FILE_SCHEME, "file:/", uri)


def explain_error(error: PySparkException) -> FileProblem | None:
    """Return the problem of options that Spark refuses, or of a number that it cannot read; else None."""
    if isinstance(error, IllegalArgumentException) and not isinstance(error, NumberFormatException):
        return FileProblem(f"Spark cannot read the files with these options: {first_line(error)}", _OPTIONS)
    if error_condition(error).startswith("NEGATIVE_SCALE"):
        message = "a number with an exponent, such as 1e3, is no DECIMAL of Spark"
        return FileProblem(message, "set the option primitivesAsString in place of prefersDecimal")
    return None


def _explain_types(spark: SparkSession, dataset: Dataset) -> FileProblem | None:
    """Return which file has a column that Spark cannot read, or cannot read with those of other files."""
    if dataset.format not in ("parquet", "orc"):
        return None
    uris = list_files(spark, dataset)
    if dataset.format == "parquet":
        for uri, problem in (read_headers(spark, uris, find_parquet_problem) or {}).items():
            _refuse_problem(dataset, uri, problem)
    schemas = read_headers(spark, uris, partial(read_arrow_schema, dataset.format))
    return find_type_problem(schemas or {}, dataset.format)


def _find_avro_schema(spark: SparkSession, dataset: Dataset, options: Mapping[str, str]) -> StructType | None:
    """Return the columns of all Avro files of a folder; None if Spark finds them itself.

    By itself, Spark takes those of one file, and leaves out the others.

    :raises DataError: if a column has different types, or a type that Spark does not know.
    """
    if option := next((name for name in _AVRO_SCHEMAS if find_option(options, name)), None):
        _check_avro_option(spark, dataset, option, find_option(options, option))
        return None
    uris = list_files(spark, dataset)
    headers = read_headers(spark, uris, read_avro_schema) or {}
    for uri, header in headers.items():
        _refuse_problem(dataset, uri, find_avro_problem(header[1]) if header else None)
    # One file of each schema; if the driver does not see the files, all of them.
    texts = {uri: header[0] for uri, header in headers.items() if header}
    examples = {texts.get(uri, uri): uri for uri in reversed(uris)}
    if len(examples) <= 1:
        return None
    kind = spark_format(spark, dataset.format)

    def read_schema(uri: str) -> StructType:
        reader = spark.read.format(kind).options(**options)
        return _allow_nulls(reader.load(escape_pattern(find_location(uri))).schema)

    example_uris = sorted(examples.values())
    schemas = run_in_parallel(spark, read_schema, example_uris)
    return _merge_schemas(dataset, dict(zip(example_uris, schemas, strict=True)))


def _check_avro_option(spark: SparkSession, dataset: Dataset, option: str, text: str) -> None:
    """Check the schema of an option like that of a file, which it replaces.

    :raises DataError: if it is not a schema of Avro, or if it has a type that Spark does not know.
    """
    try:
        if option == _AVRO_SCHEMAS[0]:
            schema = parse_avro_schema(io.BytesIO(text.encode()))
        else:
            schema = (read_headers(spark, [text], parse_avro_schema) or {}).get(text)
    except ValueError as error:
        message = f"the option {option} is not a schema of Avro: {error}"
        raise FileProblem(message, _OPTIONS).build_error(dataset) from None
    if schema is not None and (problem := find_avro_problem(schema)):
        message = f"the schema of the option {option}: {problem.message}"
        raise FileProblem(message, problem.hint).build_error(dataset)


def _allow_nulls(schema: StructType) -> StructType:
    return StructType.fromJson(json.loads(_NOT_NULL.sub(r'"\1":true', schema.json())))


def _merge_schemas(dataset: Dataset, schemas: Mapping[str, StructType]) -> StructType:
    fields: dict[str, tuple[StructField, str]] = {}
    for uri, schema in schemas.items():
        for field in schema.fields:
            first, first_uri = fields.setdefault(field.name.casefold(), (field, uri))
            kind = _widen_type(first.dataType, field.dataType)
            if kind is None:
                raise _describe_types((first, first_uri), (field, uri)).build_error(dataset)
            fields[field.name.casefold()] = StructField(first.name, kind), first_uri
    return StructType([field for field, _ in fields.values()])


def _describe_types(first: tuple[StructField, str], second: tuple[StructField, str]) -> FileProblem:
    kinds = [field.dataType for field, _ in (first, second)]
    members = [member for kind in kinds if isinstance(kind, StructType) for member in kind.fields]
    if pair := find_equal_names(StructType(members), f"{first[0].name}."):
        return describe_pair(pair)
    # The names of fields keep their case, which may be the difference.
    types = [re.sub(r"\w+\b(?!:)", lambda word: word[0].upper(), kind.simpleString()) for kind in kinds]
    locations = [find_location(uri) for _, uri in (first, second)]
    return describe_difference(second[0].name, *zip(types, locations, strict=True))


def _widen_type(first: DataType, second: DataType) -> DataType | None:
    """Return the type that has all values of two types; None if none of them has."""
    if first == second:
        return first
    pair = type(first), type(second)
    return _WIDER.get(pair) or _WIDER.get(pair[::-1])
