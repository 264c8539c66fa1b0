"""Read the columns of the datasets that the command line names: Delta tables, and files of any format."""

from __future__ import annotations

import codecs
import csv
import io
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileOpener

from airflow_merge_provider.cli.run_file import resolve_relative_path
from airflow_merge_provider.core.dataset import (
    Dataset,
    is_bare_id,
    is_location,
    is_skipped_by_spark,
    resolve_dataset,
)
from airflow_merge_provider.core.errors import ConfigError, DataError, Problem, SetupError, suggest_name
from airflow_merge_provider.core.file_options import find_option
from airflow_merge_provider.core.object_store.clients import complete_arguments
from airflow_merge_provider.core.value_text import escape_text
from airflow_merge_provider.delta_rs import find_table
from airflow_merge_provider.explain.reading import find_column, list_parquet_types, list_types
from airflow_merge_provider.file_store.folder import open_folder

_ENDINGS = {
    **{name: name for name in ("csv", "json", "parquet", "avro", "orc", "xml")},
    "jsonl": "json",
    "ndjson": "json",
}
_SAMPLE_MAX_BYTES = 1 << 20
# A quote that is not closed makes a field of all that follows; the limit of the module may have been raised.
_NAME_MAX_LENGTH = 1 << 17
_DELIMITERS = ",;\t|"
# The encodings of CSV files that Spark reads and that the first bytes of a file show.
_UTF_8, _UTF_16, _LATIN = "UTF-8", "UTF-16", "ISO-8859-1"
_UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# Letters in Windows-1252, which Spark does not read, and control characters in ISO 8859-1.
_WINDOWS_LETTERS = re.compile(rb"[\x80-\x9f]")


class Source:
    """A dataset to read: a Delta table, a file, or a folder of files.

    :param ref: a bare ID, a location, or a path below the current folder.
    :param has_header: whether the first line of CSV files has the names of their columns.
    :raises ConfigError: if it has no location.
    :raises DataError: if it is none of these.
    """

    def __init__(self, ref: str, warehouse: str | None, *, has_header: bool = True) -> None:
        self.ref = _find_reference(ref, warehouse)
        dataset = resolve_dataset(self.ref, warehouse, at="--datasets")
        if dataset.path is None:
            message = f"the location of the catalog table {ref} is unknown without Spark"
            raise _refuse("--datasets", message, "set the location")
        self.location = dataset.path
        self.alias = re.sub(r"\W", "_", Path(self.location).stem, flags=re.ASCII)
        self.format = "delta"
        self.options: dict[str, Any] = {}
        table = None if find_format(ref) else find_table(self.location)
        self._columns = None if table is None else list_types(table)
        if table is None:
            self._files = FileFolder(self.location)
            self._files.require_one_format()
            self.format = self._files.format
            if self.format == "csv":
                self.options = self._files.detect_csv_options(has_header=has_header)

    @property
    def dataset(self) -> str | dict[str, Any]:
        """The dataset as a run file names it."""
        return self.ref if self.format == "delta" else {"dataset": self.location, **self.reader}

    @property
    def reader(self) -> dict[str, Any]:
        """The format and the options with which Spark reads the files."""
        return {"format": self.format, **({"options": self.options} if self.options else {})}

    @property
    def file_count(self) -> int:
        """The number of files; 0 for a Delta table."""
        return 0 if self.format == "delta" else len(self._files.paths)

    @property
    def columns(self) -> Mapping[str, str]:
        """The type of each column; an empty text where only Spark's reader can tell it."""
        if self._columns is None:
            self._columns = self._files.read_columns(self.options)
        return self._columns

    def describe(self) -> Iterator[str]:
        """Yield a line with the files of the source, if it has any, with how they are read."""
        if not self.file_count:
            return
        files = "1 file" if self.file_count == 1 else f"{self.file_count} files"
        text = f"{escape_text(self.location)}: {files}, {self.format}"
        if self.format == "csv":
            header = "with a header" if self.options["header"] else "without a header"
            delimiter = find_option(self.options, "sep", _DELIMITERS[0])
            encoding = find_option(self.options, "encoding", _UTF_8)
            text += f" {header}, delimiter {json.dumps(delimiter)}, encoding {encoding}"
        yield text

    def describe_columns(self) -> Iterator[str]:
        """Yield a line with the name of the source, and one for each column."""
        yield f"columns of {escape_text(self.ref)}:"
        yield from (f"  {escape_text(name)}{kind and f': {kind}'}" for name, kind in self.columns.items())

    def require_columns(self, names: Sequence[str]) -> list[str]:
        """Return the columns of names, which may differ in case.

        :raises ConfigError: with every name that the source does not have.
        """
        columns = {name: find_column(name, self.columns) for name in names}
        no_header = ", or set --no-header if its first line is a record" if self.options.get("header") else ""
        problems = [
            Problem("--key", "unknown", f"{self.ref} has no column {name!r}", f"{hint}{no_header}")
            for name, column in columns.items()
            if column is None and (hint := suggest_name(name, list(self.columns), "columns"))
        ]
        if problems:
            raise ConfigError.from_problems(problems)
        return [column for column in columns.values() if column is not None]


