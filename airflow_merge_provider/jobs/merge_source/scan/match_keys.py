"""Build the match keys of an entity: each rule side of a source as a column of typed keys.

If Spark's own expressions give exactly the result of the definition (core.merge_source.expressions), they
are used; every other side is evaluated by that definition itself, in one Python function call per row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, Row, functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    VariantType,
)

from airflow_merge_provider.core import errors
from airflow_merge_provider.core.merge_source.columns import ENTITY
from airflow_merge_provider.core.merge_source.dtl import expressions, functions, values
from airflow_merge_provider.core.merge_source.dtl.expressions import Call, Expression, Path
from airflow_merge_provider.core.merge_source.equality import Rule, Side
from airflow_merge_provider.core.merge_source.overrides import SAME_LEFT, SAME_RIGHT, is_override
from airflow_merge_provider.jobs.merge_source.scan import typed_rows
from airflow_merge_provider.jobs.merge_source.scan.python_values import build_reader, encode_value
from airflow_merge_provider.jobs.merge_source.scan.sources import (
    SCAN_CONTENT,
    SCAN_DELETED,
    SCAN_ID,
    TEXT,
    Source,
)
from airflow_merge_provider.jobs.merge_source.scan.variants import as_items
from airflow_merge_provider.jobs.spark.expressions import build_array, combine_with_or
from airflow_merge_provider.jobs.spark.pickling import pickle_once
from airflow_merge_provider.jobs.spark.sql import quote_column

ID_PROPERTY = "_id"
LEFT, RIGHT = "left", "right"
KEYS_TYPE = "array<struct<rule:string,side:string,value:string>>"
_TEXT, _BOOLEAN, _NUMBER = (f"{kind}:" for kind in (values.STRING, values.BOOLEAN, values.NUMBER))
_INTEGER_TYPES = (ByteType, ShortType, IntegerType, LongType)
_CASES: Mapping[str, Callable[[Column], Column]] = {"lower": F.lower, "upper": F.upper}
# Workers need these modules and may not have this package installed.
_SHIPPED = (errors, values, functions, expressions, typed_rows)


@dataclass(frozen=True)
class MatchKeys:
    """The typed keys of one side: a string that is NULL if there is none, or an array of strings, never NULL.

    Most sides give one string, which Spark handles ten times as fast as an array of one.
    """

    values: Column
    is_list: bool

    @property
    def has_key(self) -> Column:
        """Whether there is a key; deleted entities have none."""
        return ~F.col(SCAN_DELETED) & self.values.isNotNull()

    def map_keys(self, function: Callable[[Column], Column]) -> Column:
        """Apply a function of one key to all keys; NULL and empty arrays stay as they are."""
        if self.is_list:
            keys = F.when(~F.col(SCAN_DELETED), self.values).otherwise(F.array().cast("array<string>"))
            return F.transform(keys, function)
        return F.when(self.has_key, function(self.values))


@dataclass(frozen=True)
class SourceKeys:
    """The keys of one source for each distinct side of a rule.

    ``coded`` is true if a string of the row starts with ``~``: the value may be of another type, and only the
    definition can decide that. It is None if no side is native.
    """

    sides: tuple[Side, ...]
    keys: tuple[MatchKeys, ...]
    coded: Column | None

    def map_keys(self, function: Callable[[Column], Column]) -> list[Column]:
        """Apply a function of one key to the keys of every side; deleted entities have none."""
        return [keys.map_keys(function) for keys in self.keys]

    def project_keys(self) -> tuple[list[Column], SourceKeys]:
        """Return the keys as separate columns, and the same keys by the names of these columns.

        Spark computes a key again for every function of it, but a separate column only once.
        """
        names = [f"__merge_key{number}" for number in range(len(self.keys))]
        columns = [keys.values.alias(name) for name, keys in zip(names, self.keys, strict=True)]
        keys = [replace(keys, values=F.col(name)) for name, keys in zip(names, self.keys, strict=True)]
        return columns, replace(self, keys=tuple(keys))

    def concat_keys(self, rules: Sequence[Rule]) -> Column:
        """Return all keys of an entity in the form of ``_members``."""
        single: list[tuple[Column, list[Column]]] = []
        arrays: list[Column] = []
        by_side = {side.order: keys for side, keys in zip(self.sides, self.keys, strict=True)}
        ends = [(rule, end, side) for rule in rules for end, side in ((LEFT, rule.left), (RIGHT, rule.right))]
        for rule, end, side in ends:
            keys, marked = by_side.get(side.order), _mark_side(rule.text, end)
            if keys is None:
                continue
            if keys.is_list:
                arrays.append(keys.map_keys(marked))
            else:
                single.append((keys.has_key, [marked(keys.values)]))
        return F.concat(build_array(single, F.array().cast(KEYS_TYPE)), *arrays)


def build_source_keys(source: Source, rules: Sequence[Rule], *, native: bool) -> SourceKeys:
    """Return the keys of a source's entities; ``native`` allows Spark's own expressions."""
    ends = (side for rule in rules for side in (rule.left, rule.right) if side.dataset == source.offset)
    sides = tuple({side.order: side for side in ends}.values())
    native_keys = [
        _build_native(source, side.expression) if native or is_override(side) else None for side in sides
    ]
    evaluated_sides = [side for side, compiled in zip(sides, native_keys, strict=True) if compiled is None]
    evaluated = (
        _evaluate_keys(source, [side.expression for side in evaluated_sides]) if evaluated_sides else None
    )
    keys, coded = [], []
    for side, compiled in zip(sides, native_keys, strict=True):
        if compiled is not None:
            keys.append(compiled.keys)
            coded += [compiled.coded] if compiled.coded is not None else []
        elif evaluated is not None:
            keys.append(MatchKeys(evaluated[evaluated_sides.index(side)], is_list=True))
    return SourceKeys(sides, tuple(keys), combine_with_or(coded) if coded else None)


def _mark_side(rule: str, end: str) -> Callable[[Column], Column]:
    """Return a key marked with its rule and side."""

    def mark_key(value: Column) -> Column:
        return F.struct(F.lit(rule).alias("rule"), F.lit(end).alias("side"), value.alias("value"))

    return mark_key


@dataclass(frozen=True)
class _NativeKeys:
    keys: MatchKeys
    coded: Column | None


def _build_native(source: Source, expression: Expression) -> _NativeKeys | None:
    """Compile a path to strings, booleans or integers, also in lists and structs, and its lower or upper."""
    case = None
    if isinstance(expression, Call) and expression.name in _CASES and len(expression.args) == 1:
        case, expression = _CASES[expression.name], expression.args[0]
    if not isinstance(expression, Path) or not expression.elements:
        return None
    if expression.elements[0] in (SAME_LEFT, SAME_RIGHT):
        return _NativeKeys(_to_list(quote_column(expression.elements[0]), _override_key), None)
    if source.properties is None and expression.elements != (ID_PROPERTY,):
        return _build_native_variant(expression, case)
    path_value = _to_path(source, expression)
    if path_value is None:
        return None
    value, kind = path_value
    item = kind.elementType if isinstance(kind, ArrayType) else kind
    prefix = _add_prefix(item)
    if prefix is None or (case and not isinstance(item, StringType)):
        return None

    def build_key(element: Column) -> Column:
        return F.concat(F.lit(prefix), (case(element) if case else element).cast("string"))

    is_array = isinstance(kind, ArrayType)
    coded = None
    if isinstance(item, StringType):
        coded = _is_any(value, _is_coded) if is_array else _is_coded(value)
    return _NativeKeys(
        _to_list(value, build_key) if is_array else MatchKeys(build_key(value), is_list=False), coded
    )


def _override_key(key: Column) -> Column:
    return F.concat(F.lit(_TEXT), key)


def _build_native_variant(path: Path, case: Callable[[Column], Column] | None) -> _NativeKeys | None:
    """Compile a root property of a VARIANT; values other than strings, integers and booleans are coded."""
    root, *nested_elements = path.elements
    if nested_elements or root.startswith(("_", "$")):
        return None
    value = F.col(SCAN_CONTENT)[F.lit(root)]
    items = F.coalesce(as_items(value), F.array(value))

    def build_key(element: Column) -> Column:
        kind, text = F.schema_of_variant(element), F.try_variant_get(element, "$", "string")
        of_text = F.concat(F.lit(_TEXT), case(text) if case else text)
        keyed = F.when(kind == "STRING", of_text)
        if case is None:
            keyed = keyed.when(kind == "BIGINT", F.concat(F.lit(_NUMBER), text))
            keyed = keyed.when(kind == "BOOLEAN", F.concat(F.lit(_BOOLEAN), text))
        return keyed

    def is_coded(element: Column) -> Column:
        kind = F.schema_of_variant(element)
        is_text = kind == "STRING"
        is_plain = is_text | kind.isin("BIGINT", "BOOLEAN", "VOID")
        return ~is_plain | (is_text & _is_coded(F.try_variant_get(element, "$", "string")))

    return _NativeKeys(_to_list(items, build_key), _is_any(items, is_coded))


def _to_list(items: Column, key: Callable[[Column], Column]) -> MatchKeys:
    """Return the keys of a list's items, each once; a NULL list has none."""
    keys = F.array_compact(F.array_distinct(F.transform(items, key)))
    return MatchKeys(F.coalesce(keys, F.array().cast("array<string>")), is_list=True)


