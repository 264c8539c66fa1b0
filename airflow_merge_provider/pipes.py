"""How does a pipe become a DAG: a sensor that waits for its inputs, the merge, and a schedule.

A pipe is read and checked in ``core.pipe``; here it is only translated. Source: merge_source spec §6 and §7.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml
from airflow.providers.common.compat.sdk import conf
from airflow.sdk import (
    DAG,
    Asset,
    AssetAny,
    AssetOrTimeSchedule,
    CronTriggerTimetable,
    DeltaTriggerTimetable,
)

from airflow_merge_provider.core.errors import ConfigError, Problem, did_you_mean
from airflow_merge_provider.core.pipe.config import PipeConfig
from airflow_merge_provider.core.pipe.files import SUFFIXES, pipes_in
from airflow_merge_provider.core.pipe.schedule import Schedule, schedule
from airflow_merge_provider.core.population import DEFAULT_OFFSET
from airflow_merge_provider.operators._arguments import own_parameters
from airflow_merge_provider.operators._spark_job import SparkJobOperator
from airflow_merge_provider.operators.merge_source import MergeSourceOperator
from airflow_merge_provider.sensors.dataset_populated import DatasetPopulatedSensor

_OF_EVERY_SOURCE = ("type", "comment", "supports_signalling")
_YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def pipe_dag(
    pipe: Mapping[str, Any],
    *,
    operator_args: Mapping[str, Any] | None = None,
    use_signalling_internally: bool | None = None,
    signalling_min_interval: float | None = None,
    **dag_args: Any,
) -> DAG:
    """Make the DAG of one pipe; its id is the pipe's ``_id``.

    ``operator_args`` (``warehouse``, ``spark_conn_id``, ``conf``, …) go to the operator of the merge,
    ``dag_args`` to the DAG. The two settings of signalling are by default those of section ``[merge]`` of
    Airflow's configuration.

    :raises ConfigError: with every problem of the pipe.
    """
    # Not attached to a DAG before it is known to be right, and to know its inputs.
    config, merge = _checked(pipe, operator_args or {})
    planned = _planned(config, merge, use_signalling_internally, signalling_min_interval)
    inputs = [asset for asset in merge.inlets if isinstance(asset, Asset)]
    settings = {
        "schedule": airflow_schedule(planned, inputs),
        "catchup": False,
        "max_active_runs": 1,
        "is_paused_upon_creation": True if config.pump.mode == "off" else None,
        "description": config.description,
        "doc_md": f"```json\n{json.dumps(pipe, indent=2, ensure_ascii=False)}\n```",
        "tags": ["pipe", "merge"],
    }
    with DAG(config.id, **{**settings, **dag_args}) as dag:  # noqa: AIR002 - settings has the schedule
        dag.add_task(merge)
        if waited := merge.awaited():
            ignore = getattr(merge, "ignore_non_existent_datasets", True)
            sensor = DatasetPopulatedSensor(
                task_id="wait",
                datasets=waited,
                ignore_non_existent_datasets=ignore,
                warehouse=merge.warehouse,
            )
            sensor >> merge
    return dag


def load_pipes(folder: str | Path, **pipe_args: Any) -> dict[str, DAG]:
    """Make the DAGs of every pipe in a folder, by their ids; ``pipe_args`` are those of ``pipe_dag``.

    :raises ConfigError: with every problem of every file; Airflow shows it as the import error of the DAG
        file that calls this.
    """
    place = Path(folder)
    if not place.is_dir():
        raise ConfigError.of([Problem(str(place), "folder", "is no folder", "name the folder of the pipes")])
    dags: dict[str, DAG] = {}
    origin: dict[str, str] = {}
    problems: list[Problem] = []
    for file in sorted(each for each in place.iterdir() if each.suffix in SUFFIXES):
        try:
            found = pipes_in(file, _read_yaml)
        except ConfigError as error:
            problems += _in_file(file, "", error.problems)
            continue
        for path, pipe in found:
            name = str(pipe.get("_id"))
            if name in origin:
                twice = Problem(
                    "_id", "twice", f"{name!r} is in {origin[name]} already", "rename one of them"
                )
                problems += _in_file(file, path, [twice])
                continue
            origin[name] = file.name
            try:
                dags[name] = pipe_dag(pipe, **pipe_args)
            except ConfigError as error:
                problems += _in_file(file, path, error.problems)
    if problems:
        raise ConfigError.of(problems)
    return dags


def airflow_schedule(planned: Schedule, inputs: Iterable[Asset]) -> Any:
    """Write a plan as Airflow's: any change of an input is enough, so the assets are alternatives."""
    timetable: Any = None
    if planned.cron is not None:
        timetable = CronTriggerTimetable(planned.cron, timezone="UTC")
    elif planned.interval is not None:
        timetable = DeltaTriggerTimetable(timedelta(seconds=planned.interval))
    assets = list(inputs)
    if not planned.signalled or not assets:
        return timetable
    any_of = AssetAny(*assets)
    return any_of if timetable is None else AssetOrTimeSchedule(timetable=timetable, assets=any_of)


