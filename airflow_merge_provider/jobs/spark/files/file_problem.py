"""A problem of the files of a dataset."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import DataError, Problem


@dataclass(frozen=True, slots=True)
class FileProblem:
    """What is wrong with a file, and what to do about it."""

    message: str
    hint: str = ""

    def build_error(self, dataset: Dataset) -> DataError:
        """Return the error of a dataset that has this problem."""
        return DataError.from_problems([Problem(dataset.id, "files", self.message, self.hint)])
