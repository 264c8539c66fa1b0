"""Stage a load: filter the source, map it to the target's columns, and keep one row per key."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Window, functions as F
from pyspark.sql.types import BooleanType, NullType, StructType

from airflow_merge_provider.core.change_plan.shown_rows import mask_row, mask_value
from airflow_merge_provider.core.errors import DataError, Problem, format_count
from airflow_merge_provider.core.merge_load.columns import (
    check_compared_types,
    check_named_columns,
    check_reserved,
    list_text_orders,
)
from airflow_merge_provider.core.merge_load.load import LoadConfig, fill_tables
from airflow_merge_provider.core.merge_load.requirements import CONTENT, PREFIX, StagingRequirements
from airflow_merge_provider.core.schema.key_types import show_identifier
from airflow_merge_provider.jobs.delta.table import read_example
from airflow_merge_provider.jobs.merge_load.columns import (
    TargetColumns,
    align_columns,
    content_hash,
    filter_rows,
    find_false_flag,
    find_layout,
    list_types,
    write_true_condition,
)
from airflow_merge_provider.jobs.spark.exact_text import shown_row
from airflow_merge_provider.jobs.spark.expressions import combine_with_or
from airflow_merge_provider.jobs.spark.sql import quote_column

TRACKED = f"{PREFIX}tracked"
FLAGGED = f"{PREFIX}flagged"
FALSE_FLAG = f"{PREFIX}false_flag"
ARRIVAL = f"{PREFIX}arrival"
FALSE_FLAGS = f"{PREFIX}false_flags"
STAGING_VIEW = "staging_table"
# Loads below this size are broadcast instead of being shuffled with the stored rows.
SMALL_LOAD_MAX_ROWS = 200_000
# Limits for the example rows in error messages.
_EXAMPLES, _DUPLICATE_COLUMNS_MAX, _DUPLICATE_MAX_CHARS = 5, 5, 80
_FILE_ORDER = ("file_modification_time", "file_path", "file_block_start")


@dataclass(frozen=True, slots=True)
class StagedLoad:
    """The rows to load.

    ``rows`` has one row per key, ``every`` all rows that passed the filter: a row that does not count still
    determines which keys and groups were loaded. Both are the same until the rows are checked. Beside the
    target's columns they have ``CONTENT``, a hash, ``FLAGGED``, whether the row is a deletion, and
    ``FALSE_FLAG``, the text of a flag that deletes the row although it looks false.
    """

    rows: DataFrame
    every: DataFrame
    layout: TargetColumns
    requirements: StagingRequirements
    config: LoadConfig
    name: str
    loaded: int = 0
    flagged: int = 0
    duplicates: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def live(self) -> DataFrame:
        """The rows that are not deletions."""
        return self.rows.where(~quote_column(FLAGGED))

    @property
    def target_rows(self) -> DataFrame:
        """The rows that are not deletions, with the target's columns alone."""
        return self.live.select(*map(quote_column, self.layout.names))

    def collect_keys(self, keys: Sequence[str]) -> DataFrame:
        """Return the keys of the rows, with a broadcast hint if the load is small."""
        key_rows = self.rows.select(*map(quote_column, keys))
        return F.broadcast(key_rows) if self.loaded < SMALL_LOAD_MAX_ROWS else key_rows

    @property
    def has_null_key(self) -> Column:
        """The condition for rows with a NULL in a key column."""
        return combine_with_or(quote_column(key).isNull() for key in self.requirements.keys)

    def check_rows(self) -> StagedLoad:
        """Count rows and keys in one Spark action, and keep one row per key.

        :raises DataError: when keys or duplicates are not as they must be.
        """
        requirements = self.requirements
        groups = self.rows.groupBy(*map(quote_column, requirements.unique)).agg(
            F.count("*").alias("n"),
            F.count_if(self.has_null_key).alias("missing"),
            F.count_if(FLAGGED).alias("flagged"),
            F.count(FALSE_FLAG).alias(FALSE_FLAGS),
        )
        counted = groups.select(
            F.coalesce(F.sum("n"), F.lit(0)).alias("rows"),
            F.coalesce(F.sum("missing"), F.lit(0)).alias("missing"),
            F.coalesce(F.sum("flagged"), F.lit(0)).alias("flagged"),
            F.coalesce(F.sum(F.col("n") - 1), F.lit(0)).alias("more"),
            F.coalesce(F.sum(FALSE_FLAGS), F.lit(0)).alias(FALSE_FLAGS),
        ).collect()[0]
        self.require_keys(int(counted["missing"]))
        more = int(counted["more"]) if requirements.unique else 0
        load = replace(
            self,
            loaded=int(counted["rows"]),
            flagged=int(counted["flagged"]),
            duplicates=more,
            warnings=(*self.warnings, *self.list_flag_warnings(int(counted[FALSE_FLAGS]))),
        )
        return replace(load, rows=self._one_each()) if more else load

    def list_flag_warnings(self, count: int) -> list[str]:
        """Return the warning about flags that look false, given how many there are."""
        flag = self.config.hard_delete
        if not count or flag is None:
            return []
        # An example of each key would make Spark sort all rows by their keys in order to count them.
        example_text = self.every.agg(F.min(FALSE_FLAG)).collect()[0][0]
        example = mask_value(repr(example_text), [flag])
        condition = write_true_condition(self.layout.find_type(flag), show_identifier(flag))
        message = (
            f"hard_delete: column {flag!r} flags {format_count(count, 'row')} of {self.name} as deleted by a "
            f"value that looks false, such as {example} (any value but NULL is a flag, "
            f'unless the column is a boolean: cast it upstream, or use hard_delete_when="{condition}")'
        )
        return [message]

    def _one_each(self) -> DataFrame:
        """Return one row per key."""
        requirements = self.requirements
        if requirements.sequence:
            self._require_one_content(self._rank_rows(F.rank()))
        elif not requirements.ranked:
            self._require_one_content(self.rows)
            return self.rows.dropDuplicates(list(requirements.unique))
        return self._rank_rows(F.row_number())

    def require_keys(self, missing: int) -> None:
        """Raise an error if rows have a NULL in a key.

        :raises DataError: when there are any.
        """
        if missing:
            key_names = ", ".join(self.requirements.keys)
            hint = "filter them out with source_filter, or fix the upstream step"
            example_columns = [
                *self.requirements.keys,
                *(name for name in self.layout.names if name not in self.requirements.keys),
            ]
            examples = _list_examples(
                self.every.where(self.has_null_key), example_columns[:_DUPLICATE_COLUMNS_MAX]
            )
            rows = format_count(missing, "row")
            message = f"{self.name} has {rows} with a NULL in {key_names}, such as {examples}"
            raise DataError.from_problems([Problem(key_names, "null-key", message, hint)])

    def _require_one_content(self, rows: DataFrame) -> None:
        unique = [quote_column(key) for key in self.requirements.unique]
        contents = rows.groupBy(*unique).agg((F.min(CONTENT) != F.max(CONTENT)).alias("differ"))
        different = contents.where(F.col("differ"))
        differ = different.count()
        if differ:
            examples = _list_examples(different, self.requirements.unique)
            key_names, sequence_text = (
                ", ".join(self.requirements.unique),
                " and the highest " + ", ".join(self.requirements.sequence),
            )
            key_text = key_names + (sequence_text if self.requirements.sequence else "")
            message = (
                f"{self.name} has {format_count(differ, 'value')} of {key_text} with several different rows, "
                f"such as {examples}"
            )
            hint = 'choose one of them with dedup_sort={"column": "desc"}, or make the rows unique upstream'
            raise DataError.from_problems([Problem(key_names, "duplicates", message, hint)])

    def _rank_rows(self, rank: Column) -> DataFrame:
        """Return the rows ranked first per key: by sequence or sort column, then by arrival."""
        order = [quote_column(name).desc_nulls_last() for name in self.requirements.sequence]
        if not order:
            order = [F.col(ARRIVAL).asc(), F.col(CONTENT).asc()]
        if self.config.sort is not None and not self.requirements.sequence:
            by, highest = quote_column(self.config.sort[0]), self.config.sort[1]
            order.insert(0, by.desc_nulls_last() if highest else by.asc_nulls_last())
        name = f"{PREFIX}place"
        by_key = Window.partitionBy(*map(quote_column, self.requirements.unique)).orderBy(*order)
        return self.rows.withColumn(name, rank.over(by_key)).where(F.col(name) == 1).drop(name)


