"""Values that files of a format cannot hold, or that their readers take for others.

Source: docs/semantics/merge_record.md, Types of files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pyspark.sql import Column, functions as F, types as T

from airflow_merge_provider.core.merge_record.schema import NAME_PATTERNS, Schema
from airflow_merge_provider.jobs.merge_record.readers.spark_types import spark_schema
from airflow_merge_provider.jobs.spark.files.foreign_times import GREGORIAN_START
from airflow_merge_provider.jobs.spark.sql import quote_column

_EXAMPLE_MAX_LENGTH = 100
_HINT = " (set the field to STRING in the schema of the writer, or another format)"
# All characters but those of XML 1.0.
_NO_XML = r"[^\t\n\r\x{20}-\x{D7FF}\x{E000}-\x{FFFD}\x{10000}-\x{10FFFF}]"
# In microseconds. ORC stores seconds and a fraction, of which neither is negative there.
_LAST_SECOND = (-999_999, -1)
# Returns what is wrong with a value, which is not NULL; None if each value of the type can be written.
Rule = Callable[[Column, T.DataType], Column | None]


def describe_unwritable_value(schema: Schema, format_name: str) -> Column | None:
    """Return the field and the value of a record that files of a format cannot hold, or else NULL.

    :return: None if the files hold every record of the schema.
    """
    rule = _RULES.get(format_name)
    if rule is None:
        return None
    fields = spark_schema(schema).fields
    return combine_problems(
        _describe_value(quote_column(field.name), field.dataType, field.name, rule) for field in fields
    )


def combine_problems(problems: Iterable[Column | None]) -> Column | None:
    """Return the first problem of a record; None if there are none to look for."""
    columns = [problem for problem in problems if problem is not None]
    return F.coalesce(*columns) if columns else None


def find_in_items(items: Column, describe_item: Callable[[Column], Column | None]) -> Column | None:
    """Return the first problem of the items of a list; None if there is none to look for."""
    if describe_item(F.lit(None)) is None:
        return None
    problems = F.transform(items, lambda item: or_null(describe_item(item)))
    return F.get(F.filter(problems, F.isnotnull), F.lit(0))


def or_null(problem: Column | None) -> Column:
    """Return the column of a problem, with NULL if there is none to look for."""
    return F.lit(None).cast("string") if problem is None else problem


def _describe_value(value: Column, kind: T.DataType, path: str, rule: Rule) -> Column | None:
    own = rule(value, kind)
    problem = None if own is None else F.when(value.isNotNull() & own.isNotNull(), _build_text(path, own))
    return combine_problems([problem, *_describe_inner(value, kind, path, rule)])


def _describe_inner(value: Column, kind: T.DataType, path: str, rule: Rule) -> list[Column | None]:
    if isinstance(kind, T.StructType):
        return [
            _describe_value(value[field.name], field.dataType, f"{path}.{field.name}", rule)
            for field in kind.fields
        ]
    parts: list[tuple[Column, T.DataType, str]] = []
    if isinstance(kind, T.ArrayType):
        parts = [(value, kind.elementType, "element")]
    elif isinstance(kind, T.MapType):
        parts = [(F.map_keys(value), kind.keyType, "key"), (F.map_values(value), kind.valueType, "value")]
    return [find_in_items(items, _bind_rule(inner, f"{path}.{name}", rule)) for items, inner, name in parts]


def _bind_rule(kind: T.DataType, path: str, rule: Rule) -> Callable[[Column], Column | None]:
    return lambda item: _describe_value(item, kind, path, rule)


def _build_text(path: str, problem: Column) -> Column:
    return F.concat(F.lit(f"field {path!r}: "), problem)


def _check_orc(value: Column, kind: T.DataType) -> Column | None:
    if isinstance(kind, T.MapType) and "date" in kind.keyType.simpleString():
        # The writer compares such keys by a number that is always 0.
        problem = f"ORC files of Spark keep one entry of a map whose keys are dates{_HINT}"
        return F.lit(problem)
    if not isinstance(kind, T.DateType | T.TimestampType):
        return None
    name = kind.simpleString().upper()
    problem = f" is before {GREGORIAN_START}, which readers of ORC take for another day (write Parquet)"
    old = F.when(value < F.lit(GREGORIAN_START).cast(kind), _quote_value(value, name, problem))
    if isinstance(kind, T.DateType):
        return old
    problem = " is in the second before 1970, which ORC takes for the one after (write Parquet)"
    is_last = F.unix_micros(value).between(*_LAST_SECOND)
    return F.coalesce(old, F.when(is_last, _quote_value(value, name, problem)))


def _quote_value(value: Column, kind: str, problem: str) -> Column:
    return F.concat(F.lit(f"the {kind} "), value.cast("string"), F.lit(problem))


def _check_xml(value: Column, kind: T.DataType) -> Column | None:
    if isinstance(kind, T.StringType):
        example = F.left(F.regexp_replace(value, _NO_XML, "?"), F.lit(_EXAMPLE_MAX_LENGTH))
        text = F.concat(F.lit("the STRING '"), example, F.lit(f"' has a character that XML lacks{_HINT}"))
        return F.when(value.rlike(_NO_XML), text)
    if isinstance(kind, T.ArrayType):
        if isinstance(kind.elementType, T.ArrayType):
            return F.lit(f"XML has no lists of lists{_HINT}")
        is_lost = (F.size(value) == 0) | F.exists(value, F.isnull)
        return F.when(is_lost, F.lit(f"a list is empty or has a NULL item, which XML lacks{_HINT}"))
    if isinstance(kind, T.MapType):
        is_name = F.forall(F.map_keys(value), lambda key: key.rlike(NAME_PATTERNS["xml"]))
        is_lost = ~is_name | F.exists(F.map_values(value), F.isnull)
        return F.when(is_lost, F.lit(f"a map has a NULL value, or a key that is no name in XML{_HINT}"))
    return None


_RULES: Mapping[str, Rule] = {"orc": _check_orc, "xml": _check_xml}
