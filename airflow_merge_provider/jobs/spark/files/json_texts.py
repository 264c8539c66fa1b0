"""What Spark's parser of JSON does not report: text after a value, half of a surrogate pair, repeated fields.

Source: docs/semantics/merge_record.md, Formats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType, VariantType

from airflow_merge_provider.core.dataset import parse_hadoop_path
from airflow_merge_provider.jobs.spark.files.file_problem import FileProblem
from airflow_merge_provider.jobs.spark.files.value_problems import combine_problems, find_in_items, or_null

# The code of half a pair is its first group; a backslash that another one escapes begins no code.
HALF_PAIR = (
    r"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
_EXAMPLE_MAX_LENGTH = 100
# The last item of an array with one more item.
_END, _WITH_END = "end", 2

# A field, and in it a word that is no value of JSON: neither a number, nor true, false or null.
_BARE_WORD = (
    r'"([^"\\]*)"\s*:[\s\[]*(?:[^"{}\[\]:]*,\s*)?'
    r"((?!(?:true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*(?:[,\]}]|\z))"
    r'[^\s"\[\]{},:]+)'
)

_ANY_FIELDS = MapType(StringType(), StringType())


def split_bare_word(text: Column) -> tuple[Column, Column]:
    """Return the field that has a word that is no value of JSON, and the word; empty if none has."""
    return F.regexp_extract(text, _BARE_WORD, 1), F.regexp_extract(text, _BARE_WORD, 2)


def describe_bare_word(text: Column) -> Column:
    """Return which field of a text has a word that is no value of JSON, such as NaN; NULL if none has."""
    name, word = split_bare_word(text)
    problem = F.concat(
        F.lit("column '"),
        name,
        F.lit("': '"),
        word,
        F.lit("' is not a value of JSON, such as in '"),
        F.left(F.make_valid_utf8(text), F.lit(_EXAMPLE_MAX_LENGTH)),
        F.lit("' (write null, or the value in quotes)"),
    )
    return F.when(word != "", problem)


def select_parser_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a reader that say what the parser of JSON accepts.

    >>> select_parser_options({"allowComments": "true", "multiLine": "true"})
    {'mode': 'PERMISSIVE', 'allowComments': 'true'}
    """
    # Spark Connect takes no map without entries.
    allowed = {name: text for name, text in options.items() if name.lower().startswith("allow")}
    return {"mode": "PERMISSIVE"} | allowed


def find_repeated_field(
    text: Column, options: dict[str, str], kind: StructType | MapType = _ANY_FIELDS
) -> Column:
    """Return the path of a field that a record has twice, of which Spark reads one value; NULL if none is.

    :param text: a record, or an array of records.
    :param kind: the fields that are read; by default all of them, without those inside others.
    """
    items = F.when(F.ltrim(text).startswith("["), F.from_json(text, "array<string>", options))
    name = find_in_items(
        F.coalesce(items, F.array(text)), lambda item: _find_repeated(item, kind, "", options)
    )
    # Spark's other parser of JSON refuses each text with a repeated field, which is seen much faster.
    return F.when(F.try_parse_json(text).isNull(), or_null(name))


def describe_repeated_field(
    text: Column, options: dict[str, str], kind: StructType | MapType = _ANY_FIELDS
) -> Column:
    """Return the problem of a field that a record has twice, as ``find_repeated_field`` does."""
    name = find_repeated_field(text, options, kind)
    return F.concat(F.lit("a record has the field '"), name, F.lit("' more than once (write one value)"))


def _find_repeated(text: Column, kind: DataType, path: str, options: dict[str, str]) -> Column | None:
    if isinstance(kind, ArrayType):
        items, inner = F.from_json(text, "array<string>", options), kind.elementType
        return find_in_items(items, lambda item: _find_repeated(item, inner, f"{path}element.", options))
    if not isinstance(kind, StructType | MapType):
        return None
    entries = F.from_json(text, "map<string,string>", options)
    names = F.map_keys(entries)
    if isinstance(kind, StructType):
        names = F.filter(names, lambda name: name.isin(kind.names))
    repeated = F.filter(names, lambda name: F.size(F.filter(names, lambda other: other == name)) > 1)
    is_repeated = F.size(F.array_distinct(names)) < F.size(names)
    own = F.when(is_repeated, F.concat(F.lit(path), F.get(repeated, F.lit(0))))
    if isinstance(kind, MapType):
        values, inner = F.map_values(entries), kind.valueType
        return combine_problems(
            [
                own,
                find_in_items(values, lambda value: _find_repeated(value, inner, f"{path}value.", options)),
            ]
        )
    parts = (
        _find_repeated(
            F.try_element_at(entries, F.lit(field.name)), field.dataType, f"{path}{field.name}.", options
        )
        for field in kind.fields
    )
    return combine_problems([own, *parts])


