"""The change set of a run: every row that its commit would change, before and after.

Source: docs/plan.md, The change set.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol

from pyspark.sql import Column, DataFrame, Window, functions as F
from pyspark.sql.types import DataType, StructType

from airflow_merge_provider.core.change_plan.summary import EXAMPLES_MAX, ChangeExample, ChangeSummary
from airflow_merge_provider.core.errors import format_count
from airflow_merge_provider.jobs.spark.exact_text import exact_row, shown_row, shown_text
from airflow_merge_provider.jobs.spark.sql import quote_name

KIND, REASON, DETAIL, BEFORE, AFTER, STATE = COLUMNS = (
    "kind", "reason", "detail", "before", "after", "state"
)  # fmt: skip
INSERTED, UPDATED, DELETED, KEPT = "inserted", "updated", "deleted", "kept"
# The kind of rows that the commit adds to a side table; their reason is the name of that table.
RECORDED = "recorded"
# The column by which deleted and inserted rows are paired.
PAIRED_BY = "__merge_paired_by"
_NUMBER, _CONTENT, _CHANGES = "__merge_number", "__merge_content", "__merge_changes"
_PAIR_SIZE = 2
# The number of changed columns that a plan names, and the characters of their types.
_COLUMN_CHANGES_MAX, _TYPE_MAX_CHARS = 10, 40
_RANK, _HASHES = "__merge_rank", ("__merge_hash1", "__merge_hash2")
# The second hash of a row includes this text, so that two different change sets do not have the same sums.
_SALT = "airflow_merge_provider"


class ReplacedTable(Protocol):
    """A side table whose rows a run replaces."""

    def has_rows(self, started_at: int) -> bool:
        """Return whether there are rows to replace, for a run that started at a time in microseconds."""


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """The rows that a commit changes, with the columns ``COLUMNS``.

    ``before`` and ``after`` are structs of the row's columns, null if there is no row. ``kind`` is the effect
    on the row, ``reason`` a word of the capability, and ``detail`` a text or null. ``state`` is a hash of the
    columns that neither struct shows, null if there are none. ``describe`` adds details to examples that
    would cost too much for all rows, and names, which stand for the ``name_columns``. ``recorded`` are the
    rows that the run adds to side tables, by the names of these, and ``replaced`` the side tables that lose
    all of their rows. ``other_changes`` are what else it changes, as texts. ``is_overwrite`` is set if the
    table gets the rows and the columns of the images after.
    """

    rows: DataFrame
    describe: Callable[[Sequence[ChangeExample]], Sequence[ChangeExample]] | None = None
    recorded: Mapping[str, DataFrame] = field(default_factory=dict)
    replaced: Mapping[str, ReplacedTable] = field(default_factory=dict)
    other_changes: Sequence[str] = ()
    name_columns: tuple[str, ...] = ()
    is_overwrite: bool = False

    @contextmanager
    def hold_text(self) -> Iterator[DataFrame]:
        """Yield all rows with ``before`` and ``after`` as JSON, without NULLs; they are computed once."""
        kinds = self.rows.schema
        images = [shown_text(image, kinds[image].dataType).alias(image) for image in (BEFORE, AFTER)]
        text_rows = self.rows.select(KIND, REASON, DETAIL, *images, STATE)
        for name, rows in self.recorded.items():
            row = shown_row(rows, rows.columns, keeps_nulls=False)
            recorded = build_change(RECORDED, name, before=F.lit(None).cast("string"), after=row)
            text_rows = text_rows.unionByName(rows.select(*recorded))
        text_rows.persist()
        try:
            yield text_rows
        finally:
            text_rows.unpersist()

    def list_column_changes(self) -> list[str]:
        """Return how the commit changes the columns of a table that exists: the first changes, for people."""
        before, after = (_list_types(self.rows.schema[image].dataType) for image in (BEFORE, AFTER))
        added = [
            f"adds column {name!r} ({_shorten_type(kind)})"
            for name, kind in after.items()
            if name not in before
        ]
        altered = [
            f"changes column {name!r} from {_shorten_type(kind)} to {_shorten_type(after[name])}"
            for name, kind in before.items()
            if after.get(name, kind) != kind
        ]
        dropped = [f"drops column {name!r}" for name in before if self.is_overwrite and name not in after]
        changes = [*added, *altered, *dropped]
        more_count = len(changes) - _COLUMN_CHANGES_MAX
        more = [f"changes {format_count(more_count, 'more column')}"] if more_count > 0 else []
        return [*changes[:_COLUMN_CHANGES_MAX], *more]

    def list_removals(self, started_at: int) -> list[str]:
        """Return the side tables with rows that the commit replaces, or removes without a replacement."""
        return [
            f"removes all rows from {name}"
            for name, table in self.replaced.items()
            if table.has_rows(started_at)
        ]

    def summarize(self, text_rows: DataFrame) -> ChangeSummary:
        """Return the counts, the examples and the digest of everything that the commit writes.

        :param text_rows: the rows of ``hold_text``; they are read twice.
        """
        columns = self.rows.schema[AFTER].dataType.simpleString()
        return summarize_changes(text_rows, [columns, *self.other_changes], self.other_changes)


def describe_examples(changes: ChangeSet, summary: ChangeSummary) -> ChangeSummary:
    """Return the summary with the details of its examples that are not in the rows."""
    if changes.describe is None or not summary.examples:
        return summary
    return summary.model_copy(update={"examples": list(changes.describe(summary.examples))})


def summarize_changes(
    text_rows: DataFrame, digested: Sequence[str] = (), other_changes: Sequence[str] = ()
) -> ChangeSummary:
    """Count changed rows by kind and reason, and return them with examples of each kind and a digest.

    :param text_rows: the rows of ``ChangeSet.hold_text``; they are read twice.
    :param digested: what the digest includes besides the rows.
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
    recorded: dict[str, int] = {}
    sums = [0, 0]
    for row in counted:
        sums = [total + int(row[name]) for total, name in zip(sums, _HASHES, strict=True)]
        if row[KIND] == RECORDED:
            recorded[row[REASON]] = row["n"]
            continue
        kinds[row[KIND]] = kinds.get(row[KIND], 0) + row["n"]
        reasons[row[REASON]] = reasons.get(row[REASON], 0) + row["n"]
    content_text = json.dumps([kinds, sums, recorded, list(digested)])
    digest = hashlib.sha256(content_text.encode()).hexdigest()[:32]
    # Rows of side tables may hold values of columns that are masked in those of the target.
    examples = _collect_examples(text_rows.where(F.col(KIND) != RECORDED)) if reasons else []
    recordings = [f"records {format_count(count, 'row')} in {name}" for name, count in recorded.items()]
    columns = _count_changed_columns(text_rows) if kinds[UPDATED] > EXAMPLES_MAX else {}
    return ChangeSummary(
        kinds=kinds, reasons=reasons, examples=examples, columns=columns, digest=digest,
        other_changes=[*other_changes, *recordings],
    )  # fmt: skip


