"""Build a DAG from a pipe: a sensor that waits for the inputs, the merge, and a schedule.

``core.pipe`` reads and checks a pipe; this module only translates it to Airflow.
Source: docs/semantics/merge_source.md, Population; Signalling; Pipes.
"""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, conf
from airflow.sdk import (
    DAG,
    Asset,
    AssetAny,
    AssetOrTimeSchedule,
    BaseOperator,
    Context,
    CronTriggerTimetable,
    DeltaTriggerTimetable,
)

from airflow_merge_provider.core.errors import ConfigError, Problem, suggest_name
from airflow_merge_provider.core.pipe.config import PipeConfig, Schedule, is_dag_id, plan_schedule
from airflow_merge_provider.core.pipe.files import SUFFIXES, read_pipes
from airflow_merge_provider.core.population import DEFAULT_OFFSET
from airflow_merge_provider.operators._arguments import own_parameters
from airflow_merge_provider.operators._spark_job import SparkJobOperator
from airflow_merge_provider.operators.merge_source import MergeSourceOperator
from airflow_merge_provider.sensors.dataset_populated import DatasetPopulatedSensor
from airflow_merge_provider.yaml_text import parse_yaml

_OF_EVERY_SOURCE = ("type", "comment", "supports_signalling")
_LOG = logging.getLogger(__name__)


def pipe_dag(
    pipe: Mapping[str, Any],
    *,
    operator_args: Mapping[str, Any] | None = None,
    use_signalling_internally: bool | None = None,
    signalling_min_interval: float | None = None,
    **dag_args: Any,
) -> DAG:
    """Build the DAG of one pipe; the DAG id is the pipe's ``_id``.

    ``operator_args`` (``warehouse``, ``spark_conn_id``, ``conf``, …) are passed to the merge operator,
    ``dag_args`` to the DAG. The two signalling settings default to those of section ``[merge]`` of
    Airflow's configuration. ``signalling_min_interval`` is in seconds.

    :raises ConfigError: with every problem of the pipe.
    """
    # The operator is attached to the DAG after it is validated and its inputs are known.
    config, merge = _check_pipe(pipe, operator_args or {})
    schedule = _plan_schedule(config, merge, use_signalling_internally, signalling_min_interval)
    inputs = [asset for asset in merge.inlets if isinstance(asset, Asset)]
    settings = {
        "schedule": airflow_schedule(schedule, inputs),
        "catchup": False,
        "max_active_runs": 1,
        "is_paused_upon_creation": True if config.pump.mode == "off" else None,
        "description": config.description,
        "doc_md": f"```json\n{json.dumps(pipe, indent=2, ensure_ascii=False)}\n```",
        "tags": ["pipe", "merge"],
    }
    with DAG(config.id, **{**settings, **dag_args}) as dag:  # noqa: AIR002 - settings has the schedule
        dag.add_task(merge)
        if awaited_datasets := merge.list_awaited():
            ignore = getattr(merge, "ignore_non_existent_datasets", True)
            sensor = DatasetPopulatedSensor(
                task_id="wait",
                datasets=awaited_datasets,
                ignore_non_existent_datasets=ignore,
                warehouse=merge.warehouse,
            )
            sensor >> merge
    return dag


def load_pipes(folder: str | Path, *, strict: bool = False, **pipe_args: Any) -> dict[str, DAG]:
    """Build the DAGs of all pipes in a folder, by DAG id; ``pipe_args`` are the arguments of ``pipe_dag``.

    An invalid pipe does not stop the others: it becomes a DAG without a schedule, tagged ``broken``, that
    shows the errors and fails when it is started. Its id is that of the pipe, or the file's name.

    :param strict: raise instead; Airflow then shows the error for the DAG file that calls this function, and
        no pipe runs.
    :raises ConfigError: if the folder does not exist; if ``strict``, with every problem of every file.
    """
    folder_path = Path(folder)
    if not folder_path.is_dir():
        raise ConfigError.from_problems(
            [Problem(str(folder_path), "folder", "is not a folder", "set the folder of the pipes")]
        )
    built_pipes = _BuiltPipes({}, {}, [])
    for file in sorted(entry for entry in folder_path.iterdir() if entry.suffix in SUFFIXES):
        try:
            pipes = read_pipes(file, parse_yaml)
        except ConfigError as error:
            built_pipes.add_broken(file, "", None, error.problems)
            continue
        for path, pipe in pipes:
            built_pipes.add_pipe(file, path, pipe, pipe_args)
    if strict and built_pipes.problems:
        raise ConfigError.from_problems(built_pipes.problems)
    return built_pipes.dags


