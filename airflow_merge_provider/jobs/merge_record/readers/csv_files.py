"""The structure of CSV files, which Spark's parser does not check, and the types of their texts.

Source: docs/semantics/merge_record.md, Formats.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from pyspark.sql import Column, functions as F

from airflow_merge_provider.core.errors import ConfigError, Problem
from airflow_merge_provider.core.merge_record.schema import VOID
from airflow_merge_provider.jobs.merge_record.readers.unreadable import UnreadableError
from airflow_merge_provider.jobs.spark.formats import find_option

# The longest line and the longest value that can be read, in characters, so that every read ends.
_LINE_MAX_LENGTH = 1 << 30
_NUL = "\0"
# UTF-8 with or without a byte order mark.
_UTF8 = "utf-8-sig"
_NUMBER = "^-?[0-9]"
# The types of columns by the kinds of their texts.
_TYPES: tuple[tuple[set[str], str], ...] = (
    (set(), VOID),
    ({"int"}, "int"),
    ({"int", "long"}, "long"),
    ({"double"}, "double"),
    ({"boolean"}, "boolean"),
)


@dataclass(frozen=True, slots=True)
class CsvFile:
    """The cells of a file's first record, the end of its line, and the number of the records after it.

    ``records`` is None if they were not counted; ``problem`` states why one of them cannot be read.
    """

    cells: tuple[str, ...] = ()
    line_end: str = "\n"
    records: int | None = None
    problem: str | None = None


class CsvScanner:
    """Reads the structure of CSV files by the options of their reader.

    Python's parser is strict: it reports a quoted value that does not end, which would hide the records that
    follow, and text after a quoted value. Spark's parser accepts both.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        """Check the options.

        :raises ConfigError: if no file at all can be read with these options.
        """
        self._encoding = find_option(options, "encoding", _UTF8)
        self._comment = find_option(options, "comment")
        quote = find_option(options, "quote", '"')
        escape = find_option(options, "escape", quote or '"')
        self._dialect: dict[str, object] = {
            "delimiter": find_option(options, "sep", ","),
            "quotechar": quote or None,
            "quoting": csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
            "doublequote": escape in {quote, ""},
            "escapechar": None if escape in {quote, ""} else escape,
        }
        # A record ends at its line end, whatever its quotes, unless its values may have line breaks.
        self._is_strict = not self._comment and find_option(options, "multiLine", "true").lower() == "true"
        csv.field_size_limit(_LINE_MAX_LENGTH)
        try:
            if codecs.lookup(self._encoding).name == "utf-8":
                self._encoding = _UTF8
            csv.reader([], **self._dialect)  # type: ignore[arg-type] # the names of its parameters
        except (LookupError, TypeError) as error:
            raise ConfigError.from_problems(
                [Problem("reader.options", "options", str(error), "see the CSV options of Spark")]
            ) from None

    def scan_records(self, file: BinaryIO) -> CsvFile:
        """Return the structure of a file, whose records are all read."""
        return self._scan_file(file, is_whole=True)

    def scan_header(self, file: BinaryIO) -> CsvFile:
        """Return the structure of a file's first record."""
        return self._scan_file(file, is_whole=False)

    def _scan_file(self, file: BinaryIO, *, is_whole: bool) -> CsvFile:
        with io.TextIOWrapper(file, encoding=self._encoding, newline="") as text:
            return self._scan_text(text, is_whole=is_whole)

    def _scan_text(self, text: io.TextIOWrapper, *, is_whole: bool) -> CsvFile:
        lines = _Lines(text, self._comment)
        records = csv.reader(lines, strict=self._is_strict, **self._dialect)  # type: ignore[arg-type] # see above
        try:
            scanned = CsvFile(tuple(next((cells for cells in records if cells), ())), lines.line_end)
            if is_whole and self._is_strict:
                scanned = _count_records(scanned, records)
        except UnicodeDecodeError as error:
            raise UnreadableError(
                f"it is not valid {error.encoding.upper()} (set the option encoding of the reader)"
            ) from None
        except csv.Error as error:
            raise UnreadableError(_describe_error(error, records.line_num)) from None
        if lines.has_nul:
            raise UnreadableError("a value has the character NUL, which CSV cannot hold")
        return scanned


def _count_records(scanned: CsvFile, records: Any) -> CsvFile:
    try:
        lengths = Counter(map(len, records))
    except csv.Error as error:
        return replace(scanned, problem=_describe_error(error, records.line_num))
    # A line without any character is no record.
    return replace(scanned, records=lengths.total() - lengths[0])


class _Lines:
    """The lines of a text, without comments; remembers the end of the last line."""

    def __init__(self, text: io.TextIOWrapper, comment: str) -> None:
        self._text, self._comment = text, comment
        self._last = "\n"
        self.has_nul = False

    @property
    def line_end(self) -> str:
        """The end of the last line: a line feed if it has none."""
        return next((end for end in ("\r\n", "\n", "\r") if self._last.endswith(end)), "\n")

    def __iter__(self) -> Iterator[str]:
        for line in self._text:
            if self._comment and line.startswith(self._comment):
                continue
            self._last = line
            self.has_nul = self.has_nul or _NUL in line
            yield line


def _describe_error(error: csv.Error, line: int) -> str:
    """Return an error of Python's parser in the words of CSV."""
    reason = str(error)
    if "unexpected end of data" in reason:
        reason = "a quoted value does not end (double the quotes in values)"
    elif "expected after" in reason:
        reason = "text follows the end of a quoted value (double the quotes in values)"
    return f"line {line}: {reason}"


def classify_text(text: Column) -> Column:
    """Return the kind of a text; NULL for NULL."""

    def is_kept(kind: str) -> Column:
        return text.rlike(_NUMBER) & text.try_cast(kind).cast("string").eqNullSafe(text)

    return (
        F.when(is_kept("int"), "int")
        .when(is_kept("long"), "long")
        .when(is_kept("double"), "double")
        .when(text.isin("true", "false"), "boolean")
        .when(text.isNotNull(), "string")
    )


def choose_type(kinds: Iterable[str]) -> str:
    """Return the type of a column from the kinds of its texts."""
    present_kinds = set(kinds)
    return next(
        (type_name for type_kinds, type_name in _TYPES if present_kinds <= type_kinds),
        "string",
    )
