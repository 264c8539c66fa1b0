"""Test that one bad file goes to failure with its reason, while the others are merged in the same run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.merge_record.landing import SIDECAR
from airflow_merge_provider.jobs.merge_record.engine import SparkEngine
from airflow_merge_provider.jobs.merge_record.readers import scan
from tests.jobs.merge_record.contents import build_avro, encode_zigzag
from tests.jobs.merge_record.landing import Landing

pytestmark = pytest.mark.spark

AVRO_SCHEMA = json.dumps({"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]})
DEEP = 5_000


def merge_beside(landing: Landing, good: tuple[str, ...] = ("good.json",)) -> dict[str, str]:
    """Merge once; check that the good files are merged; return the attributes of the failed one."""
    report = landing.run_job()
    assert report["counts"]["failed_files"] == 1, report
    assert report["counts"]["files"] == len(good)
    failed = [path for path in (landing.root / "failure").rglob("*") if not path.name.endswith(SIDECAR)]
    (failed_file,) = (path for path in failed if path.is_file())
    assert landing.list_names("in") == []
    attributes = landing.read_attributes(failed_file)
    assert attributes["failure.reason"]
    return attributes


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(build_avro(AVRO_SCHEMA, b"", count=1, size=-26), "block is damaged", id="negative size"),
        pytest.param(build_avro(AVRO_SCHEMA, b"", count=-1, size=0), "block is damaged", id="negative count"),
        pytest.param(build_avro('"long"', encode_zigzag(1)), "is not a record", id="no record"),
        pytest.param(
            build_avro('{"type": "record", "name": "r"}', encode_zigzag(1)), "fields", id="no fields"
        ),
        pytest.param(build_avro("[" * DEEP, encode_zigzag(1)), "", id="deep schema"),
        pytest.param(
            build_avro(AVRO_SCHEMA.replace('"long"', '"nosuch"'), encode_zigzag(1)),
            "unknown type",
            id="unknown type",
        ),
        pytest.param(
            build_avro(AVRO_SCHEMA.replace('"id"', '"__merge_slot"'), encode_zigzag(1)),
            "__merge_slot",
            id="our column",
        ),
        pytest.param(b"Obj\x01" + b"\xff" * 40, "header or a block is damaged", id="endless number"),
    ],
)
def test_avro(content: Any, reason: Any, lean: SparkSession, tmp_path: Path) -> None:
    """An Avro file with any invalid header fails alone."""
    landing = Landing(tmp_path, lean, reader={"format": "avro"}, writer={"format": "json"})
    landing.put_file("bad.avro", content)
    landing.put_file("good.avro", build_avro(AVRO_SCHEMA, encode_zigzag(7)))

    attributes = merge_beside(landing)

    assert reason in attributes["failure.reason"]
    assert landing.read_ids() == [[7]]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param("_metadata\n1\n", "_metadata", id="spark's column"),
        pytest.param("__merge_file\n1\n", "__merge_file", id="our column"),
    ],
)
def test_csv(content: Any, reason: Any, lean: SparkSession, tmp_path: Path) -> None:
    """A CSV file with any invalid first line fails alone."""
    landing = Landing(tmp_path, lean, reader={"format": "csv"}, writer={"format": "json"})
    landing.put_file("bad.csv", content)
    landing.put_file("good.csv", "id\n7\n")

    attributes = merge_beside(landing)

    assert reason in attributes["failure.reason"]
    assert landing.read_ids() == [[7]]


@pytest.mark.parametrize("reader", [{"format": "json"}, {"format": "json", "schema": "id LONG"}])
@pytest.mark.parametrize(
    "content",
    [
        pytest.param('{"id":' + "[" * DEEP + "]" * DEEP + "}\n", id="deep array"),
        pytest.param('{"id":' * DEEP + "1" + "}" * DEEP + "\n", id="deep object"),
        pytest.param('{"id": 1}\n\xff\xfe\n'.encode("latin-1"), id="no UTF-8"),
    ],
)
def test_lines_that_no_parser_takes(content: Any, reader: Any, lean: SparkSession, tmp_path: Path) -> None:
    """A file with lines that no parser accepts fails alone: nested too deeply, or not text."""
    landing = Landing(tmp_path, lean, failure_scope="flowfile", reader=reader)
    landing.put_file("bad.json", content)
    landing.put_records("good.json", {"id": 7})

    merge_beside(landing)

    assert landing.read_ids() == [[7]]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b'[{"id": 1, "v": "\xd8"}]', id="in a value"),
        pytest.param(b'[{"\xff\xfed": 1}]', id="in a name"),
    ],
)
def test_arrays_that_are_no_text(content: Any, lean: SparkSession, tmp_path: Path) -> None:
    """A file with an array that only one of two parsers accepts fails alone."""
    landing = Landing(tmp_path, lean, reader={"format": "json-array"}, writer={"format": "json"})
    landing.put_file("bad.json", content)
    landing.put_file("good.json", '[{"id": 7}]')

    merge_beside(landing)

    assert landing.read_ids() == [[7]]


@pytest.mark.parametrize("kind", ["json", "json-array"])
@pytest.mark.parametrize("name", ["__merge_slot", "__merge_seq", "__merge_bad", "_metadata", "__MERGE_FILE"])
def test_fields_called_like_columns_of_our_own(
    name: Any, kind: Any, lean: SparkSession, tmp_path: Path
) -> None:
    """A file with fields named like internal columns fails alone: they would be mistaken for these."""
    landing = Landing(tmp_path, lean, reader={"format": kind}, writer={"format": "json"})
    records = {"bad.json": {"id": 1, name: 5}, "good.json": {"id": 7}}
    for file, record in records.items():
        landing.put_file(file, json.dumps([record] if kind == "json-array" else record))

    attributes = merge_beside(landing)

    assert name in attributes["failure.reason"]
    assert landing.read_ids() == [[7]]


@pytest.mark.parametrize(
    "sidecar",
    [
        pytest.param(b'{"k": "\\ud800"}', id="surrogate"),
        pytest.param(b'{"\\ud800": "k"}', id="surrogate in a name"),
        pytest.param(b'{"k": ' + b"[" * 100_000, id="deep"),
        pytest.param(b'{"k": "' + b"x" * (1 << 20) + b'"}', id="large"),
        pytest.param(b"\xff\xfe", id="no UTF-8"),
    ],
)
def test_sidecars(sidecar: Any, lean: SparkSession, tmp_path: Path) -> None:
    """A file whose sidecar cannot be read, or whose attributes cannot be written, fails alone."""
    landing = Landing(tmp_path, lean)
    landing.put_records("bad.json", {"id": 1})
    (tmp_path / "in" / f"bad.json{SIDECAR}").write_bytes(sidecar)
    landing.put_records("good.json", {"id": 7}, k="1")

    attributes = merge_beside(landing)

    assert "is not a flat JSON object" in attributes["failure.reason"]
    assert landing.read_ids() == [[7]]


@pytest.mark.parametrize("name", [b"\xff\xfe.json", b"x" * 245 + b".json", "ä".encode() * 120 + b".json"])
@pytest.mark.parametrize("action", ["move", "delete", "keep"])
def test_names(name: Any, action: Any, lean: SparkSession, tmp_path: Path) -> None:
    """A file fails alone if its name is not text, or leaves no room for the name of a sidecar."""
    landing = Landing(tmp_path, lean, original_action=action)
    path = landing.put_records("bad.json", {"id": 1})
    path.rename(path.with_name(os.fsdecode(name)))
    landing.put_records("good.json", {"id": 7})

    report = landing.run_job()

    assert report["counts"]["failed_files"] == 1
    assert landing.read_ids() == [[7]]
    (failed_name,) = (
        path.name for path in (tmp_path / "failure").iterdir() if not path.name.endswith(SIDECAR)
    )
    assert failed_name.endswith(".json")
    assert landing.run_job(at=1)["changed"] is False


def test_symbolic_links(lean: SparkSession, tmp_path: Path) -> None:
    """Symbolic links are reported, not followed or changed, whether they leave the folder or form a cycle."""
    landing = Landing(tmp_path, lean, original_action="delete")
    landing.put_records("sub/good.json", {"id": 7})
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.json").write_text('{"id": 1}\n')
    folder = tmp_path / "in"
    (folder / "out").symlink_to(outside)
    (folder / "file.json").symlink_to(outside / "secret.json")
    (folder / "sub" / "circle").symlink_to(folder)
    (folder / "nowhere.json").symlink_to(tmp_path / "nowhere")

    report = landing.run_job()

    assert landing.read_ids() == [[7]]
    assert (outside / "secret.json").exists()
    assert sorted(path.name for path in folder.rglob("*") if path.is_symlink()) == [
        "circle", "file.json", "nowhere.json", "out"
    ]  # fmt: skip
    assert "4 symbolic links are not followed, such as file.json" in report["warnings"]


@pytest.mark.parametrize("option", [{"encoding": "nosuch"}, {"quote": "::"}], ids=["encoding", "quote"])
def test_a_wrong_option_fails_the_run_and_no_file(option: Any, lean: SparkSession, tmp_path: Path) -> None:
    """A wrong option fails the run and no file, because the error holds for all files alike."""
    landing = Landing(tmp_path, lean, reader={"format": "csv", "options": option})
    for name in ("a.csv", "b.csv"):
        landing.put_file(name, "id\n7\n")

    with pytest.raises(ConfigError, match=r"reader\.options"):
        landing.run_job()

    assert landing.list_names("in") == ["a.csv", "b.csv"]


@pytest.mark.parametrize(
    "wrong", [{"3.csv"}, {"0.csv", "1.csv", "2.csv", "3.csv", "4.csv"}], ids=["one", "all"]
)
def test_what_only_the_engine_raises(
    wrong: Any, lean: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If Spark does not name the bad file, it is found by bisection.

    The error is in the log of the run, and not in the reason. Errors of all files fail none of them.
    """
    lines: list[str] = []
    landing = Landing(
        tmp_path, engine=SparkEngine(lean, lines.append),
        reader={"format": "csv", "schema": "id LONG"}, writer={"format": "json"},
    )  # fmt: skip
    for number in range(5):
        landing.put_file(f"{number}.csv", f"id\n{number}\n", at=number)
    collect, error = scan._collect_summaries, "[READER_BROKE] org.apache.spark.SparkException: 7"

    def collect_and_fail(frames: Any) -> Any:
        summaries = collect(frames)
        if any(name.endswith(tuple(wrong)) for name in summaries):
            raise RuntimeError(error)
        return summaries

    monkeypatch.setattr(scan, "_collect_summaries", collect_and_fail)
    if len(wrong) > 1:
        with pytest.raises(RuntimeError, match="READER_BROKE"):
            landing.run_job(at=9)
        assert len(landing.list_names("in")) == 5
        return
    attributes = merge_beside(landing, good=("0", "1", "2", "4"))

    assert attributes["failure.reason"] == (
        "The file cannot be read: Spark cannot read all of it (write the file again, or remove it; the log "
        "of the run has the error of Spark)"
    )
    assert lines == [f"{tmp_path}/in/3.csv: RuntimeError: {error}"]
    assert landing.read_ids() == [[0, 1, 2, 4]]
