"""Search the texts of files for what Spark's readers change or leave out in silence.

Source: docs/values.md, Files.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, SparkSession, functions as F
from pyspark.sql.types import StructType

from airflow_merge_provider.core.dataset import Dataset, escape_pattern, parse_hadoop_path
from airflow_merge_provider.core.file_options import find_option
from airflow_merge_provider.jobs.spark.files.file_problem import FileProblem
from airflow_merge_provider.jobs.spark.files.json_texts import (
    find_other_case,
    has_half_pair,
    is_record,
    select_parser_options,
)

# Options that choose files, in lower case.
_FILE_OPTIONS = {"pathglobfilter", "recursivefilelookup", "modifiedbefore", "modifiedafter"}
# A part of a text ends there: XML may have no lines.
_ENDS = {"csv": "\n", "xml": ">"}
# In these encodings, each byte of an ASCII character is the character.
ASCII_ENCODINGS = ("", "UTF-8", "US-ASCII", "ISO-8859-1")
COMPRESSED = r"\.(gz|bz2|zst|lz4|snappy|deflate)$"
_LINE_END = r"\r\n|\r|\n"
# No text of JSON has these characters, whose quotes have a backslash.
_NO_NAME = r'(?<!\\)""\s*:'
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
    "no name": ("has a field without a name, which Spark leaves out", "give the field a name"),
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
    if schema is not None:
        code = F.coalesce(code, F.when(F.col("value").rlike(_NO_NAME), "no name"))
    text = F.left(F.make_valid_utf8(F.coalesce(name, "value")), F.lit(_EXAMPLE_MAX_LENGTH)).alias("text")
    problems = texts.select("path", code.alias("code"), text).where(F.col("code").isNotNull())
    first = problems.agg(F.min(F.struct("path", "code", "text"))).collect()[0][0]
    if first is not None:
        message, hint = _MESSAGES[first.code]
        path = parse_hadoop_path(unquote(first.path))
        raise FileProblem(f"{path} {message}: {first.text!r}", hint).build_error(dataset)


def _find_code(dataset: Dataset, options: Mapping[str, str]) -> Column:
    """Return the code of what is wrong with a text; NULL if nothing is."""
    value = F.regexp_replace("value", "^\ufeff", "")
    code = F.lit(None).cast("string")
    if dataset.format == "json":
        allowed = select_parser_options(options)
        code = F.when(~is_record(value, allowed), "records")
        if find_option(options, "mode").upper() != "FAILFAST":
            # There, a record that cannot be read is allowed, but not one that Spark leaves out.
            first = F.from_json(value, "map<string,string>", allowed)
            code = F.when(first.isNotNull() & ~is_record(value, allowed), "records")
        code = F.when(has_half_pair(value), "surrogates").otherwise(code)
    if find_option(options, "encoding").upper() in ("", "UTF-8", "US-ASCII"):
        code = F.when(~F.is_valid_utf8("value"), "encoding").otherwise(code)
    return code


def _read_texts(spark: SparkSession, dataset: Dataset, options: Mapping[str, str]) -> DataFrame:
    """Return the parts of files as the column ``value``: lines of JSON and CSV, or whole files of JSON."""
    reader = spark.read.options(**select_file_options(dataset))
    location = escape_pattern(str(dataset.path))
    encoding, end = find_option(options, "encoding").upper(), find_option(options, "lineSep")
    is_whole = dataset.format == "json" and find_option(options, "multiLine").lower() == "true"
    if dataset.format == "json" and encoding not in ASCII_ENCODINGS:
        files = reader.format("binaryFile").load(location)
        path = files.metadataColumn("_metadata").getField("file_path").alias("path")
        text = F.decode("content", encoding)
        pattern = _LINE_END if not end else f"\\Q{end}\\E"
        value = F.array(text) if is_whole else F.split(text, pattern)
        return files.where(~F.col("path").rlike(COMPRESSED)).select(path, F.explode(value).alias("value"))
    if dataset.format == "json":
        reader = reader.option("wholetext", is_whole)
    end = end if dataset.format == "json" else _ENDS.get(dataset.format, "")
    texts = (reader.option("lineSep", end) if end else reader).format("text").load(location)
    return texts.select(texts.metadataColumn("_metadata").getField("file_path").alias("path"), "value")