def _checked(pipe: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[PipeConfig, SparkJobOperator]:
    """Check a pipe and what its source says to the operator, both before anything is refused.

    :raises ConfigError: with every problem of the two.
    """
    problems: list[Problem] = []
    merge = None
    try:
        config = PipeConfig.parse(pipe)
    except ConfigError as error:
        problems += error.problems
        # What is wrong around the source does not keep the source from being looked at.
        config = _around(pipe.get("source"))
    try:
        merge = _operator(config, given)
    except ConfigError as error:
        problems += [each for each in error.problems if each.path not in {found.path for found in problems}]
    if problems or merge is None:
        raise ConfigError.of(problems)
    return config, merge


def _around(source: Any) -> PipeConfig:
    """Put a source into a pipe that is right, or an empty one where the source itself cannot be read."""
    try:
        return PipeConfig.parse({"_id": "pipe", "source": source})
    except ConfigError:
        return PipeConfig.parse({"_id": "pipe", "source": {"datasets": ["nothing n"]}})


def _operator(config: PipeConfig, given: Mapping[str, Any]) -> SparkJobOperator:
    """Make the operator of the source; what it refuses is said at the source's paths."""
    kind = _operator_class(config.kind)
    output = "merged" if config.kind == "merge_record" else "target"
    written = {output: config.target}
    if config.sink.set_initial_offset != DEFAULT_OFFSET:
        written["set_initial_offset"] = config.sink.set_initial_offset
    try:
        if issubclass(kind, MergeSourceOperator):
            return kind.from_pipe(config.source, task_id="merge", **{**given, **written})
        arguments = {name: value for name, value in config.source.items() if name not in _OF_EVERY_SOURCE}
        _check_names(arguments, kind, output)
        return kind(task_id="merge", **{**given, **arguments, **written})
    except ConfigError as error:
        raise ConfigError.of([_at_source(each, output) for each in error.problems]) from None


def _check_names(arguments: Mapping[str, Any], kind: type[SparkJobOperator], output: str) -> None:
    """Refuse arguments that the operator does not have, and the lack of those that it needs.

    :raises ConfigError: with every one of them.
    """
    known = [name for name in kind.config_fields if name != output]
    problems = [
        Problem(name, "unknown", f"unknown property {name!r}", did_you_mean(name, known) or _known(known))
        for name in arguments
        if name not in known
    ]
    parameters = own_parameters(kind, SparkJobOperator)
    problems += [
        Problem(name, "missing", "is required")
        for name in known
        if name not in arguments and parameters[name].default is inspect.Parameter.empty
    ]
    if problems:
        raise ConfigError.of(problems)


def _known(names: Iterable[str]) -> str:
    return f"known: {', '.join(names)}"


def _operator_class(module: str) -> type[SparkJobOperator]:
    """Import the operator of one kind of source; pipes of other kinds do not pay for it."""
    name = "".join(word.capitalize() for word in module.split("_")) + "Operator"
    found: type[SparkJobOperator] = getattr(
        importlib.import_module(f"airflow_merge_provider.operators.{module}"), name
    )
    return found


def _planned(
    config: PipeConfig,
    merge: SparkJobOperator,
    use_signalling_internally: bool | None,  # noqa: FBT001 - three values: yes, no, as configured
    signalling_min_interval: float | None,
) -> Schedule:
    everywhere, shortest = use_signalling_internally, signalling_min_interval
    if everywhere is None:
        everywhere = conf.getboolean("merge", "use_signalling_internally", fallback=False)
    if shortest is None:
        shortest = conf.getfloat("merge", "signalling_min_interval", fallback=120.0)
    return schedule(
        config.pump,
        supports_signalling=getattr(merge, "supports_signalling", config.source.get("supports_signalling")),
        use_signalling_internally=everywhere,
        signalling_min_interval=shortest,
    )


def _at_source(problem: Problem, output: str) -> Problem:
    """Say where in the pipe an argument of the operator stands."""
    of_sink = {output: "sink.dataset", "set_initial_offset": "sink.set_initial_offset"}
    return replace(problem, path=of_sink.get(problem.path) or f"source.{problem.path}".rstrip("."))


def _in_file(file: Path, path: str, problems: Iterable[Problem]) -> list[Problem]:
    """Put the file, and the place of the pipe in it, in front of each problem."""
    where = f"{file}{path}"
    return [
        Problem(f"{where}: {each.path}" if each.path else where, each.code, each.message, each.hint)
        for each in problems
    ]


def _read_yaml(text: str) -> Any:
    try:
        return yaml.load(text, Loader=_YAML)  # noqa: S506 - a safe loader
    except yaml.YAMLError as error:
        raise ValueError(str(error).replace("\n", " ")) from None
