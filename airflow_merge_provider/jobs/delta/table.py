"""How a run meets its tables: pinned reads, and one commit, once or not at all.

A run's commit carries a transaction id ``(airflow-merge/<capability>, n + 1)``, which Delta takes once, and
a JSON text that says whose run it was. Two runs that start from the same ``n`` cannot both land, whichever
way Delta tells the second one: by an error, or by silently skipping its write.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import ConflictError, DataError, Problem
from airflow_merge_provider.jobs.delta.log import (
    NOT_THERE,
    History,
    HistoryEntry,
    count_rows_at,
    find_newest_version,
    non_null_columns_at,
    read_history,
    read_properties,
    read_transaction,
)
from airflow_merge_provider.jobs.delta.writer import CAPABILITY
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.errors import convert_error, error_condition
from airflow_merge_provider.jobs.spark.formats import spark_format

_LOOK_BACK = 20
_VERSION_MASK = (1 << 48) - 1


@dataclass(frozen=True, slots=True)
class PinnedDataset:
    """A dataset at one version; None means that it does not exist.

    ``table_id`` tells a Delta table from another one that was made anew in its place. ``rows`` are those of a
    dataset that is in memory and not in any storage.
    """

    dataset: Dataset
    version: int | None
    table_id: str | None = None
    rows: DataFrame | None = field(default=None, compare=False, repr=False)

    @property
    def exists(self) -> bool:
        """Tell whether there is something to read."""
        return self.version is not None


@dataclass(frozen=True, slots=True)
class PreviousRun:
    """What the target says about the last run that committed to it; number 0 means that none did yet.

    ``version`` is the target's newest version, whoever made it; ``run_version`` the run's own commit, and
    ``rows`` what it wrote. When that commit has aged out of the history, these are None and ``state`` is
    empty.
    """

    number: int
    version: int
    run_version: int | None
    state: Mapping[str, Any]
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class CommitResult:
    """A commit that has landed, and the rows that it wrote, where Delta says them."""

    version: int
    number: int
    rows: int | None = field(default=None, compare=False)


def pin_dataset(spark: SparkSession, dataset: Dataset) -> PinnedDataset:
    """Find the version that a whole run reads.

    Plain files have none: their names, times and sizes are folded into a number that changes with them.

    :raises DataError: when there is something else than the dataset's format says.
    """
    if dataset.format != "delta":
        return PinnedDataset(dataset, _files_version(spark, dataset))
    found = find_newest_version(spark, dataset)
    return PinnedDataset(dataset, None) if found is None else PinnedDataset(dataset, *found)


def source_offsets(pinned: Iterable[PinnedDataset]) -> dict[str, Any]:
    """Give what a run's state says of the datasets that it read: by location their versions and their ids."""
    found = list(pinned)
    return {
        "sources": {each.dataset.uri: each.version for each in found},
        "tables": {each.dataset.uri: each.table_id for each in found if each.table_id is not None},
    }


def read_dataset(spark: SparkSession, pinned: PinnedDataset) -> DataFrame:
    """Give the rows of a dataset at its pinned version.

    :raises DataError: when it does not exist.
    """
    if pinned.rows is not None:
        return pinned.rows
    dataset = pinned.dataset
    if pinned.version is None:
        raise _wrong(
            dataset, "missing", f"{dataset.uri} does not exist", "check the dataset's name and the warehouse"
        )
    if dataset.format == "delta":
        return spark.sql(f"SELECT * FROM {sql.table(dataset)} VERSION AS OF {pinned.version}")
    if dataset.table is not None:
        return spark.table(sql.table(dataset))
    reader = spark.read.format(spark_format(spark, dataset.format))
    return reader.options(**dataset.options).load(dataset.path)


def read_change_feed(spark: SparkSession, dataset: Dataset, first: int, last: int) -> DataFrame:
    """Give the rows that commits changed, from the change data feed, which the table must have kept."""
    reader = spark.read.option("readChangeFeed", "true")
    reader = reader.option("startingVersion", first).option("endingVersion", last)
    if dataset.table is not None:
        return reader.table(sql.table(dataset))
    return reader.format("delta").load(dataset.path)


def has_change_feed(spark: SparkSession, dataset: Dataset) -> bool:
    """Tell whether a table keeps a change data feed from now on."""
    return read_properties(spark, dataset).get("delta.enableChangeDataFeed", "false").lower() == "true"


def count_records(spark: SparkSession, pinned: PinnedDataset, *, live: bool = False) -> int | None:
    """Say how many rows a dataset has; None when nobody knows at once.

    Rows that are marked as deleted may be among them, unless only ``live`` ones are asked for.
    """
    if pinned.version is None or pinned.rows is not None or pinned.dataset.format != "delta":
        return None
    return count_rows_at(spark, pinned.dataset, pinned.version, live=live)


def find_non_null_columns(spark: SparkSession, pinned: PinnedDataset) -> frozenset[str]:
    """Name columns of a dataset in which there is no NULL, as far as that can be told at once."""
    if pinned.version is None or pinned.rows is not None or pinned.dataset.format != "delta":
        return frozenset()
    return non_null_columns_at(spark, pinned.dataset, pinned.version)


