"""Read a file given on the command line: a pipe, a configuration or a whole request."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_merge_provider.core.capabilities import CAPABILITIES
from airflow_merge_provider.core.capability import Capability
from airflow_merge_provider.core.dataset import is_location, resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, Problem, suggest_name
from airflow_merge_provider.core.pipe.config import LOADS, SOURCE_JOBS, PipeConfig
from airflow_merge_provider.core.pipe.files import parse_json, read_content
from airflow_merge_provider.core.population import DEFAULT_OFFSET, Population, build_population
from airflow_merge_provider.yaml_text import parse_yaml

STDIN = "-"
# The environment variable of Airflow's setting [merge] warehouse.
WAREHOUSE = "AIRFLOW__MERGE__WAREHOUSE"
# What a file that init wrote has where a person has to choose columns.
PLACEHOLDER = "<choose>"


@dataclass(frozen=True)
class RunFile:
    """One job and its configuration; ``request`` has the remaining fields of a whole request, or is empty."""

    job: str
    config: dict[str, Any]
    warehouse: str | None
    set_initial_offset: Any = DEFAULT_OFFSET
    request: Mapping[str, Any] = field(default_factory=dict)

    @property
    def capability(self) -> Capability:
        """The capability that runs the job."""
        return CAPABILITIES[self.job]

    @property
    def kind(self) -> str:
        """The name of the operator, as run files have it."""
        strategies = {strategy: name for name, strategy in LOADS.items()}
        return strategies.get(self.config.get("strategy", ""), self.job)

    def check_config(self, *, needs_target: bool) -> list[str]:
        """Check the configuration and the datasets that it names; return the warnings.

        :param needs_target: whether to check locations, which a run needs; if false, only names are checked.
        :raises ConfigError: with every problem.
        """
        config = self.capability.config.parse(self.config)
        references = config.list_datasets()
        problems: list[Problem] = []
        if needs_target and config.output_field not in references:
            hint = "set it to the dataset to write"
            problems.append(Problem(config.output_field, "missing", "is required", hint))
        for path, ref in references.items():
            try:
                resolve_dataset(ref, self.warehouse if needs_target else self.warehouse or "/", at=path)
            except ConfigError as error:
                problems += error.problems
        if problems:
            raise ConfigError.from_problems(problems)
        return config.list_warnings()

    def find_population(self) -> Population | None:
        """Return the inputs for setting the target's population flag."""
        if self.request:
            population = self.request.get("population")
            return None if population is None else Population.model_validate(population)
        config = self.capability.config.parse(self.config)
        return build_population(config, set_initial_offset=self.set_initial_offset)


def read_run_file(file: str, warehouse: str | None = None) -> RunFile:
    """Read a JSON or YAML file, or standard input; ``warehouse`` overrides the one in the file.

    :raises ConfigError: if it cannot be read, or is not a pipe, a configuration or a request.
    """
    raw = _read_object(file)
    content = _find_pipe(raw) or raw
    job, config = _find_job(content)
    if names := [name for name, value in config.items() if value == PLACEHOLDER]:
        hint = f"replace {PLACEHOLDER!r} by columns of the sources"
        raise ConfigError.from_problems([Problem(name, "missing", "is not chosen", hint) for name in names])
    default_warehouse = choose_warehouse(warehouse or content.get("warehouse"))
    is_request = "config" in raw and "run" in raw
    offset = content.get("set_initial_offset", DEFAULT_OFFSET)
    return RunFile(job, _make_absolute(job, config), default_warehouse, offset, raw if is_request else {})


def choose_warehouse(warehouse: Any = None) -> Any:
    """Return the warehouse of bare ids: the argument, else the environment variable, as an absolute path."""
    location = warehouse or os.environ.get(WAREHOUSE)
    if not isinstance(location, str) or is_location(location):
        return location
    return str(Path(location).absolute())


