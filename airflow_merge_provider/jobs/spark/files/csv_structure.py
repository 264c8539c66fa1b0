"""The structure of CSV files, which Spark's parser does not check, by the driver or by Spark.

Source: docs/values.md, Files; docs/semantics/merge_record.md, Formats.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import io
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, BinaryIO, cast

from pyspark.sql import Row, SparkSession, functions as F

from airflow_merge_provider.core.change_plan.shown_rows import mask_text
from airflow_merge_provider.core.dataset import Dataset, escape_pattern
from airflow_merge_provider.core.errors import ConfigError, Problem
from airflow_merge_provider.core.file_options import find_option
from airflow_merge_provider.jobs.spark.files.container_files import find_location, list_files, read_headers
from airflow_merge_provider.jobs.spark.files.file_problem import UnreadableError
from airflow_merge_provider.jobs.spark.files.raw_texts import ASCII_ENCODINGS, COMPRESSED

# The longest line and the longest value that can be read, in characters, so that every read ends.
_LINE_MAX_LENGTH = 1 << 30
_NUL = "\0"
_CHUNK_BYTES, _EXAMPLE_BYTES = 1 << 20, 20
_MIXED_ENDS = "it ends in another way than the first one (quote values with line breaks)"
# Characters of no text, for a separator of several characters, and for a character that is escaped.
_SEPARATOR, _ESCAPED = "\ufdd0", "\ufdd1"
_LINE_ENDS = ("\n", "\r", "\r\n")
# With these options, or without multiLine, Spark leaves out lines of blanks, too.
_TRIMMING = ("ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace")
EMPTY_LINE = "which Spark leaves out, although it may be a record of one column (quote empty values)"
LOST_BLANKS = (
    "it has separators only, and Spark leaves it out (leave out the option multiLine, or write quotes)"
)
_OPEN_QUOTE = "a quoted value does not end (double the quotes in values)"
# UTF-8 with or without a byte order mark.
_UTF8_WITH_BOM = "utf-8-sig"


class CsvError(UnreadableError, ValueError):
    """Raised if no record of a file can be read."""


@dataclass(frozen=True, slots=True)
class CsvFile:
    """The cells of a file's first record, the end of its line, and the number of the records after it.

    ``records`` is None if they were not counted; ``problem`` states why one of them cannot be read.
    ``is_text`` is True if all bytes are known to be text of the encoding.
    """

    cells: tuple[str, ...] = ()
    line_end: str = "\n"
    records: int | None = None
    problem: str | None = None
    is_text: bool = False


class CsvScanner:
    """Reads the structure of CSV files by the options of their reader.

    Python's parser is strict: it reports a quoted value that does not end, which would hide the records that
    follow, and text after a quoted value. Spark's parser accepts both.
    """

    def __init__(self, options: Mapping[str, str], path: str = "reader.options") -> None:
        """Check the options.

        :param path: names the options in errors.
        :raises ConfigError: if no file at all can be read with these options.
        """
        self._encoding = find_option(options, "encoding", _UTF8_WITH_BOM)
        self._comment = find_option(options, "comment")
        quote = find_option(options, "quote", '"')
        escape = find_option(options, "escape", quote or '"')
        self.separator = find_option(options, "sep", ",").replace("\\t", "\t")
        self._line_sep = find_option(options, "lineSep")
        self._has_header = find_option(options, "header").lower() == "true"
        # Spark's parser escapes in quoted values only, which Python's does not know.
        escapes = escape not in {quote, ""}
        self._escaped = re.compile(f"{re.escape(escape)}[{re.escape(quote + escape)}]") if escapes else None
        self._dialect: dict[str, object] = {
            "delimiter": _SEPARATOR if len(self.separator) > 1 else self.separator,
            "quotechar": quote or None,
            "quoting": csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
        }
        # Without this, a record ends at its line end, whatever its quotes.
        self._is_multi_line = find_option(options, "multiLine", "true").lower() == "true"
        self.keeps_blanks = self._is_multi_line and not any(
            find_option(options, name).lower() == "true" for name in _TRIMMING
        )
        # Then it leaves out records without values, too.
        self.loses_blanks = self.separator.isspace() and not self.keeps_blanks
        # The lines of a quoted value may look like comments.
        self._is_strict = not self._comment
        csv.field_size_limit(_LINE_MAX_LENGTH)
        try:
            if codecs.lookup(self._encoding).name == "utf-8":
                self._encoding = _UTF8_WITH_BOM
            csv.reader([], **self._dialect)  # type: ignore[arg-type] # the names of its parameters
        except (LookupError, TypeError) as error:
            raise ConfigError.from_problems(
                [Problem(path, "options", str(error), "see the CSV options of Spark")]
            ) from None

    def scan_records(self, file: BinaryIO) -> CsvFile:
        """Return the structure of a file, whose records are all read."""
        return self._scan_file(file, is_whole=True, has_all_lines=True)

    def scan_header(self, file: BinaryIO, *, has_all_lines: bool = False) -> CsvFile:
        """Return the structure of a file's first record, and whether a line between records is empty.

        :param has_all_lines: whether the lines are read of a file in which one may be lost.
        """
        return self._scan_file(file, is_whole=False, has_all_lines=has_all_lines)

    def has_marks(self, file: BinaryIO, marks: Iterable[bytes]) -> bool:
        """Return whether a file has one of some bytes.

        :raises CsvError: if its bytes are not text of the encoding.
        """
        decoder, has_mark = codecs.getincrementaldecoder(self._encoding)(), False
        try:
            for chunk in iter(partial(file.read, _CHUNK_BYTES), b""):
                decoder.decode(chunk)
                has_mark = has_mark or any(mark in chunk for mark in marks)
            decoder.decode(b"", final=True)
        except UnicodeError as error:
            raise _describe_bytes(error) from None
        return has_mark

    def _scan_file(self, file: BinaryIO, *, is_whole: bool, has_all_lines: bool) -> CsvFile:
        with io.TextIOWrapper(file, encoding=self._encoding, newline="") as text:
            scanned = self._scan_text(text, is_whole=is_whole)
            may_lose = len(scanned.cells) == 1 or self.loses_blanks
            if has_all_lines and may_lose and scanned.cells and scanned.problem is None:
                return replace(scanned, problem=self._find_empty_line(text, len(scanned.cells)))
            return scanned

    def _scan_text(self, text: io.TextIOWrapper, *, is_whole: bool) -> CsvFile:
        lines, records = self._parse_records(text)
        try:
            cells = self._restore_cells(next((cells for cells in records if cells), ()))
            scanned = CsvFile(cells, lines.line_end or "\n")
            if self._line_sep not in ("", *([lines.line_end] if lines.line_end else _LINE_ENDS)):
                raise CsvError(f"its lines end with {scanned.line_end!r}, not lineSep (remove the option)")
            if is_whole and self._is_strict:
                scanned = self._check_records(scanned, records)
            if isinstance(text.newlines, tuple) and scanned.records:
                scanned = replace(scanned, problem=self._find_other_end(text, scanned.line_end))
        except UnicodeError as error:
            raise _describe_bytes(error) from None
        except csv.Error as error:
            raise CsvError(_describe_error(error, records.line_num)) from None
        if lines.has_nul:
            raise CsvError("a value has the character NUL, which CSV cannot hold (leave it out)")
        return scanned

    def _parse_records(self, text: io.TextIOWrapper, *, is_strict: bool | None = None) -> tuple[_Lines, Any]:
        lines = _Lines(text, self._comment)
        strict = self._is_strict if is_strict is None else is_strict
        is_plain = self._escaped is None and len(self.separator) == 1
        texts = lines if is_plain else map(self._convert_line, lines)
        return lines, csv.reader(texts, strict=strict, **self._dialect)  # type: ignore[arg-type] # see above

    def _convert_line(self, line: str) -> str:
        """Return a line in the form that Python's parser reads like Spark's."""
        line = self._escaped.sub(_ESCAPED, line) if self._escaped else line
        return line.replace(self.separator, _SEPARATOR) if len(self.separator) > 1 else line

    def _restore_cells(self, cells: Iterable[str]) -> tuple[str, ...]:
        restored = tuple(cell.replace(_SEPARATOR, self.separator) for cell in cells)
        if self._has_header and any(_ESCAPED in cell for cell in restored):
            raise CsvError("a name in its header has escaped characters (write names without them)")
        return restored

    def _check_records(self, scanned: CsvFile, records: Any) -> CsvFile:
        line = records.line_num
        try:
            if self._is_multi_line:
                lengths = Counter(map(len, records))
                # A line without any character is no record.
                return replace(scanned, records=lengths.total() - lengths[0])
            for _ in records:
                if records.line_num > line + 1:
                    return replace(scanned, problem=f"line {line + 1}: {_OPEN_QUOTE}")
                line = records.line_num
        except csv.Error as error:
            line = records.line_num if self._is_multi_line else line + 1
            return replace(scanned, problem=_describe_error(error, line))
        return scanned

    def _find_empty_line(self, text: io.TextIOWrapper, columns: int) -> str | None:
        """Return which line between records is empty: Spark leaves it out, and some write NULL so."""
        text.seek(0)
        lines, records = self._parse_records(text, is_strict=False)
        has_record, empty_line = False, 0
        for cells in records:
            if cells and (self.keeps_blanks or not lines.is_blank):
                if empty_line:
                    return f"line {empty_line}: it is empty, {EMPTY_LINE}"
                has_record = True
            elif cells and columns > 1:
                return f"line {records.line_num}: {LOST_BLANKS}"
            elif has_record and columns == 1:
                empty_line = empty_line or records.line_num
        return None

    def _find_other_end(self, text: io.TextIOWrapper, line_end: str) -> str | None:
        """Return which record ends in another way: Spark takes its end for a part of the value."""
        text.seek(0)
        lines, records = self._parse_records(text)
        other = next((True for _ in records if lines.line_end not in ("", line_end)), False)
        return f"line {records.line_num}: {_MIXED_ENDS}" if other else None


class _Lines:
    """The lines of a text, without comments; remembers the end of the last line."""

    def __init__(self, text: io.TextIOWrapper, comment: str) -> None:
        self._text, self._comment = text, comment
        self._last = "\n"
        self.has_nul = False

    @property
    def line_end(self) -> str:
        """The end of the last line, which may have none."""
        end = self._last[-2:]
        return end if end == "\r\n" else end[-1:] if end[-1:] in ("\n", "\r") else ""

    @property
    def is_blank(self) -> bool:
        """Whether the last line has blanks only."""
        return not self._last.strip()

    def __iter__(self) -> Iterator[str]:
        for line in self._text:
            if self._comment and line.startswith(self._comment):
                continue
            self._last = line
            self.has_nul = self.has_nul or _NUL in line
            yield line


def find_repeated_name(names: Iterable[str], *, is_case_sensitive: bool) -> str | None:
    """Return the problem of a header that has a name more than once, or None."""
    first_names: dict[str, str] = {}
    for name in names:
        key = name if is_case_sensitive else name.casefold()
        if key in first_names:
            return _describe_names(first_names[key], name)
        first_names[key] = name
    return None


def _describe_names(first: str, second: str) -> str:
    if not first:
        return "its header has more than one column without a name (name them)"
    if first == second:
        return f"its header has the column {first!r} more than once (give the columns different names)"
    return f"its header has columns whose names differ in case only, {first!r} and {second!r} (rename one)"


def _describe_bytes(error: UnicodeError) -> CsvError:
    if not isinstance(error, UnicodeDecodeError):
        return CsvError(
            "it has no byte order mark (set the option encoding with its order, such as UTF-16LE)"
        )
    example = error.object[max(error.start - _EXAMPLE_BYTES, 0) : error.end + _EXAMPLE_BYTES]
    text = mask_text(repr(example.decode(error.encoding, "replace")))
    return CsvError(
        f"it has bytes that are not {error.encoding.upper()}: {text} (set the option encoding, such as "
        "ISO-8859-1, or write the file in UTF-8)"
    )


def _describe_error(error: csv.Error, line: int) -> str:
    """Return an error of Python's parser in the words of CSV."""
    reason = str(error)
    if "unexpected end of data" in reason:
        reason = _OPEN_QUOTE
    elif "expected after" in reason:
        reason = "text follows the end of a quoted value (double the quotes in values)"
    else:
        reason += " (correct it)"
    return f"line {line}: {reason}"