def _is_any(items: Column, test: Callable[[Column], Column]) -> Column:
    return F.coalesce(F.exists(items, test), F.lit(False))


def _is_coded(text: Column) -> Column:
    return F.coalesce(text.startswith("~"), F.lit(False))


def _to_path(source: Source, path: Path) -> tuple[Column, DataType] | None:
    """Follow a path through structs; return None if it leads into a list, a map or a VARIANT."""
    absent = F.lit(None).cast("string"), StringType()
    root, *nested_elements = path.elements
    value: Column = F.col(SCAN_ID) if root == ID_PROPERTY else quote_column(root)
    if root != ID_PROPERTY and root not in source.frame.columns:
        return absent
    kind: DataType = StringType() if root == ID_PROPERTY else source.frame.schema[root].dataType
    for name in nested_elements:
        if isinstance(kind, ArrayType | MapType | VariantType):
            return None
        if not isinstance(kind, StructType) or name not in kind.names:
            return absent
        value, kind = value[name], kind[name].dataType
    return value, kind


def _add_prefix(kind: DataType) -> str | None:
    if isinstance(kind, StringType):
        return _TEXT
    if isinstance(kind, BooleanType):
        return _BOOLEAN
    return _NUMBER if isinstance(kind, _INTEGER_TYPES) else None


