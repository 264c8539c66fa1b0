"""The rows that a run would change: counts, examples, a digest of all of them, and all that as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from airflow_merge_provider.core.change_plan.shown_rows import mask_change, mask_text, select_columns
from airflow_merge_provider.core.errors import format_count
from airflow_merge_provider.core.value_text import escape_text, format_change, format_value

ChangeKind = Literal["inserted", "updated", "deleted", "kept", "failed"]
CHANGE_KINDS: tuple[ChangeKind, ...] = ("inserted", "updated", "deleted", "kept", "failed")
# The number of example rows of each kind.
EXAMPLES_MAX = 20


class _SummaryPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ChangeExample(_SummaryPart):
    """One row that a run would change, before and after, without its NULLs; of a merge record, one bin."""

    kind: ChangeKind = Field(
        description="The effect on the row; `kept` rows only get another state. The files of a `failed` bin"
        " move to the failure folder."
    )
    reason: str = Field(description="The reason in a word of the capability, such as `closed`.")
    detail: str = Field("", description="What led to the change of this row.")
    name: str = Field(
        "", description="The name of a golden record, with its stable ID; empty if it has none."
    )
    members: str = Field(
        "",
        description="The members that a golden record gains (+) and loses (-), with their rules.",
    )
    replaces: str | None = Field(
        None,
        description="The former ID of a golden record that gets another one: two rows are one example.",
    )
    before: dict[str, Any] | None = Field(None, description="The row before; null if it is new.")
    after: dict[str, Any] | None = Field(None, description="The row after; null if it is deleted.")

    def list_row_kinds(self) -> tuple[ChangeKind, ...]:
        """Return the kind of each row: a golden record with another ID is a new row and one that ends."""
        return (self.kind,) if self.replaces is None else ("inserted", "deleted")

    def list_values(self) -> dict[str, Any]:
        """Return the columns that identify and describe the row: none that differs, and none beside a name.

        A new row has all of its columns.
        """
        row = self.after or self.before or {}
        if self.name and self.kind != "inserted":
            return {}
        differing = {name for name, *_ in self.list_updated_columns()}
        return {name: value for name, value in row.items() if name not in differing}

    def list_updated_columns(self) -> list[tuple[str, Any, Any]]:
        """Return the columns that differ in a row that stays, with their values before and after."""
        return [] if None in (self.before, self.after) else list(self.list_changed_columns())

    @property
    def why(self) -> str:
        """The reason of the change, with what led to it."""
        replaced = "" if self.replaces is None else f"replaces {self.replaces}"
        return ": ".join(filter(None, (self.reason, ", ".join(filter(None, (self.detail, replaced))))))

    def hide_columns(self, internal_columns: Collection[str]) -> Self:
        """Return the row without internal columns, and a new or deleted one only as it is or was."""
        is_shown = {"before": self.kind != "inserted", "after": self.kind != "deleted"}
        images = {name: getattr(self, name) if is_shown[name] else None for name in is_shown}
        rows = select_columns([row or {} for row in images.values()], internal_columns)
        shown = zip(images, rows, strict=True)
        return self.model_copy(
            update={name: row if images[name] is not None else None for name, row in shown}
        )

    def list_changed_columns(self) -> Iterator[tuple[str, Any, Any]]:
        """Yield each column that differs, with its value before and after; None stands for NULL."""
        before, after = self.before or {}, self.after or {}
        for name in [*after, *(name for name in before if name not in after)]:
            values = before.get(name), after.get(name)
            # Unlike the values, NaN and NaN are equal, and -0.0 and 0.0 differ.
            if repr(values[0]) != repr(values[1]):
                yield name, *values


class PlanReference(_SummaryPart):
    """The table that holds the rows of a saved plan, and its version."""

    dataset: str = Field(description="The dataset with the changed rows.")
    uri: str = Field(description="The location of the dataset, or `table:` and the name of a catalog table.")
    version: int = Field(description="The version of the dataset.")


class ChangeSummary(_SummaryPart):
    """The changes of a plan: how many rows by kind and reason, examples of each kind, and a digest."""

    kinds: dict[ChangeKind, int] = Field(description="The number of rows of each kind.")
    reasons: dict[str, int] = Field(description="The number of rows by reason.")
    examples: list[ChangeExample] = Field(description="At most 20 rows of each kind.")
    columns: dict[str, int] = Field(
        default_factory=dict,
        description="In how many updated rows each column differs, if there are more rows than examples.",
    )
    digest: str = Field(
        description="The digest of everything that the commit would write: equal plans have equal digests."
    )
    other_changes: list[str] = Field(
        default_factory=list,
        description="What the commit would change besides the rows of the target: its columns, its owner, "
        "and rows of side tables.",
    )
    saved: PlanReference | None = Field(None, description="The saved plan; null if it was not saved.")
    internal_columns: tuple[str, ...] = Field(
        (), description="The columns of the examples that people see only if they ask for all columns."
    )

    def mask_rows(self) -> Self:
        """Return the summary as it may be shown: its examples without the values that stay private."""
        examples = []
        for example in self.examples:
            before, after = mask_change(example.before, example.after)
            detail = example.detail and mask_text(example.detail)
            examples.append(example.model_copy(update={"before": before, "after": after, "detail": detail}))
        return self.model_copy(update={"examples": examples})

    def list_visible_examples(self) -> list[ChangeExample]:
        """Return the examples without internal columns."""
        return [example.hide_columns(self.internal_columns) for example in self.examples]

    def list_column_counts(self) -> list[str]:
        """Return in how many updated rows each column differs, without internal columns, as texts."""
        names = [name for name in self.columns if name not in self.internal_columns]
        more = [f"and {format_count(len(names) - _CHANGED_COLUMNS_MAX, 'more column')}"]
        shown = [f"{name} in {format_count(self.columns[name], 'row')}" for name in names]
        return [*shown[:_CHANGED_COLUMNS_MAX], *more[: len(names) > _CHANGED_COLUMNS_MAX]]

    @property
    def count(self) -> int:
        """The number of rows that would be written or deleted."""
        return sum(self.kinds.values())

    @property
    def has_changes(self) -> bool:
        """Whether the commit of the plan writes anything but the offsets of its sources."""
        return bool(self.count or self.other_changes)


def count_changed_rows(kinds: Mapping[Any, int]) -> int:
    """Return how many rows change; rows that keep their values do not count."""
    return sum(count for kind, count in kinds.items() if kind != "kept")


def describe_counts(counts: Mapping[Any, int]) -> str:
    """Return counts as text, without zeros.

    >>> describe_counts({"updated": 2, "deleted": 1, "inserted": 0})
    '2 updated, 1 deleted'
    """
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def describe_share(kinds: Mapping[ChangeKind, int], rows_before: int | None) -> str:
    """Return the changes as a share of the rows of the target; rows that keep their values do not count.

    >>> describe_share({"updated": 2, "deleted": 1}, 3)
    'changes 3 rows in a target of 3 rows (100 %): 2 updated, 1 deleted'
    >>> describe_share({"inserted": 2}, 0)
    'adds 2 rows to a target without rows'
    """
    changed_kinds = {kind: count for kind, count in kinds.items() if kind != "kept"}
    changed = count_changed_rows(kinds)
    counts = describe_counts(changed_kinds) or "no row"
    if rows_before is None:
        return f"changes {format_count(changed, 'row')}: {counts}"
    if not rows_before:
        return f"adds {format_count(changed, 'row')} to a target without rows"
    share = _format_share(changed, rows_before)
    target = f"a target of {format_count(rows_before, 'row')}"
    return f"changes {format_count(changed, 'row')} in {target} ({share}): {counts}"


def select_examples(examples: Iterable[ChangeExample], limit: int) -> list[ChangeExample]:
    """Return at most ``limit`` examples, of each kind about as many.

    >>> examples = [ChangeExample(kind=kind, reason="") for kind in ("inserted", "inserted", "deleted")]
    >>> [example.kind for example in select_examples(examples, 2)]
    ['inserted', 'deleted']
    """
    queues: dict[ChangeKind, list[ChangeExample]] = {kind: [] for kind in CHANGE_KINDS}
    for example in examples:
        queues[example.kind].append(example)
    selected: list[ChangeExample] = []
    while len(selected) < limit and any(queues.values()):
        for queue in queues.values():
            if queue and len(selected) < limit:
                selected.append(queue.pop(0))
    return sorted(selected, key=lambda example: CHANGE_KINDS.index(example.kind))


def _format_share(changed: int, rows_before: int) -> str:
    share = 100 * changed / rows_before
    return f"{share:.0f} %" if share >= 1 or not changed else f"{share:.2g} %"


_SIGNS: Mapping[ChangeKind, str] = {
    "inserted": "+",
    "updated": "~",
    "deleted": "-",
    "kept": "=",
    "failed": "!",
}
# Limits for one row: the columns that are shown, and the characters of a value.
_CHANGED_COLUMNS_MAX = 12
_VALUE_MAX_CHARS = 80


def format_changes(summary: ChangeSummary) -> Iterator[str]:
    """Yield the changes as a text for people: the counts, then the examples of each kind.

    ``+`` is a new row, ``-`` a deleted one, ``~`` a row with other values and ``=`` one with another state;
    ``*`` is a change of something else than the rows of the target.
    In a merge record, ``+`` is a merged file, ``=`` an open bin and ``!`` a failed one.
    """
    if summary.count:
        yield f"{format_count(summary.count, 'row')} would change: {describe_counts(summary.kinds)}"
    else:
        yield "no row would change"
    for change in summary.other_changes:
        yield f"* {escape_text(change)}"
    if not summary.count:
        return
    if set(summary.reasons) != {kind for kind, count in summary.kinds.items() if count}:
        yield f"reasons: {describe_counts(summary.reasons)}"
    if counts := summary.list_column_counts():
        yield f"columns: {escape_text(', '.join(counts))}"
    yield from format_examples(summary.kinds, summary.list_visible_examples())


def format_examples(kinds: Mapping[ChangeKind, int], examples: Sequence[ChangeExample]) -> Iterator[str]:
    """Yield the examples of each kind, and the number of further rows.

    :param kinds: the number of rows of each kind.
    """
    rows_of_examples = Counter(kind for example in examples for kind in example.list_row_kinds())
    for kind in CHANGE_KINDS:
        examples_of_kind = [example for example in examples if example.kind == kind]
        for example in examples_of_kind:
            yield from format_example(example)
        more = kinds.get(kind, 0) - rows_of_examples[kind]
        if more > 0:
            yield f"{_SIGNS[kind]} {more} more {kind}"


def format_example(example: ChangeExample) -> Iterator[str]:
    """Yield one row: its columns, why it changes, and on further lines the columns that differ."""
    values = example.list_values()
    names = list(values)[:_CHANGED_COLUMNS_MAX]
    cells = [f"{escape_text(name)} = {format_cell(values[name])}" for name in names]
    if len(values) > len(names):
        cells.append(f"and {format_count(len(values) - len(names), 'more column')}")
    texts = filter(None, (escape_text(example.name), ", ".join(cells), escape_text(example.members)))
    why = f"  [{escape_text(example.why)}]" if example.why else ""
    yield f"{_SIGNS[example.kind]} {': '.join(texts)}{why}"
    for name, *pair in example.list_updated_columns():
        yield f"    {escape_text(name)}: {' -> '.join(format_pair(*pair))}"


def format_pair(before: Any, after: Any) -> tuple[str, str]:
    """Return a value before and after, each in about 80 characters."""
    return format_change(before, after, _VALUE_MAX_CHARS)


def format_cell(value: Any) -> str:
    """Return a value in at most 80 characters."""
    text = format_value(value)
    return text if len(text) <= _VALUE_MAX_CHARS else f"{text[: _VALUE_MAX_CHARS - 1]}…"
