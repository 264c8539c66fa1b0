"""Write a run file for tables or files that exist: the person who runs it chooses the key."""

from __future__ import annotations

import argparse
import codecs
import csv
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileOpener

from airflow_merge_provider.cli.arguments import add_warehouse
from airflow_merge_provider.cli.run_file import (
    PLACEHOLDER,
    STDIN as STDOUT,
    choose_warehouse,
    resolve_relative_path,
)
from airflow_merge_provider.core.dataset import is_skipped_by_spark, resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, DataError, Problem, suggest_name
from airflow_merge_provider.core.object_store.clients import complete_arguments
from airflow_merge_provider.core.value_text import escape_text
from airflow_merge_provider.delta_rs import find_table
from airflow_merge_provider.explain.reading import find_column, list_parquet_types, list_types
from airflow_merge_provider.file_store.folder import open_folder

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
_ENDINGS = {
    **{name: name for name in ("csv", "json", "parquet", "avro", "orc", "xml")},
    "jsonl": "json",
    "ndjson": "json",
}
_YAML_ENDINGS = (".yaml", ".yml")
_LINE_MAX_BYTES = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``init``."""
    parser.add_argument("kind", choices=_KEYS, metavar="OPERATOR", help=", ".join(_KEYS))
    datasets_help = "the tables, files or folders to read, as bare ids or locations"
    parser.add_argument("--datasets", nargs="+", required=True, metavar="DATASET", help=datasets_help)
    parser.add_argument("--target", required=True, metavar="DATASET", help="the dataset to write")
    key_help = "the columns that identify a row; of several datasets, the columns that are compared"
    parser.add_argument("--key", nargs="+", default=[], metavar="COLUMN", help=key_help)
    add_warehouse(parser)
    output_help = "the YAML file to write; - for standard output, the default"
    parser.add_argument("-o", "--output", default=STDOUT, metavar="FILE", help=output_help)
    parser.add_argument("--force", action="store_true", help="overwrite the file if it exists")


def write_run_file(options: argparse.Namespace) -> int:
    """Write a run file with the required options of an operator and the columns of its sources."""
    _check_options(options)
    warehouse = choose_warehouse(options.warehouse)
    sources = {name: Source(name, warehouse) for name in options.datasets}
    config = dict(_build_config(options, list(sources.values())))
    described = [] if options.kind == "merge_record" else sources.values()
    lines = [f"# {line}" for source in described for line in source.describe()]
    lines += [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in config.items()]
    text = "\n".join(lines) + "\n"
    if options.output == STDOUT:
        sys.stdout.write(text)
        return 0
    try:
        Path(options.output).parent.mkdir(parents=True, exist_ok=True)
        Path(options.output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise _refuse(options.output, f"cannot be written: {error.strerror}", "choose another file") from None
    print(f"wrote {options.output}")
    if PLACEHOLDER in config.values():
        print(f"replace {PLACEHOLDER} in it, then run airflow_merge_provider check {options.output}")
    return 0


class Source:
    """A dataset to read: a Delta table, a file, or a folder of files.

    :raises ConfigError: if it has no location.
    :raises DataError: if it is none of these.
    """

    def __init__(self, ref: str, warehouse: str | None) -> None:
        is_file = _find_format(ref) is not None
        self.ref = (
            str(Path(ref).absolute()) if is_file and Path(ref).is_file() else resolve_relative_path(ref)
        )
        dataset = resolve_dataset(self.ref, warehouse, at="--datasets")
        if dataset.path is None:
            message = f"the location of the catalog table {ref} is unknown without Spark"
            raise _refuse("--datasets", message, "set the location")
        self.location = dataset.path
        self.alias = re.sub(r"\W", "_", Path(self.location).stem, flags=re.ASCII)
        self.format = "delta"
        table = None if is_file else find_table(self.location)
        self._columns = None if table is None else list_types(table)
        if table is None:
            self._files, self._file, self.format = self._find_file()

    @property
    def dataset(self) -> str | dict[str, Any]:
        """The dataset as a run file names it."""
        if self.format == "delta":
            return self.ref
        options = {"options": {"header": "true"}} if self.format == "csv" else {}
        return {"dataset": self.location, "format": self.format, **options}

    @property
    def columns(self) -> Mapping[str, str]:
        """The type of each column; an empty text where only Spark's reader can tell it."""
        if self._columns is None:
            readers: dict[str, Callable[[Any], dict[str, str]]] = {
                "csv": _read_header,
                "json": _read_record,
                "parquet": _read_parquet,
            }
            try:
                with self._files.open(self._file) as file:
                    self._columns = readers.get(self.format, lambda _: {})(file)
            except (ValueError, OSError, csv.Error) as error:
                raise DataError(f"{self._file} cannot be read as {self.format}: {error}") from None
        return self._columns

    def describe(self) -> Iterator[str]:
        """Yield a line with the name of the source, and one for each column."""
        yield f"columns of {self.ref}:"
        yield from (f"  {escape_text(name)}{kind and f': {kind}'}" for name, kind in self.columns.items())

    def require_columns(self, names: Sequence[str]) -> list[str]:
        """Return the columns of names, which may differ in case.

        :raises ConfigError: with every name that the source does not have.
        """
        columns = {name: find_column(name, self.columns) for name in names}
        problems = [
            Problem("--key", "unknown", f"{self.ref} has no column {name!r}", hint)
            for name, column in columns.items()
            if column is None and (hint := suggest_name(name, list(self.columns), "columns"))
        ]
        if problems:
            raise ConfigError.from_problems(problems)
        return [column for column in columns.values() if column is not None]

    def _find_file(self) -> tuple[Any, str, str]:
        """Return the file system, the first file with a known ending in the order of names, and its format.

        :raises DataError: if there is none.
        """
        files, root = open_folder(self.location, complete_arguments(self.location))
        for path in sorted(map(str, files.find(root))):
            is_hidden = is_skipped_by_spark(path.removeprefix(root).lstrip("/"))
            if not is_hidden and (name := _find_format(path)) is not None:
                return files, path, name
        raise DataError(
            f"{self.location} is neither a Delta table nor a file or folder of files with a known ending "
            f"({', '.join(_ENDINGS)}): check the name and the warehouse"
        )


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


