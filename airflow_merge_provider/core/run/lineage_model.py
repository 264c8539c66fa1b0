"""The values that describe the lineage of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from airflow_merge_provider.core.dataset import Dataset, DatasetName
from airflow_merge_provider.core.run.table_log import Fields

LifecycleChange = Literal["CREATE", "OVERWRITE", "TRUNCATE"]
Direct = Literal["IDENTITY", "TRANSFORMATION", "AGGREGATION"]
Indirect = Literal["JOIN", "GROUP_BY", "FILTER", "SORT", "WINDOW", "CONDITIONAL"]

# The name of the dataset that a run mainly writes, among its outputs.
TARGET = "target"


@dataclass(frozen=True, slots=True)
class RunDatasets:
    """The datasets that a run reads and writes, each by a name that is unique among them."""

    inputs: Mapping[str, Dataset] = field(default_factory=dict)
    outputs: Mapping[str, Dataset] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunSchemas:
    """The columns of the datasets of a run, by the names in ``RunDatasets``, as far as they are known."""

    inputs: Mapping[str, Fields] = field(default_factory=dict)
    outputs: Mapping[str, Fields] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InputColumn:
    """A column of an input that a column or the rows of an output depend on, and how.

    ``dataset`` is the name of the input in ``RunDatasets``. ``kind`` and ``subtype`` are the transformation
    in OpenLineage's terms. ``is_masking`` is true if the result does not contain the value, as a hash does.
    """

    dataset: str
    column: str
    kind: Literal["DIRECT", "INDIRECT"]
    subtype: Direct | Indirect
    is_masking: bool = False


@dataclass(frozen=True, slots=True)
class ColumnLineage:
    """The input columns of each column of an output, and those on which its rows depend."""

    columns: Mapping[str, Sequence[InputColumn]]
    rows: Sequence[InputColumn] = ()


@dataclass(frozen=True, slots=True)
class DatasetCounts:
    """How many rows and files a run has read from a dataset or written to it; None if unknown."""

    rows: int | None = None
    files: int | None = None


class Assertion(NamedTuple):
    """An expectation that was checked on rows of an input; ``column`` is None if it names none or several."""

    name: str
    kind: str
    condition: str
    column: str | None
    success: bool
    blocks: bool


@dataclass(frozen=True, slots=True)
class DatasetLineage:
    """A dataset of a run, at the version that the run has read or written.

    ``counts`` are the rows and files that an output got; those of an input are the rows of its version, and
    the files that were read. ``location`` is where the rows of a catalog table are. Only outputs have
    ``columns`` and a ``lifecycle_change``, which is how the run has changed the dataset as a whole. Only
    inputs have ``assertions``, the expectations on their rows. What is unknown is None.
    """

    dataset: Dataset
    name: DatasetName
    version: int | None = None
    counts: DatasetCounts = DatasetCounts()
    fields: Fields | None = None
    location: DatasetName | None = None
    columns: ColumnLineage | None = None
    lifecycle_change: LifecycleChange | None = None
    assertions: Sequence[Assertion] = ()


@dataclass(frozen=True, slots=True)
class RunLineage:
    """The datasets that a run reads and writes, each once.

    ``input_names`` are the names of the inputs by which column lineage refers to them.
    """

    inputs: Sequence[DatasetLineage]
    outputs: Sequence[DatasetLineage]
    input_names: Mapping[str, DatasetName]


def list_direct(
    dataset: str, columns: Iterable[str], subtype: Direct, *, is_masking: bool = False
) -> list[InputColumn]:
    """Return columns from whose values an output column is computed."""
    return [InputColumn(dataset, column, "DIRECT", subtype, is_masking) for column in columns]


def list_indirect(dataset: str, columns: Iterable[str], subtype: Indirect) -> list[InputColumn]:
    """Return columns that an output depends on without containing their values."""
    return [InputColumn(dataset, column, "INDIRECT", subtype) for column in columns]


def list_names(fields: Fields) -> list[str]:
    """Return the names of columns, in order."""
    return [str(column["name"]) for column in fields]
