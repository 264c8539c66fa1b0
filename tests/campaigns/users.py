"""User actions on tables between runs: the result equals that of undisturbed runs, or a run is rejected.

The error names a fix, and the run changes nothing.
"""

from __future__ import annotations

import importlib
import shutil
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import ConflictError, MergeError
from airflow_merge_provider.core.report import Report
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.run.entry import build_failure
from airflow_merge_provider.jobs.run.retry import run_attempt
from airflow_merge_provider.jobs.undo import job as undo
from tests.campaigns.snapshot import (
    NUMBERS_OF_IDS,
    NUMBERS_OF_RUNS,
    compare_folders,
    drop_columns,
    drop_empty_tables,
    read_folder,
)
from tests.campaigns.workloads import Workload, build_workload

_STEPS = 4
_SOURCES = {
    "merge_source": ("A", "B"), "merge_engine": ("changes",), "merge_load": ("rows",),
    "joiner": ("customers", "purchases"), "merge_record": (),
}  # fmt: skip
# Capabilities whose next run restores rows of the target that somebody has deleted.
_HEALING = ("merge_source", "joiner")
# Capabilities whose sources still contain the rows of earlier steps.
_CUMULATIVE = ("merge_source", "merge_engine", "joiner")

_UNDOING = "restore and run again"
# After these actions one run merges what two runs had merged, or cannot detect rows that were deleted by
# hand.
_FORGETTING = ("restore_target", "delete_rows")


@dataclass
class UserTally:
    """Actions, and results of sequences; ``failed`` has those with any other result."""

    actions: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)


def try_sequences(
    spark: SparkSession, capability: str, seed: int, folder: Path, tally: UserTally, count: int = 1
) -> None:
    """Run one workload undisturbed and several times with user actions, repeatable by the seed."""
    workload = build_workload(capability, seed)
    clean = Sequence(spark, workload, folder / "clean")
    for step in range(1, _STEPS + 1):
        clean.write_sources(step)
        clean.run_step(step)
    for number in range(1, count + 1):
        disturbed = Sequence(spark, workload, folder / f"disturbed-{number}" / "lake")
        random = Random(f"{capability}/{seed}/users/{number}")  # noqa: S311 - repeatable
        action_names: list[str] = []
        try:
            is_refused = disturbed.run_disturbed(random, action_names)
            tally.ended["refused" if is_refused else "equal"] += 1
            if not is_refused:
                compare_folders(clean.read_content(action_names), disturbed.read_content(action_names))
        except Exception as error:  # noqa: BLE001 - any exception is a finding
            name = f"{capability} {seed}/{number} {dict(workload.config)}, {action_names}"
            tally.failed.append(f"{name}: {_describe_error(error)}")
        tally.actions.update(action_names)
    shutil.rmtree(folder)


def _describe_error(error: Exception) -> str:
    text = (
        build_failure(error).message if isinstance(error, MergeError) else f"{type(error).__name__}: {error}"
    )
    return "\n".join(text.splitlines()[:3])


