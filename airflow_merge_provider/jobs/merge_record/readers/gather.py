"""Transfer of the lines of many small files to Spark: the driver reads them and passes them as one table.

Spark needs milliseconds to open each file, regardless of its size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from airflow_merge_provider.jobs.merge_record.files.listing import QueuedFile
from airflow_merge_provider.jobs.merge_record.files.storage import Storage
from airflow_merge_provider.jobs.merge_record.readers.containers import is_packed
from airflow_merge_provider.jobs.merge_record.readers.formats import BLOCK, FILE, POSITION
from airflow_merge_provider.jobs.merge_record.readers.json_numbers import (
    LONG_FRACTION,
    build_number_pattern,
    has_lossy_fraction,
)

LINE = "value"
# The driver reads files up to this average size in bytes, if their total size is not too large for it. Spark
# reads larger files faster; with a schema, it reads each of them twice.
_SMALL, _SMALL_WITH_SCHEMA = 1 << 16, 1 << 20
_MOST = 256 << 20
# The maximum number of bytes that are sent with the plan if Spark runs on another machine.
_MOST_SENT = 16 << 20
_BATCH = 32 << 20
_UTF8_BOM = b"\xef\xbb\xbf"
# Reader options that change how files are split into lines.
_LINE_OPTIONS = {"linesep", "encoding", "charset", "multiline", "wholetext", "compression"}


@dataclass(frozen=True, slots=True)
class GatheredLines:
    """Lines with the columns ``PLACE``; ``names`` maps each URI to its value in ``FILE``."""

    table: pa.Table
    names: dict[str, str]


def is_worth_it(
    files: Sequence[QueuedFile], options: Sequence[str], *, is_near: bool, has_schema: bool
) -> bool:
    """Return whether the driver should read the files: they are small, and no option changes their lines."""
    size = sum(file.entry.size for file in files)
    small = _SMALL_WITH_SCHEMA if has_schema else _SMALL
    plain = _LINE_OPTIONS.isdisjoint(name.lower() for name in options)
    return plain and size <= min(_MOST if is_near else _MOST_SENT, small * len(files))


def gather_objects(
    source: Storage, files: Sequence[QueuedFile], schema: StructType | None = None
) -> GatheredLines | None:
    """Read the lines of files that contain only JSON objects; skip other files and compressed files.

    With a schema, files whose numbers would change are skipped, too: Spark takes a number in a line, and its
    text, from a DOUBLE, and the text of one in a file as it is. Return None if no file qualifies.
    """
    plain = [file for file in files if not is_packed(file.entry.name)]
    tables: list[pa.Table] = []
    names: dict[str, str] = {}
    first = 0
    for batch in _batch_files(plain):
        contents = source.for_each(lambda file: source.read_file(file.entry.name), batch)
        table, file_names = _split_lines(batch, contents, first, schema)
        tables.append(table)
        names |= file_names
        first += len(batch)
    if not names:
        return None
    all_lines = pa.concat_tables(tables)
    position = pa.array(range(all_lines.num_rows), pa.int64())
    block = pa.nulls(all_lines.num_rows, pa.int64()).fill_null(0)
    return GatheredLines(all_lines.append_column(BLOCK, block).append_column(POSITION, position), names)


def _batch_files(files: Sequence[QueuedFile]) -> list[list[QueuedFile]]:
    batches: list[list[QueuedFile]] = []
    room = 0
    for file in files:
        if not batches or file.entry.size > room:
            batches.append([])
            room = _BATCH
        batches[-1].append(file)
        room -= file.entry.size
    return batches


def _split_lines(
    batch: Sequence[QueuedFile], contents: Sequence[bytes | None], first: int, schema: StructType | None
) -> tuple[pa.Table, dict[str, str]]:
    """Split contents into lines, without the lines of files that contain more than JSON objects.

    :return: the lines, and the value of ``FILE`` for each kept URI.
    """
    texts = [_decode_text(content) for content in contents]
    lists = pc.split_pattern(pa.array(texts, pa.string()), "\n")
    lines, owners = pc.list_flatten(lists), pc.list_parent_indices(lists)
    trimmed = pc.utf8_trim_whitespace(lines)
    is_line = pc.not_equal(trimmed, "")
    wrong = pc.and_(is_line, pc.invert(pc.starts_with(trimmed, "{")))
    invalid_indexes = {int(index) for index in pc.unique(owners.filter(wrong)).to_pylist()}
    invalid_indexes |= {index for index, text in enumerate(texts) if text is None}
    if schema is not None:
        invalid_indexes |= _find_owners(trimmed, owners, LONG_FRACTION, has_lossy_fraction)
        invalid_indexes |= _find_owners(trimmed, owners, build_number_pattern(schema), bool)
    is_valid = pc.and_(is_line, pc.invert(pc.is_in(owners, pa.array(sorted(invalid_indexes), owners.type))))
    names = pa.array([str(first + index) for index in range(len(batch))], pa.string())
    columns: dict[str, Any] = {LINE: lines.filter(is_valid), FILE: names.take(owners.filter(is_valid))}
    file_names = {
        file.uri: str(first + index) for index, file in enumerate(batch) if index not in invalid_indexes
    }
    return pa.table(columns), file_names


def _find_owners(lines: Any, owners: Any, pattern: str, is_found: Callable[[str], bool]) -> set[int]:
    """Return the owners of lines that match a pattern, and for which the function is true."""
    doubtful = pc.match_substring_regex(lines, pattern)
    pairs = zip(lines.filter(doubtful).to_pylist(), owners.filter(doubtful).to_pylist(), strict=True)
    return {owner for line, owner in pairs if is_found(line)}


def _decode_text(content: bytes | None) -> str | None:
    """Decode a content whose lines end with a line feed, as the split in Arrow requires.

    Return None if there is no content, if lines may end otherwise, or if it is not valid UTF-8.
    """
    if content is None:
        return None
    content = content.removeprefix(_UTF8_BOM).replace(b"\r\n", b"\n")
    if b"\r" in content:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None
