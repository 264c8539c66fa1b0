"""What stands beside the target: small tables that agree with its commit, which names their versions.

They are written before the target commits. What a run leaves there that never commits does no harm: the
target names no version with it, and the next run takes it back. Source: design §5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.jobs.delta.table import (
    PinnedDataset,
    load_previous_run,
    pin_dataset,
    read_dataset,
)
from airflow_merge_provider.jobs.delta.writer import append_rows, create_table, overwrite_table, restore_table


class Beside:
    """The tables beside a target, and the versions that its last commit named."""

    def __init__(
        self, spark: SparkSession, target: Dataset, capability: str, named: Mapping[str, int]
    ) -> None:
        self.versions = dict(named)
        self._spark, self._target, self._capability = spark, target, capability

    def dataset(self, name: str) -> Dataset:
        """Name the table: the target's name with ``__`` and its own behind it."""
        target, tail = self._target, f"__{name}"
        return replace(
            target,
            id=target.id + tail,
            path=None if target.path is None else target.path + tail,
            table=None if target.table is None else target.table + tail,
        )

    def read(self, name: str) -> DataFrame | None:
        """Give the rows as the last commit left them."""
        version = self.versions.get(name)
        return (
            None if version is None else read_dataset(self._spark, PinnedDataset(self.dataset(name), version))
        )

    def replace(self, name: str, rows: DataFrame) -> None:
        """Let a table hold these rows and no others.

        :raises DataError: when a table of this name is somebody else's.
        """
        dataset = self.dataset(name)
        if self._there(dataset) is None:
            create_table(dataset, rows, self._capability)
        else:
            overwrite_table(dataset, rows)
        self._pin(name, dataset)

    def append(self, name: str, rows: DataFrame) -> None:
        """Add rows to what the last commit named, whatever came to the table after it.

        :raises DataError: when a table of this name is somebody else's.
        """
        dataset, named = self.dataset(name), self.versions.get(name)
        there = self._there(dataset)
        if there is None:
            create_table(dataset, rows, self._capability)
        elif named is None:
            overwrite_table(dataset, rows)
        else:
            if there != named:
                restore_table(self._spark, dataset, named)
            append_rows(dataset, rows)
        self._pin(name, dataset)

    def log(self, dataset: Dataset, rows: DataFrame) -> None:
        """Add rows to a table that several targets may share; what is there stays.

        :raises DataError: when the table is somebody else's.
        """
        if self._there(dataset) is None:
            create_table(dataset, rows, self._capability)
        else:
            append_rows(dataset, rows)

    def _there(self, dataset: Dataset) -> int | None:
        """Give the newest version of a table, if there is one, and it is ours."""
        last = load_previous_run(self._spark, dataset, self._capability)
        return None if last is None else last.version

    def _pin(self, name: str, dataset: Dataset) -> None:
        version = pin_dataset(self._spark, dataset).version
        if version is None:
            raise AssertionError(f"{dataset.uri} was written and is not there")
        self.versions[name] = version
