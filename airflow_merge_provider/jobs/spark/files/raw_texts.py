"""Search the texts of files for what Spark's readers change or leave out in silence.

Source: docs/values.md, Files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, BinaryIO
from urllib.parse import unquote
from xml.parsers import expat

from pyspark.sql import Column, DataFrame, Row, SparkSession, functions as F
from pyspark.sql.types import StructType

from airflow_merge_provider.core.change_plan.shown_rows import mask_text
from airflow_merge_provider.core.dataset import Dataset, escape_pattern, parse_hadoop_path
from airflow_merge_provider.core.file_options import find_option
from airflow_merge_provider.jobs.spark.files.file_problem import EXACT_NAMES, WRITE_AGAIN, FileProblem
from airflow_merge_provider.jobs.spark.files.json_texts import (
    describe_mixture,
    find_mixed_field,
    find_other_case,
    find_repeated_field,
    has_half_pair,
    is_record,
    parse_variant_type,
    select_parser_options,
    split_bare_word,
)
from airflow_merge_provider.jobs.spark.session import override_settings

# Options that choose files, in lower case.
_FILE_OPTIONS = {"pathglobfilter", "recursivefilelookup", "modifiedbefore", "modifiedafter"}
# A part of a text ends there: XML may have no lines.
_ENDS = {"csv": "\n", "xml": ">"}
# In these encodings, each byte of an ASCII character is the character.
ASCII_ENCODINGS = ("", "UTF-8", "US-ASCII", "ISO-8859-1")
COMPRESSED = r"\.(gz|bz2|zst|lz4|snappy|deflate)$"
_LINE_END = r"\r\n|\r|\n"
# A field without a name in a type, as Spark writes it.
_NO_NAME = "[< ]``:"
# The beginning of an element, at the end of a text that ends before its next ">", and its attributes.
_ELEMENT = r"<([^\s<>!?/=]+)(\s[^<>]*)?/?\z"
_ATTRIBUTE = r"([^\s=]+)\s*=\s*[\"']"
_ELEMENTS = re.compile(r"<([^\s<>!?/=]+)(\s[^<>]*)?/?>")
# Such a text ends inside of a comment or of characters that are no elements.
_OPEN = r"<!--|<!\[CDATA\["
# Text before a "<", or characters of CDATA; the end of a comment or of a document type is none.
_TEXT, _NO_TEXT = r"\A[\s\ufeff]*[^<\s\ufeff]|<!\[CDATA\[\s*[^\s\]]", r"\A[^<]*(--|\])\s*\z"
_NO_ELEMENTS = re.compile(r"<!--.*?(?:-->|\Z)|<\?.*?(?:\?>|\Z)|<!DOCTYPE[^\[>]*(?:\[.*?\]\s*)?>", re.DOTALL)
_CDATA = re.compile(r"<!\[CDATA\[(.*?)(?:\]\]>|\Z)", re.DOTALL)
# Attributes of every root, which are no values.
_NAMESPACE = re.compile(r"xmlns(:.*)?|xsi:.*")
_NAMED_TAGS_MAX = 5
# A file ends there inside a tag or a comment, a character, or CDATA; or there is no root, or no end of it.
_CODES = expat.errors.codes
_CUT_CODES = {
    _CODES[expat.errors.XML_ERROR_UNCLOSED_TOKEN],
    _CODES[expat.errors.XML_ERROR_PARTIAL_CHAR],
    _CODES[expat.errors.XML_ERROR_UNCLOSED_CDATA_SECTION],
}
_NO_ROOT_CODE = _CODES[expat.errors.XML_ERROR_NO_ELEMENTS]
_HEAD_BYTES = 1 << 20
_ROW_TAG_HINT = "set the option rowTag to the name of the element of a record"
_BLANK = r"\A\s*\z"
_EXAMPLE_MAX_LENGTH = 100
_MESSAGES = {
    "encoding": (
        "has bytes that are not UTF-8",
        "set the option encoding, such as ISO-8859-1, or write the file in UTF-8",
    ),
    "bytes": ("has bytes that are not UTF-8", "write the file in UTF-8"),
    "repeated": ("has a record with a field more than once", "write one value, or an array of values"),
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


def check_texts(spark: SparkSession, dataset: Dataset, options: Mapping[str, str]) -> None:
    """Refuse a file of text or XML with a part that Spark would change, or without a record.

    :param options: all options of the reader.
    :raises DataError: with the first such file and what it has.
    """
    texts = _read_texts(spark, dataset, options).withColumn("problem", _find_problem(dataset, options))
    is_ascii = find_option(options, "encoding").upper() in ASCII_ENCODINGS
    if dataset.format != "xml" or not is_ascii:
        _refuse_problem(dataset, texts.agg(F.min("problem")).collect()[0][0])
        return
    for row in _collect_names(texts):
        _refuse_problem(dataset, row.problem)
        has_value = row.has_text or _has_value(row.attributes)
        if problem := describe_elements(options, sorted(row.elements), has_value=has_value):
            raise FileProblem(f"{_find_path(row.path)}: {problem}").build_error(dataset)


def check_json(
    spark: SparkSession,
    dataset: Dataset,
    options: Mapping[str, str],
    schema: StructType,
    *,
    is_inferred: bool = True,
) -> None:
    """Refuse a JSON file with a part that Spark would change or leave out.

    :param options: all options of the reader.
    :param schema: the columns.
    :param is_inferred: whether Spark has inferred them from the files.
    :raises DataError: with the first such file and what it has.
    """
    value, allowed = F.regexp_replace("value", "^\ufeff", ""), select_parser_options(options)
    problem = _find_problem(dataset, options)
    if not is_inferred:
        repeated = find_repeated_field(value, allowed, schema)
        problem = F.coalesce(problem, _build_problem("repeated", repeated))
    # The parser of the run itself, with its options.
    record = F.from_json(value, "variant", allowed).alias("record")
    texts = _read_texts(spark, dataset, options).select("path", problem.alias("problem"), record)
    members = F.try_variant_get("record", "$", "array<variant>")
    records = texts.select(
        "path", "problem", F.explode(F.coalesce(members, F.array("record"))).alias("record")
    )
    with override_settings(spark, EXACT_NAMES):
        first, types = records.agg(F.min("problem"), F.schema_of_variant_agg("record")).collect()[0]
    _refuse_problem(dataset, first)
    if is_inferred and re.search(_NO_NAME, types or ""):
        empty = records.where(F.schema_of_variant("record").rlike(_NO_NAME))
        problem = _build_problem("no name", F.to_json("record"))
        _refuse_problem(dataset, empty.agg(F.min(problem)).collect()[0][0])
    kind = parse_variant_type(types or "VOID")
    if not is_inferred and (pair := find_other_case(schema, kind)) is not None:
        (location,) = find_records(records.select("path", F.to_json("record").alias("text")), pair[1:])
        message = f"{location}: a record has the field {pair[1]!r}, but the table has {pair[0]!r}"
        raise FileProblem(message, "write the name of the table, else Spark reads NULL").build_error(dataset)
    becomes_text = not is_inferred or find_option(options, "primitivesAsString").lower() == "true"
    if not becomes_text and (names := find_mixed_field(kind)) is not None:
        raise describe_mixture(records, names).build_error(dataset)


def find_records(texts: DataFrame, paths: Iterable[str]) -> list[str]:
    """Return for each path of a field the location of a file in which a record has a field of its name.

    :param texts: the columns ``path`` and ``text``, a record as JSON without fields that are NULL.
    """
    names = (json.dumps(path.rpartition(".")[2], ensure_ascii=False) for path in paths)
    own_paths = (F.when(F.contains("text", F.lit(f"{name}:")), F.col("path")) for name in names)
    return [_find_path(path or "") for path in texts.agg(*map(F.min, own_paths)).collect()[0]]


def find_bare_word(spark: SparkSession, dataset: Dataset, options: Mapping[str, str]) -> FileProblem | None:
    """Return the problem of a word in a JSON file that is no value, such as NaN; None if there is none."""
    if dataset.format != "json":
        return None
    name, word = split_bare_word(F.col("value"))
    texts = _read_texts(spark, dataset, options)
    fields = texts.select("path", name.alias("name"), word.alias("word")).where("word <> ''")
    row = fields.sort("path").first()
    if row is None:
        return None
    message = f"column {row.name!r}: {mask_text(repr(row.word))} is not a value of JSON"
    return FileProblem(f"{_find_path(row.path)}: {message}", "write null, or the value in quotes")


def _refuse_problem(dataset: Dataset, problem: Row | None) -> None:
    if problem is not None:
        message, hint = _MESSAGES[problem.code]
        text = repr(problem.text) if problem.code == "repeated" else mask_text(repr(problem.text))
        raise FileProblem(f"{_find_path(problem.path)} {message}: {text}", hint).build_error(dataset)


def _find_path(uri: str) -> str:
    return parse_hadoop_path(unquote(uri))


def _build_problem(code: str | Column, text: Column) -> Column:
    """Return a problem of a text of the columns ``path`` and ``value``; NULL if the text is NULL."""
    shown = F.left(F.make_valid_utf8(text), F.lit(_EXAMPLE_MAX_LENGTH))
    code_column = F.lit(code) if isinstance(code, str) else code
    fields = F.col("path"), code_column.alias("code"), shown.alias("text")
    return F.when(text.isNotNull() & code_column.isNotNull(), F.struct(*fields))


def _find_problem(dataset: Dataset, options: Mapping[str, str]) -> Column:
    return _build_problem(_find_code(dataset, options), F.col("value"))


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
    if dataset.format == "text":
        code = F.when(~F.is_valid_utf8("value"), "bytes")
    elif find_option(options, "encoding").upper() in ("", "UTF-8", "US-ASCII"):
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
        parts = files.where(~F.col("path").rlike(COMPRESSED)).select(path, F.explode(value).alias("value"))
        return parts.where(~F.col("value").rlike(_BLANK))
    if dataset.format == "json":
        reader = reader.option("wholetext", is_whole)
    end = end if dataset.format == "json" else _ENDS.get(dataset.format, "")
    texts = (reader.option("lineSep", end) if end else reader).format("text").load(location)
    path = texts.metadataColumn("_metadata").getField("file_path").alias("path")
    return texts.select(path, "value").where(~F.col("value").rlike(_BLANK))


def build_row_finder(options: Mapping[str, str]) -> Callable[[BinaryIO], str | None]:
    """Return a function that describes an XML file without records, or None if it has no elements."""
    encoding = find_option(options, "encoding", "utf-8-sig")

    def describe_file(file: BinaryIO) -> str | None:
        head = _NO_ELEMENTS.sub("", file.read(_HEAD_BYTES).decode(encoding, "replace"))
        text = _CDATA.sub(lambda part: "x" if part[1].strip() else "", head)
        elements = dict(_ELEMENTS.findall(text))
        attributes = re.findall(_ATTRIBUTE, " ".join(elements.values()))
        has_value = re.search(r">\s*[^<\s]", text) is not None or _has_value(attributes)
        return describe_elements(options, elements, has_value=has_value)

    return describe_file


def find_cut_end(file: BinaryIO) -> str | None:
    """Return the problem of an XML file that ends inside an element, a tag or a comment; None for another.

    Spark reads the records before the end of such a file, which may be a part of an upload.
    """
    parser, roots = expat.ParserCreate(), list[str]()

    def add_root(name: str, _: Any) -> None:
        roots.append(name)
        parser.StartElementHandler = None

    parser.StartElementHandler = add_root
    try:
        parser.ParseFile(file)
    except expat.ExpatError as error:
        # Spark reports other errors, or reads what they are in, such as one of several roots.
        if error.code in _CUT_CODES or (error.code == _NO_ROOT_CODE and roots):
            return f"line {error.lineno}: it ends inside an element, a tag or a comment ({WRITE_AGAIN})"
    return None


def _has_value(attributes: Iterable[str]) -> bool:
    return not all(map(_NAMESPACE.fullmatch, attributes))


def describe_elements(options: Mapping[str, str], names: Iterable[str], *, has_value: bool) -> str | None:
    """Return the problem of a file with these elements, or None: a file may have a root and no records.

    :param has_value: whether an element has a text or an attribute.

    >>> describe_elements({"rowTag": "row"}, ["rows", "r"], has_value=False)
    'it has no element <row>, but <rows>, <r> (set the option rowTag to the name of the element of a record)'
    """
    elements, row_tag = [*names], find_option(options, "rowTag")
    is_local = find_option(options, "ignoreNamespace").lower() == "true"
    is_local = is_local and find_option(options, "useLegacyXMLParser").lower() != "true"
    local_names = [name.rpartition(":")[2] for name in elements] if is_local else []
    if not elements or (len(elements) == 1 and not has_value) or row_tag in (*elements, *local_names):
        return None
    shown = ", ".join(f"<{name}>" for name in elements[:_NAMED_TAGS_MAX])
    return f"it has no element <{row_tag}>, but {shown} ({_ROW_TAG_HINT})"


def _collect_names(texts: DataFrame) -> Sequence[Row]:
    """Return the elements and attributes of each file, whether it has text, and its first problem.

    :param texts: parts of files that end before a ``>``, in the columns ``path``, ``value`` and ``problem``.
    """
    part = F.when(~F.col("value").rlike(_OPEN), F.col("value"))
    attributes = F.regexp_extract_all(F.regexp_extract(part, _ELEMENT, 2), F.lit(_ATTRIBUTE), F.lit(1))
    element = F.nullif(F.regexp_extract(part, _ELEMENT, 1), F.lit(""))
    has_text = F.col("value").rlike(_TEXT) & ~F.col("value").rlike(_NO_TEXT)
    names = texts.select(
        "path",
        "problem",
        element.alias("element"),
        attributes.alias("attributes"),
        has_text.alias("has_text"),
    )
    return (
        names.groupBy("path")
        .agg(
            F.min("problem").alias("problem"),
            F.collect_set("element").alias("elements"),
            F.array_distinct(F.flatten(F.collect_set("attributes"))).alias("attributes"),
            F.bool_or("has_text").alias("has_text"),
        )
        .sort("path")
        .collect()
    )