def require_unique_keys(stored: DataFrame, config: LoadConfig, target: str) -> None:
    """Raise an error if rows of an adopted target have no key, or if several rows have the same one.

    :raises DataError: with an example.
    """
    keys = config.identity_columns
    if not keys:
        return
    has_null = combine_with_or(quote_column(key).isNull() for key in keys)
    groups = stored.groupBy(*map(quote_column, keys)).agg(F.count("*").alias("n"))
    may_repeat = getattr(config, "deduplicated", False)
    wrong = groups.where(has_null if may_repeat else has_null | (F.col("n") > 1))
    names, hint = ", ".join(keys), "correct the rows of the target, or choose other key columns"
    example = shown_row(wrong, keys).alias("example")
    for row in wrong.orderBy(~has_null).select("n", example).limit(1).collect():
        rows = f"{format_count(row['n'], 'row')} with {_write_example(row['example'])}"
        message = f"cannot be adopted with the key {names}, because it has {rows}"
        raise DataError.from_problems([Problem(target, "adopted-key", message, hint)])


def _list_examples(rows: DataFrame, names: Sequence[str]) -> str:
    """Return some columns of a few rows as text for an error message."""
    examples = rows.select(shown_row(rows, names)).limit(_EXAMPLES).collect()
    return "; ".join(_write_example(row[0]) for row in examples)


def _write_example(text: str) -> str:
    """Return the exact text of a row as it is shown in an error message."""
    values = mask_row(json.loads(text, parse_float=str, parse_int=str))
    return ", ".join(f"{name}={_write_value(value)}" for name, value in values.items())