class FileFolder:
    """A file or a folder of files with a known ending, as Spark lists them.

    :raises DataError: if there is no such file.
    :raises SetupError: if the store cannot be read.
    """

    def __init__(self, location: str) -> None:
        self._store, self._root = open_folder(location, complete_arguments(location))
        try:
            paths = sorted(map(str, self._store.find(self._root)))
        except Exception as error:
            # The library of each store has errors of its own.
            hint = "check its address, and the credentials in the environment or of --store-conn"
            raise SetupError(f"{location}: cannot be listed: {hint} ({error})") from error
        visible = (
            path for path in paths if not is_skipped_by_spark(path.removeprefix(self._root).lstrip("/"))
        )
        self._visible = list(visible)
        self.paths = [path for path in self._visible if find_format(path)]
        if not self.paths:
            message = (
                f"{location} is neither a Delta table nor a file or folder of files with a known ending "
                f"({', '.join(_ENDINGS)})"
            )
            raise DataError.from_problems(
                [Problem("", "missing", message, "check the name and the warehouse")]
            )
        self.format = str(find_format(self.paths[0]))

    def require_one_format(self) -> None:
        """Check that all files have the format of the first one: Spark reads every file of a folder.

        :raises DataError: with a file that has another ending.
        """
        another = next((path for path in self._visible if find_format(path) != self.format), None)
        if another is not None:
            message = f"is in a folder of {self.format} files, and Spark would read it as {self.format}, too"
            hint = "move it to another folder, or name a file"
            raise DataError.from_problems([Problem(another, "format", message, hint)])

    def read_columns(self, options: Mapping[str, Any], kind: str | None = None) -> dict[str, str]:
        """Return the columns of the first file, and those of the names of its folders.

        :param kind: the format, if the ending of the file does not tell it.
        :raises DataError: if the file does not have the format.
        """
        kind, path = kind or self.format, self.paths[0]
        readers: dict[str, Callable[[Any], dict[str, str]]] = {
            "csv": lambda file: _read_header(file.read(_SAMPLE_MAX_BYTES), options),
            "json": _read_record,
            "parquet": _read_parquet,
        }
        try:
            with self._store.open(path) as file:
                columns = readers.get(kind, lambda _: {})(file)
        except (ValueError, OSError, csv.Error) as error:
            raise DataError(f"{path} cannot be read as {kind}: {error}") from None
        folders = path.removeprefix(self._root).split("/")[:-1]
        return columns | {part.partition("=")[0]: "" for part in folders if "=" in part}

    def detect_csv_options(self, *, has_header: bool) -> dict[str, Any]:
        """Return the options with which Spark reads the CSV files: the header, delimiter and encoding.

        :raises DataError: if Spark does not read the first of them, or if it is empty.
        """
        path = self.paths[0]
        try:
            with self._store.open(path) as file:
                sample = file.read(_SAMPLE_MAX_BYTES)
            encoding = _detect_encoding(sample, path)
            options = {} if encoding == _UTF_8 else {"encoding": encoding}
            counts = {sep: len(_read_header(sample, {**options, "sep": sep})) for sep in _DELIMITERS}
        except (OSError, csv.Error) as error:
            raise DataError(f"{path} cannot be read as csv: {error}") from None
        if not any(counts.values()):
            hint = "name a file with a record, or with the names of the columns"
            raise DataError.from_problems([Problem(path, "empty", "has no columns", hint)])
        sep = max(counts, key=lambda name: counts[name])
        return {"header": has_header, **({} if sep == _DELIMITERS[0] else {"sep": sep}), **options}


