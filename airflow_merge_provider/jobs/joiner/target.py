"""What every target of a join does, a table or a folder: tell what the last run did, and take one more."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import Problem
from airflow_merge_provider.core.joiner.schema import Schema

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

    ``state`` is what the last run left there, empty where there was none, and ``written`` what it wrote.
    """

    dataset: Dataset
    append: bool
    state: Mapping[str, Any]
    written: Written

    def repeated(self, state: Mapping[str, Any], *, full_refresh: bool) -> dict[str, Any] | None:
        """Give what the last run found when this one would do the same again; None when there is work.

        A retry whose first try had committed reports that commit as its own. Rows that are added must not
        be added twice, so there this counts before everything else.
        """
        if not self.state:
            return None
        own = self.state.get("token") == state["token"]
        same = all(self.state.get(key) == state[key] for key in ("fingerprint", "sources", "tables"))
        if not (same and self.is_whole() and not full_refresh) and not (own and self.append):
            return None
        kept = {name: self.state.get(name) for name in _KEPT}
        return {"changed": own, "version": self.written.version, "outputs": self.written.outputs, **kept}

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
