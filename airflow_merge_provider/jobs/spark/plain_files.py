"""Read datasets of plain files, so that each value comes out or is refused.

Source: docs/values.md, Types of text files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any
from urllib.parse import unquote

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession, functions as F
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from airflow_merge_provider.core.change_plan.shown_rows import mask_text
from airflow_merge_provider.core.dataset import (
    FILE_FORMATS,
    Dataset,
    escape_pattern,
    find_pattern,
    parse_hadoop_path,
)
from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.file_options import find_lossy_options, find_option
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.causes import raise_problem
from airflow_merge_provider.jobs.spark.expressions import add_columns
from airflow_merge_provider.jobs.spark.files.container_files import find_location, list_files
from airflow_merge_provider.jobs.spark.files.containers import (
    CONTAINERS,
    check_values,
    explain_error,
    read_containers,
)
from airflow_merge_provider.jobs.spark.files.csv_structure import find_repeated_name, scan_csv_files
from airflow_merge_provider.jobs.spark.files.file_problem import (
    EXACT_NAMES,
    FileProblem,
    describe_pair,
    describe_repeated_names,
    find_equal_names,
)
from airflow_merge_provider.jobs.spark.files.raw_texts import (
    check_json,
    check_texts,
    find_bare_word,
    find_records,
)
from airflow_merge_provider.jobs.spark.formats import (
    CORRUPT,
    EACH_FILE,
    build_reader_options,
    complete_options,
    spark_format,
)
from airflow_merge_provider.jobs.spark.session import override_settings
from airflow_merge_provider.jobs.spark.sql import quote_column
from airflow_merge_provider.jobs.spark.text_values import TEXT_FORMATS, TextValues

# What to do about a value that the type does not hold which Spark inferred.
_FORMAT_HINTS = {
    "csv": " (correct it, or leave out the option inferSchema)",
    "json": " (correct it, or set the option prefersDecimal or primitivesAsString to true)",
    "xml": " (correct it, or leave out the option inferSchema)",
}
_SAME_COLUMNS = "give the files the same columns, or read them separately"
_TABLE_HINT = " (correct it, or set another type for it in the table, such as STRING)"
_NO_RECORDS = FileProblem("its files have no columns and no records", "write records, or correct the options")
_EXAMPLE_MAX_LENGTH = 100
_NO_COLUMN = "__merge_none"
# The end of a file's lines, and its header.
_Structure = tuple[str, tuple[str, ...]]


def read_files(spark: SparkSession, dataset: Dataset) -> DataFrame:
    """Return the rows of the files in a folder.

    :raises DataError: if files have different columns or types, or what Spark would change in silence.
    """
    location = escape_pattern(str(dataset.path))
    options = build_reader_options(dataset.format, dataset.options)
    if dataset.format in CONTAINERS:
        return read_containers(spark, dataset, options)
    if dataset.format != "csv":
        return _read_part(spark, dataset, options, [location])
    structures = _find_structures(spark, dataset, options)
    if len(structures) <= 1:
        line_end, header = next(iter(structures), ("", ()))
        return _read_part(spark, dataset, _set_line_end(options, line_end), [location], header)
    _check_columns(dataset, structures)
    parts = [
        _read_part(
            spark,
            dataset,
            {**_set_line_end(options, line_end), "basePath": str(dataset.path)},
            locations,
            header,
        )
        for (line_end, header), locations in structures.items()
    ]
    if len({frozenset((field.name, field.dataType) for field in part.schema) for part in parts}) > 1:
        message = "Spark infers different types from files with different headers or line ends"
        raise FileProblem(message, "leave out the option inferSchema").build_error(dataset)
    return reduce(DataFrame.unionByName, parts)


def read_catalog_table(spark: SparkSession, dataset: Dataset) -> DataFrame:
    """Return the rows of a catalog table of files; the texts of its files have to be values of its types.

    :raises DataError: if an option of the table leaves out values, or what Spark would change in silence.
    """
    name = sql.quote_table(dataset)
    rows = spark.read.options(**EACH_FILE).table(name)
    if dataset.format not in FILE_FORMATS:
        return rows
    table: dict[str, Any] = json.loads(spark.sql(f"DESCRIBE EXTENDED {name} AS JSON").collect()[0][0])
    kind, location = str(table.get("provider", "")).lower(), table.get("location")
    table_options = {**table.get("storage_properties", {}), **dataset.options}
    if problems := [*find_lossy_options(kind, table_options, dataset.id)]:
        raise DataError.from_problems(problems)
    if kind in CONTAINERS and location:
        return check_values(spark, replace(dataset, format=kind), dataset.options, rows)
    options = build_reader_options(kind, table_options)
    if kind == "text" and location:
        check_texts(spark, replace(dataset, format=kind, path=parse_hadoop_path(unquote(location))), options)
    if kind not in TEXT_FORMATS or not location:
        return rows
    values = TextValues(kind, table_options, hint=_TABLE_HINT, path=dataset.id)
    reader = spark.read.format(kind).options(**_keep_bad_records(options))
    path = parse_hadoop_path(unquote(location))
    files = replace(dataset, format=kind, path=path)
    groups = {"": [escape_pattern(path)]}
    if kind == "json":
        check_json(spark, files, options, rows.schema, is_inferred=False)
    elif kind == "xml":
        check_texts(spark, files, options)
    else:
        partitions = table.get("partition_columns", [])
        names = tuple(name for name in rows.columns if name not in partitions)
        groups = _check_headers(files, _find_structures(spark, files, options), names) or groups
    parts = [
        _read_texts(
            reader.options(basePath=path, **_set_line_end({}, line_end)),
            locations,
            rows.schema,
            values,
            options,
            dataset,
        )
        for line_end, locations in groups.items()
    ]
    return reduce(DataFrame.unionAll, parts)


def _read_part(
    spark: SparkSession,
    dataset: Dataset,
    options: Mapping[str, str],
    locations: Sequence[str],
    header: tuple[str, ...] = (),
) -> DataFrame:
    """Return the rows of text files that are read in one way.

    :param header: the columns of CSV files, if they are known.
    """
    reader = spark.read.format(spark_format(spark, dataset.format)).options(**_keep_bad_records(options))

    if dataset.format in ("xml", "text"):
        check_texts(spark, dataset, options)
    schema = _name_columns(options, header) or _infer_schema(spark, reader, locations, options, dataset)
    if dataset.format == "json":
        check_json(spark, dataset, options, schema)
    if dataset.format == "xml" and (
        name := _find_parted_text(schema, find_option(options, "valueTag", "_VALUE"))
    ):
        message = (
            f"an element {name!r} has its text in several parts, with a comment or elements between them"
        )
        raise FileProblem(message, "write the text as one part").build_error(dataset)
    if set(schema.names) <= {CORRUPT}:
        problem = _find_bad_record(reader, locations) or find_bare_word(spark, dataset, options)
        raise (problem or _NO_RECORDS).build_error(dataset)
    if dataset.format not in TEXT_FORMATS:
        return reader.load([*locations])
    values = TextValues(
        dataset.format,
        dataset.options,
        is_inferred=True,
        hint=_FORMAT_HINTS[dataset.format],
        path=dataset.id,
    )
    schema = StructType([field for field in schema.fields if field.name != CORRUPT])
    return _read_texts(reader, [*locations], schema, values, options, dataset)


def _name_columns(options: Mapping[str, str], header: tuple[str, ...]) -> StructType | None:
    """Return the texts of a CSV file by their names; None if Spark has to find names or types."""
    if not find_option(options, "lineSep") or find_option(options, "inferSchema").lower() == "true":
        return None
    return StructType([StructField(name, StringType()) for name in header]) if header else None


def _find_parted_text(kind: DataType, value_tag: str, name: str = "") -> str | None:
    """Return an element of XML for whose text Spark has inferred a list of its parts."""
    if isinstance(kind, ArrayType):
        return _find_parted_text(kind.elementType, value_tag, name)
    if not isinstance(kind, StructType):
        return None
    if any(field.name == value_tag and isinstance(field.dataType, ArrayType) for field in kind):
        return name
    parts = (_find_parted_text(field.dataType, value_tag, field.name) for field in kind)
    return next((part for part in parts if part is not None), None)


def _refuse_patterns(spark: SparkSession, dataset: Dataset, options: Mapping[str, str]) -> None:
    """Refuse names of files that Spark takes for patterns when it infers the columns of whole files."""
    if dataset.format != "xml" and find_option(options, "multiLine").lower() != "true":
        return
    for location in map(find_location, list_files(spark, dataset)):
        if (character := find_pattern(location)) is not None:
            message = f"{location} has {character!r} in its path, which Spark takes for a pattern"
            hint = "rename the file or folder, or read a table of a catalog, which has columns"
            raise FileProblem(message, hint).build_error(dataset)


def _infer_schema(
    spark: SparkSession,
    reader: DataFrameReader,
    locations: Sequence[str],
    options: Mapping[str, str],
    dataset: Dataset,
) -> StructType:
    """Return the columns that Spark finds; refuse those whose names differ in case only."""
    _refuse_patterns(spark, dataset, options)

    def infer() -> StructType:
        return reader.load([*locations]).schema

    with override_settings(spark, EXACT_NAMES):
        try:
            schema = infer()
        except PySparkException as error:
            problem = explain_error(error) or describe_repeated_names(spark, error, infer)
            if problem is None:
                raise
            raise problem.build_error(dataset) from error
        if pair := find_equal_names(schema):
            texts = reader.schema(schema).load([*locations])
            path = texts.metadataColumn("_metadata").getField("file_path").alias("path")
            texts = texts.select(path, F.to_json(F.struct(*map(quote_column, schema.names))).alias("text"))
            raise describe_pair(pair, find_records(texts, pair)).build_error(dataset)
    return schema


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
    own_options = values.build_options(schema, {})
    texts = reader.options(**own_options).schema(text_schema).load(locations)
    if mode != "FAILFAST":
        texts = add_columns(texts, values.convert_columns(schema))
        return texts.drop(*map(quote_column, values.list_attributes(schema)))
    file_path = texts.metadataColumn("_metadata").getField("file_path")
    prefix = F.concat(F.lit(f"{dataset.id}: "), file_path, F.lit(": "))
    error = raise_problem(prefix, _describe_record(schema)).cast("boolean")
    records = texts.where(F.when(F.col(CORRUPT).isNull(), F.lit(True)).otherwise(error))
    return values.convert_strictly(records.drop(CORRUPT), schema, prefix)


def _find_bad_record(reader: DataFrameReader, locations: Sequence[str]) -> FileProblem | None:
    """Return the problem of files in which Spark finds no column, with their first record, or None."""
    names = (CORRUPT, _NO_COLUMN)
    texts = reader.schema(StructType([StructField(name, StringType()) for name in names])).load([*locations])
    file_path = texts.metadataColumn("_metadata").getField("file_path")
    row = texts.select(file_path, *names).where(F.col(CORRUPT).isNotNull()).first()
    if row is None:
        return None
    record = mask_text(repr(row[1][:_EXAMPLE_MAX_LENGTH]))
    example = f"{parse_hadoop_path(unquote(row[0]))}: the record {record}"
    return FileProblem(f"{example} cannot be read, and no other one", "correct them, or the options")


def _describe_record(schema: StructType) -> Column:
    """Return the text of a record that cannot be read, and the columns that are empty in it."""
    names = F.concat_ws(", ", *(F.when(quote_column(name).isNull(), F.lit(name)) for name in schema.names))
    # The first line of an error is its message.
    text = F.left(F.regexp_replace(CORRUPT, r"\R", r"\\n"), F.lit(_EXAMPLE_MAX_LENGTH))
    return F.concat(
        F.lit("the record '"),
        text,
        F.lit("' cannot be read, "),
        F.when(names == "", F.lit("it has more values than columns")).otherwise(
            F.concat(F.lit("columns without a value: "), names)
        ),
        F.lit(" (correct it, or set the option mode to PERMISSIVE to read what can be read)"),
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
    """Return the locations of CSV files by how their lines end and by their columns.

    Spark would find the line end of each file, but change those in values, and bind the columns of all files
    by the header of one.

    :raises DataError: if a file has bytes that are no text, a column twice, or a value whose quotes or line
        breaks are wrong.
    """
    has_header = find_option(options, "header", "false").lower() == "true"
    structures: dict[_Structure, list[str]] = {}
    files = scan_csv_files(spark, dataset, options)
    if not all(file.is_text or file.problem for file in files.values()):
        check_texts(spark, dataset, options)
    for uri, file in sorted(files.items()):
        # Spark's own names of columns without one.
        names = tuple(name or f"_c{index}" for index, name in enumerate(file.cells))
        problem = find_repeated_name(names, is_case_sensitive=False) if has_header else None
        if problem := problem or file.problem:
            raise FileProblem(f"{find_location(uri)}: {problem}").build_error(dataset)
        if file.cells:
            location = escape_pattern(find_location(uri))
            header = names if has_header else ()
            structures.setdefault((file.line_end, header), []).append(location)
    return structures


def _check_columns(dataset: Dataset, structures: Mapping[_Structure, Sequence[str]]) -> None:
    """Refuse CSV files that have not the same columns; their order may differ."""
    (first, path), *other_headers = {header: paths[0] for (_, header), paths in structures.items()}.items()
    for names, other_path in other_headers:
        if sorted(names) != sorted(first):
            message = f"{other_path} has the columns {', '.join(names)}, but {path} has {', '.join(first)}"
            raise FileProblem(message, _SAME_COLUMNS).build_error(dataset)


def _check_headers(
    dataset: Dataset, structures: Mapping[_Structure, list[str]], names: Sequence[str]
) -> dict[str, list[str]]:
    """Return the files of a table by how their lines end.

    :raises DataError: if a file has not the columns of the table in its order: Spark takes them by position.
    """
    groups: dict[str, list[str]] = {}
    for (line_end, header), paths in structures.items():
        if header and line_end and [*map(str.casefold, header)] != [*map(str.casefold, names)]:
            message = f"{paths[0]} has the columns {', '.join(header)}, but the table has {', '.join(names)}"
            raise FileProblem(message, "write the columns of the table, in its order").build_error(dataset)
        groups.setdefault(line_end, []).extend(paths)
    return groups


def _set_line_end(options: Mapping[str, str], line_end: str) -> dict[str, str]:
    return complete_options({"lineSep": line_end} if line_end else {}, options)