def find_format(path: str) -> str | None:
    """Return the format of a file by the ending of its name; None if the ending is not known."""
    return _ENDINGS.get(path.rpartition(".")[2].lower()) if "." in path else None


def read_file_columns(dataset: Dataset) -> dict[str, str] | None:
    """Return the columns of files of a dataset; None if only Spark's reader can tell them.

    JSON files may have fields that their first record lacks, and Parquet files columns that the first of
    them lacks.

    :raises DataError: if there is no such file, or it cannot be read.
    """
    if dataset.path is None:
        return None
    files = FileFolder(dataset.path)
    is_known = {*map(str.lower, dataset.options)} <= {"header", "sep", "delimiter", "encoding", "inferschema"}
    if dataset.format == "csv" and is_known:
        return files.read_columns(dataset.options, dataset.format)
    return files.read_columns({}) if dataset.format == "parquet" and len(files.paths) == 1 else None


def _find_reference(ref: str, warehouse: str | None) -> str:
    """Return the location of a file or folder below the current folder, or the reference itself.

    A dataset of the warehouse takes precedence over a folder with its name.
    """
    is_path = find_format(ref) is not None or Path(ref).exists()
    if is_location(ref) or not is_path or (is_bare_id(ref) and _is_stored(ref, warehouse)):
        return str(resolve_relative_path(ref))
    return os.path.normpath(Path(ref).absolute())


def _is_stored(name: str, warehouse: str | None) -> bool:
    if warehouse is None:
        return False
    location = str(resolve_dataset(name, warehouse, at="--datasets").path)
    store, root = open_folder(location, complete_arguments(location))
    return bool(store.exists(root))


def _detect_encoding(sample: bytes, path: str) -> str:
    is_utf_16 = sample.startswith(_UTF_16_MARKS)
    try:
        text = _decode(sample, _UTF_16 if is_utf_16 else _UTF_8)
    except UnicodeDecodeError:
        if is_utf_16 or _WINDOWS_LETTERS.search(sample):
            raise _refuse_encoding(path, "WINDOWS-1252") from None
        return _LATIN
    # Of other encodings of Unicode, and of UTF-16 without its mark, every other character is NUL.
    if "\0" in text.partition("\n")[0]:
        raise _refuse_encoding(path, "UTF-16LE")
    return _UTF_16 if is_utf_16 else _UTF_8


def _refuse_encoding(path: str, example: str) -> DataError:
    message = "is neither UTF-8, UTF-16 with a byte order mark nor ISO 8859-1, which Spark reads"
    hint = f"convert it, for example with iconv -f {example} -t UTF-8"
    return DataError.from_problems([Problem(path, "encoding", message, hint)])


def _decode(sample: bytes, encoding: str) -> str:
    """Return the text of the beginning of a file, which may end within a character."""
    name = "utf-8-sig" if encoding.upper() == _UTF_8 else encoding
    return codecs.getincrementaldecoder(name)().decode(sample)


def _read_header(sample: bytes, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the columns of a CSV file; without a header, Spark numbers them."""
    text = _decode(sample, find_option(options, "encoding", _UTF_8))
    lines = io.StringIO(text, newline="")
    csv.field_size_limit(_NAME_MAX_LENGTH)
    reader = csv.reader(lines, delimiter=find_option(options, "sep", _DELIMITERS[0]))
    names: Sequence[str] = next(filter(None, reader), ())
    has_header = str(find_option(options, "header", "false")).lower() == "true"
    return {name if has_header and name else f"_c{number}": "string" for number, name in enumerate(names)}


def _read_record(file: Any) -> dict[str, str]:
    """Return the fields of the first record of a file with one JSON object per line."""
    try:
        record = json.loads(file.readline(_SAMPLE_MAX_BYTES))
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise ValueError("its first line must be an object: write one object per line")  # noqa: TRY004 - the data is wrong, not a type
    return dict.fromkeys(map(str, record), "")


def _read_parquet(file: Any) -> dict[str, str]:
    if isinstance(file, LocalFileOpener):
        return list_parquet_types(file.path)
    with tempfile.NamedTemporaryFile(suffix=".parquet") as copy:
        shutil.copyfileobj(file, copy)
        copy.flush()
        return list_parquet_types(copy.name)


def _refuse(path: str, message: str, hint: str) -> ConfigError:
    return ConfigError.from_problems([Problem(path, "value", message, hint)])
