"""Saved plans of random workloads, applied after other things have happened: exactly, or not at all."""

from __future__ import annotations

import importlib
import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from airflow_merge_provider.core.change_plan.saved_plan import PLAN_SUFFIX, PlanChoice
from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.run.retry import run_attempt
from airflow_merge_provider.jobs.spark.exact_text import shown_row
from tests.campaigns.workloads import Workload, build_workload
from tests.reports import check_report

CAPABILITIES = ("merge_load", "merge_engine", "merge_source", "joiner")
_STEPS = 5


@dataclass
class PlanTally:
    """What happened before plans were applied, and how they ended; ``failed`` has all other results.

    ``skipped`` counts workloads without saved plans, by the reason.
    """

    skipped: Counter[str] = field(default_factory=Counter)
    actions: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)


class PlannedRuns:
    """Plans and runs of a workload below a folder."""

    def __init__(self, spark: SparkSession, workload: Workload, folder: Path) -> None:
        self.spark, self._workload, self.folder = spark, workload, folder
        self.target = str(workload.config["target"])
        self._run = importlib.import_module(f"airflow_merge_provider.jobs.{workload.capability}.job").run
        folder.mkdir(parents=True, exist_ok=True)

    def write_sources(self, step: int) -> None:
        """Write the source rows of a step."""
        self._workload.write_sources(self.folder, step)

    def run(self, step: int, run_id: str | None = None, **fields: Any) -> dict[str, Any]:
        """Run a step, or plan it."""
        request = self._workload.build_request(self.folder, step, run_id, **fields)
        return check_report(run_attempt(self.spark, request, Progress(out=str), self._run))

    def plan(self, step: int, *, save: bool = True) -> dict[str, Any]:
        """Plan a step."""
        return self.run(step, f"plan-{step}", until="transform", save_plan=save)

    def apply(self, step: int, run_id: str | None = None) -> dict[str, Any]:
        """Apply the newest plan."""
        return self.run(step, run_id, apply_plan=PlanChoice(approved_by="ada"))

    @property
    def version(self) -> int | None:
        """The version of the target; None if there is none."""
        path = str(self.folder / self.target)
        return DeltaTable(path).version() if DeltaTable.is_deltatable(path) else None

    def read_target(self) -> Counter[str]:
        """Return the rows of the target as JSON, without the internal members of merged outputs."""
        if self.version is None:
            return Counter()
        rows = self.spark.read.format("delta").load(str(self.folder / self.target)).drop("_members")
        return Counter(
            _sort_columns(row[0])
            for row in rows.select(shown_row(rows, rows.columns, keeps_nulls=False)).collect()
        )

    def list_plan(self) -> list[dict[str, Any]]:
        """Return the rows of the target that the saved plan changes."""
        path = str(self.folder / f"{self.target}{PLAN_SUFFIX}")
        rows = self.spark.read.format("delta").load(path).where("kind <> 'recorded'")
        return [row.asDict() for row in rows.collect()]

    def run_sql(self, statement: str) -> None:
        """Execute a statement of another program; ``{t}`` stands for the target."""
        self.spark.sql(statement.format(t=f"delta.`{self.folder / self.target}`")).collect()


def count_images(changes: list[dict[str, Any]]) -> tuple[Counter[str], Counter[str]]:
    """Return the rows that planned changes remove from a target and add to it."""
    lost, gained = (
        Counter(_sort_columns(change[side]) for change in changes if change[side] is not None)
        for side in ("before", "after")
    )
    return lost, gained


def try_plans(spark: SparkSession, capability: str, seed: int, folder: Path, tally: PlanTally) -> None:
    """Plan each step of a workload, let other things happen, and apply the plan; repeatable by the seed."""
    workload = build_workload(capability, seed)
    if "dispatch_by" in workload.config:
        tally.skipped["dispatch_by"] += 1
        return
    runs = PlannedRuns(spark, workload, folder)
    random = Random(f"{capability}/{seed}/plans")  # noqa: S311 - repeatable
    action_names: list[str] = []
    try:
        for step in range(1, _STEPS + 1):
            tally.ended[_try_plan(runs, step, random, action_names)] += 1
    except Exception as error:  # noqa: BLE001 - any exception is a finding
        text = "\n".join(f"{type(error).__name__}: {error}".splitlines()[:4])
        tally.failed.append(f"{capability} {seed} {dict(workload.config)}, {action_names}: {text}")
    tally.actions.update(action_names)
    shutil.rmtree(folder)