def _count_changed_columns(text_rows: DataFrame) -> dict[str, int]:
    """Return in how many updated rows each column differs, the columns of most rows first."""
    images = [F.from_json(name, "map<string,string>") for name in (BEFORE, AFTER)]
    names = F.array_union(*(F.map_keys(image) for image in images))
    before, after = images
    differing = F.filter(
        names, lambda name: ~F.try_element_at(before, name).eqNullSafe(F.try_element_at(after, name))
    )
    changes = text_rows.where(F.col(KIND) == UPDATED).select(F.explode(differing).alias(_CONTENT))
    counts = changes.groupBy(_CONTENT).agg(F.count("*").alias("n")).orderBy(F.desc("n"), _CONTENT)
    return {row[_CONTENT]: row["n"] for row in counts.collect()}


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


def insert_rows(rows: DataFrame, stored: DataFrame | None = None, reason: str = INSERTED) -> ChangeSet:
    """Return the change set of new rows; ``stored`` are the rows of the table, None if there is none."""
    after = pack_row(rows.columns)
    before = F.lit(None).cast(find_row_type(rows if stored is None else stored))
    return ChangeSet(rows.select(*build_change(INSERTED, reason, before=before, after=after)))


def replace_all_rows(
    before: DataFrame | None, after: DataFrame, keys: Sequence[str] = (), hidden: Collection[str] = ()
) -> ChangeSet:
    """Return the change set of an overwrite: the rows that only one side has.

    Rows that are equally often on both sides do not change. A lost row and a gained row with the same key are
    one updated row, if these two are the only changed rows of the key.

    :param before: the rows that are replaced; None if there are none.
    :param keys: the columns that identify a row; empty if no columns do.
    :param hidden: internal columns, which are compared and not shown.
    """
    if before is None:
        return insert_rows(after)
    types = {BEFORE: find_row_type(before.drop(*hidden)), AFTER: find_row_type(after.drop(*hidden))}
    contents = (
        _number_rows(before, keys, BEFORE, types, hidden)
        .unionByName(_number_rows(after, keys, AFTER, types, hidden))
        .groupBy(PAIRED_BY, _CONTENT)
        .agg(
            F.sum(_NUMBER).alias(_NUMBER),
            *(F.first(image, ignorenulls=True).alias(image) for image in (BEFORE, AFTER, STATE)),
        )
        .where(F.col(_NUMBER) != 0)
    )
    is_lost = F.col(_NUMBER) < 0
    kind = F.when(is_lost, F.lit(DELETED)).otherwise(F.lit(INSERTED))
    # A row that both sides have, but not equally often, has both images.
    images = {
        "before": F.when(is_lost, F.col(BEFORE)),
        "after": F.when(~is_lost, F.col(AFTER)),
        "state": F.when(~is_lost, F.col(STATE)),
    }
    copies = F.explode(F.array_repeat(F.lit(0), F.abs(_NUMBER).cast("int")))
    rows = contents.select(*build_change(kind, kind, **images), PAIRED_BY, copies.alias(_NUMBER))
    return ChangeSet(pair_rows(rows) if keys else rows.select(*COLUMNS), is_overwrite=True)


