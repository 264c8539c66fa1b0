"""Map the rows of a load to the target's columns and types, and hash their content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StructField, StructType, VariantType

from airflow_merge_provider.core.errors import DataError, Problem, did_you_mean, suggest_name
from airflow_merge_provider.core.merge_load.load import LoadConfig, SchemaEvolution
from airflow_merge_provider.core.merge_load.timestamps import to_microseconds
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.errors import first_line
from airflow_merge_provider.jobs.spark.expressions import cast_to
from airflow_merge_provider.jobs.spark.sql import quote_column

# Casts that keep every value of a type; other casts lose information or fail.
_WIDENS = {
    "tinyint": ("smallint", "int", "bigint", "float", "double"),
    "smallint": ("int", "bigint", "float", "double"),
    "int": ("bigint", "double"),
    "float": ("double",),
    "date": ("timestamp", "timestamp_ntz"),
    "void": (),
}
_WHOLE_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}


@dataclass(frozen=True, slots=True)
class TargetColumns:
    """The columns that come from the source, in the target's order and types."""

    fields: tuple[StructField, ...]
    new: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The column names."""
        return tuple(field.name for field in self.fields)

    def select_fields(self, names: Iterable[str]) -> list[StructField]:
        """Return some of the columns, ordered by name."""
        selected_names = set(names)
        return sorted(
            (field for field in self.fields if field.name in selected_names), key=lambda field: field.name
        )


def find_layout(
    source: StructType,
    stored: StructType | None,
    added: Sequence[str],
    evolution: SchemaEvolution,
    target: str,
    optional: Sequence[str] = (),
) -> TargetColumns:
    """Return the columns and types that a load writes.

    Source: docs/semantics/merge_load.md, Target columns.

    ``optional`` are columns that a source may always leave out.

    :raises DataError: with every column that does not fit.
    """
    problems = [
        Problem(target, "column", f"the source has a column {name!r}, which the load adds", "rename it")
        for name in sorted(set(source.names) & set(added))
    ]
    if stored is None:
        untyped = [field.name for field in source.fields if isinstance(field.dataType, NullType)]
        fields = tuple(field for field in source.fields if field.name not in untyped)
        _raise_problems(problems)
        return TargetColumns(tuple(StructField(field.name, field.dataType) for field in fields))
    stored_fields = tuple(field for field in stored.fields if field.name not in added)
    fields_by_name = {field.name: field for field in stored_fields}
    new = [field for field in source.fields if field.name not in fields_by_name]
    new = [field for field in new if not isinstance(field.dataType, NullType)]
    problems += _type_problems(source, fields_by_name, target) + _case_problems(new, fields_by_name, target)
    if not evolution.allows_missing:
        problems += list_missing(source, [name for name in fields_by_name if name not in optional], target)
    if evolution.new_columns == "error":
        hint = "add the column to the target, or use schema_evolution='add' or 'ignore'"
        problems += [
            Problem(target, "column", f"the target has no column {new_field.name!r}", hint)
            for new_field in new
        ]
    _raise_problems(problems)
    added_fields = (
        ()
        if evolution.new_columns == "ignore"
        else tuple(StructField(new_field.name, new_field.dataType) for new_field in new)
    )
    return TargetColumns((*stored_fields, *added_fields), tuple(new_field.name for new_field in added_fields))


def list_missing(source: StructType, target_columns: Sequence[str], target: str) -> list[Problem]:
    """Return a problem for each column of the target that the source no longer has."""
    hint = "restore it, or allow NULL in it with schema_evolution=['add', 'allow_missing']"
    return [
        Problem(
            target,
            "column",
            f"the source no longer has column {name!r} of the target",
            "; ".join(filter(None, (did_you_mean(name, set(source.names) - set(target_columns)), hint))),
        )
        for name in target_columns
        if name not in source.names
    ]


def align_columns(source: DataFrame, layout: TargetColumns) -> list[Column]:
    """Return the target's columns of a source: cast, and NULL if the source does not have them."""
    names = set(source.columns)
    return [
        cast_to(quote_column(field.name) if field.name in names else F.lit(None), field.dataType).alias(
            field.name
        )
        for field in layout.fields
    ]


def content_hash(fields: Sequence[StructField]) -> Column:
    """Return a hash of 32 characters over columns; a NULL column hashes as if it were missing.

    So a new column that is NULL does not change a hash, whereas a value in another column does.
    """
    parts: list[Column] = []
    for field in sorted(fields, key=lambda column: column.name):
        value = F.expr(_hashable_text(field))
        # Spark's hash skips NULLs, so the hashed name before each value identifies its column.
        parts += [F.when(value.isNotNull(), F.lit(_hash_name(field.name))), value]
    halves = [F.lpad(F.hex(F.xxhash64(F.lit(seed), *parts)), 16, "0") for seed in (1, 2)]
    return F.concat(*halves)


