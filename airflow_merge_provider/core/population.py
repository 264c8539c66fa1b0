"""The population status of datasets, and when the output of a run becomes populated.

A dataset is populated when it holds everything that its producer had to write first. Source:
docs/semantics/merge_source.md, Population.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict

from airflow_merge_provider.core.model import Config

State = Literal["populated", "unpopulated"]
Offset = Literal["if-source-populated", "never", "always", "initially", "onload"]
Progressed = Literal["none", "started", "failed", "success"]

OFFSETS: tuple[str, ...] = get_args(Offset)
DEFAULT_OFFSET: Offset = "if-source-populated"

FLAG = "merge.populated"
WRITER = "merge.capability"


class Population(BaseModel):
    """What determines the population flag of a run's output.

    ``datasets`` are the datasets that must be populated before the source counts as populated. ``marked`` are
    those of them that a person has marked as populated in Airflow; the tables do not record this.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: str | dict[str, Any]
    set_initial_offset: Offset = DEFAULT_OFFSET
    datasets: tuple[str | dict[str, Any], ...] = ()
    ignore_non_existent_datasets: bool = True
    marked: tuple[str | dict[str, Any], ...] = ()
    required: bool = False
    reset: bool = False


def build_population(
    config: Config, *, set_initial_offset: Offset, marked: Iterable[Any] = ()
) -> Population | None:
    """Return what determines the output's flag by the configuration; None if no table can have a flag."""
    target = getattr(config, "target", None)
    if target is None:
        return None
    sources = tuple(config.list_datasets("input").values())
    initial = getattr(config, "initial_datasets", None)
    return Population(
        target=target,
        set_initial_offset=set_initial_offset,
        datasets=sources if initial is None else tuple(initial),
        ignore_non_existent_datasets=getattr(config, "ignore_non_existent_datasets", True),
        marked=tuple(marked),
        required=getattr(config, "require_populated_input", False),
        reset=getattr(config, "reset", False),
    )


def list_unpopulated(
    datasets: Iterable[str], state: Mapping[str, State], *, ignore_non_existent: bool = True
) -> tuple[str, ...]:
    """Return the datasets that are not populated; a dataset missing from ``state`` does not exist.

    >>> list_unpopulated(["A", "B"], {"A": "unpopulated"})
    ('A',)
    """
    missing = "populated" if ignore_non_existent else "unpopulated"
    return tuple(dataset for dataset in datasets if state.get(dataset, missing) != "populated")


def table_state(properties: Mapping[str, str], holds_rows: Callable[[], bool]) -> State:
    """Return the state of a table: from its flag, or from its rows if this package never wrote it.

    >>> table_state({"merge.capability": "joiner"}, lambda: True)
    'unpopulated'
    >>> table_state({}, lambda: True)
    'populated'
    """
    if FLAG in properties:
        is_populated = properties[FLAG].lower() == "true"
    else:
        is_populated = WRITER not in properties and holds_rows()
    return "populated" if is_populated else "unpopulated"


def output_populated(mode: Offset, *, source_populated: bool, run: Progressed) -> bool:
    """Return whether an output that was not populated is populated after a run with this progress."""
    if mode == "onload":
        return True
    if mode == "initially":
        return run != "none"
    return run == "success" and (mode == "always" or (mode == "if-source-populated" and source_populated))