def resolve_relative_path(ref: Any) -> Any:
    """Return a dataset reference; a path such as ``lake/orders`` is resolved against the current folder.

    >>> resolve_relative_path("orders"), resolve_relative_path("s3://lake/orders")
    ('orders', 's3://lake/orders')
    """
    if isinstance(ref, Mapping) and "dataset" in ref:
        return {**ref, "dataset": resolve_relative_path(ref["dataset"])}
    is_relative = isinstance(ref, str) and "/" in ref and not is_location(ref.strip())
    return os.path.normpath(Path(ref).absolute()) if is_relative else ref


def _read_object(file: str) -> Mapping[str, Any]:
    try:
        if file == STDIN:
            text = sys.stdin.read()
            content = parse_json(text) if text.lstrip().startswith(("{", "[")) else parse_yaml(text)
        else:
            content = read_content(Path(file), parse_yaml)
    except ConfigError as error:
        problem = error.problems[0]
        path = f"{file}: {problem.path}" if problem.path else file
        raise ConfigError.from_problems([Problem(path, "file", problem.message, problem.hint)]) from None
    except ValueError as error:
        raise ConfigError(f"{file}: is not valid JSON or YAML ({error})") from None
    if not isinstance(content, Mapping):
        raise ConfigError(f"{file}: must contain one object (a pipe, a configuration or a request)")
    return content


def _find_pipe(raw: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Split a pipe into its job, its configuration and its sink's settings; None for other files."""
    if "_id" not in raw or not isinstance(raw.get("source"), Mapping):
        return None
    outer_fields = {name: raw[name] for name in ("warehouse",) if name in raw}
    pipe = PipeConfig.parse(
        {name: value for name, value in raw.items() if name not in {"job", *outer_fields}}
    )
    job, config = pipe.build_job()
    return {**outer_fields, "job": job, "config": config, "set_initial_offset": pipe.sink.set_initial_offset}


def _find_job(raw: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the job, by its own name or its name in pipes, and its configuration.

    :raises ConfigError: if there is no such job, or the configuration is not an object.
    """
    if "job" not in raw and not _is_merge_source(raw.get("config", raw)):
        *job_names, last_name = SOURCE_JOBS.values()
        hint = f"set it to {', '.join(job_names)} or {last_name}"
        raise ConfigError.from_problems([Problem("job", "missing", "is required", hint)])
    job_name = raw.get("job", "merge_source")
    valid_jobs = {**{name: name for name in CAPABILITIES}, **SOURCE_JOBS}
    if not isinstance(job_name, str) or job_name not in valid_jobs:
        hint = suggest_name(str(job_name), valid_jobs, "jobs")
        raise ConfigError.from_problems([Problem("job", "unknown", f"unknown job {job_name!r}", hint)])
    kind = valid_jobs[job_name]
    job = "merge_load" if kind in LOADS else kind
    if "config" in raw:
        if not isinstance(raw["config"], Mapping):
            raise ConfigError.from_problems([Problem("config", "value", "must be an object")])
        config = dict(raw["config"])
    else:
        fields = {name: value for name, value in raw.items() if name not in {"job", "warehouse"}}
        config = CAPABILITIES[job].unpack(fields)
    return job, {**config, "strategy": LOADS[kind]} if kind in LOADS else config


def _is_merge_source(config: Any) -> bool:
    """Return whether a configuration has fields of a merge source, whose files need no job."""
    if not isinstance(config, Mapping):
        return False
    return isinstance(config.get("source"), Mapping) or bool({"type", "datasets", "equality"} & set(config))


def _make_absolute(job: str, config: dict[str, Any]) -> dict[str, Any]:
    """Resolve the relative paths of a configuration, which need not be valid."""
    resolved = dict(config)
    for name, mark in CAPABILITIES[job].config.list_names().items():
        value = config.get(name)
        if mark.datasets is None:
            continue
        if not mark.is_collection:
            resolved[name] = resolve_relative_path(value)
        elif isinstance(value, Mapping):
            resolved[name] = {key: resolve_relative_path(item) for key, item in value.items()}
        elif isinstance(value, list):
            resolved[name] = [resolve_relative_path(item) for item in value]
    return {name: value for name, value in resolved.items() if name in config}
