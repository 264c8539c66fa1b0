"""Explain a key of any target: choose the explanation by the capability that wrote the target."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from airflow_merge_provider.core.capabilities import CAPABILITIES
from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.delta_rs import is_table
from airflow_merge_provider.explain.merge_record import explain_merged_file, find_state_folders
from airflow_merge_provider.explain.target import find_owner, refuse_owner


class AnyExplanation(Protocol):
    """The explanation of a key, as lines of text or as a JSON object."""

    def format_lines(self) -> Iterator[str]:
        """Yield the explanation as text."""

    def as_object(self) -> dict[str, Any]:
        """Return the explanation as a JSON object."""


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
    capability = CAPABILITIES.get(owner or "")
    explain = None if capability is None else capability.load_explanation()
    if explain is None:
        raise refuse_owner(dataset, owner, "this package")
    explanation: AnyExplanation = explain(target, key, warehouse=warehouse, version=version)
    return explanation