@dataclass(frozen=True)
class _BuiltPipes:
    """The DAGs of the pipes built so far, the files that they come from, and the problems found."""

    dags: dict[str, DAG]
    origin: dict[str, str]
    problems: list[Problem]

    def add_pipe(self, file: Path, path: str, pipe: Mapping[str, Any], pipe_args: Mapping[str, Any]) -> None:
        """Build the DAG of a pipe and add it."""
        name = str(pipe.get("_id"))
        if name in self.origin:
            problem = Problem(
                "_id", "duplicate", f"{name!r} is already in {self.origin[name]}", "rename one of them"
            )
            self.add_broken(file, path, None, [problem])
            return
        self.origin[name] = file.name
        try:
            self.dags[name] = pipe_dag(pipe, **pipe_args)
        except ConfigError as error:
            self.add_broken(file, path, name, error.problems)

    def add_broken(self, file: Path, path: str, name: str | None, problems: Iterable[Problem]) -> None:
        """Add the DAG that shows the problems of an invalid pipe or file."""
        file_problems = _in_file(file, path, problems)
        self.problems.extend(file_problems)
        error = ConfigError.from_problems(file_problems)
        _LOG.error("%s", error)
        dag_id = name if name is not None and is_dag_id(name) else _name_dag(file, path)
        while dag_id in self.dags:
            dag_id = f"{dag_id}_"
        self.dags[dag_id] = _make_broken_dag(dag_id, str(error))


