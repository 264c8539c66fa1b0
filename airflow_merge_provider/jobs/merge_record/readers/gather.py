"""Transfer of the lines of many small files to Spark: the driver reads them and passes them as one table.

Spark needs milliseconds to open each file, regardless of its size.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_merge_provider.jobs.merge_record.files.listing import QueuedFile
from airflow_merge_provider.jobs.merge_record.files.storage import Storage
from airflow_merge_provider.jobs.merge_record.readers.containers import is_packed
from airflow_merge_provider.jobs.merge_record.readers.formats import BLOCK, FILE, POSITION

LINE = "value"
# The driver reads files up to this average size in bytes, if their total size is not too large for it. Spark
# reads larger files faster, but reports lines with further text after their object only without a schema.
_SMALL, _SMALL_WITH_SCHEMA = 1 << 16, 1 << 20
_MOST = 256 << 20
# The maximum number of bytes that are sent with the plan if Spark runs on another machine.
_MOST_SENT = 16 << 20
_BATCH = 32 << 20
_BOM = b"\xef\xbb\xbf"
# Reader options that change how files are split into lines.
_LINE_OPTIONS = {"linesep", "encoding", "charset", "multiline", "wholetext", "compression"}


@dataclass(frozen=True, slots=True)
class GatheredLines:
    """Lines with the columns ``PLACE``; ``names`` maps each URI to its value in ``FILE``.

    ``overfull`` contains the URIs of files that have a line with further text after its object, which Spark
    would not report.
    """

    table: pa.Table
    names: dict[str, str]
    overfull: frozenset[str]


def is_worth_it(
    files: Sequence[QueuedFile], options: Sequence[str], *, is_near: bool, has_schema: bool
) -> bool:
    """Return whether the driver should read the files: they are small, and no option changes their lines."""
    size = sum(file.entry.size for file in files)
    small = _SMALL_WITH_SCHEMA if has_schema else _SMALL
    plain = _LINE_OPTIONS.isdisjoint(name.lower() for name in options)
    return plain and size <= min(_MOST if is_near else _MOST_SENT, small * len(files))


def gather_objects(source: Storage, files: Sequence[QueuedFile]) -> GatheredLines | None:
    """Read the lines of files that contain only JSON objects; skip other files and compressed files.

    Return None if no file qualifies.
    """
    plain = [file for file in files if not is_packed(file.entry.name)]
    tables: list[pa.Table] = []
    names: dict[str, str] = {}
    overfull: set[str] = set()
    first = 0
    for batch in _batch_files(plain):
        contents = source.for_each(lambda file: source.read_file(file.entry.name), batch)
        table, file_names, overfull_uris = _split_lines(batch, contents, first)
        tables.append(table)
        names |= file_names
        overfull |= overfull_uris & file_names.keys()
        first += len(batch)
    if not names:
        return None
    all_lines = pa.concat_tables(tables)
    position = pa.array(range(all_lines.num_rows), pa.int64())
    block = pa.nulls(all_lines.num_rows, pa.int64()).fill_null(0)
    return GatheredLines(
        all_lines.append_column(BLOCK, block).append_column(POSITION, position), names, frozenset(overfull)
    )


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
    batch: Sequence[QueuedFile], contents: Sequence[bytes | None], first: int
) -> tuple[pa.Table, dict[str, str], set[str]]:
    """Split contents into lines, without the lines of files that contain more than JSON objects.

    :return: the lines, the value of ``FILE`` for each kept URI, and the URIs of files that have a line with
        further text after its object.
    """
    texts = [_decode_text(content) for content in contents]
    lists = pc.split_pattern(pa.array(texts, pa.string()), "\n")
    lines, owners = pc.list_flatten(lists), pc.list_parent_indices(lists)
    trimmed = pc.utf8_trim_whitespace(lines)
    is_line = pc.not_equal(trimmed, "")
    wrong = pc.and_(is_line, pc.invert(pc.starts_with(trimmed, "{")))
    invalid_indexes = {int(index) for index in pc.unique(owners.filter(wrong)).to_pylist()}
    invalid_indexes |= {index for index, text in enumerate(texts) if text is None}
    is_valid = pc.and_(is_line, pc.invert(pc.is_in(owners, pa.array(sorted(invalid_indexes), owners.type))))
    names = pa.array([str(first + index) for index in range(len(batch))], pa.string())
    columns: dict[str, Any] = {LINE: lines.filter(is_valid), FILE: names.take(owners.filter(is_valid))}
    file_names = {
        file.uri: str(first + index) for index, file in enumerate(batch) if index not in invalid_indexes
    }
    return (
        pa.table(columns),
        file_names,
        {batch[index].uri for index in _find_overfull(trimmed, owners, is_line)},
    )


def _find_overfull(lines: Any, owners: Any, is_line: Any) -> set[int]:
    """Return the owners of lines that do not end with their object, or that contain a second object."""
    cut = pc.and_(is_line, pc.invert(pc.ends_with(lines, "}")))
    overfull_owners = set(pc.unique(owners.filter(cut)).to_pylist())
    doubtful = pc.and_(is_line, pc.match_substring_regex(lines, r"\}\s*\{"))
    pairs = zip(lines.filter(doubtful).to_pylist(), owners.filter(doubtful).to_pylist(), strict=True)
    return overfull_owners | {owner for line, owner in pairs if _is_two(line)}


def _is_two(line: str) -> bool:
    """Return whether text follows the first JSON value; False for invalid JSON, which other checks detect."""
    try:
        _, end = json.JSONDecoder().raw_decode(line)
    except ValueError:
        return False
    return end < len(line)


def _decode_text(content: bytes | None) -> str | None:
    """Decode a content whose lines end with a line feed, as the split in Arrow requires.

    Return None if there is no content, if lines may end otherwise, or if it is not valid UTF-8.
    """
    if content is None:
        return None
    content = content.removeprefix(_BOM).replace(b"\r\n", b"\n")
    if b"\r" in content:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None
