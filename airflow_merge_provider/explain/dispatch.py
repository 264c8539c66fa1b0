"""Explain a key of any target: choose the explanation by the capability that wrote the target."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.delta_rs import is_table
from airflow_merge_provider.explain.joiner import explain_joined_row
from airflow_merge_provider.explain.merge_engine import explain_key
from airflow_merge_provider.explain.merge_load import explain_row
from airflow_merge_provider.explain.merge_record import explain_merged_file, find_state_folders
from airflow_merge_provider.explain.merge_source import explain_output_or_entity
from airflow_merge_provider.explain.target import find_owner, refuse_owner


class AnyExplanation(Protocol):
    """The explanation of a key, as lines of text or as a JSON object."""

    def format_lines(self) -> Iterator[str]:
        """Yield the explanation as text."""

    def as_object(self) -> dict[str, Any]:
        """Return the explanation as a JSON object."""


_EXPLAIN: Mapping[str | None, Callable[..., AnyExplanation]] = {
    "joiner": explain_joined_row,
    "merge_engine": explain_key,
    "merge_load": explain_row,
    "merge_source": explain_output_or_entity,
}


def explain_target(
    target: str, key: str, *, warehouse: str | None = None, version: int | None = None
) -> AnyExplanation:
    """Return the explanation of a key of a target, whichever capability wrote it.

    :raises ConfigError: if the target or the key is not valid.
    :raises DataError: if no capability of this package wrote the target, or it never had the key.
    """
    dataset = resolve_dataset(target, warehouse, at="target")
    if dataset.path is not None and not is_table(dataset.path) and find_state_folders(dataset):
        return explain_merged_file(target, key, warehouse=warehouse, version=version)
    owner = find_owner(target, warehouse)
    if owner not in _EXPLAIN:
        raise refuse_owner(dataset, owner, "this package")
    return _EXPLAIN[owner](target, key, warehouse=warehouse, version=version)
