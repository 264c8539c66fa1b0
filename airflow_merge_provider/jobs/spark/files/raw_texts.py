"""Search the texts of files for what Spark's readers change or leave out in silence.

Source: docs/values.md, Files.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, Row, SparkSession, functions as F
from pyspark.sql.types import StructType

from airflow_merge_provider.core.dataset import Dataset, escape_pattern, parse_hadoop_path
from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.jobs.spark.files.file_problem import FileProblem
from airflow_merge_provider.jobs.spark.files.json_texts import (
    find_other_case,
    has_half_pair,
    is_record,
)
from airflow_merge_provider.jobs.spark.formats import find_option

# Options that choose files, in lower case.
_FILE_OPTIONS = {"pathglobfilter", "recursivefilelookup", "modifiedbefore", "modifiedafter"}
# A part of a text ends there: XML may have no lines.
_ENDS = {"csv": "\n", "xml": ">"}
# In these encodings, each byte of an ASCII character is the character.
_ASCII_ENCODINGS = ("", "UTF-8", "US-ASCII", "ISO-8859-1")
_COMPRESSED = r"\.(gz|bz2|zst|lz4|snappy|deflate)$"
_LINE_END = r"\r\n|\r|\n"
_EXAMPLE_MAX_LENGTH = 100
_MESSAGES = {
    "encoding": (
        "has bytes that are not UTF-8",
        "set the option encoding, such as ISO-8859-1, or write the file in UTF-8",
    ),
    "names": (
        "has a field whose name differs in case only from that of another record",
        "give the fields one name",
    ),
    "surrogates": ("has half of a surrogate pair, which no text can hold", "correct it upstream"),
    "records": (
        "has text that is not one JSON record and nothing else",
        "write a record on each line, or set multiLine to true if each file has one record or array",
    ),
}


def select_file_options(dataset: Dataset) -> dict[str, str]:
    """Return the options of a dataset that choose its files."""
    return {name: value for name, value in dataset.options.items() if name.lower() in _FILE_OPTIONS}


def check_texts(
    spark: SparkSession, dataset: Dataset, options: Mapping[str, str], schema: StructType | None = None
) -> None:
    """Refuse a text file with a part that Spark would change or leave out.

    :param options: all options of the reader.
    :param schema: the columns that Spark has inferred from JSON.
    :raises DataError: with the first such file and what it has.
    """
    texts = _read_texts(spark, dataset, options).where(~F.col("value").rlike(r"\A\s*\z"))
    name = F.lit(None) if schema is None else find_other_case(F.col("value"), schema)
    code = F.coalesce(_find_code(dataset, options), F.when(name.isNotNull(), "names"))
    problems = texts.select("path", _describe_part(code, name).alias("problem"))
    first = problems.where("problem IS NOT NULL").agg(F.min(F.struct("path", "problem"))).collect()[0][0]
    if first is not None:
        raise _build_error(dataset, *first)


def find_first_lines(spark: SparkSession, dataset: Dataset, options: Mapping[str, str]) -> dict[str, str]:
    """Return the first line with content of each CSV file, by the URI of the file.

    The lines are read once for that and for what ``check_texts`` looks for.

    :raises DataError: as ``check_texts``.
    """
    texts = _read_texts(spark, dataset, options)
    block = texts.metadataColumn("_metadata").getField("file_block_start")
    row_id = F.monotonically_increasing_id()  # noqa: TID251 - compared within one file of one scan
    has_content = ~F.col("value").isin("", "\r")
    if comment := find_option(options, "comment"):
        has_content = has_content & ~F.startswith("value", F.lit(comment))
    position = F.struct(block, row_id)
    code = _find_code(dataset, options)
    lines = texts.select(
        "path",
        "value",
        F.when(has_content, position).alias("position"),
        code.alias("code"),
        _describe_part(code, F.lit(None)).alias("problem"),
    )
    if not _is_checked(options) and len(texts.inputFiles()) == 1:
        lines = lines.where("position IS NOT NULL").limit(1)
    # Spark would sort all lines by file, if there were no set among the aggregates.
    aggregates = F.min_by("value", "position"), F.min("problem"), F.collect_set("code")
    files = sorted(lines.groupBy("path").agg(*aggregates).collect())
    for path, _, problem, _ in files:
        if problem is not None:
            raise _build_error(dataset, path, problem)
    return {path: line for path, line, *_ in files if line is not None}


def _describe_part(code: Column, name: Column) -> Column:
    """Return the code of what is wrong with a text, and an example; NULL if nothing is wrong."""
    text = F.left(F.make_valid_utf8(F.coalesce(name, "value")), F.lit(_EXAMPLE_MAX_LENGTH))
    return F.when(code.isNotNull(), F.struct(code, text))


def _build_error(dataset: Dataset, uri: str, problem: Row) -> DataError:
    code, text = problem
    message, hint = _MESSAGES[code]
    path = parse_hadoop_path(unquote(uri))
    return FileProblem(f"{path} {message}: {text!r}", hint).build_error(dataset)


def _is_checked(options: Mapping[str, str]) -> bool:
    """Return whether bytes of a text can be wrong in its encoding."""
    return find_option(options, "encoding").upper() in ("", "UTF-8", "US-ASCII")


def _find_code(dataset: Dataset, options: Mapping[str, str]) -> Column:
    """Return the code of what is wrong with a text; NULL if nothing is."""
    value = F.regexp_replace("value", "^\ufeff", "")
    code = F.lit(None).cast("string")
    if dataset.format == "json":
        # Spark Connect takes no map without entries.
        allowed = {"mode": "PERMISSIVE"}
        allowed |= {name: text for name, text in options.items() if name.lower().startswith("allow")}
        code = F.when(~is_record(value, allowed), "records")
        if find_option(options, "mode").upper() != "FAILFAST":
            # There, a record that cannot be read is allowed, but not one that Spark leaves out.
            first = F.from_json(value, "map<string,string>", allowed)
            code = F.when(first.isNotNull() & ~is_record(value, allowed), "records")
        code = F.when(has_half_pair(value), "surrogates").otherwise(code)
    if _is_checked(options):
        code = F.when(~F.is_valid_utf8("value"), "encoding").otherwise(code)
    return code


def _read_texts(spark: SparkSession, dataset: Dataset, options: Mapping[str, str]) -> DataFrame:
    """Return the parts of files as the column ``value``: lines of JSON and CSV, or whole files of JSON."""
    reader = spark.read.options(**select_file_options(dataset))
    location = escape_pattern(str(dataset.path))
    encoding, end = find_option(options, "encoding").upper(), find_option(options, "lineSep")
    is_whole = dataset.format == "json" and find_option(options, "multiLine").lower() == "true"
    if dataset.format == "json" and encoding not in _ASCII_ENCODINGS:
        files = reader.format("binaryFile").load(location)
        path = files.metadataColumn("_metadata").getField("file_path").alias("path")
        text = F.decode("content", encoding)
        pattern = _LINE_END if not end else f"\\Q{end}\\E"
        value = F.array(text) if is_whole else F.split(text, pattern)
        return files.where(~F.col("path").rlike(_COMPRESSED)).select(path, F.explode(value).alias("value"))
    if dataset.format == "json":
        reader = reader.option("wholetext", is_whole)
    end = end if dataset.format == "json" else _ENDS.get(dataset.format, "")
    texts = (reader.option("lineSep", end) if end else reader).format("text").load(location)
    return texts.select(texts.metadataColumn("_metadata").getField("file_path").alias("path"), "value")