class Sequence:
    """Runs of a workload below a folder, and user actions on its tables."""

    def __init__(self, spark: SparkSession, workload: Workload, folder: Path) -> None:
        self._spark = spark
        self._workload = workload
        self._folder = folder
        self._last_report: Report | None = None
        self._content_before: dict[str, list[str]] = {}
        self._sources = _SOURCES[workload.capability]
        folder.mkdir(parents=True)

    def write_sources(self, step: int) -> None:
        """Write the source rows of a step."""
        self._workload.write_sources(self._folder, step)

    def run_step(self, step: int, run_id: str | None = None) -> Report:
        """Run as a task does, which is retried after a write conflict with another run."""
        job = importlib.import_module(f"airflow_merge_provider.jobs.{self._workload.capability}.job")
        request = self._workload.build_request(self._folder, step, run_id)
        self._last_report = run_attempt(self._spark, request, Progress(out=str), job.run)
        return self._last_report

    def read_content(self, action_names: Collection[str] = ()) -> dict[str, list[str]]:
        """Return the content of all tables and folders, without columns that depend on the number of runs.

        :param action_names: actions between the runs. After some of them the outputs of the steps in between
            are not determined: neither deleted outputs nor tables beside the target are returned then.
        """
        content = read_folder(str(self._folder))
        # A log of all runs, including undone ones, with the location of the target.
        content.pop(str(self._workload.config.get("metrics")), None)
        is_history_lost = any(name in action_names for name in _FORGETTING)
        if is_history_lost:
            target = self._workload.config["target"]
            content = {name: rows for name, rows in content.items() if name in (target, *self._sources)}
            content[target] = [row for row in content.get(target, []) if '"_deleted": true' not in row]
        dropped = NUMBERS_OF_RUNS + (NUMBERS_OF_IDS if is_history_lost or _UNDOING in action_names else ())
        dropped += ("_ts",) if is_history_lost else ()
        return {name: sorted(drop_columns(row, dropped) for row in rows) for name, rows in content.items()}

    def run_disturbed(self, random: Random, action_names: list[str]) -> bool:
        """Execute an action before and after each run; return True if a run was rejected because of it.

        :raises AssertionError: if the error of a rejected run has no fix, or the run has changed something.
        """
        for step in range(1, _STEPS + 1):
            self.write_sources(step)
            actions = self._list_actions(step)
            action = random.choice(actions) if random.random() < 0.6 else None
            if action is not None:
                action_names.append(action.__name__.strip("_"))
                action(step)
            if self._is_refused(step):
                return True
            draw = random.random()
            if draw < 0.3:
                action_names.append("try again")
                self.run_step(step)
            elif draw < 0.45 and self._restore_before_run():
                action_names.append(_UNDOING)
                self.run_step(step, f"again-{step}")
            elif draw < 0.7 and self._undo_run(step, is_restored=action == self._restore_target):
                action_names += [_UNDOING, "undo"]
                self.run_step(step, f"again-{step}")
        return False

    def _undo_run(self, step: int, *, is_restored: bool) -> bool:
        """Undo the last run, and check that all tables are as before it; return False if it wrote nothing.

        :param is_restored: whether a RESTORE of the target came before the run. It left rows of the run that
            it reverted in the tables beside the target, which the undo restores together with the target.
        """
        target = self._find_target()
        if target is None or self._last_report is None or not self._last_report.changed:
            return False
        request = self._workload.build_request(self._folder, step, f"undo-{step}")
        config = {"target": request.config["target"]}
        request = request.model_copy(update={"job": "undo", "config": config})
        report = run_attempt(self._spark, request, Progress(out=str), undo.run)
        assert report.counts["runs"] == 1, report
        before, after = drop_empty_tables(self._content_before), drop_empty_tables(self.read_content())
        if is_restored:
            names = (str(config["target"]), *self._sources)
            before, after = ({name: one[name] for name in names if name in one} for one in (before, after))
        compare_folders(before, after)
        return True

    def _restore_before_run(self) -> bool:
        """Restore the target as it was before the last run; return False if that run wrote nothing."""
        report = self._last_report
        if self._find_target() is None or report is None or not report.changed:
            return False
        version = report.target.version_before
        if version is None:
            return False
        self._run_sql(f"RESTORE TABLE delta.`{self._find_target()}` TO VERSION AS OF {version}")
        return True

    def _is_refused(self, step: int) -> bool:
        """Run, and return whether the run was rejected; check that its error states what to do."""
        self._content_before = content = self.read_content()
        refusal = self._find_refusal(step)
        if refusal is None:
            return False
        assert refusal.problems, f"no way out: {refusal}"
        assert all(problem.hint for problem in refusal.problems), f"no way out: {refusal}"
        compare_folders(content, self.read_content())
        return True

    def _find_refusal(self, step: int) -> MergeError | None:
        try:
            self.run_step(step)
        except ConflictError:
            raise
        except MergeError as error:
            return error
        return None

    def _list_actions(self, step: int) -> list[Callable[[int], None]]:
        actions: list[Callable[[int], None]] = [self._move_warehouse]
        if self._sources:
            actions += [self._optimize_sources, self._vacuum_sources, self._remake_source, self._add_column]
            # Before the first run no other name is known.
            actions += [self._rename_column] if step > 1 else []
        if step > 1 and self._find_target() is not None:
            actions += [self._optimize_target, self._vacuum_target]
            if self._workload.capability in _CUMULATIVE:
                actions += [self._restore_target]
            # Appended rows are not computed again.
            is_appended = self._workload.config.get("write_mode") == "append"
            if self._workload.capability in _HEALING and not is_appended:
                actions += [self._delete_rows]
        return actions

    def _find_target(self) -> Path | None:
        name = self._workload.config.get("target")
        path = self._folder / str(name)
        return path if name and (path / "_delta_log").is_dir() else None

    def _list_sources(self) -> list[Path]:
        return [self._folder / name for name in self._sources]

    def _move_warehouse(self, step: int) -> None:
        moved = self._folder.with_name(f"moved-{step}")
        self._folder.rename(moved)
        self._folder = moved

    def _optimize_sources(self, _: int) -> None:
        for path in self._list_sources():
            self._run_sql(f"OPTIMIZE delta.`{path}`")

    def _optimize_target(self, _: int) -> None:
        self._run_sql(f"OPTIMIZE delta.`{self._find_target()}`")

    def _vacuum_sources(self, _: int) -> None:
        for path in self._list_sources():
            self._vacuum_table(path)

    def _vacuum_target(self, _: int) -> None:
        for log in self._folder.glob(f"{self._workload.config['target']}*/_delta_log"):
            self._vacuum_table(log.parent)

    def _vacuum_table(self, path: Path) -> None:
        self._spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        self._run_sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS")

    def _restore_target(self, _: int) -> None:
        """Undo the last commit, whose changes are still in the sources."""
        target = self._find_target()
        version = DeltaTable(str(target)).version()
        if version > 0:
            self._run_sql(f"RESTORE TABLE delta.`{target}` TO VERSION AS OF {version - 1}")

    def _delete_rows(self, _: int) -> None:
        target = self._find_target()
        first = DeltaTable(str(target)).schema().fields[0].name
        self._run_sql(f"DELETE FROM delta.`{target}` WHERE hash(`{first}`) % 2 = 0")

    def _remake_source(self, _: int) -> None:
        """Drop a source and write its rows to a new table."""
        path = self._list_sources()[0]
        rows = self._spark.read.format("delta").load(str(path)).toArrow()
        shutil.rmtree(path)
        write_deltalake(str(path), rows)

    def _add_column(self, step: int) -> None:
        self._run_sql(f"ALTER TABLE delta.`{self._list_sources()[0]}` ADD COLUMNS (added_{step} STRING)")

    def _rename_column(self, step: int) -> None:
        """Rename a column of a source, and undo that after a run has rejected it."""
        path = self._list_sources()[-1]
        rows = self._spark.read.format("delta").load(str(path)).toArrow()
        # Columns of a merge source that begin with an underscore are no properties: nobody needs them.
        old = next(name for name in rows.column_names[1:] if not name.startswith("_"))
        names = [f"{name}_new" if name == old else name for name in rows.column_names]
        write_deltalake(str(path), rows.rename_columns(names), mode="overwrite", schema_mode="overwrite")

    def _run_sql(self, statement: str) -> None:
        self._spark.sql(statement).collect()
