"""A merge load's run: pin, read the load once, compare it with what is stored, commit once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import partial
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
    boundary = getattr(config, "boundary_timestamp", None) or from_micros(request.started_at)
    memory = Memory.of(spark, target)
    strategy = strategy_of(config, boundary, memory)
    with progress.step("look"):
        last = tables.last_run(spark, target, CAPABILITY)
        pinned = tables.pin(spark, source)
    state = {
        "token": request.run.model_dump(),
        "fingerprint": signature(config),
        "sources": {source.uri: pinned.version},
    }
    answer = partial(_report, request, target, pinned, progress, warnings(config))
    if last is not None and _is_retry(last, state) and not request.full_refresh:
        return answer(version=last.run_version, counts=last.state.get("counts"), changed=True)
    before = last.version if last else None
    if request.until == "plan":
        return answer(version=before)
    stored = _stored(spark, target, None if request.full_refresh else last, strategy)
    schema = None if stored is None else stored.schema
    with ExitStack() as held:
        with progress.step("read"):
            reading = take_in(spark, pinned, config, strategy.wanted, schema, strategy.added)
            taken = held.enter_context(reading)
        if not taken.loaded and _skips(config, source):
            return answer(version=before, counts={"loaded": 0})
        with progress.step("compare"):
            found = held.enter_context(weighed(strategy.changes(taken, stored)))
        _require_in_time(found, config, boundary, target)
        state["counts"] = {
            "loaded": taken.loaded,
            "duplicates": taken.duplicates,
            **{name: found.counts.get(name, 0) for name in strategy.kinds},
        }
        _require_few_endings(found, config)
        changed = not found.empty or stored is None
        if found.changes.times is not None and request.until == "commit":
            needed = found.changes.remembers == "always" or not changed
            memory.keep(found.changes.times, anew=stored is None, needed=needed)
        if not changed or request.until == "transform":
            return answer(version=before, counts=state["counts"], changed=changed)
        with progress.step("write"):
            anew = request.full_refresh and last is not None
            committed = write(spark, target, last, found, state, anew=anew, shape=strategy.shape)
    return answer(version=committed.version, counts=state["counts"], changed=True)


def _stored(
    spark: SparkSession, target: Dataset, last: LastRun | None, strategy: Strategy
) -> DataFrame | None:
    """Give the stored rows as the run found them; None when there are none to compare with."""
    if last is None:
        return None
    stored = tables.read(spark, Pinned(target, last.version))
    require_shape(stored.schema, strategy, target.id)
    return stored


def _is_retry(last: LastRun, state: Mapping[str, Any]) -> bool:
    """Tell whether the last commit is this very run's, of a try before."""
    return all(last.state.get(name) == state[name] for name in ("token", "fingerprint", "sources"))


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


def _report(
    request: JobRequest,
    target: Dataset,
    pinned: Pinned,
    progress: Progress,
    said: Sequence[str],
    *,
    version: int | None,
    counts: Mapping[str, int] | None = None,
    changed: bool = False,
) -> dict[str, Any]:
    """Put the report together."""
    source = pinned.dataset
    return {
        "job": request.job,
        "changed": changed and request.until == "commit",
        "dry_run": request.until != "commit",
        "target": {"dataset": target.id, "uri": target.uri, "version": version},
        "sources": {source.id: {"uri": source.uri, "version": pinned.version}},
        "counts": dict(counts or {}),
        "seconds": dict(progress.seconds),
        "warnings": list(said[:_MOST_WARNINGS]),
    }
