"""What the parts that are alike for all capabilities must know of one: a value, which one registry holds."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_merge_provider.core.model import Config
from airflow_merge_provider.core.protocol import Job, JobRequest
from airflow_merge_provider.core.report import Measure, Report
from airflow_merge_provider.core.run.decision import RunDecision
from airflow_merge_provider.core.run.lineage_model import ColumnLineage, DatasetCounts, RunSchemas
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.core.run.table_log import TableLog
from airflow_merge_provider.core.run_sentence import DescribeRun
from airflow_merge_provider.core.source_offset import RunState

_Counts = Callable[[Report], Mapping[str, DatasetCounts]]


class _IsOverwrite(Protocol):
    """The function that returns whether a run replaces all rows of its target."""

    def __call__(self, config: Any, /, *, full_refresh: bool) -> bool: ...


@dataclass(frozen=True, slots=True)
class Lineage:
    """How the columns and counts of lineage events follow from a configuration and a report.

    ``find_format`` returns the format of the dataset at a path, if it is not the one that the dataset names.
    """

    trace_columns: Callable[[Any, RunSchemas], Mapping[str, ColumnLineage]] = lambda _config, _schemas: {}
    count_read: _Counts = lambda _: {}
    count_written: _Counts = lambda _: {}
    is_overwrite: _IsOverwrite = lambda _config, *, full_refresh: full_refresh
    is_truncate: Callable[[Report], bool] = lambda _: False
    find_format: Callable[[Any, str], str | None] = lambda _config, _path: None


@dataclass(frozen=True, slots=True)
class Capability:
    """One kind of job.

    ``counts`` are the counts in its reports, ``check_counts`` those in the reports of its checks, and
    ``describe_run`` yields the parts of the sentence that says what a run did.
    ``output_keys`` are key columns of the target that the configuration does not name, ``internal_columns``
    those columns of it that people see only if they ask for all columns.
    ``find_recorded_key`` returns the key columns that the state of a commit records, which may be none; None
    if it does not record them.
    ``open_run`` opens a run, given its parsed configuration: its decision tells from logs whether there is
    work; None if that depends on files. ``unpack`` extracts
    the configuration from text that was pasted from the system whose semantics the capability has.
    ``job`` is the function that runs it with Spark, and ``explanation`` the one that explains a key of a
    target: each as ``module:name``, so that only who runs it imports it.
    """

    name: Job
    job: str
    config: type[Config]
    counts: Sequence[Measure]
    describe_run: DescribeRun = field(kw_only=True)
    check_counts: Sequence[Measure] = ()
    output_keys: tuple[str, ...] = ()
    internal_columns: tuple[str, ...] = ()
    find_recorded_key: Callable[[RunState], Sequence[str] | None] = lambda _: None
    open_run: Callable[[TableLog, Any, JobRequest, Progress], RunDecision] | None = None
    unpack: Callable[[Mapping[str, Any]], dict[str, Any]] = dict
    lineage: Lineage = Lineage()
    explanation: str | None = None


def load_function(path: str) -> Callable[..., Any]:
    """Return the function at ``module:name``.

    :raises ImportError: if the module cannot be imported.
    """
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function
