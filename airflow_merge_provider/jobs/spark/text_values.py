"""Values of text formats, exactly: read as text, and converted only to a type that holds them.

Given a type, Spark's readers round decimals, cut times and fill in what a text lacks, in silence. Therefore
they read such values as text here. The conversion knows which texts are a value of a type.

Source: docs/values.md, Types of text files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from pyspark.sql import Column, DataFrame, functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from airflow_merge_provider.core.errors import ConfigError, Problem
from airflow_merge_provider.core.file_options import find_option
from airflow_merge_provider.jobs.spark.causes import raise_problem
from airflow_merge_provider.jobs.spark.expressions import cast_to
from airflow_merge_provider.jobs.spark.formats import complete_options
from airflow_merge_provider.jobs.spark.sql import quote_column

TEXT_FORMATS = ("csv", "json", "json-array", "xml")
_JSON_FORMATS = ("json", "json-array")
_INTEGER_TYPES = (ByteType, ShortType, IntegerType, LongType)
_FLOAT_TYPES = (FloatType, DoubleType)
# The types that Spark's readers do not change. In JSON, Spark refuses what is not an integer or a boolean;
# however, it takes 128 for the TINYINT -128.
_AS_READ = {
    "csv": (StringType, BinaryType, VariantType),
    "xml": (StringType, VariantType),
    **dict.fromkeys(
        _JSON_FORMATS, (StringType, BinaryType, VariantType, ShortType, IntegerType, LongType, BooleanType)
    ),
}
# Options that say how texts of some types are written: Spark reads these types, because the user asks for it.
_ASKED: dict[str, tuple[type[DataType], ...]] = {
    "dateformat": (DateType,),
    "timestampformat": (TimestampType,),
    "timestampntzformat": (TimestampNTZType,),
}
# Parts of such options by which Spark cuts a text in silence: digits of a second, and times of days.
_CUT_PATTERNS = {"timestampFormat": "S{7,}", "timestampNTZFormat": "S{7,}", "dateFormat": "[aBhHkKmsSnN]"}
_CUT_HINT = "write at most six digits of a second, and dates without times, or set the type STRING"
# The locale of Spark, in which the texts of types are written.
_LOCALE = "en-us"
_LOCALE_HINT = "remove the option, and write numbers as in 1234.5"
# Options with a further text of a value, in the formats that have them.
_SPECIAL_VALUES = {"nanValue": float("nan"), "positiveInf": float("inf"), "negativeInf": float("-inf")}
# Spark would read the last of the elements with one name.
_MAP_MESSAGE = "a MAP of XML has one of the elements of a name"
_MAP_HINT = "set a STRUCT, with ARRAYs of them"
_SPECIAL_FORMATS = ("csv", "xml")
# The texts of the values of each type; times may have more digits than Spark holds, if these are zeros.
_INTEGER_PATTERN = r"[+-]?[0-9]+"
_NUMBER_PATTERN = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
_PLAIN_NUMBER_PATTERN = r"\A-?[0-9]+(\.[0-9]+)?\z"
_SPECIAL = r"NaN|[+-]?(Infinity|Inf|INF)"
_DAY_PATTERN = r"[+-]?[0-9]{4,6}-[0-9]{1,2}-[0-9]{1,2}"
_TIME_PATTERN = r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6}0*)?)?"
_ZONE = r" ?(Z|UTC|GMT|[+-][0-9]{2}(:?[0-9]{2})?)"
_ZONED = rf":.*{_ZONE}\z"
_PATTERNS: dict[type[DataType], str] = {
    **dict.fromkeys(_INTEGER_TYPES, _INTEGER_PATTERN),
    **dict.fromkeys(_FLOAT_TYPES, f"{_NUMBER_PATTERN}|{_SPECIAL}"),
    DecimalType: _NUMBER_PATTERN,
    BooleanType: "(?i)true|false",
    # XML has no bytes, and Spark reads an empty text as NULL.
    BinaryType: r"[^\s\S]",
    DateType: _DAY_PATTERN,
    TimestampType: f"{_DAY_PATTERN}([ T]{_TIME_PATTERN}({_ZONE})?)?",
    TimestampNTZType: f"{_DAY_PATTERN}([ T]{_TIME_PATTERN})?",
}
# Up to here, integers of the type are one apart, and each number of so many digits is one value of it.
_INTEGER_MAX: dict[type[DataType], float] = {FloatType: 2.0**24, DoubleType: 2.0**53}
_SHORT_FLOAT_DIGITS: dict[type[DataType], int] = {FloatType: 6, DoubleType: 15}
_EXAMPLE_MAX_LENGTH = 100
_VALUE_HINT = " (correct it, or set another type for it in the schema, such as STRING)"
# The types whose values are not one element of XML.
_NO_ELEMENT = (ArrayType, MapType, VariantType)
_REPEATED_HINT = " (write one, or set an ARRAY of its type in the schema)"
# No element has a name that begins so: Spark puts attributes and elements with one name in one column.
_ATTRIBUTE_PREFIX = "@"
_BOTH_HINT = " (rename one of them, or set another attributePrefix)"


@dataclass(frozen=True, slots=True)
class TextValues:
    """The conversion of the values of a text format.

    :param kind: the format.
    :param options: the options of the reader.
    :param is_inferred: whether Spark chose the types: then no digit of a number may be lost, whereas a DOUBLE
        that is asked for takes the nearest number.
    :param hint: what to do about a value that its type does not hold.
    :param path: the dataset or the argument that errors of options name.
    :param leaves_floats: whether Spark's parser may read FLOAT and DOUBLE.
    :param has_attributes: whether attributes of XML are read apart from elements, which the conversion finds.
    """

    kind: str
    options: Mapping[str, str] = field(default_factory=dict)
    is_inferred: bool = False
    hint: str = _VALUE_HINT
    path: str = "reader"
    leaves_floats: bool = False
    has_attributes: bool = False

    def build_schema(self, schema: StructType) -> StructType:
        """Return the schema by which Spark reads: a STRING for each value that is converted afterwards.

        :raises ConfigError: if an option or a type leaves out a part of values, or changes them.
        """
        if problems := [*self._find_problems(schema)]:
            raise ConfigError.from_problems(problems)
        if (values := self._split_attributes(schema)) is not self:
            return values.build_schema(schema)
        kind = self._convert_type(schema)
        return kind if isinstance(kind, StructType) else schema

    def build_options(self, schema: StructType, options: Mapping[str, str]) -> dict[str, str]:
        """Return the options by which Spark reads the schema of ``build_schema``."""
        is_split = self._split_attributes(schema).has_attributes
        return complete_options(options, {"attributePrefix": _ATTRIBUTE_PREFIX} if is_split else {})

    def list_attributes(self, schema: StructType) -> list[str]:
        """Return the columns of ``build_schema`` that have attributes of XML apart from its elements."""
        names = set(schema.names)
        return [name for name in self.build_schema(schema).names if name not in names]

    def convert_columns(self, schema: StructType) -> dict[str, Column]:
        """Return the columns that have to be converted, from those that were read by ``build_schema``.

        A value that its type does not hold is NULL.
        """
        if (values := self._split_attributes(schema)) is not self:
            return values.convert_columns(schema)
        return {field.name: self._convert_field(quote_column, field) for field in self._list_columns(schema)}

    def describe_columns(self, schema: StructType) -> dict[str, Column]:
        """Return for each column that is converted a value that its type does not hold; NULL if none."""
        if (values := self._split_attributes(schema)) is not self:
            return values.describe_columns(schema)
        return {
            field.name: self._describe_field(quote_column, field, field.name)
            for field in self._list_columns(schema)
        }

    def convert_strictly(self, frame: DataFrame, schema: StructType, prefix: Column) -> DataFrame:
        """Return a frame with converted columns, in which a value that its type does not hold is an error.

        :param prefix: how the error begins.
        """
        values, problems = self.convert_columns(schema), self.describe_columns(schema)
        kinds = {field.name: field.dataType for field in schema.fields}
        columns = {}
        for name, value in values.items():
            failed = raise_problem(prefix, problems[name])
            columns[name] = F.when(problems[name].isNull(), value).otherwise(cast_to(failed, kinds[name]))
        frame = frame.withColumns(columns) if columns else frame
        return frame.drop(*map(quote_column, self.list_attributes(schema)))

    def _split_attributes(self, schema: StructType) -> TextValues:
        """Return the conversion of a schema; in a VARIANT and a MAP, attributes keep their prefix."""
        if self.kind != "xml" or self.is_inferred or has_type(schema, (MapType, VariantType)):
            return self
        return self if self.has_attributes else replace(self, has_attributes=True)

    def _find_problems(self, schema: StructType) -> Iterator[Problem]:
        locale = find_option(self.options, "locale", _LOCALE)
        numbers = (field.name for field in schema if has_type(field.dataType, (DecimalType, *_FLOAT_TYPES)))
        if self.kind in _SPECIAL_FORMATS and locale.lower() != _LOCALE and (name := next(numbers, None)):
            message = f"the option locale={locale!r} gives numbers of the column {name!r} another meaning"
            yield Problem(self.path, "options", message, _LOCALE_HINT)
        for name, pattern in _CUT_PATTERNS.items():
            text = find_option(self.options, name)
            if has_type(schema, _ASKED[name.lower()]) and re.search(pattern, re.sub("'[^']*'", "", text)):
                message = f"the option {name}={text!r} leaves out a part of times"
                yield Problem(self.path, "options", message, _CUT_HINT)
        if self.kind == "xml" and has_type(schema, (MapType,)):
            yield Problem(self.path, "schema", _MAP_MESSAGE, _MAP_HINT)

    def _list_columns(self, schema: StructType) -> Iterator[StructField]:
        return (field for field in schema.fields if self._convert_fields(field) != [field])

    def _is_text(self, kind: DataType) -> bool:
        left_to_spark = [kind for option in self.options for kind in _ASKED.get(option.lower(), ())]
        left_to_spark += _FLOAT_TYPES if self.leaves_floats else ()
        return type(kind) in _PATTERNS and not isinstance(kind, (*_AS_READ[self.kind], *left_to_spark))

    def _may_repeat(self, field: StructField) -> bool:
        """Return whether a record of XML may have several elements of a field, of which Spark reads the last.

        A list of them is read instead. A type that Spark has inferred is a list already.
        """
        if self.kind != "xml" or self.is_inferred or isinstance(field.dataType, _NO_ELEMENT):
            return False
        is_attribute = not self.has_attributes and field.name.startswith(self._prefix)
        return not is_attribute and field.name != find_option(self.options, "valueTag", "_VALUE")

    @property
    def _prefix(self) -> str:
        return find_option(self.options, "attributePrefix", "_")

    def _find_attribute(self, field: StructField) -> str | None:
        """Return the name of the attribute whose value a field of XML has; None if it may have none."""
        is_attribute = self.has_attributes and field.name.startswith(self._prefix)
        return _ATTRIBUTE_PREFIX + field.name.removeprefix(self._prefix) if is_attribute else None

    def _convert_fields(self, field: StructField) -> list[StructField]:
        """Return the fields that Spark reads for one: its elements, and its attribute if it may have one."""
        kind = self._convert_type(field.dataType)
        own = StructField(field.name, ArrayType(kind) if self._may_repeat(field) else kind, field.nullable)
        attribute = self._find_attribute(field)
        return [own] if attribute is None else [own, StructField(attribute, StringType())]

    def _convert_type(self, kind: DataType) -> DataType:
        if isinstance(kind, StructType):
            return StructType([part for one in kind.fields for part in self._convert_fields(one)])
        if isinstance(kind, ArrayType):
            return ArrayType(self._convert_type(kind.elementType), kind.containsNull)
        if isinstance(kind, MapType):
            return MapType(kind.keyType, self._convert_type(kind.valueType), kind.valueContainsNull)
        return StringType() if self._is_text(kind) else kind

    def _convert_field(self, get: Callable[[str], Column], field: StructField) -> Column:
        """Return the value of a field; ``get`` returns a column that was read by its name."""
        value = F.get(get(field.name), F.lit(0)) if self._may_repeat(field) else get(field.name)
        value, attribute = self._convert_value(value, field.dataType), self._find_attribute(field)
        if attribute is None or isinstance(field.dataType, (StructType, *_NO_ELEMENT)):
            return value
        return F.coalesce(self._convert_value(get(attribute), field.dataType), value)

    def _convert_value(self, value: Column, kind: DataType) -> Column:
        if self._convert_type(kind) == kind:
            return value
        if isinstance(kind, StructType):
            members = (self._convert_field(value.getField, one).alias(one.name) for one in kind)
            return F.when(value.isNotNull(), F.struct(*members))
        if isinstance(kind, ArrayType):
            return F.transform(value, lambda item: self._convert_value(item, kind.elementType))
        if isinstance(kind, MapType):
            return F.transform_values(value, lambda _, item: self._convert_value(item, kind.valueType))
        return self._convert_text(value, kind)

    def _describe_field(self, get: Callable[[str], Column], field: StructField, path: str) -> Column:
        value, problems = get(field.name), []
        is_element = value.isNotNull()
        if self._may_repeat(field):
            repeated = f"column {path!r}: a record has this element more than once{_REPEATED_HINT}"
            problems.append(F.when(F.size(value) > 1, F.lit(repeated)))
            value = F.get(value, F.lit(0))
        problems.append(self._describe_value(value, field.dataType, path))
        if (name := self._find_attribute(field)) is not None:
            both = f"column {path!r}: a record has an attribute and an element of this name{_BOTH_HINT}"
            problems.append(F.when(is_element & get(name).isNotNull(), F.lit(both)))
            problems.append(self._describe_attribute(get(name), field.dataType, path))
        return F.coalesce(*problems)

    def _describe_attribute(self, value: Column, kind: DataType, path: str) -> Column:
        if isinstance(kind, (StructType, *_NO_ELEMENT)):
            return F.when(value.isNotNull(), describe_text(value, kind, path, self.hint))
        return self._describe_value(value, kind, path)

    def _describe_value(self, value: Column, kind: DataType, path: str) -> Column:
        if self._convert_type(kind) == kind:
            return F.lit(None).cast("string")
        if isinstance(kind, StructType):
            members = (self._describe_field(value.getField, one, f"{path}.{one.name}") for one in kind)
            return F.coalesce(*members)
        if isinstance(kind, ArrayType):
            return _find_first(
                value, lambda item: self._describe_value(item, kind.elementType, f"{path}.element")
            )
        if isinstance(kind, MapType):
            return _find_first(
                F.map_values(value), lambda item: self._describe_value(item, kind.valueType, f"{path}.value")
            )
        return F.when(self._convert_text(value, kind).isNull(), describe_text(value, kind, path, self.hint))

    def _convert_text(self, text: Column, kind: DataType) -> Column:
        """Return the value of a text; NULL if the type does not hold it."""
        value = text.try_cast(kind.simpleString())
        if isinstance(kind, TimestampType) and (zone := find_option(self.options, "timeZone")):
            value = F.when(text.rlike(_ZONED), value).otherwise(F.to_utc_timestamp(value, zone))
        is_value = is_text_of(text, kind)
        if isinstance(kind, FloatType | DoubleType):
            # Most numbers are short, which is faster to see.
            is_short = (F.length(text) <= _SHORT_FLOAT_DIGITS[type(kind)]) & text.rlike(_PLAIN_NUMBER_PATTERN)
            is_value = is_short | (is_value & self._is_near(text, value, kind))
        elif isinstance(kind, DecimalType):
            is_value = is_value & _has_digits(text, value)
        if isinstance(kind, (*_INTEGER_TYPES, DecimalType, DateType)):
            # Comparing with the usual text of a value is faster.
            is_value = (value.cast("string") == text) | is_value
        converted = F.when(is_value, value)
        if isinstance(kind, FloatType | DoubleType) and self.kind in _SPECIAL_FORMATS:
            for name, number in _SPECIAL_VALUES.items():
                special = find_option(self.options, name, name)
                if special != name:
                    converted = F.when(text == special, F.lit(number).cast(kind)).otherwise(converted)
        return converted

    def _is_near(self, text: Column, value: Column, kind: DataType) -> Column:
        """Return whether a FLOAT or DOUBLE is what a number means to people.

        It neither overflows nor becomes zero, and integers keep their digits.
        """
        digits = trim_zeros(text)
        is_short = (F.length(digits) <= _SHORT_FLOAT_DIGITS[type(kind)]) & (digits != "")
        is_same = is_short | _has_digits(text, value) | _is_rounded(digits, trim_zeros(value.cast("string")))
        if isinstance(kind, FloatType):
            is_same = is_same | (value.cast("double") == text.try_cast("double"))
        if not self.is_inferred:
            is_same = (F.abs(value) < _INTEGER_MAX[type(kind)]) | is_same
        is_finite = (F.abs(value) < float("inf")) & ((value != 0) | (digits == ""))
        return (is_finite & is_same) | text.rlike(rf"\A({_SPECIAL})\z")


def has_type(kind: DataType, types: tuple[type[DataType], ...]) -> bool:
    """Return whether a type, or one inside it, is one of some types."""
    if isinstance(kind, StructType):
        return any(has_type(field.dataType, types) for field in kind)
    if isinstance(kind, types):
        return True
    inner = {ArrayType: "elementType", MapType: "valueType"}.get(type(kind))
    return inner is not None and has_type(getattr(kind, inner), types)


def is_text_of(text: Column, kind: DataType) -> Column:
    """Return whether a text is written like a value of a type, so that Spark's cast completes nothing."""
    return text.rlike(rf"\A({_PATTERNS[type(kind)]})\z") if type(kind) in _PATTERNS else F.lit(True)


