"""What Spark's parser of JSON leaves out or changes in silence: text after a value, and half characters.

Source: docs/semantics/merge_record.md, Formats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from types import MappingProxyType

from pyspark.sql import Column, functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from airflow_merge_provider.jobs.merge_record.readers.formats import BAD
from airflow_merge_provider.jobs.merge_record.readers.json_numbers import NO_VARIANT, find_long_number
from airflow_merge_provider.jobs.spark.files.json_texts import (
    HALF_PAIR,
    build_variant_path,
    describe_repeated_field,
    has_half_pair,
    is_record,
    select_parser_options,
)
from airflow_merge_provider.jobs.spark.sql import quote_column
from airflow_merge_provider.jobs.spark.text_values import describe_text

_FIELD_OF_HALF = rf'"([^"\\]*)"\s*:\s*"[^"]*?(?:{HALF_PAIR})'
_EXAMPLE_MAX_LENGTH = 100
# The types of a VARIANT for those that Spark's parser reads itself: other values are read as texts.
_SHAPES: dict[type[DataType], str] = {
    StructType: "OBJECT",
    MapType: "OBJECT",
    ArrayType: "ARRAY",
    BooleanType: "BOOLEAN",
    BinaryType: "STRING",
    **dict.fromkeys((ShortType, IntegerType, LongType), "BIGINT"),
}
_NO_UTF8 = "' is not UTF-8 (set the option encoding and a schema of the reader)"


def describe_json_text(
    text: Column, schema: StructType | None = None, options: Mapping[str, str] = MappingProxyType({})
) -> Column:
    """Return what a parser would leave out or change in a text of JSON; NULL if there is nothing.

    :param schema: the types by which it is parsed, if the reader has a schema.
    :param options: those of the reader.
    """
    example = F.left(F.make_valid_utf8(text), F.lit(_EXAMPLE_MAX_LENGTH))
    field = F.regexp_extract(text, _FIELD_OF_HALF, 1)
    half = F.concat(
        F.when(field != "", F.concat(F.lit("column '"), field, F.lit("'"))).otherwise("a text"),
        F.lit(" has '"),
        F.regexp_extract(text, HALF_PAIR, 1),
        F.lit("', half of a surrogate pair (correct it)"),
    )
    number = F.lit(None).cast("string")
    if schema is not None and "variant" in schema.simpleString():
        hint = "' (set another type for it in the schema, such as STRING)"
        lossy_number = find_long_number(text, NO_VARIANT)
        number = F.concat(F.lit("no VARIANT holds the number '"), lossy_number, F.lit(hint))
    problem = (
        F.when(
            ~F.is_valid_utf8(text),
            F.concat(F.lit("'"), example, F.lit(_NO_UTF8)),
        )
        .when(
            _goes_on(text, options),
            F.concat(
                F.lit("further text follows the JSON value in '"),
                example,
                F.lit("' (write one record in each line, or all in one array)"),
            ),
        )
        .when(has_half_pair(text), half)
    )
    if schema is None:
        return F.coalesce(problem, number)
    repeated = describe_repeated_field(text, select_parser_options(options), schema)
    return F.coalesce(problem, number, repeated)


def describe_unread_values(schema: StructType, *, is_array: bool) -> list[Column]:
    """Return columns that describe a value of a record or an array in ``BAD`` that Spark cannot read."""
    describe = _describe_member if is_array else _describe_unread
    return [describe(names, kind) for names, kind in _list_values(schema, ()) if names]


def _list_values(kind: DataType, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], DataType]]:
    """Yield the values of a type by the names of their fields, the inner ones first."""
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield from _list_values(field.dataType, (*names, field.name))
    if not isinstance(kind, StringType):
        yield names, kind


def _describe_unread(names: tuple[str, ...], kind: DataType) -> Column:
    """Return a value of a record that has become NULL; NULL if there is none."""
    value = reduce(lambda outer, name: outer[name], names[1:], quote_column(names[0]))
    text = F.get_json_object(F.col(BAD), "$" + "".join(f"['{name}']" for name in names))
    return F.when(value.isNull(), describe_text(text, kind, ".".join(names)))


def _describe_member(names: tuple[str, ...], kind: DataType) -> Column:
    """Return a value of the records of an array that Spark cannot read as its type; NULL if there is none."""
    path, shape = build_variant_path(names) or "", _SHAPES.get(type(kind))

    def find_wrong_text(record: Column) -> Column:
        text = F.try_variant_get(record, path, "string")
        own_shape = F.schema_of_variant(F.try_variant_get(record, path, "variant"))
        value = text
        if shape == "BIGINT":
            value = F.try_variant_get(record, path, kind.simpleString())
        elif isinstance(kind, BinaryType):
            value = F.try_to_binary(text, F.lit("base64"))
        is_right = own_shape.startswith(shape or "") & value.isNotNull()
        return F.when((own_shape != "VOID") & ~is_right, text)

    if shape is None or not path:
        return F.lit(None).cast("string")
    records = F.try_variant_get(F.try_parse_json(F.col(BAD)), "$", "array<variant>")
    texts = F.filter(F.transform(records, find_wrong_text), F.isnotnull)
    return describe_text(F.get(texts, F.lit(0)), kind, ".".join(names))


def _goes_on(text: Column, options: Mapping[str, str]) -> Column:
    """Return whether a text has more after its object or array; False if it is no JSON."""
    return ~is_record(text, select_parser_options(options)) & F.get_json_object(text, "$").isNotNull()