def load_previous_run(spark: SparkSession, target: Dataset, capability: str) -> PreviousRun | None:
    """Find the last run that committed to the target; None when the target does not exist.

    :raises DataError: when the target is no Delta table, or one that this capability did not write.
    """
    history = read_history(spark, target, _LOOK_BACK)
    if not history:
        return None
    _require_own(spark, target, capability)
    version = history[0].version
    found = _newest(history, capability)
    if found is None and len(history) == _LOOK_BACK:
        found = _newest(read_history(spark, target, None), capability)
    if found is not None:
        own, state = found
        return PreviousRun(int(state["number"]), version, own.version, state, own.rows)
    number = read_transaction(spark, target, transaction_app_id(capability))
    # Every run makes a commit, the first makes version 0: no number is above the version by more than one,
    # and the next one after this guess is none that Delta has seen.
    return PreviousRun(version + 1 if number is None else number, version, None, {})


def commit_once(
    spark: SparkSession,
    target: Dataset,
    capability: str,
    expected: PreviousRun | None,
    state: Mapping[str, Any],
    write: Callable[[], object],
) -> CommitResult:
    """Let ``write`` make the run's one commit, and see that it landed.

    ``write`` executes exactly one of the ``statements`` on the target and nothing else; ``expected`` is what
    ``last_run`` gave before anything was read; ``state`` is what the next run finds there.

    :raises ConflictError: when another run committed first; this one has written nothing then.
    """
    number = expected.number + 1 if expected else 1
    since = expected.version if expected else -1
    attempt = uuid.uuid4().hex
    mark = {**state, "capability": capability, "number": number, "attempt": attempt}
    conf = {
        "spark.databricks.delta.write.txnAppId": transaction_app_id(capability),
        "spark.databricks.delta.write.txnVersion": str(number),
        "spark.databricks.delta.commitInfo.userMetadata": json.dumps(mark, ensure_ascii=False),
    }
    try:
        with override_settings(spark, conf):
            write()
    except Exception as error:
        # An error after the commit (a checkpoint, a lost connection) does not undo it.
        landed = _landed(spark, target, capability, since, attempt)
        if landed is not None:
            return CommitResult(landed.version, number, landed.rows)
        known = convert_error(error)
        if known is None or known is error:
            raise
        raise known from error
    landed = _landed(spark, target, capability, since, attempt)
    if landed is None:
        raise ConflictError(
            f"Another run committed to {target.uri} first: Delta skipped the write of run {number}; "
            "run it again"
        )
    return CommitResult(landed.version, number, landed.rows)


def transaction_app_id(capability: str) -> str:
    """Name the writer under which Delta counts a capability's runs."""
    return f"airflow-merge/{capability}"


def purge_table(
    spark: SparkSession, target: Dataset, capability: str, committed: CommitResult, state: Mapping[str, Any]
) -> int:
    """Rewrite the files that hold outdated rows, in a commit of its own; gives the target's version.

    The commit says of the run that ``committed`` is what ``state`` says: rows and run stay what they were.
    """
    mark = {**state, "capability": capability, "number": committed.number}
    words = json.dumps(mark, ensure_ascii=False)
    with override_settings(spark, {"spark.databricks.delta.commitInfo.userMetadata": words}):
        spark.sql(f"REORG TABLE {sql.table(target)} APPLY (PURGE)").collect()
    return read_history(spark, target, 1)[0][0]


@contextmanager
def override_settings(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """Hold settings of the session for as long as the block lasts."""
    before = {key: spark.conf.get(key, None) for key in conf}
    try:
        for key, value in conf.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)


def _files_version(spark: SparkSession, dataset: Dataset) -> int | None:
    if dataset.table is not None:
        if not spark.catalog.tableExists(sql.table(dataset)):
            return None
        files = sorted(spark.table(sql.table(dataset)).inputFiles())
        return uuid.uuid5(uuid.NAMESPACE_URL, "\n".join(files)).int & _VERSION_MASK
    files_found = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        row = (
            files_found.load(dataset.path)
            .selectExpr("count(*) AS files", "bit_xor(xxhash64(path, modificationTime, length)) AS mark")
            .collect()[0]
        )
    except AnalysisException as error:
        if error_condition(error).startswith(NOT_THERE):
            return None
        raise
    return int(row["mark"]) & _VERSION_MASK if row["files"] else None


def _require_own(spark: SparkSession, target: Dataset, capability: str) -> None:
    owner = read_properties(spark, target).get(CAPABILITY)
    if owner != capability:
        by = f"by {owner}" if owner else "by something else"
        raise _wrong(
            target,
            "foreign-target",
            f"{target.uri} was written {by}, not by {capability}",
            f"choose another target; or drop the table, or set its property {CAPABILITY} = {capability} "
            "to have all its rows replaced",
        )


def _newest(history: History, capability: str) -> tuple[HistoryEntry, Mapping[str, Any]] | None:
    marks = ((commit, _mark(commit.words)) for commit in history)
    return next(
        ((commit_once, mark) for commit_once, mark in marks if mark and mark.get("capability") == capability),
        None,
    )


def _mark(words: str | None) -> Mapping[str, Any] | None:
    """Read a run's JSON; other writers may put any text there."""
    if not words or not words.startswith("{"):
        return None
    try:
        mark = json.loads(words)
    except ValueError:
        return None
    return mark if isinstance(mark, dict) and isinstance(mark.get("number"), int) else None


def _landed(
    spark: SparkSession, target: Dataset, capability: str, since: int, attempt: str
) -> HistoryEntry | None:
    """Find this attempt's commit: others may have committed before and after it."""
    for limit in (_LOOK_BACK, None):
        history = read_history(spark, target, limit)
        for commit in history:
            mark = _mark(commit.words)
            if mark and mark.get("capability") == capability and mark.get("attempt") == attempt:
                return commit
        if not history or history[-1].version <= since + 1:
            return None
    return None


def _wrong(dataset: Dataset, code: str, message: str, hint: str) -> DataError:
    return DataError.of([Problem(dataset.id, code, message, hint)])
