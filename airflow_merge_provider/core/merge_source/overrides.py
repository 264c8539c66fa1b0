"""Overrides: the decisions of people about which entities are the same, and which decisions are in effect."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_merge_provider.core.change_plan.shown_rows import mask_row, mask_text
from airflow_merge_provider.core.errors import DataError, Problem, suggest_name
from airflow_merge_provider.core.merge_source.dtl.expressions import Path
from airflow_merge_provider.core.merge_source.equality import Rule, Side
from airflow_merge_provider.core.merge_source.identity import Member
from airflow_merge_provider.core.merge_source.refusals import name_entity
from airflow_merge_provider.core.value_text import Row

OVERRIDE_COLUMNS = ("kind", "left", "right", "reason", "author", "until")
REQUIRED = OVERRIDE_COLUMNS[:3]
OVERRIDE_KINDS = ("same", "different")
# The columns of a source with the overrides whose left or right side the entity is.
SAME_LEFT, SAME_RIGHT = "__merge_same_left", "__merge_same_right"

_OVERRIDE_PROBLEMS_MAX = 20
Pair = tuple[Member, Member]


@dataclass(frozen=True, slots=True)
class Overrides:
    """The overrides in effect: pairs that are the same, and pairs that are not, each in order."""

    same: tuple[Pair, ...] = ()
    different: tuple[Pair, ...] = ()

    @property
    def mark(self) -> str:
        """A text that differs if the overrides differ; empty if there are none."""
        if not (self.same or self.different):
            return ""
        canonical = json.dumps([self.same, self.different], separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def build_rules(self, names: Sequence[str]) -> tuple[Rule, ...]:
        """Return rules by which the pairs that are the same share a key, one rule per pair of datasets."""
        offsets = sorted({(left.dataset, right.dataset) for left, right in self.same})
        return tuple(
            Rule(_build_side(left, SAME_LEFT, names), _build_side(right, SAME_RIGHT, names))
            for left, right in offsets
        )

    def build_keys(self, dataset: int, names: Sequence[str]) -> list[tuple[str, list[str], list[str]]]:
        """Return for every entity of a dataset its keys on the left and on the right side."""
        keys_by_id: dict[str, tuple[set[str], set[str]]] = {}
        for pair in self.same:
            key = " = ".join(f"{names[member.dataset]}/{member.id}" for member in pair)
            for side, member in enumerate(pair):
                if member.dataset == dataset:
                    keys_by_id.setdefault(member.id, (set(), set()))[side].add(key)
        return [(id_, sorted(left), sorted(right)) for id_, (left, right) in sorted(keys_by_id.items())]


def is_override(side: Side) -> bool:
    """Return whether a side of a rule stands for overrides instead of properties."""
    return isinstance(side.expression, Path) and side.expression.elements in ((SAME_LEFT,), (SAME_RIGHT,))


def parse_overrides(rows: Iterable[Row], names: Sequence[str], now: dt.datetime) -> Overrides:
    """Parse overrides: ``kind``, ``left`` and ``right`` as ``dataset/id``, and when each one ends.

    ``names`` are the datasets that are merged, in order.

    :raises DataError: with every row that is wrong, and pairs that are decided both ways.
    """
    problems: list[Problem] = []
    pairs: dict[str, set[Pair]] = {kind: set() for kind in OVERRIDE_KINDS}
    for row in rows:
        if _is_over(row.get("until"), now):
            continue
        row_problems, pair = _read_pair(row, names)
        problems += row_problems
        if pair is not None and not row_problems:
            pairs[row["kind"]].add(pair)
    contradictions = {frozenset(pair) for pair in pairs["same"]} & {
        frozenset(pair) for pair in pairs["different"]
    }
    problems += [
        Problem(
            "overrides",
            "both",
            f"{_format_pair(sorted(pair), names)} are declared 'same' and 'different' (remove one override)",
        )
        for pair in sorted(contradictions, key=sorted)
    ]
    if problems:
        raise DataError.from_problems(problems[:_OVERRIDE_PROBLEMS_MAX])
    return Overrides(tuple(sorted(pairs["same"])), tuple(sorted(pairs["different"])))


def _read_pair(row: Row, names: Sequence[str]) -> tuple[list[Problem], Pair | None]:
    problems = []
    kind = row.get("kind")
    if kind not in OVERRIDE_KINDS:
        problems.append(_refuse_row(row, f"kind must be 'same' or 'different', not {mask_text(repr(kind))}"))
    ends = [_read_member(row.get(end), names) for end in ("left", "right")]
    for end, member in zip(("left", "right"), ends, strict=True):
        if member is None:
            text = str(row.get(end))
            hint = suggest_name(text.rpartition("/")[0], names, "datasets")
            problems.append(_refuse_row(row, f"{end} must be '<dataset>/<id>'", hint))
    left, right = ends
    if left is None or right is None:
        return problems, None
    if left == right:
        problems.append(_refuse_row(row, "left and right are the same entity"))
    return problems, (left, right)


def _read_member(text: Any, names: Sequence[str]) -> Member | None:
    """Parse ``dataset/id``; both may contain slashes, so the longest matching dataset name is used."""
    if not isinstance(text, str):
        return None
    matching_names = [name for name in names if text.startswith(f"{name}/") and len(text) > len(name) + 1]
    if not matching_names:
        return None
    name = max(matching_names, key=len)
    return Member(names.index(name), text[len(name) + 1 :])


def _is_over(until: Any, now: dt.datetime) -> bool:
    """Return whether an override has ended; times without a zone are UTC, a date ends at its beginning."""
    if until is None:
        return False
    if not isinstance(until, dt.datetime):
        until = dt.datetime.combine(until, dt.time())
    until = until if until.tzinfo else until.replace(tzinfo=dt.UTC)
    return bool(until <= now)


def _build_side(dataset: int, column: str, names: Sequence[str]) -> Side:
    return Side(dataset, f"override({names[dataset]})", Path("", (column,)))


def _format_pair(pair: Sequence[Member], names: Sequence[str]) -> str:
    return " and ".join(name_entity(names[member.dataset], member.id) for member in pair)


def _refuse_row(row: Row, message: str, hint: str = "") -> Problem:
    shown = mask_row({name: row.get(name) for name in REQUIRED})
    return Problem("overrides", "row", f"{message} in {shown}", hint)
