"""A merge load's run: pin, read the load once, compare it with what is stored, commit once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import Dataset, resolve
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_load.config import AnyLoad, load_config, signature, warnings
from airflow_merge_provider.core.merge_load.moments import from_micros
from airflow_merge_provider.core.merge_load.scd2 import Scd2Config
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.jobs import tables
from airflow_merge_provider.jobs.merge_load.history import ENDED, VALID
from airflow_merge_provider.jobs.merge_load.intake import take_in
from airflow_merge_provider.jobs.merge_load.memory import Memory
from airflow_merge_provider.jobs.merge_load.strategies import Strategy, require_shape, strategy_of
from airflow_merge_provider.jobs.merge_load.versions import LATE
from airflow_merge_provider.jobs.merge_load.writing import CAPABILITY, Weighed, weighed, write
from airflow_merge_provider.jobs.progress import Progress
from airflow_merge_provider.jobs.tables import LastRun, Pinned

_MOST_WARNINGS = 5


def run(spark: SparkSession, request: JobRequest, progress: Progress) -> dict[str, Any]:
    """Load the source into the target, or say that nothing in it is new.

    :raises ConfigError: when the configuration is wrong.
    :raises DataError: when the source or the target is; nothing is written then.
    :raises ConflictError: when another run committed first; nothing is written then.
    """
    config = load_config(request.config)
    target = resolve(config.target, request.warehouse, at="target")
    source = resolve(config.source, request.warehouse, at="source")
    with progress.step("look"):
        last = tables.last_run(spark, target, CAPABILITY)
        pinned = tables.pin(spark, source)
    found = _Run(spark, request, progress, config, target, pinned, last)
    if last is not None and found.is_retry(last):
        return found.report(version=last.run_version, counts=last.state.get("counts"), changed=True)
    return found.report() if request.until == "plan" else found.load()


@dataclass(frozen=True, slots=True)
class _Run:
    """One run: what is asked for, and what it found before it read anything."""

    spark: SparkSession
    request: JobRequest
    progress: Progress
    config: AnyLoad
    target: Dataset
    pinned: Pinned
    last: LastRun | None

    @property
    def state(self) -> dict[str, Any]:
        """What a retry of this run finds on its commit."""
        return {
            "token": self.request.run.model_dump(),
            "fingerprint": signature(self.config),
            "sources": {self.pinned.dataset.uri: self.pinned.version},
        }

    @property
    def boundary(self) -> datetime:
        """When a load without a time of its own holds."""
        given = getattr(self.config, "boundary_timestamp", None)
        return given or from_micros(self.request.started_at)

    def is_retry(self, last: LastRun) -> bool:
        """Tell whether the last commit is this very run's, of a try before."""
        return not self.request.full_refresh and all(
            last.state.get(name) == value for name, value in self.state.items()
        )

    def load(self) -> dict[str, Any]:
        """Read, compare, write."""
        memory = Memory.of(self.spark, self.target)
        strategy = strategy_of(self.config, self.boundary, memory)
        stored = self._stored(strategy)
        schema = None if stored is None else stored.schema
        with ExitStack() as held:
            with self.progress.step("read"):
                reading = take_in(
                    self.spark, self.pinned, self.config, strategy.wanted, schema, strategy.added
                )
                taken = held.enter_context(reading)
            if not taken.loaded and _skips(self.config, self.pinned.dataset):
                return self.report(counts={"loaded": 0})
            with self.progress.step("compare"):
                found = held.enter_context(weighed(strategy.changes(taken, stored)))
            _require_in_time(found, self.config, self.boundary, self.target)
            _require_few_endings(found, self.config)
            counts = {name: found.counts.get(name, 0) for name in strategy.kinds}
            counts = {"loaded": taken.loaded, "duplicates": taken.duplicates, **counts}
            changed = not found.empty or stored is None
            version = None
            if self.request.until == "commit":
                version = self._written(found, counts, strategy, memory, changed=changed)
            return self.report(taken.said, version=version, counts=counts, changed=changed)

    def report(
        self,
        said: Sequence[str] = (),
        *,
        version: int | None = None,
        counts: Mapping[str, int] | None = None,
        changed: bool = False,
    ) -> dict[str, Any]:
        """Put the report together; ``version`` is the one that was written."""
        before = self.last.version if self.last else None
        at = before if version is None else version
        target, source = self.target, self.pinned.dataset
        return {
            "job": self.request.job,
            "changed": changed and self.request.until == "commit",
            "dry_run": self.request.until != "commit",
            "target": {"dataset": target.id, "uri": target.uri, "version": at},
            "sources": {source.id: {"uri": source.uri, "version": self.pinned.version}},
            "counts": dict(counts or {}),
            "seconds": dict(self.progress.seconds),
            "warnings": [*warnings(self.config), *said][:_MOST_WARNINGS],
        }

    def _stored(self, strategy: Strategy) -> DataFrame | None:
        """Give the stored rows as the run found them; None when there are none to compare with."""
        if self.last is None or self.request.full_refresh:
            return None
        stored = tables.read(self.spark, Pinned(self.target, self.last.version))
        require_shape(stored.schema, strategy, self.target.id)
        return stored

    def _written(
        self,
        found: Weighed,
        counts: Mapping[str, int],
        strategy: Strategy,
        memory: Memory,
        *,
        changed: bool,
    ) -> int | None:
        """Remember what has to be, then make the run's one commit, if there is anything to write."""
        anew = self.last is None or self.request.full_refresh
        times, remembers = found.changes.times, found.changes.remembers
        if times is not None:
            memory.keep(times, anew=anew, needed=remembers == "always" or not changed)
        if not changed:
            return None
        with self.progress.step("write"):
            state = {**self.state, "counts": counts}
            shape = strategy.shape
            committed = write(self.spark, self.target, self.last, found, state, anew=anew, shape=shape)
        return committed.version


def _skips(config: AnyLoad, source: Dataset) -> bool:
    """Decide what a load without rows leads to.

    :raises DataError: when it is an error.
    """
    if config.empty_load == "error":
        message = f"the source {source.id} has no rows to load, and rows that it does not have would end"
        hint = "on_empty='skip' leaves the target alone, on_empty='apply' takes the load as it is"
        raise DataError.of([Problem("source", "empty", message, hint)])
    return config.empty_load == "skip"


def _require_in_time(found: Weighed, config: AnyLoad, boundary: datetime, target: Dataset) -> None:
    """Refuse a load that is older than what it would change.

    :raises DataError: when it is.
    """
    late = found.counts.get(LATE, 0)
    if late:
        way_out = "load in the order of time"
        if isinstance(config, Scd2Config) and config.natural_key is None:
            way_out += "; with natural_key, on_late='repair' puts a late load in its place"
        message = f"the load of {boundary.isoformat()} is older than {late} versions in {target.id}"
        raise DataError.of([Problem("boundary_timestamp", "late", message, way_out)])


def _require_few_endings(found: Weighed, config: AnyLoad) -> None:
    """Refuse a snapshot that would end more than it may.

    :raises DataError: when it would.
    """
    most = getattr(config, "max_close_ratio", None)
    ended, valid = found.counts.get(ENDED, 0), found.counts.get(VALID, 0)
    if most is not None and ended > most * valid:
        message = f"the load would end {ended} of {valid} valid versions, more than {most:g} of them"
        hint = "look whether the source is complete; if it is, raise max_close_ratio for this run"
        raise DataError.of([Problem("max_close_ratio", "guard", message, hint)])