def pair_rows(rows: DataFrame) -> DataFrame:
    """Return deleted and inserted rows that belong together as one updated row.

    :param rows: changes, and in ``PAIRED_BY`` the identity of each row. Two changes of one identity are a
        pair if they are its only ones.
    """
    changes = F.collect_list(F.struct(*COLUMNS))
    by_row = rows.groupBy(PAIRED_BY).agg(changes.alias(_CHANGES))
    return by_row.select(F.explode(_pair_changes()).alias(_CHANGES)).select(f"{_CHANGES}.*")


def _number_rows(
    rows: DataFrame, keys: Sequence[str], name: str, types: Mapping[str, DataType], hidden: Collection[str]
) -> DataFrame:
    """Return each row as a struct, with a hash of its content and of its key."""
    content = F.sha2(exact_row(rows, sorted(rows.columns)), 256)
    key = F.sha2(exact_row(rows, keys), 256) if keys else content
    images = {
        **{image: F.lit(None).cast(kind) for image, kind in types.items()},
        name: pack_row([column for column in rows.columns if column not in hidden]),
    }
    state = F.sha2(exact_row(rows, hidden), 256) if hidden and name == AFTER else F.lit(None).cast("string")
    return rows.select(
        key.alias(PAIRED_BY),
        content.alias(_CONTENT),
        F.lit(-1 if name == BEFORE else 1).cast("bigint").alias(_NUMBER),
        *(value.alias(image) for image, value in images.items()),
        state.alias(STATE),
    )


def _pair_changes() -> Column:
    """Return the changes of one identity, as one updated row if they are a deleted and an inserted one."""
    changes = F.col(_CHANGES)
    kinds = F.transform(changes, lambda change: change[KIND])
    is_pair = (
        (F.size(changes) == _PAIR_SIZE) & F.array_contains(kinds, INSERTED) & F.array_contains(kinds, DELETED)
    )

    def find_image(name: str) -> Column:
        return F.get(F.filter(changes, lambda change: change[name].isNotNull()), 0)[name]

    images = {"before": find_image(BEFORE), "after": find_image(AFTER), "state": find_image(STATE)}
    updated = F.struct(*build_change(UPDATED, UPDATED, **images))
    return F.when(is_pair, F.array(updated)).otherwise(changes)


def _list_types(row: DataType) -> dict[str, str]:
    """Return the types of the columns of a row by their names."""
    return {kind.name: kind.dataType.simpleString() for kind in row} if isinstance(row, StructType) else {}


def _shorten_type(kind: str) -> str:
    return kind if len(kind) <= _TYPE_MAX_CHARS else f"{kind[: _TYPE_MAX_CHARS - 1]}…"


def _to_column(value: Column | str) -> Column:
    return value if isinstance(value, Column) else F.lit(value)
