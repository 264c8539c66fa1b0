"""Find the structure of the CSV files of a dataset: by the driver, or by Spark for files that only it sees.

Source: docs/values.md, Files.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import BinaryIO, cast

from pyspark.sql import Row, SparkSession, functions as F

from airflow_merge_provider.core.dataset import Dataset, escape_pattern
from airflow_merge_provider.core.file_options import find_option
from airflow_merge_provider.jobs.spark.files.container_files import find_location, list_files, read_headers
from airflow_merge_provider.jobs.spark.files.csv_structure import EMPTY_LINE, LOST_BLANKS, CsvFile, CsvScanner
from airflow_merge_provider.jobs.spark.files.raw_texts import ASCII_ENCODINGS, COMPRESSED

# The driver reads files of so many bytes together, else only their headers.
_SCAN_MAX_BYTES = 1 << 30
# The first bytes of gzip, and how many bytes of text one of it may have.
_GZIP, _GZIP_FACTOR = b"\x1f\x8b", 8
# Characters without which each line is a record, in encodings with one byte for each of them.
_NO_RECORD_END = (b"\r", b"\0")


def scan_csv_files(spark: SparkSession, dataset: Dataset, options: Mapping[str, str]) -> dict[str, CsvFile]:
    """Return the structure of the files of a dataset by their URIs."""
    uris = list_files(spark, dataset)
    scanner = CsvScanner(options, dataset.id)
    plain = [uri for uri in uris if uri.endswith(".gz") or not re.search(COMPRESSED, uri)]
    is_strict = find_option(options, "mode").upper() == "FAILFAST"
    quote = find_option(options, "quote", '"').encode()
    marks = (*_NO_RECORD_END, quote) if is_strict else ()
    scan = partial(_scan_file, scanner, marks, _SCAN_MAX_BYTES // max(len(plain), 1))
    files = {uri: file for uri, file in (read_headers(spark, plain, scan) or {}).items() if file}
    other_uris = [uri for uri in uris if uri not in files]
    return files | (_scan_lines(spark, scanner, other_uris, options) if other_uris else {})


def _scan_file(scanner: CsvScanner, marks: Sequence[bytes], share: int, file: BinaryIO) -> CsvFile | None:
    """Return the structure of a file; None for one whose lines Spark reads."""
    is_packed = file.read(len(_GZIP)) == _GZIP
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
    except (EOFError, zlib.error):
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
