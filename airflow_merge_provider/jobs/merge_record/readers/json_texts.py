"""What Spark's parser of JSON does not report: text after a value, and half of a surrogate pair.

Source: docs/semantics/merge_record.md, Formats.
"""

from __future__ import annotations

from pyspark.sql import Column, functions as F

_HALF = (
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


def goes_on(text: Column) -> Column:
    """Return whether a text has more after its object or array."""
    # The text is parsed again only if the first closing brace is not at its end.
    within = F.json_array_length(F.concat(F.lit("["), text, F.lit("]")))
    return F.when(text.rlike(r"^[^}]*\}\s*$"), F.lit(False)).otherwise(~within.eqNullSafe(F.lit(1)))


def has_half_pair(text: Column) -> Column:
    """Return whether a text has half of a surrogate pair, of which Spark makes a question mark."""
    return text.rlike(_HALF)