class InvalidPipeOperator(BaseOperator):
    """The only task of an invalid pipe: it fails with the problems of the pipe."""

    def __init__(self, *, reason: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.reason = reason

    def execute(self, context: Context) -> None:
        """Fail the task.

        :raises AirflowFailException: always.
        """
        raise AirflowFailException(self.reason)


def _make_broken_dag(name: str, reason: str) -> DAG:
    # Indented lines are a code block, so that the UI does not interpret the text as Markdown.
    lines = "\n".join(f"    {line}" for line in reason.splitlines())
    with DAG(
        name,
        schedule=None,
        catchup=False,
        description=f"broken: {reason.splitlines()[0]}",
        doc_md=f"This pipe is not valid and does not run:\n\n{lines}",
        tags=["pipe", "broken"],
    ) as dag:
        InvalidPipeOperator(task_id="broken", reason=reason)
    return dag


def _name_dag(file: Path, path: str) -> str:
    """Return a DAG id derived from the file, for a pipe without an id."""
    return re.sub(r"[^A-Za-z0-9_.\-]", "_", f"{file.stem}{path}")[:200] or "pipe"


def airflow_schedule(schedule: Schedule, inputs: Iterable[Asset]) -> Any:
    """Convert a schedule to Airflow's: a change of any input starts a run, so the assets are alternatives."""
    timetable: Any = None
    if schedule.cron is not None:
        _check_cron(schedule.cron)
        timetable = CronTriggerTimetable(schedule.cron, timezone="UTC")
    elif schedule.interval is not None:
        timetable = DeltaTriggerTimetable(timedelta(seconds=schedule.interval))
    assets = list(inputs)
    if not schedule.signalled or not assets:
        return timetable
    any_of = AssetAny(*assets)
    return any_of if timetable is None else AssetOrTimeSchedule(timetable=timetable, assets=any_of)


def _check_cron(expression: str) -> None:
    """Check a cron expression as the scheduler does when it computes the next run.

    :raises ConfigError: if the cron expression is invalid.
    """
    try:
        from airflow.timetables.trigger import CronTriggerTimetable as Timetable  # noqa: PLC0415 - cost
    except ImportError:
        # A worker may have only the task SDK; the DAG processor has already checked the expression.
        return
    try:
        Timetable(expression, timezone="UTC").validate()
    except (AirflowException, ValueError) as error:
        message = f"{expression!r} is not a valid cron expression: {error}"
        hint = 'write five fields, for example "0 * * * *"'
        raise ConfigError.from_problems([Problem("pump.cron_expression", "value", message, hint)]) from None


def _check_pipe(
    pipe: Mapping[str, Any], operator_args: Mapping[str, Any]
) -> tuple[PipeConfig, SparkJobOperator]:
    """Check a pipe and the operator arguments of its source, and collect the problems of both.

    :raises ConfigError: with every problem of the two.
    """
    problems: list[Problem] = []
    merge = None
    try:
        config = PipeConfig.parse(pipe)
    except ConfigError as error:
        problems += error.problems
        # Errors elsewhere in the pipe must not prevent checking the source.
        config = _wrap_source(pipe.get("source"))
    try:
        merge = _build_operator(config, operator_args)
    except ConfigError as error:
        problems += [
            source_problem
            for source_problem in error.problems
            if source_problem.path not in {problem.path for problem in problems}
        ]
    if problems or merge is None:
        raise ConfigError.from_problems(problems)
    return config, merge


def _wrap_source(source: Any) -> PipeConfig:
    """Put a source into an otherwise valid pipe; use an empty source if this one cannot be read."""
    try:
        return PipeConfig.parse({"_id": "pipe", "source": source})
    except ConfigError:
        return PipeConfig.parse({"_id": "pipe", "source": {"datasets": ["nothing n"]}})


def _build_operator(config: PipeConfig, operator_args: Mapping[str, Any]) -> SparkJobOperator:
    """Build the operator of the source; its errors use the paths of the source."""
    kind = _operator_class(config.kind)
    output = kind.config_class.output_field
    sink_args = {output: config.target}
    if config.sink.set_initial_offset != DEFAULT_OFFSET:
        sink_args["set_initial_offset"] = config.sink.set_initial_offset
    try:
        if issubclass(kind, MergeSourceOperator):
            return kind.from_pipe(config.source, task_id="merge", **{**operator_args, **sink_args})
        arguments = {name: value for name, value in config.source.items() if name not in _OF_EVERY_SOURCE}
        _check_names(arguments, kind, output)
        return kind(task_id="merge", **{**operator_args, **arguments, **sink_args})
    except ConfigError as error:
        raise ConfigError.from_problems([_at_source(problem, output) for problem in error.problems]) from None


def _check_names(arguments: Mapping[str, Any], kind: type[SparkJobOperator], output: str) -> None:
    """Check for arguments that the operator does not accept, and for required ones that are missing.

    :raises ConfigError: with every one of them.
    """
    valid_names = [name for name in kind.config_fields if name != output]
    problems = [
        Problem(
            name,
            "unknown",
            f"unknown property {name!r}",
            suggest_name(name, valid_names, "properties"),
        )
        for name in arguments
        if name not in valid_names
    ]
    parameters = own_parameters(kind, SparkJobOperator)
    problems += [
        Problem(name, "missing", "is required")
        for name in valid_names
        if name not in arguments and parameters[name].default is inspect.Parameter.empty
    ]
    if problems:
        raise ConfigError.from_problems(problems)


def _operator_class(module: str) -> type[SparkJobOperator]:
    """Import the operator of one kind of source, so that other pipes do not load it."""
    name = "".join(word.capitalize() for word in module.split("_")) + "Operator"
    operator_class: type[SparkJobOperator] = getattr(
        importlib.import_module(f"airflow_merge_provider.operators.{module}"), name
    )
    return operator_class


def _plan_schedule(
    config: PipeConfig,
    merge: SparkJobOperator,
    use_signalling_internally: bool | None,  # noqa: FBT001 - None uses the setting
    signalling_min_interval: float | None,
) -> Schedule:
    everywhere, shortest = use_signalling_internally, signalling_min_interval
    if everywhere is None:
        everywhere = conf.getboolean("merge", "use_signalling_internally", fallback=False)
    if shortest is None:
        shortest = conf.getfloat("merge", "signalling_min_interval", fallback=120.0)
    return plan_schedule(
        config.pump,
        supports_signalling=getattr(merge, "supports_signalling", config.source.get("supports_signalling")),
        use_signalling_internally=everywhere,
        signalling_min_interval=shortest,
    )


def _at_source(problem: Problem, output: str) -> Problem:
    """Return the problem with the path inside the pipe instead of the operator argument."""
    of_sink = {output: "sink.dataset", "set_initial_offset": "sink.set_initial_offset"}
    return replace(problem, path=of_sink.get(problem.path) or f"source.{problem.path}".rstrip("."))


def _in_file(file: Path, path: str, problems: Iterable[Problem]) -> list[Problem]:
    """Prefix each problem's path with the file and the location of the pipe in it."""
    location = f"{file}{path}"
    return [
        Problem(
            f"{location}: {problem.path}" if problem.path else location,
            problem.code,
            problem.message,
            problem.hint,
        )
        for problem in problems
    ]
