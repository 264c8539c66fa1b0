"""What Spark's parser of JSON does not report: text after a value, and half of a surrogate pair.

Source: docs/semantics/merge_record.md, Formats.
"""

from __future__ import annotations

from pyspark.sql import Column, functions as F
from pyspark.sql.types import ArrayType, DataType, StructType

# A backslash that another one escapes begins no code.
_HALF = (
    r"(?<!\\)(?:\\\\)*(?:\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
# The last item of an array with one more item.
_END, _WITH_END = "end", 2

# A name of a field in a text without escapes, or else a text.
_NAME = r'"([^"]*)"\s*:|"[^"]*"'


def find_other_case(text: Column, schema: StructType) -> Column:
    """Return a field of a record whose name differs from one of the schema in case only, or else NULL.

    Spark infers one field from both and leaves out the values of the other one.
    """
    names = _list_names(schema)
    fields = F.regexp_extract_all(F.regexp_replace(text, r"\\.", "_"), F.lit(_NAME), F.lit(1))
    lower_names = [name.lower() for name in names]
    other_names = F.filter(fields, lambda name: F.lower(name).isin(lower_names) & ~name.isin(names))
    return F.get(other_names, F.lit(0))


def _list_names(kind: DataType) -> list[str]:
    """Return the names of all fields in a type."""
    if isinstance(kind, ArrayType):
        return _list_names(kind.elementType)
    if not isinstance(kind, StructType):
        return []
    return [name for field in kind.fields for name in (field.name, *_list_names(field.dataType))]


def goes_on(text: Column) -> Column:
    """Return whether a text has more after its object or array."""
    # The text is parsed again only if the first closing brace is not at its end.
    within = F.json_array_length(F.concat(F.lit("["), text, F.lit("]")))
    return F.when(text.rlike(r"^[^}]*\}\s*$"), F.lit(False)).otherwise(~within.eqNullSafe(F.lit(1)))


def is_record(text: Column, options: dict[str, str]) -> Column:
    """Return whether a text is one value of JSON and nothing else.

    :param options: the options of the reader, which may allow comments or other quotes.
    """
    # A short record is seen without parsing it: its only closing brace is at its end.
    is_short = text.rlike(r"\A\s*\{[^{}]*\}\s*\z")
    items = F.from_json(F.concat(F.lit("["), text, F.lit(f'\n, "{_END}"]')), "array<string>", options)
    is_alone = (F.size(items) == _WITH_END) & F.get(items, F.lit(1)).eqNullSafe(F.lit(_END))
    return F.when(is_short, F.lit(True)).otherwise(F.coalesce(is_alone, F.lit(False)))


def has_half_pair(text: Column) -> Column:
    """Return whether a text has half of a surrogate pair, of which Spark makes a question mark."""
    return text.rlike(_HALF)
