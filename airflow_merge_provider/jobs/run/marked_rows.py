"""Mark the rows that do not meet expectations, count them, and separate them from the others.

Source: docs/expectations.md, Conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, functions as F
from pyspark.sql.types import DataType, StringType

from airflow_merge_provider.core.change_plan.shown_rows import mask_row
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.expectations.config import Expectation, require_columns
from airflow_merge_provider.core.expectations.result import (
    ExpectationResult,
    build_result,
    check_freshness,
)
from airflow_merge_provider.core.schema.key_types import (
    choose_comparison,
    is_comparable,
    show_identifier,
    suggest_casts,
)
from airflow_merge_provider.jobs.run.change_set import read_row
from airflow_merge_provider.jobs.spark.errors import first_line
from airflow_merge_provider.jobs.spark.exact_text import shown_row
from airflow_merge_provider.jobs.spark.expressions import build_array, combine_with_and, combine_with_or
from airflow_merge_provider.jobs.spark.key_columns import build_key_columns
from airflow_merge_provider.jobs.spark.sql import quote_column

ReadKeys = Callable[[SparkSession, Expectation], DataFrame]
_INTERNAL = "__merge_"
_ROWS = f"{_INTERNAL}rows"
_EXAMPLE_COLUMNS = 8


class MarkedRows:
    """Rows, and for each expectation whether a row does not meet it.

    A row does not meet a condition if the condition is false, as in a CHECK constraint: NULL is no violation.
    """

    FAILED, ROW = f"{_INTERNAL}failed", f"{_INTERNAL}row"

    def __init__(
        self,
        rows: DataFrame,
        expectations: Sequence[Expectation],
        read_keys: ReadKeys,
        *,
        where: str,
        hidden: Collection[str] = (),
    ) -> None:
        """Check that the rows have the columns that the expectations name.

        :param where: what the rows belong to, for messages.
        :param hidden: columns that are not those of the source.
        :raises DataError: if they do not have them.
        """
        self.rows, self.expectations, self._read_keys = rows, expectations, read_keys
        own = {name for name in rows.columns if name.startswith(_INTERNAL)} | set(hidden)
        self._visible = [name for name in rows.columns if name not in own]
        require_columns(self._visible, expectations, where)

    def count_failures(self, source: str | None, now: int) -> list[ExpectationResult]:
        """Count the rows that do not meet each expectation in one Spark action; a second one has examples."""
        marked, failures = self._mark_rows(self.expectations)
        counts = {f"{_INTERNAL}{name}": F.count_if(failed) for name, failed in failures.items()}
        times = {
            f"{_INTERNAL}{item.name}": F.max(F.unix_micros(_read_time(item)))
            for item in self.expectations
            if item.kind == "freshness"
        }
        values = {**counts, **times, _ROWS: F.count(F.lit(1))}
        row = marked.agg(*(value.alias(name) for name, value in values.items())).collect()[0]
        examples = self._collect_examples(
            marked, {name: failed for name, failed in failures.items() if row[f"{_INTERNAL}{name}"]}
        )
        results = []
        for item in self.expectations:
            value = row[f"{_INTERNAL}{item.name}"]
            if item.kind == "freshness":
                failed = 0 if check_freshness(item, value, now) else max(int(row[_ROWS]), 1)
                result = build_result(item, source, rows=row[_ROWS], failed=failed, newest=value)
            else:
                result = build_result(
                    item, source, rows=row[_ROWS], failed=value, examples=examples.get(item.name, ())
                )
            results.append(result)
        return results

    def split_rows(self, names: Sequence[str]) -> tuple[DataFrame, DataFrame]:
        """Return the rows that meet the named expectations, and the others with their text and their names.

        The keys of failed rows are broadcast, which keeps the order and the metadata columns of the rows.
        """
        chosen = [item for item in self.expectations if item.name in names]
        marked, failures = self._mark_rows(chosen, broadcast=True)
        is_rejected = combine_with_or(failures.values())
        columns = [quote_column(name) for name in self.rows.columns]
        kept_rows = marked.where(~is_rejected).select(*columns)
        empty = F.array().cast("array<string>")
        failed = build_array([(value, [F.lit(name)]) for name, value in failures.items()], empty)
        text = shown_row(self.rows, self._visible)
        rejected = marked.where(is_rejected).select(failed.alias(self.FAILED), text.alias(self.ROW))
        return kept_rows, rejected

    def _mark_rows(
        self, expectations: Sequence[Expectation], *, broadcast: bool = False
    ) -> tuple[DataFrame, dict[str, Column]]:
        """Return the rows, and whether a row does not meet an expectation, by the name of the expectation."""
        marked, failures = self.rows, {}
        for number, item in enumerate(expectations):
            if item.is_row_condition:
                failures[item.name] = build_failure(self.rows, item)
            elif item.kind != "freshness":
                keys = self._find_failed_keys(item, number)
                marked = _join_keys(marked, F.broadcast(keys) if broadcast else keys, item, number)
                failures[item.name] = F.col(_name_mark(number)).isNotNull()
        return marked, failures

    def _find_failed_keys(self, item: Expectation, number: int) -> DataFrame:
        """Return the keys that are repeated, or that the referenced dataset does not have."""
        columns = [quote_column(name) for name in item.columns]
        names = [_name_key(number, position) for position in range(len(columns))]
        keys = self.rows.where(combine_with_and(column.isNotNull() for column in columns)).select(
            *(column.alias(name) for column, name in zip(columns, names, strict=True))
        )
        if item.kind == "unique":
            _require_comparable(keys, item)
            failed = keys.groupBy(*names).count().where(F.col("count") > 1).select(*names)
        else:
            valid = self._read_keys(self.rows.sparkSession, item).toDF(*(f"{name}_valid" for name in names))
            failed = keys.distinct().join(valid, _build_validity(item, keys, valid), "left_anti")
        return failed.withColumn(_name_mark(number), F.lit(True))

    def _collect_examples(
        self, marked: DataFrame, failures: Mapping[str, Column]
    ) -> dict[str, list[dict[str, Any]]]:
        """Return two rows that do not meet each expectation: its columns, and the first other ones."""
        if not failures:
            return {}
        columns = {item.name: item.columns for item in self.expectations}
        ends = {"first": F.min, "last": F.max}
        texts: dict[str, Column] = {}
        for name, failed in failures.items():
            other_names = [other for other in self._visible if other not in columns[name]]
            shown = [*columns[name], *other_names][:_EXAMPLE_COLUMNS]
            text = shown_row(self.rows, shown)
            texts |= {f"{name}-{end}": choose(F.when(failed, text)) for end, choose in ends.items()}
        row = marked.agg(*(value.alias(name) for name, value in texts.items())).collect()[0]
        return {
            name: [mask_row(read_row(text)) for text in dict.fromkeys(row[f"{name}-{end}"] for end in ends)]
            for name in failures
        }


def _require_comparable(keys: DataFrame, item: Expectation) -> None:
    problems = [
        Problem(
            f"{item.path}.unique",
            "type",
            f"column {name!r} is {kind}: values of this type cannot be compared",
            "name columns of other types",
        )
        for name, kind in zip(
            item.columns, (field.dataType.simpleString() for field in keys.schema), strict=True
        )
        if not is_comparable(kind)
    ]
    if problems:
        raise DataError.from_problems(problems)


def _build_validity(item: Expectation, keys: DataFrame, valid: DataFrame) -> Column:
    """Return whether a key equals one that the referenced dataset has.

    :raises DataError: if values of their types cannot be compared exactly.
    """
    conditions, problems = [], []
    for position, (key, other) in enumerate(zip(keys.schema, valid.schema, strict=True)):
        types = key.dataType.simpleString(), other.dataType.simpleString()
        comparison = choose_comparison(types)
        if comparison is None:
            names = item.columns[position], item.references[position]
            message = (
                f"column {names[0]!r} is {types[0]}, and the referenced column {names[1]!r} is {types[1]}: "
                "they cannot be compared exactly"
            )
            hint = suggest_casts([show_identifier(name) for name in names], types)
            problems.append(Problem(f"{item.path}.foreign_key", "type", message, hint))
            continue
        pairs = (build_key_columns(F.col(field.name), comparison) for field in (key, other))
        conditions += [left == right for left, right in zip(*pairs, strict=True)]
    if problems:
        raise DataError.from_problems(problems)
    return combine_with_and(conditions)


def build_failure(rows: DataFrame, item: Expectation) -> Column:
    """Return whether a row does not meet an expectation that depends on this row alone.

    :raises DataError: if the expectation does not suit the columns.
    """
    if item.kind == "condition":
        _require_condition(rows, item)
        return F.coalesce(~F.expr(item.condition), F.lit(False))
    if item.kind == "not_null":
        return combine_with_or(quote_column(name).isNull() for name in item.columns)
    (name,) = item.columns
    kind = rows.select(quote_column(name)).schema[0].dataType
    values = [_to_text(value) for value in item.values] if isinstance(kind, StringType) else item.values
    accepted = combine_with_or(F.coalesce(_is_value(name, value, kind), F.lit(False)) for value in values)
    return quote_column(name).isNotNull() & ~accepted


def _is_value(name: str, value: Any, kind: DataType) -> Column:
    """Return whether a column has a value, as its type has it; NULL if its type does not have it."""
    typed = F.lit(value).try_cast(kind.simpleString())
    is_same = quote_column(name) == typed
    # A cast to an integer or a decimal may round.
    return is_same & (typed.try_cast("double") == F.lit(value)) if isinstance(value, float) else is_same


def _require_condition(rows: DataFrame, item: Expectation) -> None:
    """Check that a SQL condition suits the columns.

    :raises DataError: if it does not.
    """
    try:
        # Spark Connect knows the schema of filtered rows without analysing the filter.
        rows.where(F.expr(item.condition)).select(F.lit(1)).schema  # noqa: B018 - analyses the filter
    except AnalysisException as error:
        hint = "correct the condition; it is written as in WHERE"
        message = f"{item.condition!r} is not a valid condition: {first_line(error)}"
        raise DataError.from_problems([Problem(item.path, "condition", message, hint)]) from error


def _read_time(item: Expectation) -> Column:
    return quote_column(item.columns[0]).try_cast("timestamp")


def _to_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _join_keys(rows: DataFrame, keys: DataFrame, item: Expectation, number: int) -> DataFrame:
    """Mark the rows that have one of the keys."""
    pairs = (
        quote_column(name) == F.col(_name_key(number, position)) for position, name in enumerate(item.columns)
    )
    return rows.join(keys, combine_with_and(pairs), "left")


def _name_key(number: int, position: int) -> str:
    return f"{_INTERNAL}key{number}_{position}"


def _name_mark(number: int) -> str:
    return f"{_INTERNAL}mark{number}"
