"""What every target of a join does, a table or a folder: say what the previous run did, and take one more."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import Problem
from airflow_merge_provider.core.joiner.schema import Schema
from airflow_merge_provider.core.source_offset import SourceOffset, is_same_reads

CAPABILITY = "joiner"
# What a run found, which a later one that does nothing reports again.
_KEPT = ("records_in", "left_out")


@dataclass(frozen=True, slots=True)
class Written:
    """What a run has written: its version of the target, and its rows where the target knows them."""

    version: int | None
    outputs: int | None


@dataclass(frozen=True)
class Target(ABC):
    """Where the result goes, as it was when the run began.

    ``state`` is the state of the previous run, empty if there was none, and ``written`` what it wrote.
    ``is_changed`` says that another writer has changed rows since. ``own`` is what an earlier attempt of this
    run wrote, with its state; ``cleared`` is what the run wrote before it was cleared.
    """

    dataset: Dataset
    append: bool
    state: Mapping[str, Any]
    written: Written
    is_changed: bool
    own: tuple[Written, Mapping[str, Any]] | None
    cleared: tuple[Written, Mapping[str, Any]] | None

    def find_result(
        self, fingerprint: str, offsets: Sequence[SourceOffset], *, full_refresh: bool
    ) -> dict[str, Any] | None:
        """Return the result that the target has already; None if there is work.

        A retry reports the commit of its earlier attempt. A run that appends does so also after it was
        cleared, so that its rows are not appended twice.
        """
        done = self.own or (self.cleared if self.append else None)
        if done is not None:
            return _describe_result(*done, changed=True)
        is_same = self.state.get("fingerprint") == fingerprint and is_same_reads(self.state, offsets)
        # Rows that another writer changed can be made again, but not appended again.
        is_intact = self.is_whole() and (self.append or not self.is_changed)
        if not self.state or full_refresh or not is_same or not is_intact:
            return None
        return _describe_result(self.written, self.state, changed=False)

    def is_whole(self) -> bool:
        """Tell whether all that the last run wrote is still there."""
        return True

    @abstractmethod
    def check(self, spark: SparkSession, fields: Schema) -> None:
        """Refuse columns that the target cannot take, before anything is computed.

        :raises DataError: with every such column.
        """

    @abstractmethod
    def standing(self, spark: SparkSession) -> int:
        """Count the rows that are there; 0 where no run has written yet."""

    @abstractmethod
    def write(self, spark: SparkSession, rows: DataFrame, state: Mapping[str, Any]) -> Written:
        """Make the run happen, once and whole.

        :raises ConflictError: when another run was first; this one has written nothing then.
        """

    def unfit(self, here: Mapping[str, str], fields: Schema) -> list[Problem]:
        """Compare the names and types of rows that are added with those that are there."""
        wrong = [f"{field.name!r} is not there" for field in fields if field.name not in here]
        wrong += [
            f"{field.name!r} is {here[field.name]} there and {field.type} here"
            for field in fields
            if here.get(field.name, field.type) != field.type
        ]
        return [self.misfit(each) for each in wrong]

    def misfit(self, message: str) -> Problem:
        """Tell why rows cannot be added."""
        hint = "append what is there, or overwrite it once with another run"
        return Problem("write_mode", "schema", f"{self.dataset.uri}: {message}", hint)


def _describe_result(written: Written, state: Mapping[str, Any], *, changed: bool) -> dict[str, Any]:
    kept = {name: state.get(name) for name in _KEPT}
    return {"changed": changed, "version": written.version, "outputs": written.outputs, **kept}