def describe_text(text: Column, kind: DataType, path: str, hint: str = _VALUE_HINT) -> Column:
    """Return that a text is not a value of a type; NULL for NULL."""
    return F.concat(
        F.lit(f"column {path!r}: '"),
        F.left(text, F.lit(_EXAMPLE_MAX_LENGTH)),
        F.lit(f"' is not a valid {kind.simpleString().upper()}{hint}"),
    )


def _find_first(values: Column, describe: Callable[[Column], Column]) -> Column:
    """Return the first problem of the items of an array; NULL if there is none."""
    problems = F.filter(F.transform(values, describe), lambda problem: problem.isNotNull())
    return F.get(problems, F.lit(0))


def _has_digits(text: Column, value: Column) -> Column:
    """Return whether a number that was parsed from a text has all digits of it; rounding changes one."""
    written = value.cast("string")
    return (written == text) | (trim_zeros(written) == trim_zeros(text))


def _is_rounded(digits: Column, written: Column) -> Column:
    """Return whether digits are those that Java writes for a number, rounded: it may write one too many."""
    more = F.length(written) - F.length(digits)
    padded = F.concat(digits, F.repeat(F.lit("0"), more))
    difference = F.abs(padded.try_cast("decimal(38,0)") - written.try_cast("decimal(38,0)"))
    return (more >= 0) & (2 * difference <= F.pow(F.lit(10.0), more))


def trim_zeros(number: Column) -> Column:
    """Return the digits of a number without sign, point and exponent, and without zeros at both ends."""
    mantissa = F.regexp_replace(number, r"[eE].*\z|[-+.]", "")
    return F.regexp_replace(mantissa, r"\A0+|0+\z", "")
