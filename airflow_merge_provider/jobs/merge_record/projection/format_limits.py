"""Values that files of a format cannot hold, or that their readers take for others.

Source: docs/semantics/merge_record.md, Types of files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from pyspark.sql import Column, functions as F, types as T

from airflow_merge_provider.core.file_options import find_option
from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.schema import NAME_PATTERNS, Schema
from airflow_merge_provider.jobs.merge_record.readers.formats import write_options
from airflow_merge_provider.jobs.merge_record.readers.spark_types import spark_schema
from airflow_merge_provider.jobs.spark.files.value_problems import (
    GREGORIAN_START,
    Rule,
    combine_problems,
    describe_value,
)
from airflow_merge_provider.jobs.spark.formats import LACKING
from airflow_merge_provider.jobs.spark.sql import quote_column

_EXAMPLE_MAX_LENGTH = 100
_LIMIT_HINT = " (set the field to STRING in the schema of the writer, or another format)"
_SEPARATOR_HINT, _NUL = " (set sep to one character)", "\0"
_ENCODING_HINT = " (set another encoding of the writer, such as UTF-8)"
# Files of these formats have no character NUL, or cannot be read.
_NUL_FREE = ("csv", "xml")
# The options of CSV whose texts stand for NULL and for an empty text, which no other value equals.
_SPECIAL_TEXTS = {"nullValue": "", "emptyValue": '""'}
# All characters but those of XML 1.0.
_NO_XML = r"[^\t\n\r\x{20}-\x{D7FF}\x{E000}-\x{FFFD}\x{10000}-\x{10FFFF}]"
# In microseconds. ORC stores seconds and a fraction, of which neither is negative there.
_LAST_SECOND = (-999_999, -1)


def describe_unwritable_value(schema: Schema, config: MergeRecordConfig) -> Column | None:
    """Return the field and the value of a record that the merged file cannot hold, or else NULL.

    :return: None if the files hold every record of the schema.
    """
    output = config.output
    rule = _RULES.get(output.format)
    if output.format == "csv":
        options = write_options(output)
        encoding = find_option(options, "encoding")
        lacking = LACKING.get(encoding)
        if lost := next((name for name in schema.names if lacking and re.search(lacking, name)), None):
            return F.lit(f"field {lost!r}: its name has a character that {encoding} lacks{_ENCODING_HINT}")
        separator = find_option(options, "sep", ",")
        if lost := next((name for name in schema.names if _ends_in_part(name, separator)), None):
            return F.lit(f"field {lost!r}: its name ends in a part of sep{_SEPARATOR_HINT}")
        texts = {name: find_option(options, name) for name in _SPECIAL_TEXTS}
        problems = {lacking: f"a character that {encoding} lacks{_ENCODING_HINT}"} if lacking else {}
        if config.reader.format not in _NUL_FREE:
            problems[_NUL] = "the character NUL, which CSV lacks (write another format)"
        rule = partial(_check_csv, texts, separator, problems)
    if rule is None:
        return None
    fields = spark_schema(schema).fields
    return combine_problems(
        describe_value(quote_column(field.name), field.dataType, field.name, rule, "field {!r}: ")
        for field in fields
    )


def _ends_in_part(name: str, separator: str) -> bool:
    """Return whether the separator after a name, which has no quotes, begins inside the name."""
    return separator not in name and (name + separator).index(separator) < len(name)


def _check_csv(
    texts: Mapping[str, str],
    separator: str,
    character_problems: Mapping[str, str],
    value: Column,
    kind: T.DataType,
) -> Column | None:
    text, name = value.cast("string"), kind.simpleString().upper()
    shown = F.left(F.replace(text, F.lit(_NUL), F.lit("?")), F.lit(_EXAMPLE_MAX_LENGTH))
    example = F.concat(F.lit(f"the {name} '"), shown)
    lost = [
        (text == special, f"' is written as the {option} of the writer is (set another {option})")
        for option, special in texts.items()
        if special not in ("", _SPECIAL_TEXTS[option])
    ]
    if isinstance(kind, T.StringType) and texts["emptyValue"] == texts["nullValue"]:
        lost.append((text == "", "' is written as NULL is (set another emptyValue)"))
    if len(separator) > 1:
        is_part = ~text.contains(separator)
        is_part &= F.instr(F.concat(text, F.lit(separator)), separator) <= F.length(text)
        lost.append((is_part, f"' ends in a part of sep{_SEPARATOR_HINT}"))
    if isinstance(kind, T.StringType):
        lost += [(text.rlike(mark), f"' has {problem}") for mark, problem in character_problems.items()]
    problems = (F.when(is_lost, F.concat(example, F.lit(problem))) for is_lost, problem in lost)
    return F.coalesce(*problems, F.lit(None).cast("string")) if lost else None


def _check_orc(value: Column, kind: T.DataType) -> Column | None:
    if isinstance(kind, T.MapType) and "date" in kind.keyType.simpleString():
        # The writer compares such keys by a number that is always 0.
        problem = f"ORC files of Spark keep one entry of a map whose keys are dates{_LIMIT_HINT}"
        return F.lit(problem)
    if not isinstance(kind, T.DateType | T.TimestampType):
        return None
    name = kind.simpleString().upper()
    problem = f"' is before {GREGORIAN_START}, which readers of ORC take for another day (write Parquet)"
    old = F.when(value < F.lit(GREGORIAN_START).cast(kind), _quote_value(value, name, problem))
    if isinstance(kind, T.DateType):
        return old
    problem = "' is in the second before 1970, which ORC takes for the one after (write Parquet)"
    is_last = F.unix_micros(value).between(*_LAST_SECOND)
    return F.coalesce(old, F.when(is_last, _quote_value(value, name, problem)))


def _quote_value(value: Column, kind: str, problem: str) -> Column:
    return F.concat(F.lit(f"the {kind} '"), value.cast("string"), F.lit(problem))


def _check_xml(value: Column, kind: T.DataType) -> Column | None:
    if isinstance(kind, T.StringType):
        example = F.left(F.regexp_replace(value, _NO_XML, "?"), F.lit(_EXAMPLE_MAX_LENGTH))
        text = F.concat(
            F.lit("the STRING '"), example, F.lit(f"' has a character that XML lacks{_LIMIT_HINT}")
        )
        return F.when(value.rlike(_NO_XML), text)
    if isinstance(kind, T.ArrayType):
        if isinstance(kind.elementType, T.ArrayType):
            return F.lit(f"XML has no lists of lists{_LIMIT_HINT}")
        is_lost = (F.size(value) == 0) | F.exists(value, F.isnull)
        return F.when(is_lost, F.lit(f"a list is empty or has a NULL item, which XML lacks{_LIMIT_HINT}"))
    if isinstance(kind, T.MapType):
        is_name = F.forall(F.map_keys(value), lambda key: key.rlike(NAME_PATTERNS["xml"]))
        is_lost = ~is_name | F.exists(F.map_values(value), F.isnull)
        return F.when(is_lost, F.lit(f"a map has a NULL value, or a key that is no name in XML{_LIMIT_HINT}"))
    return None


_RULES: Mapping[str, Rule] = {"orc": _check_orc, "xml": _check_xml}
