"""Damaged files: each is merged, or goes to failure with its reason, and the valid ones are merged.

They start as valid files of each format that a reader supports. Then their bytes, names or sidecars are
changed.
"""

from __future__ import annotations

import gzip
import json
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet
from pyspark.sql import SparkSession

from airflow_merge_provider.core.merge_record.landing import SIDECAR
from tests.campaigns.configurations import ODD, change_value
from tests.jobs.merge_record.contents import build_avro, encode_zigzag
from tests.jobs.merge_record.landing import Landing

_SOUND, _ODD = 4, 20
# Seconds for one run on a busy machine; a file whose reader hangs takes longer.
_SECONDS_MAX = 120
_AVRO_FIELDS = [{"name": "id", "type": "string"}, {"name": "n", "type": "long"}]
_AVRO_SCHEMA = json.dumps({"type": "record", "name": "r", "fields": _AVRO_FIELDS})
_SCRAPS = (
    b"{", b"}", b"[", b"]", b'"', b"'", b",", b"\\", b"\n", b"\r", b"\r\n", b"\t", b"\x00", b"\xff\xfe",
    b"\xef\xbb\xbf", b"\xed\xa0\x80", "\u2028é😀".encode(), b"1e999", b"-0", b"9" * 400, b"NaN", b"null",
    b"{}" * 3, b"[" * 3000, b'{"a":' * 3000, b'"__merge_slot":1,', b'"_metadata":{},', b"<r>",
    b"<!DOCTYPE r [<!ENTITY e 'e'>]>&e;", b"x" * 200_000,
)  # fmt: skip
_NAMES = (
    "a b", "ä", "😀", "a%20b", "a'b", "a[1]", "a*", "a{b,c}", "a\\b", "a\nb", "a:b", "a=b", "a#b?c", "sub/a",
    "-a", "a" * 200, "k=1/a", "a\u202eb", "\udcff", "a.gz", "a.bz2", "a.zst", "a.snappy",
)  # fmt: skip
_SIDECARS = (
    b"", b"{", b"[]", b"null", b'{"k": 1}', b'{"k": null}', b'{"k": "\\ud800"}', b"\xff\xfe",
    b'{"k": ' + b"[" * 100_000, b'{"k": "1", "k": "2"}', b'{"\xc3\xa9": "1"}', b'{"segment.index": "x"}',
    b'{"filename": "../../x"}',
)  # fmt: skip
_SCHEMA = "id STRING, n LONG"


@dataclass
class FileTally:
    """Results of files by format; ``failed`` has the rounds with any other result."""

    merged: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)


def try_files(spark: SparkSession, kind: str, seed: int, folder: Path, tally: FileTally) -> None:
    """Merge a folder of one format; the same seed writes the same files."""
    rng = random.Random(f"{kind}/{seed}/files")  # noqa: S311 - repeatable
    landing = Landing(folder, spark, **_build_settings(rng, kind))
    sound = [f"sound-{number}" for number in range(_SOUND)]
    for index, name in enumerate(sound):
        landing.put_file(f"{name}.{kind}", _WRITERS[kind]([{"id": name, "n": 1}]), at=10 * index)
    for number in range(_ODD):
        _put_odd(landing, rng, kind, number)
    began = time.monotonic()
    try:
        report = landing.run_job(at=1000)
        took = time.monotonic() - began
        assert took < _SECONDS_MAX, f"takes {took:.0f} s"
        failed = report["counts"]["failed_files"]
        tally.merged[kind] += report["counts"]["files"] - _SOUND
        tally.refused[kind] += failed
        _check_folder(landing, sound, failed)
    except Exception as error:  # noqa: BLE001 - any exception is a finding
        tally.failed.append(f"{kind} {seed}: {type(error).__name__}: {str(error)[:800]}, left in {folder}")
    else:
        shutil.rmtree(folder)


def _check_folder(landing: Landing, sound: list[str], failed: int) -> None:
    """Check that no file remains, valid files are merged once, and failed files have a reason."""
    if landing.settings["original_action"] != "keep":
        assert landing.list_names("in") == [], f"stays: {landing.list_names('in')}"
    texts = b"".join(path.read_bytes() for path in landing.list_outputs())
    counts = {name: texts.count(f'"id":"{name}"'.encode()) for name in sound}
    assert set(counts.values()) == {1}, f"not merged once: {counts}"
    names = landing.list_names("failure")
    assert len(names) == failed, f"{failed} failed, {len(names)} are there"
    reasons = [
        landing.read_attributes(landing.root / "failure" / name).get("failure.reason") for name in names
    ]
    assert all(reasons), f"without a reason: {list(zip(names, reasons, strict=True))}"
    again = landing.run_job(at=1001)
    assert not again["changed"], f"merged again: {again['counts']}"


