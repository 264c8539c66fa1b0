"""Write a run file for tables or files that exist: the person who runs it chooses the key."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from airflow_merge_provider.cli.arguments import add_warehouse
from airflow_merge_provider.cli.run_file import (
    PLACEHOLDER,
    STDIN as STDOUT,
    choose_warehouse,
    resolve_relative_path,
)
from airflow_merge_provider.cli.sources import Source
from airflow_merge_provider.core.dataset import is_bare_id, resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, Problem
from airflow_merge_provider.yaml_text import format_yaml

# The argument that names the key of the source, by the operator.
_KEYS = {
    "upsert": "primary_key",
    "delete_insert": "primary_key",
    "merge_engine": "primary_key",
    "scd2": "natural_key",
    "merge_source": "equality",
    "joiner": "join_keys",
    "merge_record": "",
}
_INPUTS_MIN = {"joiner": 2}
_SEVERAL_INPUTS = ("merge_source", "joiner")
_TABLES_ONLY = ("merge_engine", "merge_source", "joiner")
_YAML_ENDINGS = (".yaml", ".yml")
_PROGRAM = "airflow_merge_provider"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``init``."""
    parser.add_argument("kind", choices=_KEYS, metavar="OPERATOR", help=", ".join(_KEYS))
    datasets_help = "the tables, files or folders to read, as bare ids, locations or paths"
    parser.add_argument("--datasets", nargs="+", required=True, metavar="DATASET", help=datasets_help)
    parser.add_argument("--target", required=True, metavar="DATASET", help="the dataset to write")
    key_help = "the columns that identify a row; of several datasets, the columns that are compared"
    parser.add_argument("--key", nargs="+", default=[], metavar="COLUMN", help=key_help)
    header_help = "the first line of CSV files is a record, not the names of the columns"
    parser.add_argument("--no-header", action="store_true", help=header_help)
    add_warehouse(parser)
    output_help = "the YAML file to write; - for standard output, the default"
    parser.add_argument("-o", "--output", default=STDOUT, metavar="FILE", help=output_help)
    parser.add_argument("--force", action="store_true", help="overwrite the file if it exists")


