"""The registry of all jobs: the capabilities by name, and the undo of their runs."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from airflow_merge_provider.core.capability import Capability
from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.protocol import Job
from airflow_merge_provider.core.report import Measure


class Registry(Mapping[Job, Capability]):
    """Jobs by name; a job is imported when it is first asked for, because most processes run one alone.

    :param folders: the packages with a module ``capability``, by the names of their jobs.
    """

    def __init__(self, folders: Mapping[Job, str]) -> None:
        self._folders = dict(folders)

    def __getitem__(self, name: Job) -> Capability:
        capability: Capability = importlib.import_module(f"{self._folders[name]}.capability").CAPABILITY
        return capability

    def __contains__(self, name: object) -> bool:
        return name in self._folders

    def __iter__(self) -> Iterator[Job]:
        return iter(self._folders)

    def __len__(self) -> int:
        return len(self._folders)


_CORE = "airflow_merge_provider.core"
_CAPABILITY_NAMES = ("joiner", "merge_engine", "merge_load", "merge_record", "merge_source")
_CAPABILITY_FOLDERS = {name: f"{_CORE}.{name}" for name in _CAPABILITY_NAMES}
CAPABILITIES = Registry(_CAPABILITY_FOLDERS)
JOBS = Registry({**_CAPABILITY_FOLDERS, "undo": f"{_CORE}.undo"})


def list_key_columns(job: Job, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns whose values identify rows of a run; none if job or configuration are not valid.

    An undo does not name them.
    """
    if job not in JOBS:
        return ()
    capability = JOBS[job]
    try:
        return (*capability.config.parse(config).list_key_columns(), *capability.output_keys)
    except ConfigError:
        return ()


def list_internal_columns(owner: str | None) -> tuple[str, ...]:
    """Return the columns of a target that people see only if they ask for all columns.

    Every text and page about rows leaves them out by this list.

    :param owner: the job that writes the target; None, or another text, for a table of another program.
    """
    capability = JOBS.get(cast("Job", owner))
    return capability.internal_columns if capability else ()


def list_counts() -> Iterator[tuple[Job, Sequence[Measure]]]:
    """Yield each kind of report as its job and its counts."""
    for job in JOBS.values():
        yield job.name, job.counts
        if job.check_counts:
            yield job.name, job.check_counts