def _build_settings(rng: random.Random, kind: str) -> dict[str, Any]:
    reader: dict[str, Any] = {"format": kind}
    if kind == "xml":
        reader |= {"schema": _SCHEMA, "options": {"rowTag": "r"}}
    elif rng.random() < 0.4:
        reader["schema"] = _SCHEMA
    return {
        "reader": reader,
        "writer": {"format": "json"},
        "failure_scope": "flowfile",
        "original_action": rng.choice(("move", "move", "delete", "keep")),
        "attribute_sources": ["sidecar"],
        "min_records": 1,
        "max_bin_age": "1 s",
    }


def _put_odd(landing: Landing, rng: random.Random, kind: str, number: int) -> None:
    rows: list[Any] = [{"id": f"odd-{number}-{index}", "n": index} for index in range(rng.choice((0, 1, 3)))]
    if kind in ("json", "json-array") and rows and rng.random() < 0.4:
        for _ in range(rng.choice((1, 2))):
            rows = change_value(rng, rows, rng.choice(ODD))
    try:
        content = _WRITERS[kind](rows)
    except (TypeError, ValueError, AttributeError, RecursionError):
        content = repr(rows).encode("utf-8", "replace")
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        content = _change_bytes(rng, content)
    name = f"{number}-{rng.choice(_NAMES)}" if rng.random() < 0.2 else f"odd-{number}"
    suffix = rng.choice((kind, kind, kind, "gz", "txt", f"{kind}.gz"))
    if suffix.endswith("gz") and rng.random() < 0.7:
        content = gzip.compress(content)
    path = landing.put_file(f"{name}.{suffix}", content, at=rng.randrange(100))
    if rng.random() < 0.15:
        path.with_name(f"{path.name}{SIDECAR}").write_bytes(rng.choice(_SIDECARS))


def _change_bytes(rng: random.Random, content: bytes) -> bytes:
    """Return content that is truncated, duplicated, shuffled or has foreign bytes inserted."""
    begin = rng.randrange(len(content) + 1)
    end = min(len(content), begin + rng.choice((0, 1, 1, 4, 40)))
    draw = rng.random()
    if draw < 0.15:
        return content[:begin]
    if draw < 0.25:
        return content + content
    if draw < 0.45:
        return content[:begin] + rng.randbytes(end - begin) + content[end:]
    return content[:begin] + rng.choice((*_SCRAPS, content[begin:end] * 2)) + content[end:]


def _write_lines(rows: Any) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _write_csv(rows: Any) -> bytes:
    return "".join(["id,n\n", *(f"{row['id']},{row['n']}\n" for row in rows)]).encode()


def _write_xml(rows: Any) -> bytes:
    cells = (f"<r><id>{row['id']}</id><n>{row['n']}</n></r>" for row in rows)
    return f"<rows>{''.join(cells)}</rows>".encode()


def _write_avro(rows: Any) -> bytes:
    cells = (encode_zigzag(len(row["id"])) + row["id"].encode() + encode_zigzag(row["n"]) for row in rows)
    return build_avro(_AVRO_SCHEMA, b"".join(cells), count=len(rows))


def _build_table(rows: Any) -> pa.Table:
    return pa.Table.from_pylist(rows, pa.schema([("id", pa.string()), ("n", pa.int64())]))


def _write_parquet(rows: Any) -> bytes:
    pyarrow.parquet.write_table(_build_table(rows), sink := BytesIO())
    return sink.getvalue()


def _write_orc(rows: Any) -> bytes:
    pyarrow.orc.write_table(_build_table(rows), sink := BytesIO())
    return sink.getvalue()


_WRITERS: dict[str, Callable[[Any], bytes]] = {
    "json": _write_lines,
    "json-array": lambda rows: json.dumps(rows).encode(),
    "csv": _write_csv,
    "xml": _write_xml,
    "avro": _write_avro,
    "parquet": _write_parquet,
    "orc": _write_orc,
}
KINDS = tuple(_WRITERS)
