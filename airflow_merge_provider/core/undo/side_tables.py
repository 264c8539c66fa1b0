"""Determine the side tables of a target that an undo restores, and their versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from airflow_merge_provider.core.dataset import Dataset, resolve_dataset
from airflow_merge_provider.core.run.previous_run import SIDE_TABLE_LOCATIONS, SIDE_TABLE_VERSIONS

# The side tables whose name is not the name under which the commit of the target records them.
_SUFFIXES = {"merge_engine_removals": "__removed"}
# Side tables with a name that users choose; a run that does not write them does not record it.
_NAMED_BY_USERS = ("merge_engine_changelog", "joiner_unmatched")


class SideTableVersion(NamedTuple):
    """A side table and the version that it goes back to, or ``UNNAMED``; None if it has no rows then."""

    dataset: Dataset
    version: int | None


def list_side_tables(
    target: Dataset, state: Mapping[str, Any], restored_state: Mapping[str, Any], absent: int | None
) -> Iterator[SideTableVersion]:
    """Yield the side tables whose version differs between two states of a target.

    :param state: the state of the newest run in force.
    :param restored_state: the state of the run whose rows are restored; empty if there is none.
    :param absent: the version of a side table that this state does not name: None, or ``UNNAMED``.
    """
    before, after = (recorded.get(SIDE_TABLE_VERSIONS) or {} for recorded in (state, restored_state))
    locations: dict[str, str] = {}
    for recorded in (state, restored_state):
        locations |= recorded.get(SIDE_TABLE_LOCATIONS) or {}
    for name in sorted({*before, *after}):
        dataset = _locate(target, name, locations)
        if dataset is not None and before.get(name) != after.get(name, absent):
            yield SideTableVersion(dataset, after.get(name, absent))


def _locate(target: Dataset, name: str, locations: Mapping[str, str]) -> Dataset | None:
    if name in locations:
        return resolve_dataset(locations[name], None, at=name)
    if name in _NAMED_BY_USERS:
        return None
    return target.with_suffix(_SUFFIXES.get(name, name if name.startswith("__") else f"__{name}"))
