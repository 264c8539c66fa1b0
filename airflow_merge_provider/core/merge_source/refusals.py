"""The errors that a merge source raises before it writes anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import starmap
from typing import NamedTuple

from airflow_merge_provider.core.change_plan.shown_rows import mask_text, mask_value
from airflow_merge_provider.core.errors import ConfigError, DataError, Problem, did_you_mean
from airflow_merge_provider.core.merge_source.explanation import format_key

Named = tuple[str, str]
_REFUSED = "refused"
# The maximum number of examples in an error, such as overlapping IDs, and of members per cluster.
SHOWN, SHOWN_MEMBERS = 10, 3


class HighFanoutKey(NamedTuple):
    """A value (as a typed key) by which a rule links many entities, and some of them.

    The key may be lost.
    """

    rule: str
    key: str | None
    entities: int
    sample: tuple[str, ...]


class OversizedCluster(NamedTuple):
    """A cluster above ``max_merged``: its number of entities, and the first of them as (dataset, id)."""

    entities: int
    first: Sequence[Named]


class OverlappingClusters(NamedTuple):
    """Two clusters with the same output ID, each identified by its first member."""

    output_id: str
    one: Named
    other: Named


def name_entity(dataset: str, id_: str) -> str:
    """Return the name of an entity as reports and errors show it."""
    return f"{dataset}/{mask_id(id_)}"


def mask_id(id_: str) -> str:
    """Return the ID of an entity or of an output as it may be shown."""
    return mask_value(id_, ["_id"])


def refuse_oversized_clusters(limit: int, clusters: Sequence[OversizedCluster], total: int) -> DataError:
    """Return the error for ``total`` clusters above ``max_merged``; it lists the largest ones first."""
    hint = "find the value that too many entities share and exclude it with filter, or raise max_merged"
    problems = []
    for cluster in clusters:
        first = f"(first members: {', '.join(starmap(name_entity, cluster.first))})"
        message = f"{cluster.entities} entities would be merged into one, the limit is {limit} {first}"
        problems.append(Problem("max_merged", _REFUSED, message, hint))
    return DataError.from_problems(problems, total)


def refuse_duplicate_outputs(overlaps: Sequence[OverlappingClusters], total: int, identity: str) -> DataError:
    """Return the error for ``total`` clusters with the same output ID; it lists the first of them."""
    cause = (
        "add an equality rule on _id or $ids for these datasets"
        if identity == "first"
        else "remove '|' from the entity IDs"
    )
    messages = (
        f"duplicate output id {mask_id(id_)!r}: from {name_entity(*first_member)} and "
        f"{name_entity(*second_member)} ({cause})"
        for id_, first_member, second_member in overlaps
    )
    return DataError.from_problems([Problem("", _REFUSED, message) for message in messages], total)


def refuse_shared_ids(entity_ids: Sequence[str], total: int) -> DataError:
    """Return the error for IDs in two datasets, which version 1 cannot distinguish.

    It lists the first of the ``total`` IDs.
    """
    messages = (
        f"version 1 with identity 'first': entity id {mask_id(id_)!r} is in more than one dataset "
        "(use version 2)"
        for id_ in entity_ids
    )
    return DataError.from_problems([Problem("", _REFUSED, message) for message in messages], total)


def refuse_high_fanout(keys: Sequence[HighFanoutKey], limits: Sequence[int]) -> DataError:
    """Return the error for values above ``max_key_fanout``, the largest first, each with its limit."""
    hint = "exclude the value with filter, raise max_key_fanout, or set on_over_merge to 'quarantine'"
    problems = []
    for key, limit in zip(keys[:SHOWN], limits, strict=False):
        value = "a value" if key.key is None else f"the value {mask_text(format_key(key.key))}"
        first = f"(first: {', '.join(key.sample)})"
        message = f"{value} of {key.rule} links {key.entities} entities, the limit is {limit} {first}"
        problems.append(Problem("max_key_fanout", "over-merge", message, hint))
    return DataError.from_problems(problems, len(keys))


def refuse_missing_id(dataset: str, rows: int = 1) -> Problem:
    """Return the problem of entities whose ID is missing, null, empty or not a text."""
    how_many = f" in {rows} rows" if rows > 1 else ""
    message = f"dataset {dataset!r}: entity without a string _id{how_many}"
    return Problem("", _REFUSED, message, "cast numeric IDs to STRING upstream, and fill in missing IDs")


def refuse_empty_source() -> DataError:
    """Return the error for a full run without any entities, if ``if_source_empty`` requires it."""
    message = "the datasets contain no entities, so all rows of the target would be deleted"
    hint = "load the datasets first, or set if_source_empty to 'accept'"
    return DataError.from_problems([Problem("if_source_empty", _REFUSED, message, hint)])


def refuse_missing_columns(
    previous_columns: Mapping[str, Sequence[str]], current_columns: Mapping[str, Sequence[str]]
) -> DataError | None:
    """Return the error for columns of the previous run that datasets now lack; None if all exist.

    :param previous_columns: the columns of each dataset in the previous run.
    :param current_columns: those of this run; a dataset that does not exist, or did not, is left out.
    """
    remedy = "restore the column, or set schema_evolution to 'allow_missing'"
    problems = []
    for dataset, names in current_columns.items():
        previous_names = previous_columns.get(dataset, ())
        for name in sorted(set(previous_names) - set(names)):
            hint = "; ".join(filter(None, (did_you_mean(name, set(names) - set(previous_names)), remedy)))
            message = f"dataset {dataset!r} no longer has column {name!r}, which the previous run merged"
            problems.append(Problem("datasets", "column", message, hint))
    return DataError.from_problems(problems) if problems else None


def refuse_moved_dataset(previous: Sequence[str], current: Sequence[str]) -> ConfigError | None:
    """Return the error for a dataset whose offset has changed in version 1; None if no offset has."""
    for offset, dataset in enumerate(current):
        if dataset in previous and previous.index(dataset) != offset:
            moved = f"moved from offset {previous.index(dataset)} to {offset}"
            message = f"version 1: dataset {dataset!r} {moved}"
            return ConfigError.from_problems(
                [Problem("", "moved", message, "run once with reset=True, or use version 2")]
            )
    return None