def _build_config(options: argparse.Namespace, sources: Sequence[Source]) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of the operator.

    :raises ConfigError: if a source has no column of the key.
    """
    kind, target = options.kind, options.target
    yield "job", kind
    if options.warehouse:
        yield "warehouse", options.warehouse
    if kind == "merge_record":
        yield from {
            "source": sources[0].ref,
            "merged": target,
            **{name: f"{target}_{name}" for name in ("failure", "original")},
            "state_path": f"{target}_state",
            "reader": {"format": sources[0].format},
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


def _read_header(file: Any) -> dict[str, str]:
    """Return the columns of a CSV file."""
    return dict.fromkeys(next(csv.reader(codecs.iterdecode(file, "utf-8-sig")), ()), "string")


def _read_record(file: Any) -> dict[str, str]:
    """Return the fields of the first record of a file with one JSON object per line."""
    record = json.loads(file.readline(_LINE_MAX_BYTES))
    if not isinstance(record, dict):
        raise ValueError("its first line must be an object")  # noqa: TRY004 - the data is wrong, not a type
    return dict.fromkeys(map(str, record), "")


def _read_parquet(file: Any) -> dict[str, str]:
    if isinstance(file, LocalFileOpener):
        return list_parquet_types(file.path)
    with tempfile.NamedTemporaryFile(suffix=".parquet") as copy:
        shutil.copyfileobj(file, copy)
        copy.flush()
        return list_parquet_types(copy.name)


def _find_format(path: str) -> str | None:
    return _ENDINGS.get(path.rpartition(".")[2].lower()) if "." in path else None


def _refuse(path: str, message: str, hint: str) -> ConfigError:
    return ConfigError.from_problems([Problem(path, "value", message, hint)])
