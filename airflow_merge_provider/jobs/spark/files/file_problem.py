"""Problems of files: of the files of a dataset, and the error of a file that cannot be read."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_merge_provider.core.change_plan.shown_rows import mask_error
from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import DataError, Problem

_REASON_MAX_LENGTH = 500


@dataclass(frozen=True, slots=True)
class FileProblem:
    """What is wrong with a file, and what to do about it."""

    message: str
    hint: str = ""

    def build_error(self, dataset: Dataset) -> DataError:
        """Return the error of a dataset that has this problem."""
        return DataError.from_problems([Problem(dataset.id, "files", self.message, self.hint)])


class UnreadableError(Exception):
    """Raised if a file is not valid for its reader; the message contains the reason."""


def describe_error(error: Exception) -> str:
    """Return a description of an error of a reader in one line."""
    lines = str(error).strip().splitlines()
    return mask_error(lines[0], error)[:_REASON_MAX_LENGTH] if lines else type(error).__name__
