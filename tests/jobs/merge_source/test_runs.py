"""Test runs with invalid input, repeated runs, runs after a failure, and runs that must not write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import DataError, JobError
from airflow_merge_provider.jobs.merge_source.model import Entities
from airflow_merge_provider.jobs.merge_source.output import render
from airflow_merge_provider.jobs.merge_source.scan import source_scan
from tests.jobs.delta_log import list_commits
from tests.jobs.merge_source.conftest import MakePipe
from tests.jobs.merge_source.pipe import JSON, Pipe, build_table

RULE = {"equality": [["eq", "a.x", "b.x"]]}


def make_merged_pipe(make_pipe: MakePipe, **settings: Any) -> Pipe:
    """Create a pipe over two small tables that has run once."""
    pipe = make_pipe("AB", **{**RULE, **settings})
    pipe.write_rows("A", build_table({"_id": ["a1", "a2"], "x": [1, 2]}))
    pipe.write_rows("B", build_table({"_id": ["b1"], "x": [1]}))
    pipe.run_job("first")
    return pipe


def test_a_missing_dataset_is_empty(make_pipe: MakePipe) -> None:
    """A missing dataset counts as empty with a warning that names it, and keeps its own offset."""
    pipe = make_pipe("ABC", equality=[["eq", "a.x", "c.x"], ["eq", "b.x", "c.x"]])
    pipe.write_rows("A", build_table({"_id": ["a1"], "x": [1]}))
    pipe.write_rows("C", build_table({"_id": ["c1"], "x": [1]}))

    report = pipe.run_job()

    assert [row["_id"] for row in pipe.read_rows()] == ["0|a1|2|c1"]
    assert any(
        warning.startswith("dataset 'B' does not exist") and warning.endswith("treated as empty")
        for warning in report["warnings"]
    )
    assert report["sources"]["B"]["version"] is None


@pytest.mark.parametrize(
    ("existing", "settings", "named"),
    [("", {}, "dataset 'A'"), ("A", {"ignore_non_existent_datasets": False}, "dataset 'B'")],
    ids=["none exists", "one is waited for"],
)
def test_missing_datasets_are_refused(
    make_pipe: MakePipe, existing: str, settings: dict[str, Any], named: str
) -> None:
    """A run without any input is rejected, and so is a missing dataset that the configuration requires."""
    pipe = make_pipe("AB", **settings)
    for name in existing:
        pipe.write_rows(name, build_table({"_id": ["a1"]}))

    with pytest.raises(DataError, match=f"{named} does not exist at .*check the name and the warehouse"):
        pipe.run_job()

    assert pipe.read_version() is None


def build_texts(*values: Any) -> pa.Array:
    return pa.array(values, pa.string())


@pytest.mark.parametrize(
    ("bad", "settings", "message"),
    [
        (build_table({"key": ["a1"]}), {}, "there is no column '_id'"),
        (build_table({"_id": [1]}), {}, "column '_id' is BIGINT"),
        (build_table({"_id": build_texts("a1", None)}), {}, "entity without a string _id"),
        (build_table({"_id": build_texts("a1", "")}), {}, "entity without a string _id"),
        (build_table({"_id": ["a1"], "_deleted": ["true"]}), {}, "column '_deleted' is STRING"),
        (build_table({"_id": ["a1"], "$ids": [[1]]}), {}, r"column '\$ids' is ARRAY<BIGINT>"),
        (build_table({"_id": ["a1"], "x": [1]}), JSON, "no column 'entity'"),
        (build_table({"entity": [1]}), JSON, "column 'entity' is BIGINT"),
        (build_table({"entity": ['{"_id": "a1"}', "no json", None]}), JSON, "2 rows have no JSON object"),
        (build_table({"entity": ["[1]"]}), JSON, "1 rows have no JSON object"),
        (
            build_table({"entity": ['{"_id": 7}', '{"x": 1}', '{"_id": null}', '{"_id": ""}']}),
            JSON,
            "_id in 4 rows",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_input_that_holds_no_entities_is_refused(
    make_pipe: MakePipe, bad: pa.Table, settings: dict[str, Any], message: str
) -> None:
    """An input without valid entities is rejected; nothing is written.

    The error names the dataset, the problem and the remedy.
    """
    pipe = make_pipe("A", **settings)
    pipe.write_rows("A", bad)

    with pytest.raises(DataError, match=message) as refused:
        pipe.run_job()

    assert "dataset 'A'" in refused.value.message
    assert not refused.value.retryable
    assert pipe.read_version() is None


def test_an_error_leaves_the_target_as_it_was(make_pipe: MakePipe) -> None:
    """Duplicates, oversized clusters and invalid flags stop a rewrite before the target changes."""
    pipe = make_merged_pipe(make_pipe)
    before = pipe.read_rows()

    with pytest.raises(DataError, match="max_merged: 2 entities would be merged into one, the limit is 1"):
        pipe.run_job(full_refresh=True, max_merged=1)
    pipe.write_rows("B", build_table({"_id": ["a2"], "x": [7]}))
    with pytest.raises(DataError, match="duplicate output id 'a2': from A/a2 and B/a2"):
        pipe.run_job(full_refresh=True, identity="first")
    pipe.write_rows("B", build_table({"_id": ["b1"], "x": [1]}))
    with pytest.raises(DataError, match="entity 'b1' is in 2 rows"):
        pipe.run_job(full_refresh=True)

    assert pipe.read_version() == 0
    assert pipe.read_rows() == before


@pytest.mark.parametrize("kind", ["files", "foreign"])
def test_a_target_of_somebody_else_is_refused(make_pipe: MakePipe, kind: str) -> None:
    """Neither other files nor a Delta table that this job did not write are overwritten."""
    pipe = make_pipe("A")
    pipe.write_rows("A", build_table({"_id": ["a1"]}))
    if kind == "files":
        pipe.target.mkdir()
        (pipe.target / "precious.txt").write_text("mine", encoding="utf-8")
    else:
        write_deltalake(str(pipe.target), build_table({"precious": [1]}))
    message = (
        "is not a Delta table" if kind == "files" else "was written by another writer, not by merge_source"
    )

    for full_refresh in (False, True):
        with pytest.raises(DataError, match=message):
            pipe.run_job(full_refresh=full_refresh)

    if kind == "files":
        assert [file.name for file in pipe.target.iterdir()] == ["precious.txt"]
    else:
        assert pipe.read_version() == 0


def test_a_run_again_does_nothing(make_pipe: MakePipe) -> None:
    """A run with the same inputs and configuration commits no version; its report repeats the figures."""
    pipe = make_merged_pipe(make_pipe)

    again = pipe.run_job("second", comment="not part of the configuration", max_merged=7)

    assert again["changed"] is False
    assert {name: count for name, count in again["counts"].items() if count} == {
        "entities": 3,
        "live_rows": 2,
        "merged_rows": 1,
        "outputs": 2,
    }
    assert pipe.read_version() == again["target"]["version"] == 0


def test_a_retry_reports_its_own_commit(make_pipe: MakePipe) -> None:
    """A retry of an attempt that died after its commit reports "changed" and writes nothing again."""
    pipe = make_merged_pipe(make_pipe)

    again = pipe.run_job("first")

    assert again["changed"] is True
    assert pipe.read_version() == again["target"]["version"] == 0
    assert [entry["run"]["number"] for entry in list_commits(pipe.target)] == [1]


@pytest.mark.parametrize("until", ["plan", "transform"])
def test_a_dry_run_writes_nothing(make_pipe: MakePipe, until: str) -> None:
    """A dry run writes neither a new target nor a new version; a transform shows what a run would find."""
    pipe = make_pipe("AB", **RULE)
    pipe.write_rows("A", build_table({"_id": ["a1"], "x": [1]}))
    pipe.write_rows("B", build_table({"_id": ["b1"], "x": [1]}))

    report = pipe.run_job(until=until)

    assert report["dry_run"] is True
    assert report["changed"] is False
    assert report["target"]["version"] is None
    assert not pipe.target.exists()
    assert report["sources"]["A"]["version"] == 0
    if until == "transform":
        assert report["counts"]["merged_rows"] == 1
        assert report["details"]["largest"] == {"size": 2, "members": ["A/a1", "B/b1"]}


def test_an_empty_source_is_accepted_or_not(make_pipe: MakePipe) -> None:
    """Datasets without rows give an empty target, or an error if ``if_source_empty`` requires it."""
    pipe = make_pipe("A")
    pipe.write_rows("A", build_table({"_id": pa.array([], pa.string())}))

    with pytest.raises(DataError, match="if_source_empty: the datasets contain no entities"):
        pipe.run_job(if_source_empty="fail")
    assert pipe.read_version() is None
    report = pipe.run_job()

    assert report["counts"]["outputs"] == 0
    assert pipe.read_rows() == []


def one_key_hash(entities: Entities) -> Entities:
    keys = {
        order: (at, np.full_like(hashes, 5), seconds)
        for order, (at, hashes, seconds) in entities.keys.items()
    }
    return replace(entities, keys=keys)


def one_id_hash(entities: Entities) -> Entities:
    return replace(entities, hashes=np.full_like(entities.hashes, 5))


@pytest.mark.parametrize("spoil", [one_key_hash, one_id_hash])
def test_colliding_hashes_are_noticed_and_drawn_anew(
    make_pipe: MakePipe, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Entities], Entities]
) -> None:
    """If different keys or ids have one hash, they are not merged: the run logs it and uses another seed."""
    pipe = make_pipe("AB", **RULE)
    pipe.write_rows("A", build_table({"_id": ["a1", "a2"], "x": [1, 2]}))
    pipe.write_rows("B", build_table({"_id": ["b1", "b3"], "x": [1, 3]}))
    read = source_scan.read_entities

    def read_colliding(*args: Any) -> Entities:
        again = any("hashed again" in line for line in pipe.log_lines)
        return read(*args) if again else spoil(read(*args))

    monkeypatch.setattr(source_scan, "read_entities", read_colliding)

    report = pipe.run_job()

    assert pipe.read_clusters() == [["a1", "b1"], ["a2"], ["b3"]]
    assert report["warnings"] == ["two values have the same hash with seed 0: all values were hashed again"]


def test_hashes_that_always_collide_end_the_run(make_pipe: MakePipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run fails after a few seeds with collisions, so that different values are never merged."""
    pipe = make_pipe("A")
    pipe.write_rows("A", build_table({"_id": ["a1", "a2"]}))
    read = source_scan.read_entities
    monkeypatch.setattr(source_scan, "read_entities", lambda *args: one_id_hash(read(*args)))

    with pytest.raises(JobError, match="hashes collided"):
        pipe.run_job()

    assert pipe.read_version() is None


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["default", "compact", "list"])
def test_many_rows_are_written_like_few(
    lean: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: Any
) -> None:
    """Singletons have the same content whether they bypass clustering or not."""
    written = []
    for max_rows in (render._PLANNED_ONCE_MAX, 0):
        monkeypatch.setattr(render, "_PLANNED_ONCE_MAX", max_rows)
        pipe = Pipe(
            lean,
            tmp_path / str(max_rows),
            datasets=["A a", "B b"],
            equality=[["eq", "a.x", "b.x"]],
            strategy=strategy,
        )
        pipe.write_json("A", [{"_id": "a1", "x": 1}, {"_id": "a2", "x": [3, 3], "n": {"k": None}, "e": []}])
        deleted = {"_id": "b2", "x": [1], "_deleted": True, "$replaced": True, "$ids": ["o1", "o2"]}
        pipe.write_json("B", [{"_id": "b1", "x": [1]}, deleted, {"_id": "b3", "$replaced": True, "z": None}])
        pipe.run_job(**JSON)
        table = lean.read.format("delta").load(str(pipe.target)).drop("_ts", "entity").toArrow()
        written.append([pipe.read_rows(), table.sort_by("_updated").to_pylist()])

    assert written[0] == written[1]
    assert len(written[0][0]) == 4


