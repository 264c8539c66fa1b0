"""The target of a join as a folder of files: checks before the join, and the atomic commit of its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from pyspark.sql import DataFrame, Observation, SparkSession, functions as F

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import ConflictError, DataError, JobError, Problem
from airflow_merge_provider.core.joiner.config import JoinerConfig
from airflow_merge_provider.core.joiner.schema import Schema
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.previous_run import PreviousRun, RunCommit
from airflow_merge_provider.jobs.joiner.folder import Folder, FolderContent, FolderRun, open_folder
from airflow_merge_provider.jobs.joiner.schemas import read_schema
from airflow_merge_provider.jobs.joiner.target import Target, WriteResult
from airflow_merge_provider.jobs.run.retry import OwnAttemptWonError
from airflow_merge_provider.jobs.spark.formats import spark_format
from airflow_merge_provider.jobs.spark.sql import quote_name

_OURS: Mapping[str, Mapping[str, str]] = {"csv": {"header": "true"}, "json": {"ignoreNullFields": "false"}}
# Files of these formats do not hold the types of their columns.
_UNTYPED = ("csv", "json", "xml")
_SHOWN = 3


@dataclass(frozen=True)
class FileTarget(Target):
    """A folder with files of one format; ``content`` is its content at the start of the run."""

    folder: Folder
    content: FolderContent
    options: Mapping[str, str]

    @classmethod
    def find_target(
        cls, spark: SparkSession, dataset: Dataset, config: JoinerConfig, request: JobRequest
    ) -> Self:
        """Return the folder as a target, after completing the commit of a run that crashed.

        This happens before any input is read.

        :raises DataError: if it holds files that no join wrote, or lacks files that rows are appended to.
        """
        folder = open_folder(spark, str(dataset.path))
        content = folder.read_content()
        target = cls(
            replace(dataset, format=config.target_format),
            config.write_mode == "append",
            _build_previous_run(folder, content.last, request.run) if content.last else None,
            folder,
            content,
            {**_OURS.get(config.target_format, {}), **(config.target_options or {})},
        )
        target._require_own()
        return target

    def is_whole(self) -> bool:
        return not self._list_missing_files()

    def check_columns(self, spark: SparkSession, fields: Schema) -> None:
        if not self.append or not self.state:
            return
        target_types = {name: kind for name, kind, _ in self.state["columns"]}
        problems = self.find_unfit_columns(target_types, fields)
        names = [field.name for field in fields]
        problems += [
            self.build_misfit(f"the output has no column {name!r}")
            for name in target_types
            if name not in names
        ]
        if not problems and self.dataset.format == "csv" and list(target_types) != names:
            problems.append(
                self.build_misfit(
                    f"the output must have the column order of the csv files: {', '.join(target_types)}"
                )
            )
        stored = (self.state["format"], self.state["options"])
        if stored != (self.dataset.format, self.options):
            problems.append(
                self.build_misfit(f"the files of the target have format {stored[0]} and options {stored[1]}")
            )
        if problems:
            raise DataError.from_problems(problems)

    def count_rows(self, spark: SparkSession) -> int:
        last = self.content.last
        return self.read_rows(spark).count() if last is not None and last.files else 0

    def read_rows(self, spark: SparkSession) -> DataFrame:
        last = self.content.last
        state, files = (self.state, ()) if last is None else (last.state, last.files)
        reader = spark.read.format(spark_format(spark, state["format"])).options(**state["options"])
        if state["format"] in _UNTYPED:
            reader = reader.schema(
                ", ".join(f"{quote_name(name)} {kind}" for name, kind, _ in state["columns"])
            )
        return reader.load([self.folder.build_uri(name) for name in files])

    def commit_rows(self, spark: SparkSession, rows: DataFrame, state: Mapping[str, Any]) -> WriteResult:
        last = self.content.last
        number = last.number + 1 if last else 1
        stage = self.folder.name_stage(number)
        outputs = self._stage_rows(spark, rows, stage, number, state)
        added = tuple(self.folder.list_staged_files(stage))
        if not added:
            self._require_first(number, state)
            message = (
                f"{self.folder.build_uri(stage)} is empty: Spark and this process do not see the same files,"
                " use a location that both can access"
            )
            raise JobError(message)
        previous_files = last.files if last else ()
        columns = [field.as_list() for field in read_schema(rows)]
        file_state = {"format": self.dataset.format, "options": self.options, "columns": columns}
        entry = FolderRun(
            number=number,
            stage=stage,
            added=added,
            removed=() if self.append else previous_files,
            files=(*previous_files, *added) if self.append else added,
            state={**state, **file_state, "outputs": outputs},
        )
        if not self.folder.record_run(entry):
            self.folder.remove_path(stage)
            raise self._build_conflict_error(number, state)
        self.folder.settle_run(entry)
        return WriteResult(number, outputs)

    def _stage_rows(
        self, spark: SparkSession, rows: DataFrame, stage: str, number: int, state: Mapping[str, Any]
    ) -> int:
        """Write the rows to the hidden staging folder, and return the number of rows.

        The rows are counted while they are written, so that they are computed only once.
        """
        observation = Observation(stage)
        counted = rows.observe(observation, F.count(F.lit(1)).alias("rows"))
        writer = counted.write.format(spark_format(spark, self.dataset.format)).options(**self.options)
        try:
            writer.save(self.folder.build_uri(stage))
        except Exception as error:
            self.folder.remove_path(stage)
            self._require_first(number, state, error)
            raise
        return int(observation.get["rows"])

    def _require_first(self, number: int, state: Mapping[str, Any], error: Exception | None = None) -> None:
        """Raise an error for another run that committed first, if there was one.

        :raises ConflictError: if there was.
        """
        last = self.folder.read_content().last
        if last is not None and last.number >= number:
            raise self._build_conflict_error(number, state) from error

    def _build_conflict_error(self, number: int, state: Mapping[str, Any]) -> ConflictError:
        message = f"Another run wrote {self.dataset.uri} first: run {number} already exists; run it again"
        later_entries = (entry for entry in self.folder.list_entries() if entry.number >= number)
        if any(entry.state.get("token") == state["token"] for entry in later_entries):
            return OwnAttemptWonError(message)
        return ConflictError(message)

    def _list_missing_files(self) -> list[str]:
        last = self.content.last
        return sorted(set(last.files) - self.content.files) if last else []

    def _require_own(self) -> None:
        last = self.content.last
        foreign = sorted(self.content.files - set(last.files if last else ()))
        if self.folder.holds_table():
            foreign = ["_delta_log"]
        if foreign:
            raise self._refuse_target(
                "foreign-target",
                f"contains files that no join wrote: {_format_some(foreign)}",
                "choose another target, or empty the folder",
            )
        if self.append and (missing := self._list_missing_files()):
            raise self._refuse_target(
                "incomplete-target",
                f"lacks files that earlier runs wrote: {_format_some(missing)}",
                "restore the files, or overwrite the target once with write_mode='overwrite'",
            )

    def _refuse_target(self, code: str, message: str, hint: str) -> DataError:
        return DataError.from_problems([Problem("target", code, f"{self.dataset.uri} {message}", hint)])


def _build_previous_run(folder: Folder, last: FolderRun, run: RunToken) -> PreviousRun:
    """Return the previous run from the last ledger entry, with the entry that an earlier attempt wrote."""
    own_commit = _find_entry(folder, lambda entry: run.is_same_attempt(entry.state.get("token")))
    cleared_commit = _find_entry(folder, lambda entry: run.is_same_run(entry.state.get("token")))
    rows = last.state.get("outputs")
    return PreviousRun(
        last.number,
        last.number,
        last.number,
        last.state,
        rows,
        rows_version=last.number,
        own_commit=own_commit,
        cleared_commit=cleared_commit,
    )


def _find_entry(folder: Folder, is_wanted: Callable[[FolderRun], bool]) -> RunCommit | None:
    entry = next((candidate for candidate in folder.list_entries() if is_wanted(candidate)), None)
    return None if entry is None else RunCommit(entry.number, entry.state, entry.state.get("outputs"))


def _format_some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
