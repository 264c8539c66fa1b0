"""What Spark's parser of JSON leaves out or changes in silence: text after a value, and half characters.

Source: docs/semantics/merge_record.md, Formats.
"""

from __future__ import annotations

from pyspark.sql import Column, functions as F

from airflow_merge_provider.jobs.spark.files.json_texts import HALF_PAIR, has_half_pair

_FIELD_OF_HALF = rf'"([^"\\]*)"\s*:\s*"[^"]*?(?:{HALF_PAIR})'
_EXAMPLE_MAX_LENGTH = 100
_NO_UTF8 = "' is not UTF-8 (set the option encoding and a schema of the reader)"


def describe_json_text(text: Column) -> Column:
    """Return what a parser would leave out or change in a text of JSON; NULL if there is nothing."""
    example = F.left(F.make_valid_utf8(text), F.lit(_EXAMPLE_MAX_LENGTH))
    field = F.regexp_extract(text, _FIELD_OF_HALF, 1)
    half = F.concat(
        F.when(field != "", F.concat(F.lit("column '"), field, F.lit("'"))).otherwise("a text"),
        F.lit(" has '"),
        F.regexp_extract(text, HALF_PAIR, 1),
        F.lit("', half of a surrogate pair (correct it)"),
    )
    return (
        F.when(
            ~F.is_valid_utf8(text),
            F.concat(F.lit("'"), example, F.lit(_NO_UTF8)),
        )
        .when(
            _goes_on(text),
            F.concat(
                F.lit("further text follows the JSON value in '"),
                example,
                F.lit("' (write one record in each line, or all in one array)"),
            ),
        )
        .when(has_half_pair(text), half)
    )


def _goes_on(text: Column) -> Column:
    """Return whether a text has more after its object or array; False if it is no JSON."""
    # The text is parsed again only if the first closing brace is not at its end.
    is_flat = F.instr(text, "}") == F.length(F.rtrim(text))
    lengths = (F.json_array_length(F.concat(F.lit("["), text, F.lit(end))) for end in ("]", ",0]"))
    is_one = [length.eqNullSafe(F.lit(number)) for number, length in enumerate(lengths, 1)]
    return ~is_flat & ~(is_one[0] & is_one[1]) & F.get_json_object(text, "$").isNotNull()