def write_run_file(options: argparse.Namespace) -> int:
    """Write a run file with the required options of an operator and the columns of its sources."""
    _check_options(options)
    warehouse, has_header = choose_warehouse(options.warehouse), not options.no_header
    sources = [Source(name, warehouse, has_header=has_header) for name in options.datasets]
    _require_tables(options.kind, sources)
    target = resolve_relative_path(options.target)
    resolve_dataset(target, warehouse or "/", at="--target")
    config = dict(_build_config(options, sources, target))
    notes = [line for source in sources for line in source.describe()]
    if options.kind == "merge_record":
        count = sources[0].file_count
        files = "1 file" if count == 1 else f"{count} files"
        notes.append(f"{files} will be moved to {config['original']} once they are merged")
    else:
        notes += [line for source in sources for line in source.describe_columns()]
    text = "".join(f"# {line}\n" for line in notes) + format_yaml(config)
    if options.output == STDOUT:
        sys.stdout.write(text)
        return 0
    try:
        Path(options.output).parent.mkdir(parents=True, exist_ok=True)
        Path(options.output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise _refuse(options.output, f"cannot be written: {error.strerror}", "choose another file") from None
    print(f"wrote {options.output}", *notes, sep="\n")
    needs_warehouse = warehouse is None and is_bare_id(target)
    arguments = f"{shlex.quote(options.output)}{' --warehouse LOCATION' if needs_warehouse else ''}"
    if PLACEHOLDER in config.values():
        print(f"replace {PLACEHOLDER} in it by columns, then run {_PROGRAM} check {arguments}")
    else:
        print(f"next: {_PROGRAM} plan {arguments}")
    return 0


def _check_options(options: argparse.Namespace) -> None:
    """Check what is known before sources are read.

    :raises ConfigError: if the file or the number of datasets is not valid.
    """
    count, kind, file = len(options.datasets), options.kind, options.output
    if count > 1 and kind not in _SEVERAL_INPUTS:
        raise _refuse("--datasets", f"{kind} has one source, found {count}", "change the list")
    if count < _INPUTS_MIN.get(kind, 1):
        raise _refuse("--datasets", f"{kind} requires at least two inputs, found 1", "change the list")
    if options.key and not _KEYS[kind]:
        raise _refuse("--key", f"{kind} has no key", "leave it out")
    if file != STDOUT and Path(file).suffix not in _YAML_ENDINGS:
        raise _refuse(file, "has an unknown ending", f"valid endings: {', '.join(_YAML_ENDINGS)}")
    if file != STDOUT and Path(file).exists() and not options.force:
        raise _refuse(file, "exists already", "set --force to overwrite it")


def _require_tables(kind: str, sources: Sequence[Source]) -> None:
    """Check that an operator reads what its sources are.

    :raises ConfigError: if it reads only tables and a source has files, or the other way round.
    """
    for source in sources:
        if kind in _TABLES_ONLY and source.file_count:
            message = f"{kind} reads Delta tables, and {source.ref} has {source.format} files"
            raise _refuse("--datasets", message, "load them into a table first, for example with upsert")
        if kind == "merge_record" and not source.file_count:
            message = f"merge_record reads a folder of files, and {source.ref} is a Delta table"
            raise _refuse("--datasets", message, "name a folder of files")


def _build_config(
    options: argparse.Namespace, sources: Sequence[Source], target: str
) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of the operator.

    :raises ConfigError: if a source has no column of the key.
    """
    kind = options.kind
    yield "job", kind
    if options.warehouse:
        yield "warehouse", choose_warehouse(options.warehouse)
    if kind == "merge_record":
        yield from {
            "source": sources[0].ref,
            "merged": target,
            **{name: f"{target}_{name}" for name in ("failure", "original")},
            "state_path": f"{target}_state",
            "reader": sources[0].reader,
        }.items()
        return
    aliases = _name_aliases(sources)
    keys = [source.require_columns(options.key) for source in sources]
    if kind == "merge_source":
        yield "datasets", [f"{source.ref} {alias}" for alias, source in aliases.items()]
        if any("_id" not in source.columns for source in sources):
            yield "id_column", PLACEHOLDER
    elif kind == "joiner":
        yield "inputs", {alias: source.dataset for alias, source in aliases.items()}
    else:
        yield "source", sources[0].dataset
    yield "target", target
    yield _KEYS[kind], _build_key(kind, list(aliases), keys) if options.key else PLACEHOLDER


def _build_key(kind: str, aliases: Sequence[str], keys: Sequence[Sequence[str]]) -> Any:
    """Return the key of one source, the rules of a merge source, or the clauses of a join.

    :param keys: the columns of the key in each source.
    """
    if kind not in _SEVERAL_INPUTS:
        return keys[0]
    clauses = [
        [f"{alias}.{column}" for alias, column in zip(aliases, columns, strict=True)]
        for columns in zip(*keys, strict=True)
    ]
    if kind == "joiner":
        return " & ".join(" = ".join(sides) for sides in clauses)
    return [["eq", left, right] for sides in clauses for left, right in pairwise(sides)]


def _name_aliases(sources: Sequence[Source]) -> dict[str, Source]:
    """Return the sources by a short name, which rules and join keys use."""
    aliases: dict[str, Source] = {}
    for source in sources:
        alias = source.alias if source.alias[:1].isalpha() else f"d{source.alias}"
        aliases[alias if alias not in aliases else f"{alias}_{len(aliases) + 1}"] = source
    return aliases


def _refuse(path: str, message: str, hint: str) -> ConfigError:
    return ConfigError.from_problems([Problem(path, "value", message, hint)])