def find_other_case(schema: DataType, kind: DataType, path: str = "") -> tuple[str, str] | None:
    """Return a field of a schema and one of the records whose names differ in case only; None if none do.

    :param kind: the fields of all records, of which Spark reads only those with the names of the schema.
    """
    inner: list[tuple[DataType, DataType, str]] = []
    if isinstance(schema, ArrayType) and isinstance(kind, ArrayType):
        inner = [(schema.elementType, kind.elementType, "element")]
    elif isinstance(schema, MapType) and isinstance(kind, StructType):
        inner = [(schema.valueType, field.dataType, "value") for field in kind]
    elif isinstance(schema, StructType) and isinstance(kind, StructType):
        own_fields = {field.name.casefold(): field for field in schema}
        pairs = [(own_fields[key], field) for field in kind if (key := field.name.casefold()) in own_fields]
        if other := next((pair for pair in pairs if pair[1].name not in schema.names), None):
            return f"{path}{other[0].name}", f"{path}{other[1].name}"
        inner = [(own.dataType, field.dataType, own.name) for own, field in pairs]
    inner_pairs = (find_other_case(own, other, f"{path}{name}.") for own, other, name in inner)
    return next((pair for pair in inner_pairs if pair is not None), None)


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
    return text.contains("\\u") & text.rlike(HALF_PAIR)


# What the types of a VARIANT are in JSON, by how their names begin.
_KINDS = {"STRING": "a text", "BOOLEAN": "a boolean", "ARRAY": "a list", "OBJECT": "a record"}
_NUMBER_WORD = "a number"
_ONE_TYPE = "write values of one type, or set the option primitivesAsString to true, which makes texts of all"


def parse_variant_type(ddl: str) -> DataType:
    """Return a type that was inferred from a VARIANT, with STRUCT for records."""
    kind = StructType.fromDDL(f"record {ddl.replace('OBJECT<', 'STRUCT<')}")
    return kind.fields[0].dataType if isinstance(kind, StructType) else kind


def build_variant_path(names: Iterable[str]) -> str | None:
    """Return the path of a value in a VARIANT; None if Spark has none for such a name.

    >>> print(build_variant_path(["a", "it's"]), build_variant_path(["why?"]))
    $['a']["it's"] None
    """
    path = "$"
    for name in names:
        quote = '"' if "'" in name else "'"
        if not name or quote in name or "?" in name:
            return None
        path += f"[{quote}{name}{quote}]"
    return path


def find_mixed_field(kind: DataType, names: tuple[str, ...] = ()) -> tuple[str, ...] | None:
    """Return the names that lead to a field of several types, in a type that was inferred from a VARIANT.

    The last one is the field, or the list that contains it.
    """
    if isinstance(kind, VariantType):
        return names
    if isinstance(kind, ArrayType):
        return None if find_mixed_field(kind.elementType, ()) is None else names
    if not isinstance(kind, StructType):
        return None
    paths = (find_mixed_field(field.dataType, (*names, field.name)) for field in kind.fields)
    return next((path for path in paths if path is not None), None)


def describe_mixture(records: DataFrame, names: tuple[str, ...]) -> FileProblem:
    """Return the problem of a field of several types, with a file of each of two types.

    :param records: the columns ``path``, and ``record`` as a VARIANT.
    """
    name, path = ".".join(names), build_variant_path(names)
    if path is None:
        return FileProblem(f"field {name!r} has values of several types", _ONE_TYPE)
    kind = F.schema_of_variant(F.try_variant_get("record", path, "variant"))
    word = F.lit(_NUMBER_WORD)
    for beginning, text in _KINDS.items():
        word = F.when(kind.startswith(beginning), F.lit(text)).otherwise(word)
    kinds = records.select("path", F.when(kind != "VOID", word).alias("word"))
    rows = kinds.where("word IS NOT NULL").groupBy("word").agg(F.min("path").alias("path")).sort("word")
    descriptions = [f"{row.word} in {parse_hadoop_path(unquote(row.path))}" for row in rows.collect()]
    if len(descriptions) == 1:
        return FileProblem(f"field {name!r} is {descriptions[0]}, with items of several types", _ONE_TYPE)
    return FileProblem(f"field {name!r} is {descriptions[0]}, but {descriptions[1]}", _ONE_TYPE)
