"""What do entities come to: their clusters, what these rest on, and the outputs they make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.overrides import Pair
from airflow_merge_provider.core.merge_source.refusals import Hub
from airflow_merge_provider.jobs.merge_source.components import Entities, Graph, Watch
from airflow_merge_provider.jobs.merge_source.difference import Difference
from airflow_merge_provider.jobs.merge_source.evidence import Evidence
from airflow_merge_provider.jobs.merge_source.outcome import Outcome, outcome
from airflow_merge_provider.jobs.merge_source.separation import separated
from airflow_merge_provider.jobs.merge_source.succession import Event
from airflow_merge_provider.jobs.merge_source.totals import Totals

# Looks at what links before outputs are made of it: gives the values that link nothing, or stops the run.
Connect = Callable[[Sequence[Entities], Watch], Graph]
Judge = Callable[[Graph, Evidence], Sequence[Hub]]


@dataclass(frozen=True)
class Solved:
    """The outputs, and what was seen on the way.

    ``quarantined`` are values that would have linked too many entities, ``cut`` pairs that are decided to be
    different and that the rules would have made one. ``left`` counts what is evaluated anew as it was, where
    that is not everything. ``stable`` gives outputs their stable ids, ``events`` say what became of others.
    """

    outcome: Outcome
    evidence: Evidence
    quarantined: Sequence[Hub] = ()
    cut: Sequence[Pair] = ()
    stable: pa.Table | None = None
    next_stable: int | None = None
    events: Sequence[Event] = ()
    left: Totals | None = None


@dataclass(frozen=True)
class SolvedChanges(Solved):
    """The same of a run that compares its outputs with the target's: ``difference`` is what differs."""

    difference: Difference = field(kw_only=True)


def solved(
    sources: Sequence[Entities],
    config: MergeSourceConfig,
    connect: Connect,
    judge: Judge,
    different: Sequence[Pair] = (),
) -> Solved:
    """Connect entities by the keys they share, and cut apart those that are decided to be ``different``.

    :raises DataError: when an output cannot be, or a value links too many entities.
    :raises HashCollisionError: when two values have one hash.
    """
    keep_links = bool(different) or config.metrics is not None
    evidence = Evidence(config.max_key_fanout, keep_links=keep_links)
    graph = connect(sources, evidence)
    quarantined = judge(graph, evidence)
    cut: Sequence[Pair] = ()
    if different:
        apart = separated(graph, evidence.links, different, config.dataset_ids)
        graph, cut = apart.graph, apart.cut
    return Solved(outcome(graph, config), evidence, quarantined, cut)