def _evaluate_keys(source: Source, sides: Sequence[Expression]) -> list[Column]:
    """Evaluate sides by their definition, all sides of a row in one call."""
    evaluate = _evaluate_entities if source.properties is None else _evaluate_columns
    keys_of = evaluate(source, sides)
    kind = ArrayType(ArrayType(StringType()))
    every = F.udf(pickle_once(keys_of, *_SHIPPED), kind, useArrow=True)(_project_source(source, sides))
    return [F.get(every, F.lit(position)) for position in range(len(sides))]


def _project_source(source: Source, sides: Sequence[Expression]) -> Column:
    """Select the values of a row that the sides read, as ``_read_entity`` takes them."""
    if source.properties is None:
        return F.struct(F.col(SCAN_ID), F.col(TEXT if source.is_json else ENTITY))
    kinds = _list_kinds(source, sides)
    values = (encode_value(quote_column(name), kind).alias(name) for name, kind in kinds.items())
    return F.struct(F.col(SCAN_ID).alias(ID_PROPERTY), *values)


def _list_kinds(source: Source, sides: Sequence[Expression]) -> dict[str, DataType]:
    """Return the types of the columns that the sides read."""
    roots = {path.elements[0] for side in sides for path in _list_paths(side) if path.elements}
    schema = source.frame.schema
    return {name: schema[name].dataType for name in source.frame.columns if name in roots - {ID_PROPERTY}}


def _evaluate_entities(source: Source, sides: Sequence[Expression]) -> Callable[[Row], list[list[str]]]:
    """Return the function that evaluates sides for the ID and the entity of a row."""
    read = typed_rows.read_json if source.is_json else typed_rows.read_variant

    def keys_of(row: Row) -> list[list[str]]:
        entity = {} if row[1] is None else read(row[1])
        entity[ID_PROPERTY] = row[0]
        return [values.build_keys(expressions.evaluate_expression(side, entity)) for side in sides]

    return keys_of


def _evaluate_columns(source: Source, sides: Sequence[Expression]) -> Callable[[Row], list[list[str]]]:
    """Return the function that evaluates sides for the values of a row."""
    kinds = {ID_PROPERTY: StringType(), **_list_kinds(source, sides)}
    fields = {name: build_reader(kind) for name, kind in kinds.items()}

    def keys_of(row: Row) -> list[list[str]]:
        entity = typed_rows.read_fields(fields, row)
        return [values.build_keys(expressions.evaluate_expression(side, entity)) for side in sides]

    return keys_of


def _list_paths(expression: Expression) -> list[Path]:
    if isinstance(expression, Path):
        return [expression]
    return (
        [path for arg in expression.args for path in _list_paths(arg)] if isinstance(expression, Call) else []
    )
