"""Where the result goes: what the last run left there, which columns it takes, and the one commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.joiner.config import JoinerConfig
from airflow_merge_provider.core.joiner.schema import Schema
from airflow_merge_provider.jobs import sql, tables
from airflow_merge_provider.jobs.joiner.schemas import schema_of
from airflow_merge_provider.jobs.tables import LastRun, Pinned

CAPABILITY = "joiner"
_MAPPING = "delta.columnMapping.mode"
# What Delta takes in a column's name only where columns are mapped.
_ODD = frozenset(" ,;{}()\n\t=")


@dataclass(frozen=True)
class Target:
    """A Delta table as it was when the run began."""

    dataset: Dataset
    last: LastRun | None
    append: bool

    @classmethod
    def find(cls, spark: SparkSession, dataset: Dataset, config: JoinerConfig) -> Self:
        """Look at the target before anything is read.

        :raises DataError: when it is no Delta table, or one that another capability wrote.
        """
        last = tables.last_run(spark, dataset, CAPABILITY)
        return cls(dataset, last, config.write_mode == "append")

    def repeated(self, state: Mapping[str, Any], *, full_refresh: bool) -> dict[str, Any] | None:
        """Give what the last run found when this one would do the same again; None when there is work.

        A retry whose first try had committed reports that commit as its own. Rows that are added must not
        be added twice, so there this counts before everything else.
        """
        before = self.last.state if self.last else {}
        if self.last is None or not before:
            return None
        own = before.get("token") == state["token"]
        same = all(before.get(key) == state[key] for key in ("fingerprint", "sources"))
        if not (same and not full_refresh) and not (own and self.append):
            return None
        kept = {name: before.get(name) for name in ("records_in", "left_out")}
        return {"changed": own, "version": self.last.run_version, **kept}

    def check(self, spark: SparkSession, fields: Schema) -> None:
        """Refuse columns that the table cannot take, before anything is computed.

        :raises DataError: with every such column.
        """
        if self.last is None:
            return
        problems = self._append_problems(spark, self.last.version, fields) if self.append else []
        odd = [field.name for field in fields if _is_odd(field.name)]
        if odd and not self._is_mapped(spark):
            message = f"{self.dataset.uri} cannot hold columns of these names: {', '.join(map(repr, odd))}"
            hint = f"give them other names, choose another target, or set its property {_MAPPING} to name"
            problems.append(Problem("target", "names", message, hint))
        if problems:
            raise DataError.of(problems)

    def write(self, spark: SparkSession, rows: DataFrame, state: Mapping[str, Any]) -> int:
        """Make the run's one commit and give its version."""

        def write() -> None:
            if self.last is None:
                odd = any(_is_odd(name) for name in rows.columns)
                tables.create_as(self.dataset, rows, CAPABILITY, {_MAPPING: "name"} if odd else None)
            elif self.append:
                tables.append(self.dataset, rows)
            else:
                tables.overwrite(self.dataset, rows)

        return tables.commit(spark, self.dataset, CAPABILITY, self.last, state, write).version

    def written(self, spark: SparkSession, version: int) -> int:
        """Count the rows that a commit of this run wrote; the table's log knows."""

        def count(at: int) -> int:
            return tables.read(spark, Pinned(self.dataset, at)).count()

        return count(version) - (count(version - 1) if self.append and version else 0)

    def _is_mapped(self, spark: SparkSession) -> bool:
        """Tell whether columns have other names in the files, so that they may be called anything."""
        properties = spark.sql(f"SHOW TBLPROPERTIES {sql.table(self.dataset)}").collect()
        return any(row["key"] == _MAPPING and row["value"] != "none" for row in properties)

    def _append_problems(self, spark: SparkSession, version: int, fields: Schema) -> list[Problem]:
        """Compare names and types with the table's: rows are added by name."""
        here = {
            field.name: field.type for field in schema_of(tables.read(spark, Pinned(self.dataset, version)))
        }
        wrong = [f"{field.name!r} is not there" for field in fields if field.name not in here]
        wrong += [
            f"{field.name!r} is {here[field.name]} there and {field.type} here"
            for field in fields
            if here.get(field.name, field.type) != field.type
        ]
        hint = "append what the table has, or overwrite it once with another run"
        return [Problem("write_mode", "schema", f"{self.dataset.uri}: {each}", hint) for each in wrong]


def _is_odd(name: str) -> bool:
    return bool(_ODD & set(name))