def to_comparable(field: StructField, alias: str | None = None) -> Column:
    """Return a comparable form of a column: sorted entries of a map, JSON of deeper values."""
    return F.expr(comparable_text(field, alias))


def comparable_text(field: StructField, alias: str | None = None) -> str:
    """Return the comparable form of a column as SQL."""
    value = sql.quote_name(alias, field.name) if alias else sql.quote_name(field.name)
    kind = field.dataType
    if isinstance(kind, MapType) and not _has_no_equality(kind.keyType, kind.valueType):
        return f"array_sort(map_entries({value}))"
    return f"to_json({value})" if _has_no_equality(kind) else value


def _hashable_text(field: StructField) -> str:
    """Return a value as SQL whose nested NULLs affect the hash: Spark's hash skips all NULLs."""
    text = comparable_text(field)
    is_json = text.startswith("to_json(") or not isinstance(field.dataType, ArrayType | MapType | StructType)
    return text if is_json else f"to_json({text})"


def refer_to_columns(names: Iterable[str], alias: str | None = None) -> list[Column]:
    """Return references to columns by their exact names."""
    return [F.col(sql.quote_name(alias, name)) if alias else quote_column(name) for name in names]


def moment_column(at: datetime | None) -> Column:
    """Return a time as a timestamp literal; NULL for None."""
    return F.lit(None).cast("timestamp") if at is None else F.timestamp_micros(F.lit(to_microseconds(at)))


def filter_rows(frame: DataFrame, condition: str, path: str) -> DataFrame:
    """Return the rows that satisfy a user's condition, which is given in the argument ``path``.

    :raises DataError: when it is no condition on these columns.
    """
    try:
        rows = frame.where(F.expr(condition))
        rows.schema  # noqa: B018 - lets Spark look at the condition now
    except AnalysisException as error:
        raise DataError.from_problems(
            [Problem(path, "condition", first_line(error), "correct the condition")]
        ) from error
    return rows


def require_columns(
    frame: DataFrame, names: Iterable[str], source_name: str, config: LoadConfig | None = None
) -> None:
    """Raise an error if the source does not have the columns that arguments of a load name.

    :raises DataError: with every column that is missing, and the argument that names it.
    """
    columns = frame.columns
    _raise_problems(
        [
            Problem(
                config.find_argument(name) if config else name,
                "column",
                f"{source_name} has no column {name!r}",
                suggest_name(name, columns, "columns"),
            )
            for name in names
            if name not in columns
        ]
    )


def _type_problems(source: StructType, stored_fields: dict[str, StructField], target: str) -> list[Problem]:
    hint = "cast it upstream, or rebuild the target with full_refresh=True"
    return [
        Problem(
            target,
            "type",
            f"column {field.name!r} has type {field.dataType.simpleString()} in the source and type "
            f"{stored_fields[field.name].dataType.simpleString()} in the target",
            hint,
        )
        for field in source.fields
        if field.name in stored_fields and not _is_fitting(field.dataType, stored_fields[field.name].dataType)
    ]


def _case_problems(
    new: Sequence[StructField], stored_fields: dict[str, StructField], target: str
) -> list[Problem]:
    lowercase_names = {name.lower(): name for name in stored_fields}
    return [
        Problem(
            target,
            "column",
            f"column {field.name!r} differs only in case from {lowercase_names[field.name.lower()]!r} "
            "of the target",
            "rename it",
        )
        for field in new
        if field.name.lower() in lowercase_names
    ]


def _is_fitting(source_type: DataType, target_type: DataType) -> bool:
    if isinstance(source_type, NullType) or source_type == target_type:
        return True
    source_name, target_name = source_type.simpleString(), target_type.simpleString()
    if target_name.startswith("decimal"):
        return _fits_decimal(source_name, target_name)
    # Type names leave out the nullability of nested fields, which does not affect values.
    return source_name == target_name or target_name in _WIDENS.get(source_name, ())


def _fits_decimal(source_type: str, target_type: str) -> bool:
    precision, scale = _read_digits(target_type)
    if source_type.startswith("decimal"):
        source_precision, source_scale = _read_digits(source_type)
        return source_scale <= scale and source_precision - source_scale <= precision - scale
    return _WHOLE_DIGITS.get(source_type, precision + 1) <= precision - scale


def _read_digits(decimal: str) -> tuple[int, int]:
    precision, _, scale = decimal.removeprefix("decimal(").rstrip(")").partition(",")
    return int(precision), int(scale or 0)


def _has_no_equality(*kinds: DataType) -> bool:
    return any(_holds_map_or_variant(kind) for kind in kinds)


def _holds_map_or_variant(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_holds_map_or_variant(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _holds_map_or_variant(kind.elementType)
    return isinstance(kind, MapType | VariantType)


def _hash_name(name: str) -> int:
    """Return a number that represents a column name in hashes and never changes."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)


def _raise_problems(problems: Sequence[Problem]) -> None:
    if problems:
        raise DataError.from_problems(problems)