def _write_value(value: Any) -> str:
    if value is None:
        return "NULL"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    more = f"… ({len(text)} characters)" if len(text) > _DUPLICATE_MAX_CHARS else ""
    return repr(text[:_DUPLICATE_MAX_CHARS]) + more


def stage_load(
    source: DataFrame,
    dataset: str,
    config: LoadConfig,
    requirements: StagingRequirements,
    *,
    stored: StructType | None,
    added: Sequence[str],
    held: ExitStack,
    hold_rows: Callable[[DataFrame], DataFrame],
) -> StagedLoad:
    """Read the source; rows that are used more than once are cached until ``held`` releases them.

    :param hold_rows: returns rows that are computed once if the run shows its changes.
    :raises DataError: when columns, keys or duplicates are not as they must be.
    """
    name = f"the source {dataset}"
    named = requirements.list_named(config, () if stored is None else stored.names)
    check_named_columns(source.columns, named, name, config)
    check_reserved(source.columns, PREFIX, name)
    types = list_types(source.schema)
    check_compared_types(types, requirements, config, name)
    optional_columns = (config.hard_delete,) if config.hard_delete else ()
    columns = find_layout(
        source.schema,
        stored,
        added,
        config.evolution,
        dataset,
        optional=optional_columns,
        keys=config.identity_columns,
        find_example=partial(read_example, source),
    )
    if config.hard_delete_when is not None:
        source = source.alias(STAGING_VIEW)
    rows = source.select(
        *align_columns(source, columns),
        _mark_deletions(source, config).alias(FLAGGED),
        find_false_flag(source, config.hard_delete).alias(FALSE_FLAG),
        *([_get_arrival(source).alias(ARRIVAL)] if requirements.ranked else []),
    )
    hashes = {CONTENT: content_hash(columns.fields)}
    if requirements.tracked is not None:
        hashes[TRACKED] = content_hash(columns.select_fields(requirements.tracked(columns.names)))
    hashed_rows = rows.withColumns(hashes)
    rows = hold_rows(hashed_rows)
    warnings = (
        *_list_warnings(source, columns, config, name),
        *list_text_orders(types, requirements, config),
    )
    load = StagedLoad(rows, rows, columns, requirements, config, name, warnings=warnings)
    if requirements.lazy:
        return load
    if stored is not None and rows is hashed_rows:
        # The rows are compared and written, so they are cached; a first load is only written.
        rows = keep_rows(rows, held)
        load = replace(load, rows=rows, every=rows)
    return load.check_rows()


def keep_rows(rows: DataFrame, held: ExitStack) -> DataFrame:
    """Cache rows that are computed once and used more than once, until ``held`` releases them."""
    cached_rows = rows.persist()
    held.callback(cached_rows.unpersist)
    return cached_rows


def filter_source(source: DataFrame, condition: str | None) -> DataFrame:
    """Return the rows of the source that pass the filter.

    :raises DataError: when the condition is none on its columns.
    """
    if condition is None:
        return source
    return filter_rows(source.alias(STAGING_VIEW), _to_text(condition), "source_filter")


def _to_text(condition: str) -> str:
    return fill_tables(condition, table=STAGING_VIEW, staging_table=STAGING_VIEW)


def _list_warnings(
    source: DataFrame, layout: TargetColumns, config: LoadConfig, name: str
) -> tuple[str, ...]:
    flag = config.hard_delete
    warnings = [
        f"column {field.name!r} of {name} has no type, only NULL, and is left out: cast it to its type"
        for field in source.schema
        if isinstance(field.dataType, NullType) and field.name not in layout.names
    ]
    if flag is not None and flag not in source.columns:
        warnings.append(f"hard_delete: {name} has no column {flag!r}, so no row is flagged")
    return tuple(warnings)


def _mark_deletions(source: DataFrame, config: LoadConfig) -> Column:
    """Return the deletion flag of rows; it is false if the source does not have the column.

    :raises DataError: when hard_delete_when is no condition on the columns of the source.
    """
    if config.hard_delete_when is not None:
        text = _to_text(config.hard_delete_when)
        filter_rows(source, text, "hard_delete_when")
        return F.coalesce(F.expr(text), F.lit(False))
    flag = config.hard_delete
    if flag is None or flag not in source.columns:
        return F.lit(False)
    if isinstance(source.schema[flag].dataType, BooleanType):
        return F.coalesce(quote_column(flag), F.lit(False))
    return quote_column(flag).isNotNull()


def _get_arrival(source: DataFrame) -> Column:
    """Return the order of arrival: files by modification time, rows by their position in the file.

    The ID of a row depends on how Spark splits files into tasks; the order inside one block of a file does
    not. So the same source gives the same order in every attempt.
    """
    number = F.monotonically_increasing_id()  # noqa: TID251 - compared inside one block of one file only
    order = [F.col(f"_metadata.{name}") for name in _FILE_ORDER]
    try:
        source.select(*order).schema  # noqa: B018 - asks whether the rows come from files
    except AnalysisException:
        return F.lit(0)
    return F.struct(*order, number)
