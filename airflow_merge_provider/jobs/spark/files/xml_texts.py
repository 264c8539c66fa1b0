"""Search XML files for what Spark's parser leaves out in silence: files without a record, names in two cases.

Source: docs/values.md, Files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import BinaryIO

from pyspark.sql import DataFrame, Row, functions as F

from airflow_merge_provider.core.file_options import find_option

# The beginning of an element, at the end of a text that ends before its next ">", and its attributes.
_ELEMENT = r"<([^\s<>!?/=]+)(\s[^<>]*)?\z"
_ATTRIBUTE = r"([^\s=]+)\s*=\s*[\"']"
_ELEMENTS = re.compile(r"<([^\s<>!?/=]+)[\s/>]")
_NAMED = 5
_CHUNK_BYTES = 1 << 20
_HINT = "set the option rowTag to the name of the element of a record"


def build_row_finder(options: Mapping[str, str]) -> Callable[[BinaryIO], str | None]:
    """Return a function that describes an XML file without records, or None if it has no elements."""
    row_tag, encoding = find_option(options, "rowTag"), find_option(options, "encoding", "utf-8-sig")

    def describe_file(file: BinaryIO) -> str | None:
        names = dict.fromkeys(_ELEMENTS.findall(file.read(_CHUNK_BYTES).decode(encoding, "replace")))
        return describe_elements(row_tag, names)

    return describe_file


def describe_elements(row_tag: str, names: Iterable[str]) -> str | None:
    """Return the problem of a file with these elements, or None: a file may have a root and no records.

    >>> describe_elements("row", ["rows", "r"])
    'it has no element <row>, but <rows>, <r> (set the option rowTag to the name of the element of a record)'
    """
    elements = [*names]
    if len(elements) <= 1 or row_tag in elements:
        return None
    shown = ", ".join(f"<{name}>" for name in elements[:_NAMED])
    return f"it has no element <{row_tag}>, but {shown} ({_HINT})"


def collect_names(texts: DataFrame) -> Sequence[Row]:
    """Return the elements and attributes of each file, and its first problem.

    :param texts: parts of files that end before a ``>``, in the columns ``path``, ``value`` and ``problem``.
    """
    attributes = F.regexp_extract_all(F.regexp_extract("value", _ELEMENT, 2), F.lit(_ATTRIBUTE), F.lit(1))
    element = F.nullif(F.regexp_extract("value", _ELEMENT, 1), F.lit(""))
    names = texts.select("path", "problem", element.alias("element"), attributes.alias("attributes"))
    return (
        names.groupBy("path")
        .agg(
            F.min("problem").alias("problem"),
            F.collect_set("element").alias("elements"),
            F.array_distinct(F.flatten(F.collect_set("attributes"))).alias("attributes"),
        )
        .sort("path")
        .collect()
    )