def _try_plan(runs: PlannedRuns, step: int, random: Random, action_names: list[str]) -> str:
    """Plan a step, change something, apply the plan, and return how it ended."""
    runs.write_sources(step)
    refusal = _find_refusal(lambda: runs.plan(step))
    if refusal:
        assert _find_refusal(lambda: runs.run(step, f"refused-{step}")) == refusal, "the run is not refused"
        return "refused"
    planned = runs.read_target()
    lost, gained = count_images(runs.list_plan())
    assert not lost - planned, "the plan has rows that the target does not have"
    action = random.choice(_list_actions(runs))
    action_names.append(action.__name__.strip("_"))
    action(runs, step)
    version, rows = runs.version, runs.read_target()
    report, refusal = _apply_plan(runs, f"apply-{step}", step)
    if report is None:
        if refusal != "outdated-plan":
            assert _find_refusal(lambda: runs.plan(step)) == refusal, "applying and planning differ"
        assert (runs.version, runs.read_target()) == (version, rows), "a refused plan has changed the target"
        if refusal != "outdated-plan":
            return "refused"
        lost, gained = count_images(runs.list_plan())
        runs.apply(step, f"apply-again-{step}")
        assert runs.read_target() == rows - lost + gained, "the new plan was not applied exactly"
        return "outdated"
    if report["run_mode"] == "noop":
        assert runs.read_target() == rows
        return "noop"
    assert runs.read_target() == planned - lost + gained, "the plan was not applied exactly"
    return "applied"


def _apply_plan(runs: PlannedRuns, run_id: str, step: int) -> tuple[dict[str, Any] | None, str]:
    """Apply the newest plan; return the report, or None and the codes of the refusal."""
    try:
        return runs.apply(step, run_id), ""
    except DataError as error:
        return None, _list_codes(error)


def _find_refusal(attempt: Callable[[], object]) -> str:
    """Return the codes with which the rows of a workload are refused; an empty text if they are not."""
    try:
        attempt()
    except DataError as error:
        return _list_codes(error)
    return ""


def _list_codes(error: DataError) -> str:
    return ", ".join(problem.code for problem in error.problems)


def _list_actions(runs: PlannedRuns) -> list[Callable[[PlannedRuns, int], None]]:
    actions: list[Callable[[PlannedRuns, int], None]] = [_do_nothing, _grow_sources, _run_again]
    return [*actions, _optimize, _delete_rows, _restore] if runs.version else actions


def _do_nothing(runs: PlannedRuns, step: int) -> None:
    """Let nothing happen between the plan and its application."""


def _grow_sources(runs: PlannedRuns, step: int) -> None:
    runs.write_sources(step + 100)


def _run_again(runs: PlannedRuns, step: int) -> None:
    """Run after the sources have grown, so that the target is ahead of the plan."""
    runs.write_sources(step + 200)
    version = runs.version
    refusal = _find_refusal(lambda: runs.run(step, f"between-{step}"))
    if refusal:
        assert runs.version == version, "a refused run has changed the target"
        assert _find_refusal(lambda: runs.plan(step, save=False)) == refusal, "its plan is not refused"


def _optimize(runs: PlannedRuns, step: int) -> None:
    runs.run_sql("OPTIMIZE {t}")


def _delete_rows(runs: PlannedRuns, step: int) -> None:
    first = DeltaTable(str(runs.folder / runs.target)).schema().fields[0].name
    runs.run_sql(f"DELETE FROM {{t}} WHERE hash(`{first}`) % 3 = 0")


def _restore(runs: PlannedRuns, step: int) -> None:
    runs.run_sql(f"RESTORE TABLE {{t}} TO VERSION AS OF {(runs.version or 1) - 1}")


def _sort_columns(row: str) -> str:
    return json.dumps(json.loads(row), sort_keys=True)
