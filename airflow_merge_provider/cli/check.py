"""Check a run file: its options, and the columns of the sources that exist."""

from __future__ import annotations

import argparse
import time
from typing import Any

from airflow_merge_provider.before_spark import check_columns, list_references
from airflow_merge_provider.cli.output import print_warning
from airflow_merge_provider.cli.run_file import RunFile, read_run_file
from airflow_merge_provider.cli.sources import read_file_columns
from airflow_merge_provider.core.dataset import Dataset, resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, DataError, SetupError
from airflow_merge_provider.core.expectations.config import EXPECT, parse_expectations, require_columns
from airflow_merge_provider.core.merge_load.columns import check_named_columns
from airflow_merge_provider.core.merge_load.load import LoadConfig
from airflow_merge_provider.core.merge_load.requirements import build_requirements
from airflow_merge_provider.core.object_store.clients import has_credentials, read_environment
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.decision import RequiresSparkError
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.delta_rs import DeltaRsLog, find_table
from airflow_merge_provider.explain.reading import list_types
from airflow_merge_provider.spark_process.jvm.spark_defaults import find_catalog_problems


def check_file(options: argparse.Namespace) -> int:
    """Print whether a file is valid, its warnings, and the sources whose columns were checked."""
    file = read_run_file(options.file, options.warehouse)
    warnings = file.check_config(needs_target=False)
    # The catalog of a cluster or a Spark Connect server is unknown here.
    references = list_references(file.job, file.config)
    warnings += map(str, find_catalog_problems(references, file.warehouse or "/", {}))
    result = _check_sources(file, warnings)
    for warning in dict.fromkeys(warnings):
        print_warning(warning)
    print(f"{options.file}: valid {file.kind} configuration")
    if result:
        print(result)
    return 0


def _check_sources(file: RunFile, warnings: list[str]) -> str:
    """Check the columns of the sources, and return which ones, or why they cannot be checked without Spark.

    The result is empty if the configuration names none.

    :param warnings: gets those about the columns.
    :raises ConfigError: if the configuration does not suit the columns.
    :raises DataError: if a source has no such column.
    """
    if file.capability.open_run is None:
        return ""
    config = file.capability.config.parse(file.config)
    inputs = config.list_datasets("input").items()
    try:
        datasets = [resolve_dataset(ref, file.warehouse, at=path) for path, ref in inputs]
    except ConfigError as error:
        return f"columns not checked: {error.problems[0].message} (set --warehouse)"
    names = ", ".join(dataset.id for dataset in datasets)
    try:
        if all(dataset.format == "delta" for dataset in datasets):
            warnings += _list_table_warnings(file)
        else:
            _check_files(file, config, next(dataset for dataset in datasets if dataset.format != "delta"))
    except (RequiresSparkError, SetupError) as reason:
        return f"columns not checked: {str(reason).splitlines()[0]}"
    except DataError as error:
        if {problem.code for problem in error.problems} != {"missing"}:
            raise
        return f"columns not checked: {error.problems[0].message}"
    return f"columns checked: {names}"


def _list_table_warnings(file: RunFile) -> list[str]:
    """Check the columns of Delta tables, as a run does before it starts Spark, and return the warnings."""
    now = time.time_ns() // 1000
    request = JobRequest(
        job=file.capability.name,
        config=file.config,
        run=RunToken(dag_id="cli", run_id=f"check-{now}", task_id="check"),
        warehouse=file.warehouse,
        started_at=now,
        until="transform",
    )
    options = read_environment(file.warehouse).as_delta_rs()
    log = DeltaRsLog(options, object_stores=has_credentials(options))
    return check_columns(log, request, Progress(lambda _: None))


def _check_files(file: RunFile, config: Any, source: Dataset) -> None:
    """Check the names of the columns of a load's files; only Spark's reader can tell their types.

    :raises RequiresSparkError: if it alone can tell the names, too.
    """
    columns = read_file_columns(source) if isinstance(config, LoadConfig) else None
    if columns is None:
        raise RequiresSparkError(f"only Spark reads the columns of {source.uri}")
    target = resolve_dataset(config.target, file.warehouse, at="target")
    table = None if target.path is None or config.dispatch_by else find_table(target.path)
    name, stored = f"the source {source.id}", [] if table is None else list(list_types(table))
    check_named_columns(list(columns), build_requirements(config).list_named(config, stored), name, config)
    applicable = [item for item in parse_expectations(file.config.get(EXPECT)) if item.applies_to(source.id)]
    require_columns(list(columns), applicable, name)