# The driver reads files of so many bytes together, else only their headers.
_SCAN_MAX_BYTES = 1 << 30
# The name by which Spark knows gzip, and how many bytes of text one of it may have.
_GZIP_SUFFIX, _GZIP_FACTOR = ".gz", 8
# Characters without which each line is a record, in encodings with one byte for each of them.
_NO_RECORD_END = (b"\r", b"\0")


def scan_csv_files(spark: SparkSession, dataset: Dataset, options: Mapping[str, str]) -> dict[str, CsvFile]:
    """Return the structure of the files of a dataset by their URIs."""
    uris = list_files(spark, dataset)
    scanner = CsvScanner(options, dataset.id)
    plain = [uri for uri in uris if not re.search(COMPRESSED, uri)]
    packed = [uri for uri in uris if uri.endswith(_GZIP_SUFFIX)]
    is_strict = find_option(options, "mode").upper() == "FAILFAST"
    quote = find_option(options, "quote", '"').encode()
    marks = (*_NO_RECORD_END, quote) if is_strict else ()
    scan = partial(_scan_file, scanner, marks, _SCAN_MAX_BYTES // max(len(plain) + len(packed), 1))
    scanned = {
        **(read_headers(spark, plain, scan) or {}),
        **(read_headers(spark, packed, partial(scan, is_packed=True)) or {}),
    }
    files = {uri: file for uri, file in scanned.items() if file}
    other_uris = [uri for uri in uris if uri not in files]
    return files | (_scan_lines(spark, scanner, other_uris, options) if other_uris else {})


def _scan_file(
    scanner: CsvScanner, marks: Sequence[bytes], share: int, file: BinaryIO, *, is_packed: bool = False
) -> CsvFile | None:
    """Return the structure of a file, of gzip perhaps; None for one whose lines Spark reads."""
    is_text = file.seek(0, io.SEEK_END) * (_GZIP_FACTOR if is_packed else 1) <= share
    file.seek(0)
    if is_packed and not is_text:
        return None
    file = cast("BinaryIO", gzip.GzipFile(fileobj=file)) if is_packed else file
    try:
        has_marks = is_text and scanner.has_marks(file, marks)
        file.seek(0)
        scanned = (
            scanner.scan_records(file) if has_marks else scanner.scan_header(file, has_all_lines=is_text)
        )
    except ValueError as error:
        return CsvFile(problem=str(error))
    except (gzip.BadGzipFile, EOFError, zlib.error):
        return None
    is_large = not is_text and (len(scanned.cells) == 1 or scanner.loses_blanks)
    return None if is_large else replace(scanned, is_text=is_text)


def _scan_lines(
    spark: SparkSession, scanner: CsvScanner, uris: Sequence[str], options: Mapping[str, str]
) -> dict[str, CsvFile]:
    """Return the structure of the first lines of files; one cell without an end if the cells are unknown."""
    texts = spark.read.option("lineSep", "\n").text([escape_pattern(find_location(uri)) for uri in uris])
    metadata = texts.metadataColumn("_metadata")
    row_id = F.monotonically_increasing_id()  # noqa: TID251 - compared within one file of one scan
    lines = texts.select(
        "value",
        metadata.getField("file_path").alias("path"),
        F.struct(metadata.getField("file_block_start"), row_id).alias("position"),
    )
    if comment := find_option(options, "comment"):
        lines = lines.where(~F.startswith("value", F.lit(comment)))
    text = F.regexp_replace("value", r"\r\z" if scanner.keeps_blanks else r"\A\s+|\s+\z", "")
    position, empty = (F.when(is_line, F.col("position")) for is_line in (text != "", text == ""))
    first, last = F.min(position), F.max(position)
    # Quoted values may have empty lines.
    quote = find_option(options, "quote", '"')
    is_plain = ~F.bool_or(F.contains("value", F.lit(quote))) if quote else F.lit(True)
    has_empty = F.min(empty).between(first, last) | F.max(empty).between(first, last)
    has_empty = F.coalesce(is_plain & has_empty, F.lit(False))
    has_blanks = F.bool_or((text == "") & F.contains("value", F.lit(scanner.separator)))
    aggregates = (
        F.min_by("value", position).alias("line"),
        has_empty.alias("has_empty"),
        (has_blanks & F.lit(scanner.loses_blanks)).alias("has_blanks"),
    )
    rows = lines.groupBy("path").agg(*aggregates).where(F.col("line").isNotNull())
    own_scanner = scanner if find_option(options, "encoding").upper() in ASCII_ENCODINGS else None
    return {row.path: _scan_line(own_scanner, row) for row in rows.collect()}


def _scan_line(scanner: CsvScanner | None, row: Row) -> CsvFile:
    # The header may have a line break.
    with contextlib.suppress(ValueError):
        if scanner is not None:
            scanned = scanner.scan_header(io.BytesIO(f"{row.line}\n".encode()))
            if row.has_empty and len(scanned.cells) == 1:
                return replace(scanned, problem=f"a line is empty, {EMPTY_LINE}")
            return replace(scanned, problem=f"a line is lost: {LOST_BLANKS}") if row.has_blanks else scanned
    return CsvFile((row.line.removeprefix("\ufeff"),), "")