def test_typed_rows_have_one_hash_whichever_way_they_go(
    lean: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A singleton's content hash, computed without VARIANT, equals the hash of its VARIANT."""
    texts = [
        "plain",
        'quo"te',
        "back\\slash",
        "tab\t",
        "\x00\x1f\x7f",
        "\u2028 ä ß 漢 😀",
        "</script>",
        "",
        None,
    ]
    columns = {
        "_id": [f"a{number}" for number in range(len(texts))],
        "x": texts,
        'odd "name"\t\\': texts[::-1],
        "\uff5e": ["before a pair"] * len(texts),
        "\U0001f600": ["a pair"] * len(texts),
        "number": [number << 62 if number % 2 else -number for number in (0, 1) * 4] + [None],
        "flag": [True, False, None] * 3,
    }
    alike = {"_id": ["b1", "b2"], "NUMBER": ["not", "the same"], "Flag": [1, None]}
    written = []
    for max_rows in (render._PLANNED_ONCE_MAX, 0):
        monkeypatch.setattr(render, "_PLANNED_ONCE_MAX", max_rows)
        pipe = Pipe(
            lean, tmp_path / str(max_rows), datasets=["A a", "B b"], equality=[["eq", "a.x", "b.NUMBER"]]
        )
        pipe.write_rows("A", build_table(columns))
        pipe.write_rows("B", build_table(alike))
        pipe.run_job()
        rows = lean.read.format("delta").load(str(pipe.target))
        written.append(rows.selectExpr("_hash", "to_json(entity) AS entity").toArrow().sort_by("_hash"))

    assert written[0].num_rows == len(texts) + 2
    assert written[0].equals(written[1])
