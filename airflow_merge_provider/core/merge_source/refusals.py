"""What does a run refuse before it writes anything, and in which words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from airflow_merge_provider.core.errors import ConfigError, DataError, Problem
from airflow_merge_provider.core.merge_source.explanation import readable

Named = tuple[str, str]
_SHOWN_MEMBERS = 3
_SHOWN_HUBS = 10


class Hub(NamedTuple):
    """A value (as a typed key) by which a rule links many entities, and some of them; the key may be lost."""

    rule: str
    key: str | None
    entities: int
    sample: tuple[str, ...]


def over_merged(count: int, limit: int, members: Sequence[Named]) -> DataError:
    """Refuse a cluster above ``max_merged``; ``members`` are (dataset, id) in member order."""
    shown = ", ".join(map("/".join, members[:_SHOWN_MEMBERS]))
    return _refused(
        "max_merged",
        f"{count} entities would be merged into one, the limit is {limit} (first members: {shown})",
        "look for a value that too many entities share, or raise max_merged",
    )


def duplicate_output(output_id: str, first: Named, second: Named, identity: str) -> DataError:
    """Refuse two clusters with one output id; each is named by its first member."""
    cause = (
        "add an equality rule on _id or $ids for these datasets"
        if identity == "first"
        else "entity ids contain '|'"
    )
    return _refused(
        "", f"duplicate output id {output_id!r}: from {'/'.join(first)} and {'/'.join(second)}; {cause}"
    )


def shared_id(entity_id: str) -> DataError:
    """Refuse an id in two datasets where version 1 cannot tell them apart."""
    return _refused(
        "",
        f"version 1 with identity 'first': entity id {entity_id!r} is in more than one dataset,"
        " use version 2",
    )


def over_fanout(limit: int, hubs: Sequence[Hub]) -> DataError:
    """Refuse values that link more entities than ``max_key_fanout``, the worst first."""
    hint = "keep the value out of the rule (filter), raise the limit, or set on_over_merge to 'quarantine'"
    problems = []
    for hub in hubs[:_SHOWN_HUBS]:
        value = "a value" if hub.key is None else f"the value {readable(hub.key)}"
        first = f"(first: {', '.join(hub.sample)})"
        message = f"{value} of {hub.rule} links {hub.entities} entities, the limit is {limit} {first}"
        problems.append(Problem("max_key_fanout", "over-merge", message, hint))
    return DataError.of(problems)


def without_id(dataset: str, rows: int = 1) -> DataError:
    """Refuse entities whose id is missing, null, empty or not a text."""
    how_many = f" in {rows} rows" if rows > 1 else ""
    return _refused(
        "", f"dataset {dataset!r}: entity without a string _id{how_many}", "cast number keys upstream"
    )


def empty_source() -> DataError:
    """Refuse a full run that finds nothing, where ``if_source_empty`` says so."""
    return _refused(
        "if_source_empty",
        "no dataset has an entity, and everything written before would be deleted",
        "load the datasets first, or set if_source_empty to 'accept'",
    )


def moved_dataset(before: Sequence[str], now: Sequence[str]) -> ConfigError | None:
    """Refuse, in version 1, a dataset that had another offset in the run before; None when none moved."""
    for offset, dataset in enumerate(now):
        if dataset in before and before.index(dataset) != offset:
            moved = f"moved from offset {before.index(dataset)} to {offset}"
            message = f"version 1: dataset {dataset!r} {moved}, the pipe must be reset"
            return ConfigError.of([Problem("", "moved", message, "or use version 2")])
    return None


def _refused(path: str, message: str, hint: str = "") -> DataError:
    return DataError.of([Problem(path, "refused", message, hint)])
