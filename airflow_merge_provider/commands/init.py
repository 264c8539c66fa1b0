"""Write a DAG file, and a pipe file, from tables that exist."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from airflow_merge_provider.commands.arguments import add_warehouse
from airflow_merge_provider.commands.output import print_warning
from airflow_merge_provider.core.errors import ConfigError, Problem
from airflow_merge_provider.core.pipe.config import PipeConfig
from airflow_merge_provider.dag_files.arguments import PROPOSALS, Argument, InitRequest
from airflow_merge_provider.dag_files.columns import read_source
from airflow_merge_provider.dag_files.rendering import build_pipe, render_dag, render_pipe
from airflow_merge_provider.run_file import STDIN as STDOUT, RunFile, choose_warehouse

_DAG_ENDING, _YAML_ENDINGS, _JSON_ENDING = ".py", (".yaml", ".yml"), ".json"
_ONE_SOURCE = frozenset({"merge_engine", "upsert", "delete_insert", "scd2", "merge_record"})
_INPUTS_MIN = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``init``."""
    parser.add_argument("kind", choices=PROPOSALS, metavar="OPERATOR", help=", ".join(PROPOSALS))
    datasets_help = "the tables to read, as bare ids or locations; of merge_record, the source folder"
    parser.add_argument("--datasets", nargs="+", required=True, metavar="DATASET", help=datasets_help)
    parser.add_argument("--target", required=True, metavar="DATASET", help="the dataset to write")
    key_help = "the columns that identify a row; by default proposed from names and statistics"
    parser.add_argument("--key", nargs="+", default=[], metavar="COLUMN", help=key_help)
    add_warehouse(parser)
    output_help = (
        "the file to write: a DAG (.py) or a pipe (.yaml, .json); can be repeated; - for standard output, "
        "the default"
    )
    parser.add_argument("-o", "--output", action="append", metavar="FILE", help=output_help)
    parser.add_argument("--force", action="store_true", help="overwrite files that exist")


def write_files(options: argparse.Namespace) -> int:
    """Write the files, after checking the configuration that they contain."""
    files = options.output or [STDOUT]
    _check_files(files, force=options.force)
    _check_datasets(options.kind, options.datasets)
    warehouse = choose_warehouse(options.warehouse)
    tables = (
        [] if options.kind == "merge_record" else [read_source(name, warehouse) for name in options.datasets]
    )
    request = InitRequest(
        tuple(options.datasets),
        options.target,
        warehouse if options.warehouse else None,
        tuple(options.key),
        tuple(tables),
    )
    arguments = list(PROPOSALS[options.kind](request))
    pipe = build_pipe(options.kind, request, arguments)
    job, config = PipeConfig.parse(pipe).build_job()
    for warning in RunFile(job, config, warehouse).check_config(needs_target=True):
        print_warning(warning)
    for file in files:
        _write_file(file, _render_file(file, options.kind, request, arguments))
    return 0


def _check_files(files: Sequence[str], *, force: bool) -> None:
    """Check what is known of the files before tables are read.

    :raises ConfigError: with every file that has an unknown ending, or exists.
    """
    valid_endings = (_DAG_ENDING, *_YAML_ENDINGS, _JSON_ENDING)
    problems = []
    for file in files:
        if file != STDOUT and Path(file).suffix not in valid_endings:
            hint = f"valid endings: {', '.join(valid_endings)}"
            problems.append(Problem(file, "value", "has an unknown ending", hint))
        elif file != STDOUT and Path(file).exists() and not force:
            problems.append(Problem(file, "exists", "exists already", "set --force to overwrite it"))
    if problems:
        raise ConfigError.from_problems(problems)


def _check_datasets(kind: str, datasets: Sequence[str]) -> None:
    """Check the number of datasets.

    :raises ConfigError: if the operator takes another number.
    """
    message = ""
    if kind in _ONE_SOURCE and len(datasets) > 1:
        message = f"{kind} has one source, found {len(datasets)}"
    elif kind == "joiner" and len(datasets) < _INPUTS_MIN:
        message = "joiner requires at least two inputs, found 1"
    if message:
        raise ConfigError.from_problems([Problem("--datasets", "value", message, "change the list")])


def _render_file(file: str, kind: str, request: InitRequest, arguments: Sequence[Argument]) -> str:
    if file == STDOUT or file.endswith(_DAG_ENDING):
        return render_dag(kind, request, arguments)
    pipe = build_pipe(kind, request, arguments)
    return render_pipe(pipe, arguments, is_yaml=file.endswith(_YAML_ENDINGS))


def _write_file(file: str, text: str) -> None:
    if file == STDOUT:
        sys.stdout.write(text)
        return
    path = Path(file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError.from_problems(
            [Problem(file, "file", f"cannot be written: {error.strerror}", "choose another file")]
        ) from None
    print(f"wrote {file}")
