"""The change set of a run: every row that its commit would change, before and after.

Source: docs/plan.md, The change set.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pyspark.sql import Column, DataFrame, Window, functions as F
from pyspark.sql.types import DataType

from airflow_merge_provider.core.change_plan.summary import EXAMPLES_MAX, ChangeExample, ChangeSummary
from airflow_merge_provider.jobs.spark.exact_text import exact_row, exact_text
from airflow_merge_provider.jobs.spark.sql import quote_name

KIND, REASON, DETAIL, BEFORE, AFTER, STATE = COLUMNS = (
    "kind", "reason", "detail", "before", "after", "state"
)  # fmt: skip
INSERTED, UPDATED, DELETED, KEPT = "inserted", "updated", "deleted", "kept"
# The column by which deleted and inserted rows are paired.
PAIRED_BY = "__merge_paired_by"
_NUMBER, _CONTENT, _CHANGES = "__merge_number", "__merge_content", "__merge_changes"
_PAIR_SIZE = 2
_RANK, _HASHES = "__merge_rank", ("__merge_hash1", "__merge_hash2")
# The second hash of a row includes this text, so that two different change sets do not have the same sums.
_SALT = "airflow_merge_provider"


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """The rows that a commit changes, with the columns ``COLUMNS``.

    ``before`` and ``after`` are structs of the row's columns, null if there is no row. ``kind`` is the effect
    on the row, ``reason`` a word of the capability, and ``detail`` a text or null. ``state`` is a hash of the
    columns that neither struct shows, null if there are none. ``describe`` adds details to examples that
    would cost too much for all rows.
    """

    rows: DataFrame
    describe: Callable[[Sequence[ChangeExample]], Sequence[ChangeExample]] | None = None

    @contextmanager
    def hold_text(self) -> Iterator[DataFrame]:
        """Yield the rows with ``before`` and ``after`` as JSON, without NULLs; they are computed once."""
        kinds = self.rows.schema
        images = [exact_text(image, kinds[image].dataType).alias(image) for image in (BEFORE, AFTER)]
        text_rows = self.rows.select(KIND, REASON, DETAIL, *images, STATE).persist()
        try:
            yield text_rows
        finally:
            text_rows.unpersist()


def describe_examples(changes: ChangeSet, summary: ChangeSummary) -> ChangeSummary:
    """Return the summary with the details of its examples that are not in the rows."""
    if changes.describe is None or not summary.examples:
        return summary
    return summary.model_copy(update={"examples": list(changes.describe(summary.examples))})


def summarize_changes(text_rows: DataFrame) -> ChangeSummary:
    """Count changed rows by kind and reason, and return them with examples of each kind and a digest.

    :param text_rows: the rows of ``ChangeSet.hold_text``; they are read twice.
    """
    content = [F.col(KIND), *(F.coalesce(name, F.lit("")) for name in (BEFORE, AFTER, STATE))]
    hashes = [F.xxhash64(*content), F.xxhash64(F.lit(_SALT), *content)]
    counted = (
        text_rows.select(
            KIND,
            REASON,
            *(value.cast("decimal(38,0)").alias(name) for value, name in zip(hashes, _HASHES, strict=True)),
        )
        .groupBy(KIND, REASON)
        .agg(F.count("*").alias("n"), *(F.sum(name).alias(name) for name in _HASHES))
        .orderBy(KIND, REASON)
        .collect()
    )
    kinds = dict.fromkeys((INSERTED, UPDATED, DELETED), 0)
    reasons: dict[str, int] = {}
    sums = [0, 0]
    for row in counted:
        kinds[row[KIND]] = kinds.get(row[KIND], 0) + row["n"]
        reasons[row[REASON]] = reasons.get(row[REASON], 0) + row["n"]
        sums = [total + int(row[name]) for total, name in zip(sums, _HASHES, strict=True)]
    digest = hashlib.sha256(json.dumps([kinds, sums]).encode()).hexdigest()[:32]
    examples = _collect_examples(text_rows) if counted else []
    return ChangeSummary.model_validate(
        {"kinds": kinds, "reasons": reasons, "examples": examples, "digest": digest}
    )


def _collect_examples(text_rows: DataFrame) -> list[ChangeExample]:
    """Return the first rows of each kind, ordered by the text of the row."""
    order = Window.partitionBy(KIND).orderBy(F.coalesce(BEFORE, AFTER), F.col(REASON))
    ranked = text_rows.withColumn(_RANK, F.row_number().over(order)).where(F.col(_RANK) <= EXAMPLES_MAX)
    return [
        ChangeExample(
            kind=row[KIND],
            reason=row[REASON],
            detail=row[DETAIL] or "",
            before=None if row[BEFORE] is None else read_row(row[BEFORE]),
            after=None if row[AFTER] is None else read_row(row[AFTER]),
        )
        for row in ranked.orderBy(KIND, _RANK).collect()
    ]


def read_row(text: str) -> dict[str, Any]:
    """Return the row of an exact text; no number in it loses digits."""
    row: dict[str, Any] = json.loads(text, parse_float=_read_number)
    return row


def _read_number(text: str) -> float | str:
    """Return a number of an example; a decimal with more digits than a double holds stays a text."""
    number = float(text)
    return number if Decimal(repr(number)) == Decimal(text) else text


def build_change(
    kind: Column | str,
    reason: Column | str,
    *,
    before: Column,
    after: Column,
    detail: Column | None = None,
    state: Column | None = None,
) -> list[Column]:
    """Return the columns of a change set."""
    texts = [F.lit(None).cast("string") if text is None else text for text in (detail, state)]
    values = (_to_column(kind), _to_column(reason), texts[0], before, after, texts[1])
    return [value.alias(name) for name, value in zip(COLUMNS, values, strict=True)]


def pack_row(names: Sequence[str], alias: str | None = None) -> Column:
    """Return columns as one struct, with their names."""
    return F.struct(*(F.col(quote_name(*([alias] if alias else []), name)).alias(name) for name in names))


def find_row_type(rows: DataFrame) -> DataType:
    """Return the type of a row as a struct."""
    return rows.select(pack_row(rows.columns).alias(AFTER)).schema[0].dataType


def insert_rows(rows: DataFrame, reason: str = INSERTED) -> ChangeSet:
    """Return the change set of new rows."""
    after = pack_row(rows.columns)
    before = F.lit(None).cast(find_row_type(rows))
    return ChangeSet(rows.select(*build_change(INSERTED, reason, before=before, after=after)))


def replace_all_rows(before: DataFrame | None, after: DataFrame, keys: Sequence[str] = ()) -> ChangeSet:
    """Return the change set of an overwrite: the rows that only one side has.

    Rows that are equally often on both sides do not change. A lost row and a gained row with the same key are
    one updated row, if these two are the only changed rows of the key.

    :param before: the rows that are replaced; None if there are none.
    :param keys: the columns that identify a row; empty if no columns do.
    """
    if before is None:
        return insert_rows(after)
    types = {BEFORE: find_row_type(before), AFTER: find_row_type(after)}
    contents = (
        _number_rows(before, keys, BEFORE, types)
        .unionByName(_number_rows(after, keys, AFTER, types))
        .groupBy(PAIRED_BY, _CONTENT)
        .agg(
            F.sum(_NUMBER).alias(_NUMBER),
            *(F.first(image, ignorenulls=True).alias(image) for image in (BEFORE, AFTER)),
        )
        .where(F.col(_NUMBER) != 0)
    )
    is_lost = F.col(_NUMBER) < 0
    kind = F.when(is_lost, F.lit(DELETED)).otherwise(F.lit(INSERTED))
    # A row that both sides have, but not equally often, has both images.
    images = {"before": F.when(is_lost, F.col(BEFORE)), "after": F.when(~is_lost, F.col(AFTER))}
    copies = F.explode(F.array_repeat(F.lit(0), F.abs(_NUMBER).cast("int")))
    rows = contents.select(*build_change(kind, kind, **images), PAIRED_BY, copies.alias(_NUMBER))
    return ChangeSet(pair_rows(rows) if keys else rows.select(*COLUMNS))


def pair_rows(rows: DataFrame) -> DataFrame:
    """Return deleted and inserted rows that belong together as one updated row.

    :param rows: changes, and in ``PAIRED_BY`` the identity of each row. Two changes of one identity are a
        pair if they are its only ones.
    """
    changes = F.collect_list(F.struct(*COLUMNS))
    by_row = rows.groupBy(PAIRED_BY).agg(changes.alias(_CHANGES))
    return by_row.select(F.explode(_pair_changes()).alias(_CHANGES)).select(f"{_CHANGES}.*")


def _number_rows(rows: DataFrame, keys: Sequence[str], name: str, types: Mapping[str, DataType]) -> DataFrame:
    """Return each row as a struct, with a hash of its content and of its key."""
    content = F.sha2(exact_row(rows, sorted(rows.columns)), 256)
    key = F.sha2(exact_row(rows, keys, keeps_nulls=True), 256) if keys else content
    images = {
        **{image: F.lit(None).cast(kind) for image, kind in types.items()},
        name: pack_row(rows.columns),
    }
    return rows.select(
        key.alias(PAIRED_BY),
        content.alias(_CONTENT),
        F.lit(-1 if name == BEFORE else 1).cast("bigint").alias(_NUMBER),
        *(value.alias(image) for image, value in images.items()),
    )


def _pair_changes() -> Column:
    """Return the changes of one identity, as one updated row if they are a deleted and an inserted one."""
    changes = F.col(_CHANGES)
    kinds = F.transform(changes, lambda change: change[KIND])
    is_pair = (
        (F.size(changes) == _PAIR_SIZE) & F.array_contains(kinds, INSERTED) & F.array_contains(kinds, DELETED)
    )

    def find_image(name: str) -> Column:
        return F.element_at(F.filter(changes, lambda change: change[name].isNotNull()), 1)[name]

    updated = F.struct(*build_change(UPDATED, UPDATED, before=find_image(BEFORE), after=find_image(AFTER)))
    return F.when(is_pair, F.array(updated)).otherwise(changes)


def _to_column(value: Column | str) -> Column:
    return value if isinstance(value, Column) else F.lit(value)
